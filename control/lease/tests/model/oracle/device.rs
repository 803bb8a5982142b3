//! GPUs: each lease has an amount of each dimension, or the whole device.

use super::*;
use crate::{DEVICE_PAGES, SESSIONS, SLICES};

/// What a lease has of a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Has {
    pages: u64,
    slices: u64,
    alone: bool,
}

impl Has {
    pub(super) fn placement(self) -> Placement {
        let sessions = if self.alone { SESSIONS } else { 1 };
        let taken = [self.pages * PAGE, self.slices, sessions];
        let names = ["vram", "compute slices", "sessions"].into_iter();
        let quantities = names.zip(taken).map(|(name, amount)| Quantity {
            name: name.into(),
            amount,
        });
        Placement::Vector(quantities.collect())
    }

    /// The enforced terms of the lease that has this.
    pub(super) fn terms(self, arena: &Arena, wanted: &GpuTerms) -> LeaseTerms {
        let default = match arena.shares() {
            true => GpuExclusivityClass::Shared,
            false => GpuExclusivityClass::DeviceExclusive,
        };
        LeaseTerms::Gpu(GpuTerms {
            exclusivity: Some(wanted.exclusivity.unwrap_or(default)),
            execution_mode: Some(GpuExecutionMode::Session),
            compute_slices: u16::try_from(self.slices).ok(),
        })
    }
}

impl Arena {
    /// Whether leases may share this GPU.
    pub(super) fn shares(&self) -> bool {
        self.id == ResourceId(0x300)
    }

    /// Whether a lease for this request has the GPU alone; or why there is no such lease.
    pub(super) fn alone(&self, wanted: &GpuTerms) -> Result<bool, LeaseError> {
        match wanted.exclusivity {
            None => Ok(!self.shares()),
            Some(GpuExclusivityClass::Shared) if self.shares() => Ok(false),
            Some(GpuExclusivityClass::Shared | GpuExclusivityClass::PartitionExclusive) => {
                Err(LeaseError::InvalidArgs)
            }
            Some(_) => Ok(true),
        }
    }

    /// The most pages that one lease could get now.
    pub(super) fn most_of_device(&self, shared: bool, slices: Option<u16>) -> u64 {
        let left =
            |all: u64, taken: fn(&Has) -> u64| all - self.has.values().map(taken).sum::<u64>();
        let slices_left = left(SLICES.into(), |it| it.slices);
        if slices.is_some_and(|slices| u64::from(slices) > slices_left) {
            return 0;
        }
        if !shared {
            return if self.has.is_empty() { DEVICE_PAGES } else { 0 };
        }
        if self.has.len() as u64 >= SESSIONS || self.has.values().any(|it| it.alone) {
            return 0;
        }
        let fits = |pages: &u64| slices.is_some() || share(*pages) <= slices_left;
        let pages = left(DEVICE_PAGES, |it| it.pages);
        (0..=pages).rev().find(fits).unwrap_or(0)
    }

    /// What a lease for this request gets. The caller has checked that there is room.
    pub(super) fn has_of_device(&self, wanted: &LeaseAllocRequest) -> Option<Has> {
        let terms = wanted.terms.gpu()?;
        let pages = wanted.capacity.div_ceil(PAGE);
        let slices = terms.compute_slices.map_or(share(pages), u64::from);
        Some(match self.alone(terms).unwrap() {
            true => Has {
                pages: DEVICE_PAGES,
                slices: SLICES.into(),
                alone: true,
            },
            false => Has {
                pages,
                slices,
                alone: false,
            },
        })
    }

    /// Why there is no room on a GPU.
    pub(super) fn no_room_on_device(&self, capacity: u64, wanted: &GpuTerms) -> LeaseError {
        let never = capacity > DEVICE_PAGES * PAGE || wanted.compute_slices > Some(SLICES);
        let alone = self.alone(wanted).unwrap() || self.has.values().any(|it| it.alone);
        match self.shares() && alone && !never {
            true => LeaseError::ResourceBusy,
            false => LeaseError::CapacityExceeded,
        }
    }
}

/// The compute slices for this many pages, in proportion to all pages.
fn share(pages: u64) -> u64 {
    (pages * u64::from(SLICES)).div_ceil(DEVICE_PAGES)
}
