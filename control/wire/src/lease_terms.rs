//! The terms of a request that only one kind of resource has: one variant for each kind.

use alloc::vec::Vec;

use crate::{
    BlockTerms, CpuTerms, DecodeError, GpuTerms, LeaseAllocRequest, MemTerms, NetTerms, RdmaPeer,
    ResourceType, cpu, gpu, net, nvmeof, rdma_peer, tlv::TlvArea,
};

/// The parameters of a lease that only its kind has. The variant is the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum LeaseTerms {
    /// Memory.
    Mem(MemTerms),
    /// Block storage.
    Block(BlockTerms),
    /// CPU cores.
    Cpu(CpuTerms),
    /// A network function.
    Net(NetTerms),
    /// GPU memory.
    Gpu(GpuTerms),
    /// A kind that is advertised and never leased; never one of the kinds above.
    Other(ResourceType),
}

impl LeaseTerms {
    /// The terms of that kind, with nothing stated.
    #[must_use]
    pub fn plain(kind: ResourceType) -> Self {
        match kind {
            ResourceType::Mem => Self::Mem(MemTerms::default()),
            ResourceType::Block => Self::Block(BlockTerms::default()),
            ResourceType::Cpu => Self::Cpu(CpuTerms::default()),
            ResourceType::Net => Self::Net(NetTerms::default()),
            ResourceType::Gpu => Self::Gpu(GpuTerms::default()),
            other => Self::Other(other),
        }
    }

    /// The kind.
    #[must_use]
    pub fn resource_type(&self) -> ResourceType {
        match self {
            Self::Mem(_) => ResourceType::Mem,
            Self::Block(_) => ResourceType::Block,
            Self::Cpu(_) => ResourceType::Cpu,
            Self::Net(_) => ResourceType::Net,
            Self::Gpu(_) => ResourceType::Gpu,
            Self::Other(other) => *other,
        }
    }

    /// Whether nothing is stated.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::plain(self.resource_type())
    }

    /// The client's queue pairs; none where the kind takes none.
    #[must_use]
    pub fn rdma_peers(&self) -> &[RdmaPeer] {
        match self {
            Self::Mem(terms) => &terms.rdma_peers,
            _ => &[],
        }
    }

    /// The same terms with these queue pairs of the client, if the kind takes any.
    #[must_use]
    pub fn with_rdma_peers(mut self, peers: &[RdmaPeer]) -> Self {
        if let Self::Mem(terms) = &mut self {
            terms.rdma_peers = peers.to_vec();
        }
        self
    }

    /// The terms of block storage.
    #[must_use]
    pub fn block(&self) -> Option<&BlockTerms> {
        match self {
            Self::Block(terms) => Some(terms),
            _ => None,
        }
    }

    /// The terms of CPU cores.
    #[must_use]
    pub fn cpu(&self) -> Option<&CpuTerms> {
        match self {
            Self::Cpu(terms) => Some(terms),
            _ => None,
        }
    }

    /// The terms of a network function.
    #[must_use]
    pub fn net(&self) -> Option<&NetTerms> {
        match self {
            Self::Net(terms) => Some(terms),
            _ => None,
        }
    }

    /// The terms of GPU memory.
    #[must_use]
    pub fn gpu(&self) -> Option<&GpuTerms> {
        match self {
            Self::Gpu(terms) => Some(terms),
            _ => None,
        }
    }
}

macro_rules! from_terms {
    ($($variant:ident($terms:ty)),*) => {$(
        impl From<$terms> for LeaseTerms {
            fn from(terms: $terms) -> Self {
                Self::$variant(terms)
            }
        }
    )*};
}

from_terms!(
    Mem(MemTerms),
    Block(BlockTerms),
    Cpu(CpuTerms),
    Net(NetTerms),
    Gpu(GpuTerms)
);

impl LeaseAllocRequest {
    /// The same request with these terms. Terms of another kind go to [`LeaseAllocRequest::foreign`].
    #[must_use]
    pub fn with_terms(mut self, terms: impl Into<LeaseTerms>) -> Self {
        let terms = terms.into();
        let kind = terms.resource_type();
        if kind == self.resource_type() {
            self.terms = terms;
            return self;
        }
        self.foreign.retain(|other| other.resource_type() != kind);
        if !terms.is_plain() {
            self.foreign.push(terms);
            self.foreign.sort_by_key(LeaseTerms::resource_type);
        }
        self
    }

    /// The terms of all kinds that the request states.
    pub(crate) fn stated(&self) -> impl Iterator<Item = &LeaseTerms> {
        core::iter::once(&self.terms).chain(&self.foreign)
    }
}

/// The terms of every kind that a params blob can state.
pub(crate) fn find(params: &TlvArea<'_>) -> Result<Vec<LeaseTerms>, DecodeError> {
    Ok(alloc::vec![
        cpu::find_terms(params)?.into(),
        gpu::find_terms(params)?.into(),
        rdma_peer::find_terms(params)?.into(),
        nvmeof::find_terms(params)?.into(),
        net::find_terms(params)?.into(),
    ])
}
