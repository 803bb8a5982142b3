//! The kind of a lease, as a type.

use fabricbios_wire::ResourceType;

/// [`Memory`] or [`Blocks`].
pub trait Kind: sealed::Sealed {
    /// The resource type on the wire.
    const TYPE: ResourceType;
}

/// Memory: bytes over RDMA or FBMU.
#[derive(Clone, Copy, Debug)]
pub enum Memory {}

/// Block storage: blocks over NVMe-oF or FBBU.
#[derive(Clone, Copy, Debug)]
pub enum Blocks {}

impl Kind for Memory {
    const TYPE: ResourceType = ResourceType::Mem;
}

impl Kind for Blocks {
    const TYPE: ResourceType = ResourceType::Block;
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Memory {}
    impl Sealed for super::Blocks {}
}
