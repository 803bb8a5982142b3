//! The two forms of a lease on a device: windows over one region of each arena, or a region for each lease.

use std::{collections::BTreeMap, sync::Arc};

use fabricbios_arena::Arenas;
use fabricbios_lease::StepError;
use fabricbios_verbs::{MemoryRegion, ProtectionDomain};
use fabricbios_wire::{RdmaStrategy, ResourceId};

use super::{device::Device, memory};

/// The operator's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Windows if the device has type 2B, otherwise regions.
    #[default]
    Auto,
    /// A type 2B window per queue pair, bound to the registration of its whole arena. A grant costs
    /// no registration.
    Window,
    /// A protection domain and a region per lease: for virtual functions and other devices without windows. All queue
    /// pairs of a lease share one key, which works for no other lease.
    Region,
}

/// The objects that all leases share.
#[derive(Debug)]
pub(super) enum Shared {
    /// Windows.
    Windows {
        domain: Arc<ProtectionDomain>,
        /// Every arena as a whole, without remote rights.
        arenas: BTreeMap<ResourceId, MemoryRegion>,
        /// Whether the device enforces the bounds of a window.
        have_bounds: bool,
    },
    /// Nothing: every lease has a domain and regions of its own.
    Regions,
}

impl Strategy {
    /// Whether a device without windows cannot be used.
    pub(super) fn needs_windows(self) -> bool {
        self == Self::Window
    }

    /// The strategy on a device.
    pub(super) fn on(self, has_type_2b: bool) -> RdmaStrategy {
        match self {
            Self::Auto | Self::Window if has_type_2b => RdmaStrategy::Window,
            // A device without windows was not opened for `Window`.
            Self::Auto | Self::Window | Self::Region => RdmaStrategy::Region,
        }
    }
}

impl Shared {
    /// Makes the domain and registers the arenas for windows; pins nothing for regions.
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
            // Until the test at the start shows the opposite.
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

    /// Destroys the shared objects. No lease is left.
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

    #[test]
    fn only_window_cannot_do_without_windows() {
        assert!(Strategy::Window.needs_windows());
        assert!(!Strategy::Auto.needs_windows() && !Strategy::Region.needs_windows());
    }
}
