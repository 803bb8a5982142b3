//! CPU cores: the isolation class.

use alloc::{format, string::String};

use fabricbios_wire::{CpuIsolationClass, CpuTerms, Effective, LeaseTerms, ResourceType};

use super::Rules;

impl Rules for CpuTerms {
    /// A class that does not apply is refused, never softened (002 §3).
    fn foreign_to(&self, kind: ResourceType) -> String {
        let class = self.isolation.map_or("class", |class| class.name());
        format!("cpu isolation {class} cannot be enforced for a lease of {kind}")
    }

    fn shares_units(&self) -> bool {
        self.isolation == Some(CpuIsolationClass::BestEffort)
    }

    fn classes(&self) -> Effective {
        Effective {
            cpu_isolation: self.isolation,
            ..Effective::default()
        }
    }

    fn enforced(&self, _read_only: bool) -> LeaseTerms {
        self.clone().into()
    }
}
