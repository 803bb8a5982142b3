//! Network functions: no parameters yet.

use alloc::{format, string::String};

use fabricbios_wire::{LeaseTerms, NetTerms, ResourceType};

use super::Rules;

impl Rules for NetTerms {
    fn foreign_to(&self, kind: ResourceType) -> String {
        format!("terms of a network function cannot be had for {kind}")
    }

    fn enforced(&self, _read_only: bool) -> LeaseTerms {
        self.clone().into()
    }
}
