//! Which tenant may have which VLANs and MAC addresses: the operator's choice.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};
use core::{fmt, ops::RangeInclusive, str::FromStr};

use fabricbios_wire::{MacAddress, Refusal, VlanId};

use crate::standing::not_allowed;

/// The VLAN number that stands for frames without a tag.
const UNTAGGED: u16 = 0;

/// VLANs as the operator lists them: numbers and ranges with commas between them, such as `0,100-199`. 0 is the
/// untagged network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanList(
    /// At least one; ascending, without overlap.
    Vec<RangeInclusive<u16>>,
);

impl VlanList {
    /// Whether the list has this VLAN. `None`: the untagged network.
    #[must_use]
    pub fn has(&self, vlan: Option<VlanId>) -> bool {
        self.0.iter().any(|range| range.contains(&number(vlan)))
    }
}

fn number(vlan: Option<VlanId>) -> u16 {
    vlan.map_or(UNTAGGED, VlanId::get)
}

impl fmt::Display for VlanList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}", Shown(range))?;
        }
        Ok(())
    }
}

/// A range, or its only number.
struct Shown<'a>(&'a RangeInclusive<u16>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.0.start(), self.0.end());
        match first == last {
            true => write!(f, "{first}"),
            false => write!(f, "{first}-{last}"),
        }
    }
}

/// Text that is no [`VlanList`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParseVlansError {
    /// This part is neither a number nor a range.
    NoVlan(String),
    /// This range ends before it begins.
    Reversed(String),
    /// A VLAN is in both of these.
    Overlap(String, String),
}

impl fmt::Display for ParseVlansError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVlan(part) => write!(
                f,
                "`{part}` is neither a VLAN (1 to 4094, or 0 for untagged) nor a range of them"
            ),
            Self::Reversed(part) => write!(f, "the range `{part}` ends before it begins"),
            Self::Overlap(one, other) => write!(f, "`{one}` and `{other}` overlap"),
        }
    }
}

impl core::error::Error for ParseVlansError {}

impl FromStr for VlanList {
    type Err = ParseVlansError;

    fn from_str(text: &str) -> Result<Self, ParseVlansError> {
        let ranges: Result<Vec<_>, _> = text.split(',').map(range).collect();
        let mut ranges = ranges?;
        ranges.sort_unstable_by_key(|it| *it.start());
        let mut pairs = ranges.iter().zip(ranges.iter().skip(1));
        match pairs.find(|(one, next)| one.end() >= next.start()) {
            Some((one, next)) => Err(ParseVlansError::Overlap(
                format!("{}", Shown(one)),
                format!("{}", Shown(next)),
            )),
            None => Ok(Self(ranges)),
        }
    }
}

fn range(part: &str) -> Result<RangeInclusive<u16>, ParseVlansError> {
    let parse = |text: &str| {
        let is_number = text.bytes().all(|it| it.is_ascii_digit());
        let number = text.parse::<u16>().ok().filter(|_| is_number);
        let known = number.filter(|it| *it == UNTAGGED || VlanId::new(*it).is_some());
        known.ok_or_else(|| ParseVlansError::NoVlan(part.into()))
    };
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    let (first, last) = (parse(first)?, parse(last)?);
    match first <= last {
        true => Ok(first..=last),
        false => Err(ParseVlansError::Reversed(part.into())),
    }
}

/// Which tenant may have which VLANs and MAC addresses.
#[derive(Clone, Debug, Default)]
pub struct NetworkRights {
    /// The VLANs of each tenant. A tenant that is not listed has no VLAN and no untagged network. Two tenants share a
    /// VLAN if it is listed for both.
    pub vlans: BTreeMap<String, VlanList>,
    /// Only these tenants may ask for this address. Any tenant may ask for a locally administered address that is not
    /// listed.
    pub addresses: BTreeMap<MacAddress, BTreeSet<String>>,
}

impl NetworkRights {
    pub(crate) fn check_vlan(&self, tenant: &str, vlan: Option<VlanId>) -> Result<(), Refusal> {
        let asked = number(vlan);
        Err(not_allowed(match self.vlans.get(tenant) {
            Some(listed) if listed.has(vlan) => return Ok(()),
            Some(listed) => format!(
                "vlan={asked}; tenant {tenant} may have {listed} on this node (net-vlan; 0 is untagged): ask for one of \
                 these, or ask its operator for more"
            ),
            None => format!(
                "vlan={asked}; tenant {tenant} may have no VLAN on this node, and nothing untagged (0): ask its operator to \
                 list some, such as net-vlan {tenant}=0,100-199"
            ),
        }))
    }

