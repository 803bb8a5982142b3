//! `--net-vlan` and `--net-mac`: which tenant may have which VLANs and MAC addresses.

use std::{collections::BTreeSet, str::FromStr};

use fabricbios_fabric::is_tenant_key;
use fabricbios_lease::{NetworkRights, ParseVlansError, VlanList};
use fabricbios_wire::{MacAddress, ParseMacError};

use super::NetSettings;
use crate::kinds::settings::Conflicts;

/// The VLANs of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetVlan {
    tenant: String,
    vlans: VlanList,
}

/// MAC addresses that only the tenants with such an entry may ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetMac {
    tenant: String,
    addresses: BTreeSet<MacAddress>,
}

/// Text that is not TENANT=LIST.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} `{value}`: {why}; expected {expected}")]
pub struct BadRights {
    setting: &'static str,
    value: String,
    why: BadEntry,
    expected: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum BadEntry {
    #[error("it has no `=`")]
    NoEntry,
    #[error("it names no tenant")]
    NoTenant,
    #[error("`{0}` is no name of a tenant (1 to 64 of a-z 0-9 - _ .)")]
    Tenant(String),
    #[error("it lists nothing for {0}")]
    NoList(String),
    #[error(transparent)]
    Vlans(#[from] ParseVlansError),
    #[error("`{0}`: {1}")]
    Address(String, ParseMacError),
    #[error("`{0}` is listed twice")]
    Twice(String),
}

const VLAN: &str = "net-vlan";
const MAC: &str = "net-mac";

impl FromStr for NetVlan {
    type Err = BadRights;

    fn from_str(text: &str) -> Result<Self, BadRights> {
        let expected = "TENANT=LIST, such as blue=0,100-199, where 0 is untagged";
        let (tenant, vlans) = entry(VLAN, text, expected, |list| Ok(list.parse()?))?;
        Ok(Self { tenant, vlans })
    }
}

impl FromStr for NetMac {
    type Err = BadRights;

    fn from_str(text: &str) -> Result<Self, BadRights> {
        let expected =
            "TENANT=MAC, or several with commas, such as blue=02:00:00:00:00:01,00:1b:21:00:00:01";
        let (tenant, addresses) = entry(MAC, text, expected, addresses)?;
        Ok(Self { tenant, addresses })
    }
}

/// Reads `TENANT=LIST`.
fn entry<T>(
    setting: &'static str,
    text: &str,
    expected: &'static str,
    read: impl FnOnce(&str) -> Result<T, BadEntry>,
) -> Result<(String, T), BadRights> {
    let entry = || {
        let (tenant, list) = text.split_once('=').ok_or(BadEntry::NoEntry)?;
        match tenant {
            "" => Err(BadEntry::NoTenant),
            _ if !is_tenant_key(tenant) => Err(BadEntry::Tenant(tenant.to_owned())),
            _ if list.is_empty() => Err(BadEntry::NoList(tenant.to_owned())),
            _ => Ok((tenant.to_owned(), read(list)?)),
        }
    };
    entry().map_err(|why| BadRights {
        setting,
        value: text.to_owned(),
        why,
        expected,
    })
}

fn addresses(list: &str) -> Result<BTreeSet<MacAddress>, BadEntry> {
    let mut addresses = BTreeSet::new();
    for text in list.split(',') {
        let address = text.parse();
        let address = address.map_err(|error| BadEntry::Address(text.to_owned(), error))?;
        if !addresses.insert(address) {
            return Err(BadEntry::Twice(text.to_owned()));
        }
    }
    Ok(addresses)
}

/// Refuses two entries of one tenant.
pub(super) fn check(settings: &NetSettings, conflicts: &mut Conflicts<'_>) {
    let vlans = settings.net_vlan.iter().map(|it| &it.tenant);
    let macs = settings.net_mac.iter().map(|it| &it.tenant);
    for (setting, tenants) in [
        (VLAN, vlans.collect::<Vec<_>>()),
        (MAC, macs.collect::<Vec<_>>()),
    ] {
        let mut seen = BTreeSet::new();
        if let Some(twice) = tenants.into_iter().find(|it| !seen.insert(*it)) {
            let why = format_args!(
                "names tenant {twice} twice: give {twice} one entry with the whole list"
            );
            conflicts.values(setting, why);
        }
    }
}

/// The rights for the table.
pub(crate) fn rights(settings: &NetSettings) -> NetworkRights {
    let mut rights = NetworkRights::default();
    for NetVlan { tenant, vlans } in settings.net_vlan.iter().cloned() {
        rights.vlans.insert(tenant, vlans);
    }
    for NetMac { tenant, addresses } in &settings.net_mac {
        for address in addresses {
            let tenants = rights.addresses.entry(*address).or_default();
            tenants.insert(tenant.clone());
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::VlanId;

    use super::*;

    #[test]
    fn text_that_is_no_entry_is_refused_with_setting_value_reason_and_an_example() {
        fn refused<T: FromStr<Err = BadRights>>(text: &str) -> String {
            text.parse::<T>().map(drop).unwrap_err().to_string()
        }
        for (list, why) in [
            ("", "no `=`"),
            ("blue", "no `=`"),
            ("=5", "it names no tenant"),
            ("Blue=5", "`Blue` is no name"),
            ("blue=", "it lists nothing for blue"),
        ] {
            for told in [refused::<NetVlan>(list), refused::<NetMac>(list)] {
                let words = [why, list, "such as blue=", "net-"];
                assert!(words.iter().all(|it| told.contains(it)), "{told}");
            }
        }
        for (list, why) in [
            ("blue=-1", "`-1` is neither"),
            ("blue=4095", "`4095` is neither"),
            ("blue=9-5", "`9-5` ends before it begins"),
            ("blue=1-5,3-9", "`1-5` and `3-9` overlap"),
            ("blue=5=6", "`5=6` is neither"),
        ] {
            let told = refused::<NetVlan>(list);
            let words = [why, "net-vlan", list, "such as blue=0,100-199"];
            assert!(words.iter().all(|it| told.contains(it)), "{told}");
        }
        for (list, why) in [
            ("blue=02", "`02`"),
            ("blue=01:00:5e:00:00:01", "multicast"),
            ("blue=00:00:00:00:00:00", "not zero"),
            ("blue=02:00:00:00:00:01,", "``"),
            ("blue=02:00:00:00:00:01,02:00:00:00:00:01", "twice"),
        ] {
            let told = refused::<NetMac>(list);
            let words = [why, "net-mac", list, "such as blue=02:"];
            assert!(words.iter().all(|it| told.contains(it)), "{told}");
        }
    }

    #[test]
    fn the_table_gets_the_vlans_and_addresses_of_each_tenant() {
        let mac = "00:1b:21:00:00:01";
        let vlan = |text: &str| text.parse().unwrap();
        let given = rights(&NetSettings {
            net_vlan: vec![vlan("blue=0,100-199"), vlan("red=100")],
            net_mac: ["blue", "red"]
                .map(|it| format!("{it}={mac}").parse().unwrap())
                .into(),
            ..NetSettings::default()
        });
        let has = |tenant: &str, id| given.vlans[tenant].has(VlanId::new(id));
        assert!(has("blue", 0) && has("blue", 150) && has("red", 100));
        assert!(!has("blue", 42) && !has("red", 0));
        let tenants = &given.addresses[&mac.parse().unwrap()];
        assert_eq!(tenants.iter().collect::<Vec<_>>(), ["blue", "red"]);
    }
}
