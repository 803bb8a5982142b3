//! GPU memory: the exclusivity class.

use alloc::{format, string::String};

use fabricbios_wire::{Effective, GpuExclusivityClass, GpuTerms, LeaseTerms, ResourceType};

use super::Rules;

impl Rules for GpuTerms {
    /// A class that does not apply is refused, never softened (003 §3).
    fn foreign_to(&self, kind: ResourceType) -> String {
        let class = self.exclusivity.map_or("class", |class| class.name());
        format!("gpu exclusivity {class} cannot be enforced for a lease of {kind}")
    }

    fn shares_units(&self) -> bool {
        self.exclusivity == Some(GpuExclusivityClass::Shared)
    }

    fn classes(&self) -> Effective {
        Effective {
            gpu_exclusivity: self.exclusivity,
            ..Effective::default()
        }
    }

    fn enforced(&self, _read_only: bool) -> LeaseTerms {
        self.clone().into()
    }
}
