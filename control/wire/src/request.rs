//! Payloads of requests: the bytes after the header, for each message type.

use alloc::{borrow::Cow, string::String};

use crate::{
    CSR_BYTES_MAX, DecodeError, InventoryForm, IssueRequest, LeaseId, MessageType, NodeId,
    ROTATE_OVERLAP_MS_MAX, Request, Role, TENANT_BYTES_MAX, error, fleet, fleet_leases,
    kinds::mem,
    lease_alloc,
    read::{Decoded, Reader, invalid_args},
    write::Writer,
};

impl Request {
    /// The message type in the header.
    #[must_use]
    pub fn message_type(&self) -> MessageType {
        match self {
            Self::Ping(_) => MessageType::Ping,
            Self::GetIdentity => MessageType::GetIdentity,
            Self::GetInventory(_) => MessageType::GetInventory,
            Self::LeaseAlloc(_) => MessageType::LeaseAlloc,
            Self::LeaseRenew { .. } => MessageType::LeaseRenew,
            Self::LeaseQuery(_) => MessageType::LeaseQuery,
            Self::LeaseFree(_) => MessageType::LeaseFree,
            Self::LeaseList { .. } => MessageType::LeaseList,
            Self::LeaseBind { .. } | Self::LeasePeers { .. } | Self::LeaseAttach(_) => {
                MessageType::LeaseBind
            }
            Self::LeaseRotate { .. } => MessageType::LeaseRotate,
            Self::LeaseRevoke(_) => MessageType::LeaseRevoke,
            Self::FenceList => MessageType::FenceList,
            Self::FenceClear(_) => MessageType::FenceClear,
            Self::IdentityIssue(_) => MessageType::IdentityIssue,
            Self::NodeReport(_) => MessageType::NodeReport,
            Self::NodeList(_) => MessageType::NodeList,
            Self::NodeForget(_) => MessageType::NodeForget,
            Self::NodeLeases(_) => MessageType::NodeLeases,
            Self::FleetLeases { .. } => MessageType::FleetLeases,
        }
    }

