//! Control messages: requests to a node and its answers.

use alloc::{string::String, vec::Vec};

use crate::{
    Endpoint, Epoch, FlatEntry, LeaseAllocRequest, LeaseId, LeaseInfo, LeasePage, LeasePhase,
    NodeId, PeerChange, RdmaPeer, Refusal, ResourceId, ResourceInventory, ResourceType,
    names::words,
};

words! {
    /// Codes of control messages. 0x0200 and 0x020A are the specification's; the others are ours.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum MessageType: u16, "message type", from_code {
        /// Checks that the node answers.
        Ping = 0x0001, "PING";
        /// Asks for the identity of the node.
        GetIdentity = 0x0002, "GET_IDENTITY";
        /// Asks for the resources of the node.
        GetInventory = 0x0100, "GET_INVENTORY";
        /// Asks for a new lease.
        LeaseAlloc = 0x0200, "LEASE_ALLOC";
        /// Asks for a new term of a lease.
        LeaseRenew = 0x0201, "LEASE_RENEW";
        /// Asks for the state of a lease.
        LeaseQuery = 0x0202, "LEASE_QUERY";
        /// Gives a lease back.
        LeaseFree = 0x0203, "LEASE_FREE";
        /// Asks for the leases of the caller.
        LeaseList = 0x0204, "LEASE_LIST";
        /// Binds a lease to queue pairs of the client.
        LeaseBind = 0x0205, "LEASE_BIND";
        /// Asks for a new key of a lease.
        LeaseRotate = 0x0206, "LEASE_ROTATE";
        /// Takes a lease back (operator).
        LeaseRevoke = 0x020A, "LEASE_REVOKE";
        /// Asks for the fenced resources.
        FenceList = 0x0300, "FENCE_LIST";
        /// Remediates a fenced resource and clears the fence (operator).
        FenceClear = 0x0301, "FENCE_CLEAR";
        /// Asks for a signed certificate (operator).
        IdentityIssue = 0x0400, "IDENTITY_ISSUE";
        /// Tells a scheduler what the node has (node).
        NodeReport = 0x0500, "NODE_REPORT";
        /// Asks a scheduler for the nodes of its fabric.
        NodeList = 0x0501, "NODE_LIST";
        /// Tells a scheduler which leases the node has (node).
        NodeLeases = 0x0502, "NODE_LEASES";
        /// Asks a scheduler for the leases of the caller at all nodes.
        FleetLeases = 0x0503, "FLEET_LEASES";
        /// Tells a scheduler that a node does not belong to the fabric any more (operator).
        NodeForget = 0x0504, "NODE_FORGET";
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
#[cfg_attr(feature = "vectors", serde(rename_all = "snake_case"))]
pub enum Request {
    /// PING: the answer repeats this number.
    Ping(u64),
    /// GET_IDENTITY.
    GetIdentity,
    /// GET_INVENTORY in one of two forms.
    GetInventory(InventoryForm),
    /// LEASE_ALLOC.
    LeaseAlloc(LeaseAllocRequest),
    /// LEASE_RENEW.
    LeaseRenew {
        /// The lease.
        lease_id: LeaseId,
        /// New term from now, seconds; 0 repeats the last one.
        lease_secs: u32,
    },
    /// LEASE_QUERY.
    LeaseQuery(LeaseId),
    /// LEASE_FREE.
    LeaseFree(LeaseId),
    /// LEASE_LIST: the leases with ids above `after`: those of the caller; for an operator, all leases.
    LeaseList {
        /// The last id of the page before; zero for the first page.
        after: LeaseId,
        /// Whether the list includes ended leases that are still on record.
        ended: bool,
    },
    /// LEASE_BIND: connects the lease to queue pairs; also repeated, after an access fault.
    LeaseBind {
        /// The lease.
        lease_id: LeaseId,
        /// The client's queue pairs: at least one, at most [`crate::RDMA_PEERS_MAX`].
        peers: Vec<RdmaPeer>,
    },
    /// LEASE_BIND beside a live binding: queue pairs join it or leave it.
    LeasePeers {
        /// The lease.
        lease_id: LeaseId,
        /// What changes.
        change: PeerChange,
    },
    /// LEASE_BIND that asks for an attach code: the answer has [`crate::RdmaAttach`].
    LeaseAttach(LeaseId),
    /// LEASE_ROTATE.
    LeaseRotate {
        /// The lease.
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
    /// NODE_REPORT.
    NodeReport(NodeReport),
    /// NODE_LIST: the nodes with ids above this one; all zero for the first page.
    NodeList(NodeId),
    /// NODE_FORGET: this node does not belong to the fabric any more.
    NodeForget(NodeId),
    /// NODE_LEASES.
    NodeLeases(LeaseReport),
    /// FLEET_LEASES: the leases behind this one in the order of lease ids, then node ids: those of the caller; for an
    /// operator, all leases.
    FleetLeases {
        /// The lease id of the last one of the page before; zero for the first page.
        after: LeaseId,
        /// Its node id; zero for the first page.
        after_node: NodeId,
    },
}

/// NODE_REPORT: what a node has now. It replaces the node's report before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct NodeReport {
    /// 1 in the first report of a connection, and one more in each report after it.
    pub sequence: u64,
    /// Where clients reach the node.
    pub endpoint: Endpoint,
    /// The resources, at most [`crate::REPORT_BYTES_MAX`] bytes.
    pub inventory: ResourceInventory,
}

/// NODE_LEASES: leases that a node has, without keys. The reports of a connection have one sequence with its
/// [`NodeReport`]s.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct LeaseReport {
    /// One more than in the report before.
    pub sequence: u64,
    /// How the leases change the list that the scheduler has.
    pub part: ReportPart,
    /// Leases of the node, new or changed, at most [`crate::LEASES_PER_REPORT_MAX`].
    pub leases: Vec<ReportedLease>,
    /// Leases that the node has no more, at most [`crate::LEASES_PER_REPORT_MAX`]; only with [`ReportPart::Changes`].
    pub gone: Vec<LeaseId>,
}

