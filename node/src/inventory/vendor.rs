//! `--advertise-vendor`: resources of a vendor's own kind, listed and never leased (000, type 0x00FF).

use std::str::FromStr;

use fabricbios_wire::RESOURCE_NAME_BYTES_MAX;

/// A resource that is listed as the operator states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorResource {
    /// The name in inventories, 1 to 255 bytes.
    pub name: String,
    /// In a unit that the vendor defines.
    pub capacity: u64,
}

/// Text that is not NAME=CAPACITY.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not NAME=CAPACITY, such as fpga0=4: a name of at most 255 bytes without spaces, and a whole number"
)]
pub struct BadVendorResource(String);

impl FromStr for VendorResource {
    type Err = BadVendorResource;

    fn from_str(text: &str) -> Result<Self, BadVendorResource> {
        let bad = || BadVendorResource(text.into());
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
mod tests {
    use super::*;

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