    /// The lease that the request is about, if it is about one that its sender has already.
    #[must_use]
    pub fn lease_id(&self) -> Option<LeaseId> {
        match self {
            Self::LeaseQuery(id)
            | Self::LeaseFree(id)
            | Self::LeaseRevoke(id)
            | Self::LeaseAttach(id)
            | Self::LeaseRenew { lease_id: id, .. }
            | Self::LeaseBind { lease_id: id, .. }
            | Self::LeasePeers { lease_id: id, .. }
            | Self::LeaseRotate { lease_id: id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Checks that a node's decoder accepts the request: a client calls this before it sends.
    ///
    /// # Errors
    /// If the decoder of a node would refuse the request.
    pub fn check(&self) -> Result<(), DecodeError> {
        match crate::decode_request(&crate::encode_request(0, 0, self)) {
            Ok(_) => Ok(()),
            Err(rejected) => Err(rejected.error),
        }
    }
}

pub(crate) fn read(message_type: MessageType, r: &mut Reader<'_>) -> Decoded<Request> {
    Ok(match message_type {
        MessageType::Ping => Request::Ping(r.u64("number")?),
        MessageType::GetIdentity => Request::GetIdentity,
        MessageType::GetInventory => {
            Request::GetInventory(r.byte_of("form", "0 or 1", InventoryForm::from_byte)?)
        }
        MessageType::LeaseAlloc => Request::LeaseAlloc(lease_alloc::read(r)?),
        MessageType::LeaseRenew => Request::LeaseRenew {
            lease_id: r.lease_id()?,
            lease_secs: r.u32("lease_secs")?,
        },
        MessageType::LeaseQuery => Request::LeaseQuery(r.lease_id()?),
        MessageType::LeaseFree => Request::LeaseFree(r.lease_id()?),
        MessageType::LeaseList => Request::LeaseList {
            after: LeaseId(r.u128("after")?),
            ended: r.flag("ended")?,
        },
        MessageType::LeaseBind => {
            let lease_id = r.lease_id()?;
            mem::read_bind(lease_id, &r.area("params")?)?
        }
        MessageType::LeaseRotate => Request::LeaseRotate {
            lease_id: r.lease_id()?,
            overlap_ms: read_overlap(r)?,
        },
        MessageType::LeaseRevoke => Request::LeaseRevoke(r.lease_id()?),
        MessageType::FenceList => Request::FenceList,
        MessageType::FenceClear => Request::FenceClear(r.resource_id()?),
        MessageType::IdentityIssue => Request::IdentityIssue(read_issue(r)?),
        MessageType::NodeReport => Request::NodeReport(fleet::read_report(r)?),
        MessageType::NodeList => Request::NodeList(NodeId(r.array("after")?)),
        MessageType::NodeForget => Request::NodeForget(NodeId(r.array("node_id")?)),
        MessageType::NodeLeases => Request::NodeLeases(fleet_leases::read_report(r)?),
        MessageType::FleetLeases => {
            let (after, after_node) = fleet_leases::read_after(r)?;
            Request::FleetLeases { after, after_node }
        }
    })
}

fn read_overlap(r: &mut Reader<'_>) -> Decoded<u32> {
    let at = r.offset();
    match r.u32("overlap_ms")? {
        overlap_ms if overlap_ms <= ROTATE_OVERLAP_MS_MAX => Ok(overlap_ms),
        over => Err(invalid_args(
            at,
            "overlap_ms",
            "at most 60000",
            error::number(over),
        )),
    }
}

fn read_issue(r: &mut Reader<'_>) -> Decoded<IssueRequest> {
    Ok(IssueRequest {
        role: r.byte_of("role", "0 or 1", person)?,
        valid_secs: r.u32("valid_secs")?,
        tenant: read_tenant(r)?,
        csr_der: read_csr(r)?,
    })
}

/// The roles that IDENTITY_ISSUE gives.
fn person(byte: u8) -> Option<Role> {
    let role = Role::from_byte(byte);
    role.filter(|role| matches!(role, Role::Tenant | Role::Operator))
}

fn read_tenant(r: &mut Reader<'_>) -> Decoded<String> {
    let at = r.offset();
    let tenant = r.text(TENANT_BYTES_MAX, "tenant")?;
    if is_tenant_name(&tenant) {
        return Ok(tenant);
    }
    let expected = "1 to 64 of a-z 0-9 - _ .";
    Err(invalid_args(
        at,
        "tenant",
        expected,
        Cow::Borrowed("something else"),
    ))
}

/// Whether the name is valid for a tenant: 1 to 64 of `a-z 0-9 - _ .`.
#[must_use]
pub fn is_tenant_name(name: &str) -> bool {
    let good = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    (1..=TENANT_BYTES_MAX).contains(&name.len()) && name.bytes().all(good)
}

fn read_csr(r: &mut Reader<'_>) -> Decoded<alloc::vec::Vec<u8>> {
    let at = r.offset();
    match r.bytes(CSR_BYTES_MAX, "csr_der")? {
        [] => Err(invalid_args(
            at,
            "csr_der",
            "1 to 4096 bytes",
            error::bytes(0),
        )),
        csr => Ok(csr.to_vec()),
    }
}

pub(crate) fn write(w: &mut Writer, request: &Request) {
    match request {
        Request::Ping(number) => w.u64(*number),
        Request::GetIdentity | Request::FenceList => w,
        Request::GetInventory(form) => w.u8(*form as u8),
        Request::LeaseAlloc(alloc) => {
            lease_alloc::write(w, alloc);
            w
        }
        Request::LeaseRenew {
            lease_id,
            lease_secs,
        } => w.u128(lease_id.0).u32(*lease_secs),
        Request::LeaseQuery(id) | Request::LeaseFree(id) | Request::LeaseRevoke(id) => w.u128(id.0),
        Request::LeaseList { after, ended } => w.u128(after.0).flag(*ended),
        Request::LeaseBind { lease_id, peers } => {
            w.u128(lease_id.0).area(|w| mem::write_peers(w, peers))
        }
        Request::LeasePeers { lease_id, change } => {
            w.u128(lease_id.0).area(|w| mem::write_change(w, change))
        }
        Request::LeaseAttach(lease_id) => w.u128(lease_id.0).area(mem::write_question),
        Request::LeaseRotate {
            lease_id,
            overlap_ms,
        } => w.u128(lease_id.0).u32(*overlap_ms),
        Request::FenceClear(resource_id) => w.u128(resource_id.0),
        Request::IdentityIssue(issue) => w
            .u8(issue.role as u8)
            .u32(issue.valid_secs)
            .bytes(issue.tenant.as_bytes())
            .bytes(&issue.csr_der),
        Request::NodeReport(report) => {
            fleet::write_report(w, report);
            w
        }
        Request::NodeList(id) | Request::NodeForget(id) => w.raw(&id.0),
        Request::NodeLeases(report) => {
            fleet_leases::write_report(w, report);
            w
        }
        Request::FleetLeases { after, after_node } => w.u128(after.0).raw(&after_node.0),
    };
}
