//! The request for a lease: LEASE_ALLOC and the TLVs of its params blob.

use alloc::vec::Vec;

use crate::{LeaseIntent, LeaseTerms, RequestToken, ResourceId, ResourceType, Tried, names::words};

/// LEASE_ALLOC (0x0200).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct LeaseAllocRequest {
    /// The resource. Absent (zero on the wire): any resource of the kind.
    pub resource_id: Option<ResourceId>,
    /// Amount, in the unit of the type.
    pub capacity: u64,
    /// Term in seconds, at least 1.
    pub lease_secs: u32,
    /// Seconds after the term during which contents are kept but nobody has access.
    pub grace_secs: u32,
    /// 0x0901 and 0x0910: kept with the lease, and not enforced.
    pub intent: LeaseIntent,
    /// 0x0904: the transport; `Auto` if absent.
    pub transport: Transport,
    /// 0x0905: the client follows key changes, so renewal rotates the key.
    pub rotate_on_renew: bool,
    /// 0x090E: a repeat of this request with the same token gets the same lease. Absent: each request gets a lease of
    /// its own.
    pub request_token: Option<RequestToken>,
    /// 0x090F: the client follows a redirect of a scheduler. A node ignores it.
    pub follows_redirect: bool,
    /// 0x0911: who was tried in this search. A node ignores it.
    pub tried: Vec<Tried>,
    /// 0x0912: the scheduler explains its answer. A node grants no lease so.
    pub explain: bool,
    /// The kind, and the terms that only this kind has.
    pub terms: LeaseTerms,
    /// Terms of other kinds, as received from a peer, in the order of [`ResourceType`]. Plain terms are left out. A
    /// node refuses a request with foreign terms. See [`LeaseAllocRequest::with_terms`].
    pub foreign: Vec<LeaseTerms>,
}

impl LeaseAllocRequest {
    /// A plain request: any resource of the kind, no grace, no classes, the node's best transport.
    #[must_use]
    pub fn new(resource_type: ResourceType, capacity: u64, lease_secs: u32) -> Self {
        Self {
            resource_id: None,
            capacity,
            lease_secs,
            grace_secs: 0,
            intent: LeaseIntent::default(),
            transport: Transport::Auto,
            rotate_on_renew: false,
            request_token: None,
            follows_redirect: false,
            tried: Vec::new(),
            explain: false,
            terms: LeaseTerms::plain(resource_type),
            foreign: Vec::new(),
        }
    }

    /// The kind.
    #[must_use]
    pub fn resource_type(&self) -> ResourceType {
        self.terms.resource_type()
    }
}

words! {
    /// The transport of a lease.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Transport: u8, "transport", from_byte {
        /// The best transport that the node has.
        #[default]
        Auto = 0, "auto";
        /// RDMA reads and writes (MEM).
        Rdma = 1, "rdma";
        /// FBMU or FBBU over UDP.
        Udp = 2, "udp";
        /// Both transports over the same bytes, cut together.
        Both = 3, "both";
        /// NVMe-oF over TCP (BLOCK).
        NvmeTcp = 4, "nvme-tcp";
        /// NVMe-oF over RDMA (BLOCK).
        NvmeRdma = 5, "nvme-rdma";
    }
}
