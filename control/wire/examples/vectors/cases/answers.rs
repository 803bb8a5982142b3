//! Every answer and every refusal.

use fabricbios_wire::*;

use super::*;
use crate::samples;

pub(super) fn answer(
    c: &mut Vec<Case>,
    name: &str,
    about: &str,
    message: MessageType,
    reply: Reply,
) {
    add_answer(c, &format!("answer_{name}"), about, message, &Ok(reply));
}

#[rustfmt::skip] // One case a line.
fn add_answer(c: &mut Vec<Case>, name: &str, about: &str, message: MessageType, answer: &Answer) {
    let asked = asked(message);
    let bytes = encode_answer(&asked, answer);
    good(c, name, Kind::Answer(asked), about, bytes, json(answer));
}

#[rustfmt::skip] // One case a line.
pub(crate) fn answers(c: &mut Vec<Case>) {
    use MessageType as M;
    answer(c, "ping", "PING's number", M::Ping, Reply::Pong(0xa1a2_a3a4_a5a6_a7a8));
    let identity = NodeIdentity {
        node_id: samples::NODE,
        epoch: Epoch(42),
        endpoint: Endpoint {
            addr: samples::gid(7),
            port: 5701,
        },
        tenant: "team-a".to_owned(),
        role: Role::Tenant,
        version: "0.1.0".to_owned(),
    };
    answer(c, "identity", "GET_IDENTITY, IPv4", M::GetIdentity, Reply::Identity(identity.clone()));
    let addr = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    for role in [Role::Node, Role::Scheduler] {
        let member = NodeIdentity {
            tenant: format!("{role}.fabricbios"),
            role,
            ..identity.clone()
        };
        let (name, about) = (format!("identity_of_{role}"), format!("GET_IDENTITY of a {role}"));
        answer(c, &name, &about, M::GetIdentity, Reply::Identity(member));
    }
    let v6 = NodeIdentity {
        endpoint: Endpoint { addr, port: 5701 },
        ..identity
    };
    answer(c, "identity_v6", "GET_IDENTITY, IPv6", M::GetIdentity, Reply::Identity(v6));
    let entries = vec![samples::entry(ResourceType::Mem, 0)];
    let about = "GET_INVENTORY in the flat form";
    answer(c, "inventory_flat", about, M::GetInventory, Reply::FlatInventory(entries));
    let about = "GET_INVENTORY in the structured form";
    let inventory = Reply::Inventory(samples::inventory());
    answer(c, "inventory_structured", about, M::GetInventory, inventory);
    for message in [
        M::LeaseAlloc,
        M::LeaseRenew,
        M::LeaseQuery,
        M::LeaseBind,
        M::LeaseRotate,
    ] {
        let name = message.name().to_lowercase();
        let about = "a lease of memory over RDMA";
        answer(c, &name, about, message, Reply::Lease(samples::rdma_lease()));
    }
    let freed = LeaseInfo {
        status: LeaseStatus::Expired,
        phase: LeasePhase::Freed,
        remaining_ms: 0,
        ..samples::lease(Binding::plain(ResourceType::Mem))
    };
    let about = "LEASE_FREE answers with the ended lease";
    answer(c, "lease_free", about, M::LeaseFree, Reply::Lease(freed.clone()));
    let about = "a lease with every part";
    answer(c, "lease_full", about, M::LeaseQuery, Reply::Lease(samples::full_lease()));
    intents(c);
    let asked = LeaseInfo { request_token: Some(samples::TOKEN), ..samples::rdma_lease() };
    answer(c, "lease_request_token", "the token of its request", M::LeaseAlloc, Reply::Lease(asked));
    lease_lives(c);
    lease_ends(c);
    let last = LeaseId(samples::LEASE.0 + 1);
    let freed = LeaseInfo {
        lease_id: last,
        ..freed
    };
    let page = LeasePage {
        leases: vec![samples::lease(Binding::plain(ResourceType::Mem)), freed],
        next: Some(last),
    };
    answer(c, "lease_list", "LEASE_LIST, more to come", M::LeaseList, Reply::Leases(page));
    let mut revoked = samples::revoked_lease();
    revoked.end.iter_mut().map(std::sync::Arc::make_mut).for_each(|end| {
        end.proof.clear();
        end.cleaning.clear();
    });
    let alive = LeaseInfo {
        lease_id: last,
        tenant: Some("team-é".to_owned()),
        ..samples::lease(Binding::plain(ResourceType::Mem))
    };
    let page = LeasePage {
        leases: vec![revoked, alive],
        next: None,
    };
    let about = "LEASE_LIST of an operator: whose each is, how it ended, no proofs";
    answer(c, "lease_list_operator", about, M::LeaseList, Reply::Leases(page));
    let none = Reply::Leases(LeasePage::default());
    answer(c, "lease_list_empty", "LEASE_LIST, no leases", M::LeaseList, none);
    for outcome in RevokeOutcome::ALL {
        let name = format!("revoke_{outcome}");
        answer(c, &name, "LEASE_REVOKE", M::LeaseRevoke, Reply::Revoked(*outcome));
    }
    let fence = Fence {
        resource_id: samples::ARENA,
        resource_type: ResourceType::Mem,
        lease_id: samples::LEASE,
        since_unix_ms: 1_800_000_060_009,
        reason: "dealloc_mw: EBUSY on rxe0".to_owned(),
    };
    answer(c, "fence_list", "FENCE_LIST", M::FenceList, Reply::Fences(vec![fence]));
    answer(c, "fence_clear", "FENCE_CLEAR", M::FenceClear, Reply::FenceCleared);
    let issued = Reply::Issued {
        certificate_pem: "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n".into(),
        ca_pem: "-----BEGIN CERTIFICATE-----\nMQ==\n-----END CERTIFICATE-----\n".into(),
    };
    answer(c, "identity_issue", "IDENTITY_ISSUE", M::IdentityIssue, issued);
}

