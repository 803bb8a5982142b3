//! `--advertise-vendor`: resources of a vendor's own kind, listed and never leased (000, type 0x00FF).

use std::str::FromStr;

use clap::Args;
use fabricbios_wire::{RESOURCE_NAME_BYTES_MAX, ResourceId, ResourceInventory, ResourceType};

use super::{Kind, Opened, settings::values::BadValue};
use crate::inventory::hardware::{Hardware, Row};

/// See [`crate::kinds::KINDS`].
pub(super) const KIND: Kind = Kind {
    resource_type: ResourceType::Vendor,
    conflicts: |settings, conflicts| {
        let names = settings.vendor.advertise_vendor.iter().map(|it| &it.name);
        conflicts.once("advertise-vendor", "resource", names);
    },
    datagrams: |_| None,
    per_tenant_max: |_| None,
    calls: Vec::new,
    open: |_| Ok(Opened::nothing()),
    check: |_, _| (),
    detect: |looking, found| {
        let all = looking.settings.vendor.advertise_vendor.iter();
        all.for_each(|it| found.list(it.clone()));
    },
    end: None,
    #[cfg(test)]
    examples: &tests::EXAMPLES,
};

/// The settings of a vendor's resources.
#[derive(Args, Clone, Debug, Default)]
pub struct VendorSettings {
    /// A resource of a kind of its own to list in the inventory, with a capacity in a unit of its own: NAME=CAPACITY,
    /// such as fpga0=4. It is never leased [repeatable; default: none].
    #[arg(long, value_name = "NAME=CAPACITY")]
    pub advertise_vendor: Vec<VendorResource>,
}

/// A resource that is listed as the operator states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorResource {
    /// The name in inventories, 1 to 255 bytes.
    pub name: String,
    /// In a unit that the vendor defines.
    pub capacity: u64,
}

impl Hardware for VendorResource {
    fn row(&self) -> Row<'_> {
        Row {
            kind: ResourceType::Vendor,
            name: &self.name,
            capacity: self.capacity,
            degraded: false,
        }
    }

    /// Its name and its flat entry are all that is known of it.
    fn add_to(&self, _: &mut ResourceInventory, _: ResourceId) {}
}

const FORM: &str = "not NAME=CAPACITY, such as fpga0=4: a name of at most 255 bytes without spaces, and a whole number";

impl FromStr for VendorResource {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let bad = || BadValue::Other(text.to_owned(), FORM);
        let (name, capacity) = text.rsplit_once('=').ok_or_else(bad)?;
        let is_a_name = (1..=RESOURCE_NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_graphic());
        match capacity.parse() {
            Ok(capacity) if is_a_name => Ok(Self {
                name: name.to_owned(),
                capacity,
            }),
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::kinds::settings::tests::Examples;

    pub(crate) const EXAMPLES: Examples = Examples {
        base: ["--advertise-vendor", "fpga1=1"],
        values: &[(
            "advertise-vendor",
            &["fpga0=0", "fpga0=4"],
            &["0", "fpga0", "fpga0=x", ""],
            "fpga0=4",
        )],
        idle: &[],
        contradictions: &[(
            &["--advertise-vendor", "a=1", "--advertise-vendor", "a=2"],
            "same resource twice",
        )],
    };

    #[test]
    fn a_name_and_a_whole_number() {
        let long = format!("{:a<256}=1", "");
        for text in [
            "",
            "fpga0",
            "=4",
            "fpga0=",
            "fpga0=-1",
            "fpga0=4GiB",
            "a b=4",
            &long,
        ] {
            assert!(text.parse::<VendorResource>().is_err(), "{text}");
        }
        let odd: VendorResource = "fpga=0=18446744073709551615".parse().unwrap();
        assert_eq!((odd.name.as_str(), odd.capacity), ("fpga=0", u64::MAX));
    }
}
