//! A lease as JSON: `fabricctl --json` prints it, and the Python package has it as a dictionary. The names are a contract;
//! absent parts are omitted.

use base16ct::lower::encode_string;
use fabricbios_wire::{
    Binding, LeaseEnd, LeaseInfo, LeaseIntent, LeaseStatus, ProofStep, Transport,
};
use zeroize::Zeroizing;

use crate::{
    AffinityWords,
    json::{Field, Object, field},
    kinds,
};

/// A lease as JSON. It has the keys of the lease.
#[must_use]
pub fn lease_json(info: &LeaseInfo) -> Object<'_> {
    let unless_zero = |ms: u64| Some(ms).filter(|ms| *ms != 0);
    let end = info.end.as_deref().map(end);
    Object::from([
        field("lease_id", info.lease_id.to_string()),
        field("resource_id", info.resource_id.to_string()),
        field("resource_type", info.resource_type().to_string()),
        field("state", info.phase.name()),
        field("status", status(info.status)),
        field("generation", info.generation.0),
        field("capacity", info.capacity),
        field("granted_at_unix_ms", info.granted_at_unix_ms),
        field("expires_at_unix_ms", info.expires_at_unix_ms),
        field(
            "renewable_at_unix_ms",
            unless_zero(info.renewable_at_unix_ms),
        ),
        field("grace_ends_unix_ms", unless_zero(info.grace_ends_unix_ms)),
        field("remaining_ms", info.remaining_ms),
        field("effective", effective(info)),
        field("intent", info.intent.as_deref().map(intent)),
        field("request_token", info.request_token.map(|it| it.to_string())),
        field("binding", binding(&info.binding)),
        field("tenant", info.tenant.as_deref()),
    ])
    .with(end.into_iter().flatten())
}

/// The status of LEASE_QUERY in the words of the specification.
#[must_use]
pub fn status(status: LeaseStatus) -> &'static str {
    match status {
        LeaseStatus::Active => "ACTIVE",
        LeaseStatus::Expired => "EXPIRED",
        LeaseStatus::Revoked => "REVOKED",
    }
}

fn effective(info: &LeaseInfo) -> Object<'static> {
    let it = &info.effective;
    let of_all = [
        field("transport", it.transport.map(Transport::name)),
        field("rotate_on_renew", it.rotate_on_renew),
    ];
    Object::from(of_all).with(kinds::terms_json(&info.binding, it))
}

/// The statements of the tenant. The node keeps them and enforces none.
fn intent(intent: &LeaseIntent) -> Object<'_> {
    let kv_cache = intent.kv_cache.map(|it| {
        let block_bytes = Some(it.block_bytes).filter(|bytes| *bytes != 0);
        Object::from([
            field("tier", it.tier.name()),
            field("block_bytes", block_bytes),
        ])
    });
    let affinities = intent.affinities.iter();
    let affinities = affinities.map(|it| AffinityWords::from(it).json());
    Object::from([
        field("kv_cache", kv_cache),
        field("affinities", unless_empty(affinities)),
    ])
}

fn binding(binding: &Binding) -> Object<'_> {
    let key = binding.dp_key.as_ref();
    let limits = binding.limits.map(|limits| {
        Object::from([
            field("offset", limits.offset),
            field("length", limits.length),
        ])
    });
    let of_all = [
        field(
            "dp_key",
            key.map(|key| Zeroizing::new(encode_string(&key.0))),
        ),
        field(
            "udp_endpoint",
            binding.udp_endpoint.map(|it| it.to_string()),
        ),
        field("limits", limits),
    ];
    Object::from(of_all).with(kinds::binding_json(binding))
}

fn end(end: &LeaseEnd) -> [Field<'_>; 5] {
    fn step(it: &ProofStep) -> Object<'_> {
        let found = Some(&*it.found).filter(|found| !found.is_empty());
        Object::from([
            field("step", &*it.step),
            field("found", found),
            field("took_us", it.took_us),
        ])
    }
    [
        field("ended_at_unix_ms", end.at_unix_ms),
        field("end_cause", end.cause.name()),
        field("ended_by", end.by.as_deref()),
        field("proof", unless_empty(end.proof.iter().map(step))),
        field("cleaning", unless_empty(end.cleaning.iter().map(step))),
    ]
}

fn unless_empty<'a>(objects: impl Iterator<Item = Object<'a>>) -> Option<Vec<Object<'a>>> {
    Some(objects.collect()).filter(|objects: &Vec<_>| !objects.is_empty())
}