/// The intent of the tenant, repeated in the answer.
#[rustfmt::skip] // One case a line.
fn intents(c: &mut Vec<Case>) {
    let with = |intent: LeaseIntent| {
        Reply::Lease(LeaseInfo { intent: Some(Box::new(intent)), ..samples::rdma_lease() })
    };
    let query = MessageType::LeaseQuery;
    answer(c, "lease_intent", "KV-cache intent and affinities", query, with(samples::intent()));
    let kv_cache = LeaseIntent { affinities: vec![], ..samples::intent() };
    answer(c, "lease_intent_kv_cache", "KV-cache intent alone", query, with(kv_cache));
    let near = LeaseIntent { kv_cache: None, ..samples::intent() };
    answer(c, "lease_intent_affinities", "affinities alone", query, with(near));
}

/// Every phase, with the status that belongs to it.
#[rustfmt::skip] // One case a line.
fn lease_lives(c: &mut Vec<Case>) {
    for phase in LeasePhase::ALL {
        let status = match phase {
            LeasePhase::Binding | LeasePhase::Active => LeaseStatus::Active,
            LeasePhase::Grace | LeasePhase::Expired | LeasePhase::Freed => LeaseStatus::Expired,
            LeasePhase::Revoked | LeasePhase::Fenced => LeaseStatus::Revoked,
        };
        let lease = LeaseInfo {
            status,
            phase: *phase,
            ..samples::lease(Binding::plain(ResourceType::Mem))
        };
        let name = format!("lease_phase_{phase}");
        answer(c, &name, "LEASE_QUERY", MessageType::LeaseQuery, Reply::Lease(lease));
    }
}

