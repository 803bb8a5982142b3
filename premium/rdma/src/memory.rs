//! The bytes of leases: registers arenas, or parts of them, with a device.
//!
//! An arena owns its memory; nothing here maps any.

use std::sync::Arc;

use fabricbios_arena::Arena;
use fabricbios_lease::{Extent, StepError};
use fabricbios_wire::ResourceId;
use nix::errno::Errno;

use fabricbios_verbs::{Access, MemoryRegion, ProtectionDomain};

/// The bytes of one lease. Extents of two arenas may be equal: an extent means nothing without its arena.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    pub(super) resource_id: ResourceId,
    pub(super) arena: Arc<Arena>,
    pub(super) extent: Extent,
}

impl Bytes {
    /// The address for remote peers.
    pub(super) fn address(&self) -> u64 {
        self.arena.mapping().address() + self.extent.offset
    }

    /// Pins and registers these bytes alone.
    pub(super) fn register(
        &self,
        domain: &Arc<ProtectionDomain>,
        access: Access,
    ) -> Result<MemoryRegion, Errno> {
        let Extent { offset, length } = self.extent;
        MemoryRegion::register(domain, &self.arena, (offset, length), access)
    }
}

/// Pins and registers a whole arena without remote rights: remote peers reach only bytes under a bound window. The
/// arena is registered once and never deregistered to revoke access.
pub(crate) fn register_all(
    domain: &Arc<ProtectionDomain>,
    arena: &Arc<Arena>,
) -> Result<MemoryRegion, StepError> {
    let bytes = arena.bytes();
    let region = MemoryRegion::register(domain, arena, (0, bytes), Access::UnderWindows);
    region.map_err(|errno| {
        let device = domain.context().name();
        let hint = hint(errno);
        StepError::new(
            "reg_mr arena",
            format_args!("{bytes} bytes on {device}: {errno}{hint}"),
        )
    })
}

/// A hint for the operator about a failed registration.
pub(crate) fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOMEM => {
            " (too little free memory, or a locked-memory limit: see `ulimit -l`, or give the \
             daemon CAP_IPC_LOCK)"
        }
        Errno::EOPNOTSUPP | Errno::EFAULT => {
            " (the file system of the arena file cannot pin pages: use memory, tmpfs or hugetlbfs)"
        }
        _ => "",
    }
}
