//! The kind of a lease, as a type.

use fabricbios_wire::{BlockTerms, CpuTerms, GpuTerms, MemTerms, NetTerms, ResourceType};

/// [`Memory`], [`Blocks`], [`Cores`], [`NetworkFunction`] or [`Gpu`].
pub trait Kind: sealed::Sealed {
    /// The resource type on the wire.
    const TYPE: ResourceType;
}

/// A kind whose leases keep bytes: they have a transport, keys and a grace time.
pub trait Storage: Kind {}

/// Memory: bytes over RDMA or FBMU.
#[derive(Clone, Copy, Debug)]
pub enum Memory {}

/// Block storage: blocks over NVMe-oF or FBBU.
#[derive(Clone, Copy, Debug)]
pub enum Blocks {}

/// CPU cores, for processes that already run on the node.
#[derive(Clone, Copy, Debug)]
pub enum Cores {}

/// A network function of the node, with a transmit rate.
#[derive(Clone, Copy, Debug)]
pub enum NetworkFunction {}

/// A GPU or part of one, for sessions.
#[derive(Clone, Copy, Debug)]
pub enum Gpu {}

impl Storage for Memory {}
impl Storage for Blocks {}

/// Each line: kind, resource type, terms, the call of the builder that sets the capacity.
macro_rules! kinds {
    ($($kind:ident $resource_type:ident $terms:ident $sized_by:literal;)*) => {$(
        impl Kind for $kind {
            const TYPE: ResourceType = ResourceType::$resource_type;
        }

        impl sealed::Sealed for $kind {
            type Terms = $terms;
            const SIZED_BY: &'static str = $sized_by;
        }
    )*};
}

kinds! {
    Memory Mem MemTerms "bytes()";
    Blocks Block BlockTerms "bytes()";
    Cores Cpu CpuTerms "cores()";
    NetworkFunction Net NetTerms "mbps()";
    Gpu Gpu GpuTerms "min_vram()";
}

pub(crate) mod sealed {
    use std::fmt::Debug;

    use fabricbios_wire::LeaseTerms;

    pub trait Sealed {
        /// The terms of a request that only this kind has.
        type Terms: Clone + Debug + Default + Into<LeaseTerms> + Send;
        /// The call of the builder that sets the capacity.
        const SIZED_BY: &'static str;
    }
}