    pub(crate) fn check_address(&self, tenant: &str, mac: MacAddress) -> Result<(), Refusal> {
        Err(not_allowed(match self.addresses.get(&mac) {
            Some(tenants) if tenants.contains(tenant) => return Ok(()),
            None if mac.is_locally_administered() => return Ok(()),
            Some(_) => format!(
                "MAC address {mac} is kept for others on this node (net-mac): ask for another one, or for none"
            ),
            None => format!(
                "MAC address {mac} is not locally administered: ask for one whose second digit is 2, 6, a or e, or for none, \
                 or ask the operator of this node to list it, as net-mac {tenant}={mac}"
            ),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::{borrow::ToOwned, string::ToString, vec};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_has_its_vlans_and_no_others() {
        let list: VlanList = "100-199,0,7".parse().unwrap();
        let has = (0..=4095).filter(|id| match VlanId::new(*id) {
            None if *id != 0 => false,
            vlan => list.has(vlan),
        });
        let expected = [0, 7].into_iter().chain(100..=199);
        assert_eq!(has.collect::<Vec<u16>>(), expected.collect::<Vec<u16>>());
    }

    #[test]
    fn text_that_is_no_list_is_refused_with_the_part_that_is_wrong() {
        let no = |part: &str| ParseVlansError::NoVlan(part.into());
        let overlap = |one: &str, other: &str| ParseVlansError::Overlap(one.into(), other.into());
        for (text, expected) in [
            ("", no("")),
            (",", no("")),
            ("7,", no("")),
            ("blue", no("blue")),
            ("-1", no("-1")),
            ("+1", no("+1")),
            ("1-", no("1-")),
            ("1-2-3", no("1-2-3")),
            ("5, 6", no(" 6")),
            ("4095", no("4095")),
            ("4000-4095", no("4000-4095")),
            ("65536", no("65536")),
            ("99999999999999999999", no("99999999999999999999")),
            ("٣", no("٣")),
            ("9-5", ParseVlansError::Reversed("9-5".into())),
            ("3-9,1-5", overlap("1-5", "3-9")),
            ("1-5,5", overlap("1-5", "5")),
            ("7,7", overlap("7", "7")),
        ] {
            assert_eq!(text.parse::<VlanList>(), Err(expected), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_list_that_is_shown_reads_back(bounds in prop::collection::btree_set(0_u16..=4094, 1..40)) {
            let bounds: Vec<u16> = bounds.into_iter().collect();
            let ranges: Vec<_> = bounds.chunks(2).map(|it| it[0]..=it[it.len() - 1]).collect();
            let list = VlanList(ranges);
            prop_assert_eq!(list.to_string().parse(), Ok(list));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9,+ -]{0,12}|.{0,12}") {
            if let Ok(list) = text.parse::<VlanList>() {
                prop_assert_eq!(list.to_string().parse(), Ok(list));
            }
        }
    }

    #[test]
    fn a_listed_address_is_for_its_tenants_and_a_manufacturers_for_nobody_else() {
        let mac = |text: &str| text.parse::<MacAddress>().unwrap();
        let (of_maker, kept, local) = (
            mac("00:1b:21:00:00:01"),
            mac("02:00:00:00:00:01"),
            mac("fe:00:00:00:00:01"),
        );
        let blue: BTreeSet<String> = [String::from("blue")].into();
        let rights = NetworkRights {
            vlans: BTreeMap::new(),
            addresses: [(of_maker, blue.clone()), (kept, blue)].into(),
        };
        let check = |tenant, mac| rights.check_address(tenant, mac).is_ok();
        for (address, expected) in [(of_maker, false), (kept, false), (local, true)] {
            assert!(check("blue", address));
            assert_eq!(check("red", address), expected, "{address}");
        }
        assert!(
            !check("blue", mac("00:1b:21:00:00:02")),
            "only the exact address"
        );
        let told = |tenant, mac| rights.check_address(tenant, mac).unwrap_err().message;
        let others = told("red", kept);
        assert!(
            others.contains("net-mac") && !others.contains("blue"),
            "{others}"
        );
        let none = NetworkRights::default().check_address("red", of_maker);
        let words = ["locally administered", "net-mac red=00:1b:21:00:00:01"];
        let none = none.unwrap_err().message;
        assert!(words.iter().all(|it| none.contains(it)), "{none}");
    }

    #[test]
    fn what_is_not_listed_is_refused_with_what_is() {
        let vlans = [("blue".to_owned(), "0,100-199".parse().unwrap())];
        let rights = NetworkRights {
            vlans: vlans.into(),
            ..NetworkRights::default()
        };
        for (tenant, vlan, words) in [
            (
                "blue",
                42,
                vec!["vlan=42", "tenant blue", "0,100-199", "net-vlan"],
            ),
            (
                "red",
                0,
                vec!["vlan=0", "tenant red", "no VLAN", "net-vlan red="],
            ),
            ("red", 100, vec!["vlan=100", "tenant red", "no VLAN"]),
        ] {
            let refusal = rights.check_vlan(tenant, VlanId::new(vlan)).unwrap_err();
            assert_eq!(refusal.class, fabricbios_wire::RefusalClass::Policy);
            for word in words {
                assert!(refusal.message.contains(word), "{refusal}");
            }
        }
        for vlan in [0, 100, 199] {
            assert_eq!(rights.check_vlan("blue", VlanId::new(vlan)), Ok(()));
        }
    }
}
