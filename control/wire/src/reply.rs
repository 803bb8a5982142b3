//! Payloads of replies: `u16 status`, then the reply or the refusal.

use alloc::{string::String, vec::Vec};

use crate::{
    Answer, Candidate, EXPLANATION_BYTES_MAX, Epoch, FENCE_REASON_BYTES_MAX, FENCES_MAX, Fence,
    InventoryForm, LeaseError, LeaseId, MessageType, NodeId, NodeIdentity, PEM_BYTES_MAX,
    REFUSAL_MESSAGE_BYTES_MAX, Refusal, RefusalClass, Reply, ResourceType, RevokeOutcome, Role,
    TENANT_BYTES_MAX, VERSION_BYTES_MAX, endpoint, error, flat, fleet, fleet_leases, lease_info,
    read::{Decoded, Reader, invalid_args},
    structured, tag,
    write::{Writer, cut},
};

const SUCCESS: u16 = 0;
/// The status of an answer with candidates.
const REDIRECT: u16 = 15;
/// A redirect of a LEASE_ALLOC, with its reasons.
const EXPLAINED: u16 = 16;
/// Bytes of a fence with an empty reason.
const FENCE_MIN_LEN: usize = 16 + 2 + 16 + 8 + 4;

pub(crate) fn read(
    message_type: impl Fn() -> Decoded<MessageType>,
    r: &mut Reader<'_>,
) -> Decoded<Answer> {
    let at = r.offset();
    match r.u16("status")? {
        SUCCESS => read_reply(message_type()?, r).map(Ok),
        REDIRECT if may_be_redirected(message_type()?) => {
            read_candidates(r).map(Reply::Redirect).map(Ok)
        }
        EXPLAINED if message_type()? == MessageType::LeaseAlloc => {
            let candidates = read_candidates(r)?;
            let why = r.text(EXPLANATION_BYTES_MAX, "explanation")?;
            Ok(Ok(Reply::Explained { candidates, why }))
        }
        code => read_refused(at, code, r).map(Err),
    }
}

/// Whether a scheduler names nodes in its answer to such a request.
fn may_be_redirected(message_type: MessageType) -> bool {
    use MessageType as M;
    matches!(
        message_type,
        M::LeaseAlloc
            | M::LeaseRenew
            | M::LeaseQuery
            | M::LeaseFree
            | M::LeaseBind
            | M::LeaseRotate
            | M::LeaseRevoke
    )
}

fn read_candidates(r: &mut Reader<'_>) -> Decoded<Vec<Candidate>> {
    let at = r.offset();
    let candidates = fleet::read_candidates(r)?;
    match candidates.is_empty() {
        true => Err(invalid_args(at, "candidates", "1 to 8", error::number(0))),
        false => Ok(candidates),
    }
}