/// The data of an end that tenants and operators receive.
#[rustfmt::skip] // One case a line.
fn lease_ends(c: &mut Vec<Case>) {
    let query = MessageType::LeaseQuery;
    let revoked = samples::revoked_lease();
    let about = "an operator's LEASE_QUERY of a lease that was revoked: whose it was, by whom, the proof";
    answer(c, "lease_end_operator", about, query, Reply::Lease(revoked.clone()));
    let of = |change: fn(&mut LeaseEnd)| {
        let mut lease = LeaseInfo { tenant: None, ..revoked.clone() };
        lease.end.iter_mut().map(std::sync::Arc::make_mut).for_each(|end| {
            end.by = None;
            change(end);
        });
        lease
    };
    let about = "the same to its tenant: neither its own name nor the operator's";
    answer(c, "lease_end_tenant", about, query, Reply::Lease(of(|_| ())));
    for cause in EndCause::ALL {
        let mut lease = of(|end| {
            end.proof.clear();
            end.cleaning.clear();
        });
        lease.end.iter_mut().map(std::sync::Arc::make_mut).for_each(|end| end.cause = *cause);
        answer(c, &format!("lease_end_{cause}"), "LEASE_QUERY", query, Reply::Lease(lease));
    }
    let longest = of(|end| {
        let step = ProofStep {
            step: "s".repeat(PROOF_STEP_BYTES_MAX).into(),
            took_us: u32::MAX,
            found: "f".repeat(PROOF_FOUND_BYTES_MAX),
        };
        end.cleaning = vec![step.clone(); CLEANING_STEPS_MAX];
        end.proof = vec![step; PROOF_STEPS_MAX];
    });
    let about = "the longest proof that there can be";
    answer(c, "lease_end_longest_proof", about, query, Reply::Lease(longest));
    steps_without_an_end(c);
}

fn steps_without_an_end(c: &mut Vec<Case>) {
    let steps = [
        tlv(0x0C03, b"\0\0\0\x01\x04stepfound"),
        tlv(0x0C03, &[1]),
        tlv(0x0C04, &[1]),
    ]
    .concat();
    let about = "0x0C03 and 0x0C04 without 0x0C02 are skipped, also where they are none";
    with_more(c, "steps_without_end", about, samples::rdma_lease(), &steps);
}

/// The lease with further TLVs, which an encoder does not write and a decoder ignores.
pub(super) fn with_more(c: &mut Vec<Case>, name: &str, about: &str, lease: LeaseInfo, more: &[u8]) {
    let asked = asked(MessageType::LeaseQuery);
    let answer = Ok(Reply::Lease(lease));
    let whole = encode_answer(&asked, &answer);
    let (fixed, area) = whole[HEADER_LEN..].split_at(2 + 88);
    let area = [&area[4..], more].concat();
    let length = u32::try_from(area.len()).unwrap_or(u32::MAX).to_be_bytes();
    c.push(Case {
        name: format!("answer_lease_{name}"),
        kind: Kind::Answer(asked),
        about: about.to_owned(),
        bytes: frame(
            REPLY,
            MessageType::LeaseQuery as u16,
            &[fixed, &length, &area].concat(),
        ),
        expect: Expect::Accepted(json(&answer)),
    });
}

pub(crate) fn refusals(c: &mut Vec<Case>) {
    for (n, error) in LeaseError::ALL.iter().enumerate() {
        let class = RefusalClass::ALL[n % RefusalClass::ALL.len()];
        let mut refusal = Refusal::new(*error, class, format!("{error}: what to do next, é"));
        refusal.renewable_at_unix_ms =
            (*error == LeaseError::RenewTooEarly).then_some(1_800_000_048_003);
        refusal.retry_after_ms = (*error == LeaseError::ResourceBusy).then_some(0x0102_0304);
        let name = format!(
            "refusal_{:02}_{}",
            *error as u16,
            error.name().to_lowercase()
        );
        let about = "a refusal; every message can have it";
        add_answer(c, &name, about, MessageType::LeaseRenew, &Err(refusal));
    }
}
