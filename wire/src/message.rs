//! Control messages: what can be asked of a node and what it answers.

use alloc::{string::String, vec::Vec};

use crate::{
    Endpoint, Epoch, FlatEntry, LeaseAllocRequest, LeaseId, LeaseInfo, LeasePage, NodeId, RdmaPeer,
    Refusal, ResourceId, ResourceInventory, ResourceType,
};

/// Codes of control messages. 0x0200 and 0x020A are the specification's; the others are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum MessageType {
    /// Is anybody there.
    Ping = 0x0001,
    /// Who are you.
    GetIdentity = 0x0002,
    /// What do you have.
    GetInventory = 0x0100,
    /// Grant me.
    LeaseAlloc = 0x0200,
    /// Another term.
    LeaseRenew = 0x0201,
    /// How is it.
    LeaseQuery = 0x0202,
    /// I am done.
    LeaseFree = 0x0203,
    /// Which ones do I have.
    LeaseList = 0x0204,
    /// Here is my queue pair.
    LeaseBind = 0x0205,
    /// New key, please.
    LeaseRotate = 0x0206,
    /// Take it back (operator).
    LeaseRevoke = 0x020A,
    /// What is fenced.
    FenceList = 0x0300,
    /// Remediate and clear (operator).
    FenceClear = 0x0301,
    /// Sign a certificate (operator).
    IdentityIssue = 0x0400,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// PING: `u64` that comes back.
    Ping(u64),
    /// GET_IDENTITY.
    GetIdentity,
    /// GET_INVENTORY in one of two forms.
    GetInventory(InventoryForm),
    /// LEASE_ALLOC.
    LeaseAlloc(LeaseAllocRequest),
    /// LEASE_RENEW.
    LeaseRenew {
        /// Which.
        lease_id: LeaseId,
        /// New term from now, seconds; 0 repeats the last one.
        lease_secs: u32,
    },
    /// LEASE_QUERY.
    LeaseQuery(LeaseId),
    /// LEASE_FREE.
    LeaseFree(LeaseId),
    /// LEASE_LIST: the caller's leases (an operator's: everybody's) with ids above `after`.
    LeaseList {
        /// Zero to start.
        after: LeaseId,
        /// Whether ended leases that are still on record are wanted too.
        ended: bool,
    },
    /// LEASE_BIND: connect, or connect again after an access fault.
    LeaseBind {
        /// Which.
        lease_id: LeaseId,
        /// To what: at least one, at most [`crate::RDMA_PEERS_MAX`].
        peers: Vec<RdmaPeer>,
    },
    /// LEASE_ROTATE.
    LeaseRotate {
        /// Which.
        lease_id: LeaseId,
        /// Milliseconds during which the old key still works, at most 60,000.
        overlap_ms: u32,
    },
    /// LEASE_REVOKE.
    LeaseRevoke(LeaseId),
    /// FENCE_LIST.
    FenceList,
    /// FENCE_CLEAR.
    FenceClear(ResourceId),
    /// IDENTITY_ISSUE.
    IdentityIssue(IssueRequest),
}

/// Which form of inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum InventoryForm {
    /// 36 bytes an entry.
    Flat = 0,
    /// Typed fields.
    Structured = 1,
}

/// IDENTITY_ISSUE: sign this key for that tenant. The private key never travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssueRequest {
    /// 1 to 64 of `a-z 0-9 - _ .`.
    pub tenant: String,
    /// What it may do.
    pub role: Role,
    /// Validity; 0 takes the node's default.
    pub valid_secs: u32,
    /// PKCS #10 request, DER, at most 4,096 bytes.
    pub csr_der: Vec<u8>,
}

/// What an identity may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum Role {
    /// Lease, and use what it leased.
    Tenant = 0,
    /// Also see everybody's, revoke, clear fences, issue identities.
    Operator = 1,
}

/// An answer that is not a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "most replies are leases, and each is moved a few times and gone"
)]
pub enum Reply {
    /// PING's number.
    Pong(u64),
    /// GET_IDENTITY.
    Identity(NodeIdentity),
    /// GET_INVENTORY, flat.
    FlatInventory(Vec<FlatEntry>),
    /// GET_INVENTORY, structured.
    Inventory(ResourceInventory),
    /// LEASE_ALLOC, RENEW, QUERY, BIND, ROTATE; LEASE_FREE answers with the ended lease.
    Lease(LeaseInfo),
    /// LEASE_LIST.
    Leases(LeasePage),
    /// LEASE_REVOKE.
    Revoked(RevokeOutcome),
    /// FENCE_LIST.
    Fences(Vec<Fence>),
    /// FENCE_CLEAR: verified clean.
    FenceCleared,
    /// IDENTITY_ISSUE: certificate and CA certificate, PEM.
    Issued {
        /// The new certificate.
        certificate_pem: String,
        /// Who signed it.
        ca_pem: String,
    },
}

/// What a whole exchange yields.
pub type Answer = Result<Reply, Refusal>;

/// Who a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Its key.
    pub node_id: NodeId,
    /// Starts of its daemon.
    pub epoch: Epoch,
    /// Where its control plane is reached: the address that the client used, or the advertised one.
    pub endpoint: Endpoint,
    /// Who the node thinks the caller is.
    pub tenant: String,
    /// And may do.
    pub role: Role,
    /// Version of the daemon, for people.
    pub version: String,
}

/// LEASE_REVOKE's outcome (published facts 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RevokeOutcome {
    /// Proven unreachable.
    TornDown = 0,
    /// Not proven; the resource is fenced.
    Fenced = 1,
    /// No such lease.
    NotFound = 2,
}

/// One fenced resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Which resource.
    pub resource_id: ResourceId,
    /// Of what kind.
    pub resource_type: ResourceType,
    /// Which lease left it so.
    pub lease_id: LeaseId,
    /// Since when, wall clock.
    pub since_unix_ms: u64,
    /// The step that failed and who holds it.
    pub reason: String,
}
