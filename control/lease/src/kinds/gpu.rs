//! GPUs: the exclusivity class, the execution mode and the compute slices.

use alloc::{
    format,
    string::{String, ToString},
};

use fabricbios_wire::{
    Effective, GpuExclusivityClass, GpuExecutionMode, GpuTerms, LeaseTerms, Refusal, ResourceType,
};

use super::{Grant, Rules};
use crate::{
    COMPUTE_SLICES, Profile,
    room::{Explicit, Holding},
    standing::invalid,
};

const PARTITIONS: &str = "partitions are resources of their own: name one with `--resource`, as the inventory lists it, and \
     leave the class out";

impl Rules for GpuTerms {
    /// Terms that do not apply are refused, never softened (003 §3).
    fn foreign_to(&self, kind: ResourceType) -> String {
        let what = match self {
            Self {
                exclusivity: Some(class),
                ..
            } => self.class_name(*class as u8),
            Self {
                execution_mode: Some(_),
                ..
            } => "a gpu execution mode".into(),
            _ => "an amount of gpu compute slices".into(),
        };
        format!("{what} cannot be enforced for a lease of {kind}")
    }

    /// Partitions are never a class (003 §6), whatever the device.
    fn check(&self, _capacity: u64, _profile: Profile) -> Result<(), Refusal> {
        match self.exclusivity {
            Some(class @ GpuExclusivityClass::PartitionExclusive) => {
                let name = self.class_name(class as u8);
                Err(invalid(format!("{name} cannot be had: {PARTITIONS}")))
            }
            _ => Ok(()),
        }
    }

    fn keeps_contents(&self) -> bool {
        false
    }

    fn class(&self) -> Option<u8> {
        self.exclusivity.map(|class| class as u8)
    }

    fn class_name(&self, class: u8) -> String {
        let name = GpuExclusivityClass::from_byte(class);
        let name = name.map_or_else(|| class.to_string(), |class| class.to_string());
        format!("gpu exclusivity {name}")
    }

    /// A session-exclusive lease has the device alone for its whole term, not only while it has a session.
    fn holding(&self, class: Option<u8>) -> Holding {
        match class.and_then(GpuExclusivityClass::from_byte) {
            Some(GpuExclusivityClass::Shared) => Holding::Shared,
            _ => Holding::Alone,
        }
    }

    fn explicit(&self) -> Option<Explicit> {
        self.compute_slices.map(|slices| Explicit {
            dimension: COMPUTE_SLICES,
            amount: slices.into(),
        })
    }

    fn effective(&self) -> Effective {
        Effective {
            gpu_exclusivity: self.exclusivity,
            gpu_execution_mode: self.execution_mode,
            gpu_compute_slices: self.compute_slices,
            ..Effective::default()
        }
    }

    /// The compute slices are those of the lease; in an exclusive class, all slices of the device.
    fn enforced(&self, grant: &Grant<'_>) -> LeaseTerms {
        let slices = grant.placement.of_dimension(COMPUTE_SLICES);
        let mode = self.execution_mode.unwrap_or(GpuExecutionMode::Session);
        let terms = Self {
            exclusivity: grant.class.and_then(GpuExclusivityClass::from_byte),
            execution_mode: Some(mode),
            compute_slices: slices.and_then(|slices| u16::try_from(slices).ok()),
        };
        terms.into()
    }
}