words! {
    /// The part of a list that a NODE_LEASES has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ReportPart: u8, "part of a report", from_byte {
        /// What has changed since the report before.
        Changes = 0, "changes";
        /// A new list of all leases begins. The list before it stands until the new one ends.
        Begin = 1, "begin";
        /// More of the new list.
        Next = 2, "next";
        /// The last part of the new list, which replaces the one before.
        End = 3, "end";
        /// The new list is in this one report.
        Whole = 4, "whole";
    }
}

/// A lease, as its node reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct ReportedLease {
    /// The lease.
    pub lease_id: LeaseId,
    /// The resource that it is a part of.
    pub resource_id: ResourceId,
    /// The type of the resource.
    pub resource_type: ResourceType,
    /// Its phase.
    pub phase: LeasePhase,
    /// Its capacity, in the unit of the type.
    pub capacity: u64,
    /// The end of its term, milliseconds of the node's wall clock.
    pub expires_at_unix_ms: u64,
    /// Its tenant: `NAME` of the fabric of node and scheduler, or `NAME@FINGERPRINT` of another one.
    pub tenant: String,
}

/// A lease, as a scheduler knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct FleetLease {
    /// The node that reports it.
    pub node_id: NodeId,
    /// The last report of it.
    pub lease: ReportedLease,
}

/// One page of FLEET_LEASES.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct FleetLeases {
    /// The leases, ascending by lease id, then by node id.
    pub leases: Vec<FleetLease>,
    /// Ask for those behind the last one.
    pub more: bool,
}

/// A node, as its scheduler knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct FleetNode {
    /// The node.
    pub node_id: NodeId,
    /// Where clients reach it.
    pub endpoint: Endpoint,
    /// Since when it reports over its present connection, milliseconds of the scheduler's wall clock.
    pub since_unix_ms: u64,
    /// The labels of its certificate, `NAME=VALUE`.
    pub labels: Vec<String>,
    /// Its last report.
    pub inventory: ResourceInventory,
}

/// A member of the fabric that does not report to the scheduler, as etcd remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct AwayNode {
    /// The node.
    pub node_id: NodeId,
    /// Where clients reached it.
    pub endpoint: Endpoint,
    /// When a scheduler had its last word, milliseconds of that scheduler's wall clock.
    pub last_seen_unix_ms: u64,
    /// The labels of its certificate, `NAME=VALUE`.
    pub labels: Vec<String>,
}

/// One page of NODE_LIST.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct FleetPage {
    /// The nodes that report, by ascending id.
    pub nodes: Vec<FleetNode>,
    /// The members of the fabric that do not report, by ascending id.
    pub away: Vec<AwayNode>,
    /// Ask for the nodes above this id; `None`: this is the last page.
    pub next: Option<NodeId>,
}

/// A node that may grant what a scheduler was asked for, or that has the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct Candidate {
    /// The node: no other may answer at the endpoint.
    pub node_id: NodeId,
    /// Where it is reached.
    pub endpoint: Endpoint,
    /// The resource to ask for, or of the lease.
    pub resource_id: ResourceId,
}

