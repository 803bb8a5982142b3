//! Registers the arena, or one extent, with a device.
//!
//! The arena owns the memory; nothing here maps any.

use std::sync::Arc;

use fabricbios_arena::Arena;
use fabricbios_lease::{Extent, StepError};
use nix::errno::Errno;

use fabricbios_verbs::{Access, MemoryRegion, ProtectionDomain};

/// Pins and registers the whole arena without remote rights: only bytes under a bound window can be reached. The arena
/// is registered once and never deregistered to revoke access.
pub(crate) fn register_all(
    domain: &Arc<ProtectionDomain>,
    arena: &Arc<Arena>,
) -> Result<MemoryRegion, StepError> {
    let all = Extent {
        offset: 0,
        length: arena.bytes(),
    };
    register(domain, arena, all, Access::UnderWindows).map_err(|errno| {
        let device = domain.context().name();
        let (bytes, hint) = (all.length, hint(errno));
        StepError::new(
            "reg_mr arena",
            format_args!("{bytes} bytes on {device}: {errno}{hint}"),
        )
    })
}

/// Pins and registers one extent alone.
pub(crate) fn register(
    domain: &Arc<ProtectionDomain>,
    arena: &Arc<Arena>,
    extent: Extent,
    access: Access,
) -> Result<MemoryRegion, Errno> {
    MemoryRegion::register(domain, arena, (extent.offset, extent.length), access)
}

/// The address of an extent for remote peers.
pub(crate) fn address(arena: &Arena, extent: Extent) -> u64 {
    arena.mapping().address() + extent.offset
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