/// Reads `u16 status`, then the value with `read`, or a refusal.
pub(crate) fn read_outcome<T>(
    r: &mut Reader<'_>,
    read: impl FnOnce(&mut Reader<'_>) -> Decoded<T>,
) -> Decoded<Result<T, Refusal>> {
    let at = r.offset();
    match r.u16("status")? {
        SUCCESS => read(r).map(Ok),
        code => read_refused(at, code, r).map(Err),
    }
}

fn read_refused(at: usize, code: u16, r: &mut Reader<'_>) -> Decoded<Refusal> {
    match LeaseError::from_code(code) {
        Some(error) => read_refusal(error, r),
        None => Err(invalid_args(at, "status", "0 to 14", error::number(code))),
    }
}

fn read_refusal(error: LeaseError, r: &mut Reader<'_>) -> Decoded<Refusal> {
    let area = r.area("reason")?;
    let class = area.require(tag::REFUSAL_CLASS, |tlv| {
        tlv.byte_of("class", "0 to 2", RefusalClass::from_byte)
    })?;
    let message = area.require(tag::REFUSAL_MESSAGE, |tlv| {
        tlv.text(0, REFUSAL_MESSAGE_BYTES_MAX)
    })?;
    let renewable_at_unix_ms = area.read(tag::REFUSAL_RENEWABLE_AT, |tlv| {
        tlv.fixed().map(u64::from_be_bytes)
    })?;
    let retry_after_ms = area.read(tag::REFUSAL_RETRY_AFTER, |tlv| {
        tlv.fixed().map(u32::from_be_bytes)
    })?;
    Ok(Refusal {
        error,
        class,
        message: String::from(message),
        renewable_at_unix_ms,
        retry_after_ms,
    })
}

fn read_reply(message_type: MessageType, r: &mut Reader<'_>) -> Decoded<Reply> {
    Ok(match message_type {
        MessageType::Ping => Reply::Pong(r.u64("number")?),
        MessageType::GetIdentity => Reply::Identity(read_identity(r)?),
        MessageType::GetInventory => read_inventory(r)?,
        MessageType::LeaseAlloc
        | MessageType::LeaseRenew
        | MessageType::LeaseQuery
        | MessageType::LeaseFree
        | MessageType::LeaseBind
        | MessageType::LeaseRotate => Reply::Lease(lease_info::read(r)?),
        MessageType::LeaseList => Reply::Leases(lease_info::read_page(r)?),
        MessageType::LeaseRevoke => {
            Reply::Revoked(r.byte_of("outcome", "0 to 2", RevokeOutcome::from_byte)?)
        }
        MessageType::FenceList => Reply::Fences(read_fences(r)?),
        MessageType::FenceClear => Reply::FenceCleared,
        MessageType::IdentityIssue => Reply::Issued {
            certificate_pem: r.text(PEM_BYTES_MAX, "certificate_pem")?,
            ca_pem: r.text(PEM_BYTES_MAX, "ca_pem")?,
        },
        MessageType::NodeReport | MessageType::NodeLeases => Reply::Reported,
        MessageType::NodeForget => Reply::Forgotten,
        MessageType::NodeList => Reply::Nodes(fleet::read_page(r)?),
        MessageType::FleetLeases => Reply::FleetLeases(fleet_leases::read_page(r)?),
    })
}

fn read_identity(r: &mut Reader<'_>) -> Decoded<NodeIdentity> {
    Ok(NodeIdentity {
        node_id: NodeId(r.array("node_id")?),
        epoch: Epoch(r.u64("epoch")?),
        endpoint: endpoint::read(r)?,
        role: r.byte_of("role", "0 to 3", Role::from_byte)?,
        tenant: r.text(TENANT_BYTES_MAX, "tenant")?,
        version: r.text(VERSION_BYTES_MAX, "version")?,
    })
}

fn read_inventory(r: &mut Reader<'_>) -> Decoded<Reply> {
    Ok(
        match r.byte_of("form", "0 or 1", InventoryForm::from_byte)? {
            InventoryForm::Flat => Reply::FlatInventory(flat::read(r)?),
            InventoryForm::Structured => Reply::Inventory(structured::read(r)?),
        },
    )
}

fn read_fences(r: &mut Reader<'_>) -> Decoded<Vec<Fence>> {
    r.list(FENCES_MAX, FENCE_MIN_LEN, "fences", |r| {
        Ok(Fence {
            resource_id: r.resource_id()?,
            resource_type: ResourceType::from_code(r.u16("resource_type")?),
            lease_id: LeaseId(r.u128("lease_id")?),
            since_unix_ms: r.u64("since_unix_ms")?,
            reason: r.text(FENCE_REASON_BYTES_MAX, "reason")?,
        })
    })
}

/// Whether a message of this type can have this answer; a refusal always fits.
pub(crate) fn fits(message_type: Option<MessageType>, answer: &Answer) -> bool {
    use MessageType as M;
    let (Ok(reply), Some(asked)) = (answer, message_type) else {
        return answer.is_err();
    };
    match reply {
        Reply::Pong(_) => asked == M::Ping,
        Reply::Identity(_) => asked == M::GetIdentity,
        Reply::FlatInventory(_) | Reply::Inventory(_) => asked == M::GetInventory,
        Reply::Lease(_) => matches!(
            asked,
            M::LeaseAlloc
                | M::LeaseRenew
                | M::LeaseQuery
                | M::LeaseFree
                | M::LeaseBind
                | M::LeaseRotate
        ),
        Reply::Redirect(candidates) => may_be_redirected(asked) && !candidates.is_empty(),
        Reply::Explained { candidates, .. } => asked == M::LeaseAlloc && !candidates.is_empty(),
        Reply::Leases(_) => asked == M::LeaseList,
        Reply::Revoked(_) => asked == M::LeaseRevoke,
        Reply::Fences(_) => asked == M::FenceList,
        Reply::FenceCleared => asked == M::FenceClear,
        Reply::Issued { .. } => asked == M::IdentityIssue,
        Reply::Reported => matches!(asked, M::NodeReport | M::NodeLeases),
        Reply::Forgotten => asked == M::NodeForget,
        Reply::Nodes(_) => asked == M::NodeList,
        Reply::FleetLeases(_) => asked == M::FleetLeases,
    }
}

pub(crate) fn write(w: &mut Writer, answer: &Answer) {
    match answer {
        Ok(reply) => {
            let status = match reply {
                Reply::Redirect(_) => REDIRECT,
                Reply::Explained { .. } => EXPLAINED,
                _ => SUCCESS,
            };
            write_reply(w.u16(status), reply);
        }
        Err(refusal) => write_refusal(w, refusal),
    }
}

pub(crate) fn write_refusal(w: &mut Writer, refusal: &Refusal) {
    w.u16(refusal.error as u16).area(|w| {
        w.tlv(tag::REFUSAL_CLASS, &[refusal.class as u8]);
        let message = cut(&refusal.message, REFUSAL_MESSAGE_BYTES_MAX);
        w.tlv(tag::REFUSAL_MESSAGE, message.as_bytes());
        w.tlv_if(
            tag::REFUSAL_RENEWABLE_AT,
            refusal.renewable_at_unix_ms.map(u64::to_be_bytes),
        );
        w.tlv_if(
            tag::REFUSAL_RETRY_AFTER,
            refusal.retry_after_ms.map(u32::to_be_bytes),
        );
    });
}

fn write_reply(w: &mut Writer, reply: &Reply) {
    match reply {
        Reply::Pong(number) => {
            w.u64(*number);
        }
        Reply::Identity(identity) => write_identity(w, identity),
        Reply::FlatInventory(entries) => flat::write(w.u8(InventoryForm::Flat as u8), entries),
        Reply::Inventory(inventory) => {
            structured::write(w.u8(InventoryForm::Structured as u8), inventory);
        }
        Reply::Lease(lease) => lease_info::write(w, lease),
        Reply::Leases(page) => lease_info::write_page(w, page),
        Reply::Revoked(outcome) => {
            w.u8(*outcome as u8);
        }
        Reply::Fences(fences) => write_fences(w, fences),
        Reply::Redirect(candidates) => fleet::write_candidates(w, candidates),
        Reply::Explained { candidates, why } => {
            fleet::write_candidates(w, candidates);
            w.text(why, EXPLANATION_BYTES_MAX);
        }
        Reply::FenceCleared | Reply::Reported | Reply::Forgotten => (),
        Reply::Nodes(page) => fleet::write_page(w, page),
        Reply::FleetLeases(page) => fleet_leases::write_page(w, page),
        Reply::Issued {
            certificate_pem,
            ca_pem,
        } => {
            w.bytes(certificate_pem.as_bytes()).bytes(ca_pem.as_bytes());
        }
    }
}

fn write_identity(w: &mut Writer, identity: &NodeIdentity) {
    w.raw(&identity.node_id.0)
        .u64(identity.epoch.0)
        .raw(&identity.endpoint.bytes());
    w.u8(identity.role as u8);
    w.text(&identity.tenant, TENANT_BYTES_MAX)
        .text(&identity.version, VERSION_BYTES_MAX);
}

/// Writes as many fences as fit. The others appear when some are cleared.
fn write_fences(w: &mut Writer, fences: &[Fence]) {
    let shown = fences.get(..FENCES_MAX).unwrap_or(fences);
    w.list(shown, FENCES_MAX, |w, fence| {
        w.u128(fence.resource_id.0).u16(fence.resource_type.code());
        w.u128(fence.lease_id.0).u64(fence.since_unix_ms);
        w.text(&fence.reason, FENCE_REASON_BYTES_MAX);
    });
}
