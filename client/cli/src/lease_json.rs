//! The JSON of a lease. The names are a contract; absent parts are omitted.

use base16ct::lower::encode_string;
use fabricbios_wire::{
    Binding, LeaseEnd, LeaseInfo, LeaseIntent, LeaseStatus, ProofStep, Transport,
};
use serde::Serialize;
use zeroize::Zeroizing;

use crate::{kinds::OfKind, values::AffinityWords};

#[derive(Serialize)]
pub(crate) struct LeaseJson<'a> {
    lease_id: String,
    resource_id: String,
    resource_type: String,
    state: &'static str,
    status: &'static str,
    generation: u32,
    capacity: u64,
    granted_at_unix_ms: u64,
    expires_at_unix_ms: u64,
    #[serde(skip_serializing_if = "is_zero")]
    renewable_at_unix_ms: u64,
    #[serde(skip_serializing_if = "is_zero")]
    grace_ends_unix_ms: u64,
    remaining_ms: u64,
    effective: EffectiveJson<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    intent: Option<IntentJson>,
    binding: BindingJson<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    #[serde(flatten)]
    end: Option<EndJson<'a>>,
}

#[derive(Debug, Serialize)]
struct EndJson<'a> {
    ended_at_unix_ms: u64,
    end_cause: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    proof: Vec<StepJson<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cleaning: Vec<StepJson<'a>>,
}

#[derive(Debug, Serialize)]
struct StepJson<'a> {
    step: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    found: &'a str,
    took_us: u32,
}

#[derive(Serialize)]
struct EffectiveJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<&'static str>,
    rotate_on_renew: bool,
    #[serde(flatten)]
    of_kind: OfKind<'a>,
}

/// The statements of the tenant. The node keeps them and enforces none.
#[derive(Debug, Serialize)]
struct IntentJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_cache: Option<KvCacheJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    affinities: Vec<AffinityWords>,
}

#[derive(Debug, Serialize)]
struct KvCacheJson {
    tier: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_bytes: Option<u32>,
}

#[derive(Serialize)]
struct BindingJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    dp_key: Option<Zeroizing<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    udp_endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<LimitsJson>,
    #[serde(flatten)]
    of_kind: OfKind<'a>,
}

#[derive(Debug, Serialize)]
struct LimitsJson {
    offset: u64,
    length: u64,
}

// serde passes a reference.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The status of LEASE_QUERY in the words of the specification.
pub(crate) fn status(status: LeaseStatus) -> &'static str {
    match status {
        LeaseStatus::Active => "ACTIVE",
        LeaseStatus::Expired => "EXPIRED",
        LeaseStatus::Revoked => "REVOKED",
    }
}

impl<'a> From<&'a LeaseInfo> for LeaseJson<'a> {
    fn from(info: &'a LeaseInfo) -> Self {
        Self {
            lease_id: info.lease_id.to_string(),
            resource_id: info.resource_id.to_string(),
            resource_type: info.resource_type().to_string(),
            state: info.phase.name(),
            status: status(info.status),
            generation: info.generation.0,
            capacity: info.capacity,
            granted_at_unix_ms: info.granted_at_unix_ms,
            expires_at_unix_ms: info.expires_at_unix_ms,
            renewable_at_unix_ms: info.renewable_at_unix_ms,
            grace_ends_unix_ms: info.grace_ends_unix_ms,
            remaining_ms: info.remaining_ms,
            effective: EffectiveJson {
                transport: info.effective.transport.map(Transport::name),
                rotate_on_renew: info.effective.rotate_on_renew,
                of_kind: OfKind::Terms(info),
            },
            intent: info.intent.as_deref().map(IntentJson::from),
            binding: (&info.binding).into(),
            tenant: info.tenant.as_deref(),
            end: info.end.as_deref().map(EndJson::from),
        }
    }
}

impl<'a> From<&'a LeaseEnd> for EndJson<'a> {
    fn from(end: &'a LeaseEnd) -> Self {
        let step = |it: &'a ProofStep| StepJson {
            step: &it.step,
            found: &it.found,
            took_us: it.took_us,
        };
        Self {
            ended_at_unix_ms: end.at_unix_ms,
            end_cause: end.cause.name(),
            ended_by: end.by.as_deref(),
            proof: end.proof.iter().map(step).collect(),
            cleaning: end.cleaning.iter().map(step).collect(),
        }
    }
}

impl From<&LeaseIntent> for IntentJson {
    fn from(intent: &LeaseIntent) -> Self {
        Self {
            kv_cache: intent.kv_cache.map(|it| KvCacheJson {
                tier: it.tier.name(),
                block_bytes: Some(it.block_bytes).filter(|bytes| *bytes != 0),
            }),
            affinities: intent.affinities.iter().map(AffinityWords::from).collect(),
        }
    }
}

impl<'a> From<&'a Binding> for BindingJson<'a> {
    fn from(binding: &'a Binding) -> Self {
        let limits = binding.limits;
        Self {
            dp_key: binding
                .dp_key
                .as_ref()
                .map(|key| Zeroizing::new(encode_string(&key.0))),
            udp_endpoint: binding.udp_endpoint.map(|endpoint| endpoint.to_string()),
            limits: limits.map(|limits| LimitsJson {
                offset: limits.offset,
                length: limits.length,
            }),
            of_kind: OfKind::Binding(binding),
        }
    }
}
