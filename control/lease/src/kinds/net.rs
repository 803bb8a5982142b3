//! Network functions: MAC address, VLAN and hand-over.

use alloc::{format, string::String};

use fabricbios_wire::{LeaseTerms, NetTerms, Refusal, ResourceType};

use super::{Grant, Rules};
use crate::{Policy, Profile, standing::invalid};

impl Rules for NetTerms {
    fn foreign_to(&self, kind: ResourceType) -> String {
        format!("terms of a network function cannot be had for {kind}")
    }

    fn check(&self, _capacity: u64, _profile: Profile) -> Result<(), Refusal> {
        match self.mac.filter(|mac| !mac.is_of_one_interface()) {
            Some(mac) => Err(invalid(format!(
                "MAC address {mac} is not that of one interface: give one that is not zero and not a group's"
            ))),
            None => Ok(()),
        }
    }

    fn check_tenant(&self, tenant: &str, policy: &Policy) -> Result<(), Refusal> {
        policy.network.check_vlan(tenant, self.vlan)?;
        let checked = self
            .mac
            .map(|mac| policy.network.check_address(tenant, mac));
        checked.unwrap_or(Ok(()))
    }

    fn is_untagged(&self) -> bool {
        self.vlan.is_none()
    }

    fn keeps_contents(&self) -> bool {
        false
    }

    fn enforced(&self, _grant: &Grant<'_>) -> LeaseTerms {
        self.clone().into()
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::MacAddress;

    use super::*;

    #[test]
    fn addresses_of_groups_are_refused() {
        let check = |mac| {
            let mac = Some(MacAddress(mac));
            let terms = NetTerms {
                mac,
                ..NetTerms::default()
            };
            terms.check(1, Profile::Linux)
        };
        assert_eq!(check([2, 0, 0, 0, 0, 1]), Ok(()));
        for mac in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            assert!(check(mac).unwrap_err().message.contains("MAC address"));
        }
    }
}