words! {
    /// The form of an inventory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum InventoryForm: u8, "inventory form", from_byte {
        /// Entries of 36 bytes.
        Flat = 0, "flat";
        /// Typed fields for each kind.
        Structured = 1, "structured";
    }
}

/// IDENTITY_ISSUE: asks to sign a key for a tenant. The private key is never sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct IssueRequest {
    /// The tenant: 1 to 64 of `a-z 0-9 - _ .`.
    pub tenant: String,
    /// The role of the new identity.
    pub role: Role,
    /// Validity in seconds; 0 takes the node's default.
    pub valid_secs: u32,
    /// PKCS #10 request, DER, at most 4,096 bytes.
    pub csr_der: Vec<u8>,
}

words! {
    /// The rights of an identity.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Role: u8, "role", from_byte {
        /// May lease resources and use its own leases.
        Tenant = 0, "tenant";
        /// May also see all leases, revoke, clear fences and issue identities.
        Operator = 1, "operator";
        /// A node of the fabric: has no right of a tenant or operator.
        Node = 2, "node";
        /// A scheduler of the fabric: has no right of a tenant or operator.
        Scheduler = 3, "scheduler";
    }
}

/// An answer that is not a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
#[cfg_attr(feature = "vectors", serde(rename_all = "snake_case"))]
#[allow(
    clippy::large_enum_variant,
    reason = "most replies are leases, and each is moved a few times and gone"
)]
pub enum Reply {
    /// PING: the number of the request.
    Pong(u64),
    /// GET_IDENTITY.
    Identity(NodeIdentity),
    /// GET_INVENTORY, flat.
    FlatInventory(Vec<FlatEntry>),
    /// GET_INVENTORY, structured.
    Inventory(ResourceInventory),
    /// LEASE_ALLOC, RENEW, QUERY, BIND and ROTATE: the lease. LEASE_FREE: the ended lease.
    Lease(LeaseInfo),
    /// LEASE_LIST.
    Leases(LeasePage),
    /// LEASE_ALLOC, from a scheduler: who may grant it, the best first. A request about a lease, from a scheduler: who
    /// has it. At least one.
    Redirect(Vec<Candidate>),
    /// LEASE_ALLOC with 0x0912, from a scheduler: the same, with the reasons.
    Explained {
        /// As of a redirect.
        candidates: Vec<Candidate>,
        /// Why these and in this order, for people: at most 4,096 bytes, in lines.
        why: String,
    },
    /// LEASE_REVOKE.
    Revoked(RevokeOutcome),
    /// FENCE_LIST.
    Fences(Vec<Fence>),
    /// FENCE_CLEAR: the resource is verified clean.
    FenceCleared,
    /// IDENTITY_ISSUE: certificate and CA certificate, PEM.
    Issued {
        /// The new certificate.
        certificate_pem: String,
        /// The certificate of the CA that signed it.
        ca_pem: String,
    },
    /// NODE_REPORT, NODE_LEASES: taken.
    Reported,
    /// NODE_FORGET: etcd has the member no more.
    Forgotten,
    /// NODE_LIST.
    Nodes(FleetPage),
    /// FLEET_LEASES.
    FleetLeases(FleetLeases),
}

/// The answer to a request.
pub type Answer = Result<Reply, Refusal>;

/// The identity of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct NodeIdentity {
    /// The id, computed from the node's key.
    pub node_id: NodeId,
    /// Counts the starts of the daemon.
    pub epoch: Epoch,
    /// The address of the control plane: the one that the client used, or the advertised one.
    pub endpoint: Endpoint,
    /// The tenant of the caller, as the node sees it.
    pub tenant: String,
    /// The role of the caller.
    pub role: Role,
    /// The version of the daemon, for display.
    pub version: String,
}

words! {
    /// The outcome of LEASE_REVOKE (published facts 6.2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RevokeOutcome: u8, "revoke outcome", from_byte {
        /// The lease is proved unreachable.
        TornDown = 0, "torn_down";
        /// The end of access is not proved; the resource is fenced.
        Fenced = 1, "fenced";
        /// There is no such lease.
        NotFound = 2, "not_found";
    }
}

/// One fenced resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct Fence {
    /// The resource.
    pub resource_id: ResourceId,
    /// The kind of the resource.
    pub resource_type: ResourceType,
    /// The lease whose end was not proved.
    pub lease_id: LeaseId,
    /// Start of the fence, milliseconds of wall clock.
    pub since_unix_ms: u64,
    /// The step that failed, with its detail.
    pub reason: String,
}
