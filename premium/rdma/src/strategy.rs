//! The two forms of a lease on a device: windows over one region of each arena, or a region for each lease.

use std::{collections::BTreeMap, sync::Arc};

use fabricbios_arena::Arenas;
use fabricbios_lease::StepError;
use fabricbios_verbs::{MemoryRegion, ProtectionDomain};
use fabricbios_wire::{RdmaStrategy, ResourceId};

use super::{device::Device, memory};

/// The operator's choice of the form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Windows if the device has type 2B, otherwise regions.
    #[default]
    Auto,
    /// A type 2B window for each queue pair, bound to the registration of its whole arena. A grant costs no
    /// registration.
    Window,
    /// A protection domain and a region per lease: for virtual functions and other devices without windows. All queue
    /// pairs of a lease share one key, which works for no other lease.
    Region,
}

/// The objects that all leases share.
#[derive(Debug)]
pub(super) enum Shared {
    /// Leases are windows.
    Windows {
        domain: Arc<ProtectionDomain>,
        /// The registration of every whole arena, without remote rights.
        arenas: BTreeMap<ResourceId, MemoryRegion>,
        /// Whether the device enforces the bounds of a window.
        have_bounds: bool,
    },
    /// Leases are regions. They share no object: every lease has its own domain and regions.
    Regions,
}

impl Strategy {
    /// Whether the strategy cannot use a device without windows.
    pub(super) fn needs_windows(self) -> bool {
        self == Self::Window
    }

    /// The strategy that results on a device.
    pub(super) fn on(self, has_type_2b: bool) -> RdmaStrategy {
        match self {
            Self::Auto | Self::Window if has_type_2b => RdmaStrategy::Window,
            // `Window` never comes here: a device without windows is not opened for it.
            Self::Auto | Self::Window | Self::Region => RdmaStrategy::Region,
        }
    }
}

impl Shared {
    /// Makes the shared objects: for windows a domain and the registrations of the arenas, for regions nothing.
    pub(super) fn open(
        device: &Device,
        arenas: &Arenas,
        strategy: RdmaStrategy,
    ) -> Result<Self, StepError> {
        if strategy == RdmaStrategy::Region {
            return Ok(Self::Regions);
        }
        let domain = ProtectionDomain::alloc(&device.context).map_err(|errno| {
            StepError::new("alloc_pd", format_args!("{}: {errno}", device.name()))
                .with_errno(errno as i32)
        })?;
        let registered = arenas
            .iter()
            .map(|(id, arena)| Ok((*id, memory::register_all(&domain, arena)?)));
        let arenas = registered.collect::<Result<_, StepError>>()?;
        Ok(Self::Windows {
            domain,
            arenas,
            // The test at the start may clear this.
            have_bounds: true,
        })
    }

    /// The strategy, as clients see it.
    pub(super) fn strategy(&self) -> RdmaStrategy {
        match self {
            Self::Windows { .. } => RdmaStrategy::Window,
            Self::Regions => RdmaStrategy::Region,
        }
    }

    /// Destroys the shared objects. No lease may be left.
    pub(super) fn close(self) -> Result<(), StepError> {
        let Self::Windows { domain, arenas, .. } = self else {
            return Ok(());
        };
        for arena in arenas.into_values() {
            arena.dereg().map_err(|(_, errno)| {
                StepError::new("dereg_mr arena", errno).with_errno(errno as i32)
            })?;
        }
        match Arc::into_inner(domain).map(ProtectionDomain::dealloc) {
            Some(Err((_, errno))) => {
                Err(StepError::new("dealloc_pd", errno).with_errno(errno as i32))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_taken_where_there_are_unless_regions_are_asked_for() {
        assert_eq!(Strategy::Auto.on(true), RdmaStrategy::Window);
        assert_eq!(Strategy::Auto.on(false), RdmaStrategy::Region);
        assert_eq!(Strategy::Window.on(true), RdmaStrategy::Window);
        assert_eq!(Strategy::Region.on(true), RdmaStrategy::Region);
    }
}
