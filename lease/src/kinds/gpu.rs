//! GPU memory: the exclusivity class.

use alloc::{
    format,
    string::{String, ToString},
};

use fabricbios_wire::{Effective, GpuExclusivityClass, GpuTerms, LeaseTerms, ResourceType};

use super::Rules;
use crate::room::Holding;

impl Rules for GpuTerms {
    /// A class that does not apply is refused, never softened (003 §3).
    fn foreign_to(&self, kind: ResourceType) -> String {
        let class = self.exclusivity.map_or("class", |class| class.name());
        format!("gpu exclusivity {class} cannot be enforced for a lease of {kind}")
    }

    fn class(&self) -> Option<u8> {
        self.exclusivity.map(|class| class as u8)
    }

    fn class_name(&self, class: u8) -> String {
        let name = GpuExclusivityClass::from_byte(class);
        let name = name.map_or_else(|| class.to_string(), |class| class.to_string());
        format!("gpu exclusivity {name}")
    }

    fn holding(&self, class: Option<u8>) -> Holding {
        match class.and_then(GpuExclusivityClass::from_byte) {
            Some(GpuExclusivityClass::Shared) => Holding::Shared,
            _ => Holding::Alone,
        }
    }

    fn effective(&self) -> Effective {
        Effective {
            gpu_exclusivity: self.exclusivity,
            ..Effective::default()
        }
    }

    fn enforced(&self, class: Option<u8>, _read_only: bool) -> LeaseTerms {
        let exclusivity = class.and_then(GpuExclusivityClass::from_byte);
        GpuTerms { exclusivity }.into()
    }
}
