//! Network functions on offer: macvlan interfaces, and virtual functions of a card.

pub(super) mod detect;
mod end;
pub mod macvlan;
mod offer;
mod path;
pub mod rights;
mod settings;
pub mod sriov;

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use anyhow::{Context, bail};
use fabricbios_contract::{DataPath, LocalAccess, Provider, Store};
use fabricbios_lease::Offer;
use fabricbios_sriov::{Claims, netlink::Netlink, vf::Places};
use fabricbios_wire::{ResourceType, Transport};
use nix::unistd::geteuid;

use crate::{
    kinds::{Continuity, Kind, Offered, OfferedResource, Opened, Opening, cdi, records},
    process::check::{Checking, Findings},
};

use offer::OfferedInterface;
use path::NetPaths;

pub use settings::NetSettings;

/// See [`crate::kinds::KINDS`].
pub(super) const KIND: Kind = Kind {
    resource_type: ResourceType::Net,
    conflicts: settings::conflicts,
    datagrams: |_| None,
    per_tenant_max: |settings| {
        { settings.net.net_per_tenant_max }.map(|mbps| u64::from(mbps) * BITS_PER_MEGABIT)
    },
    calls: fabricbios_sriov::vf::calls,
    open,
    check,
    detect: detect::detect,
    end: Some(end::end),
    #[cfg(test)]
    examples: &settings::tests::EXAMPLES,
};

const BITS_PER_MEGABIT: u64 = 1_000_000;

/// One interface on offer.
struct Interface {
    name: String,
    offer: Offer,
    /// Most virtual functions that can be leased; `None`: leases of this interface use macvlan.
    functions: Option<u32>,
    store: Arc<dyn Store>,
    path: Arc<dyn DataPath>,
    local: Arc<dyn LocalAccess>,
}

/// Opens the interfaces of `--macvlan-parent` and `--sriov-pf`.
///
/// # Errors
/// An interface cannot be offered, or a lease of an earlier run cannot be ended.
pub fn open(opening: &Opening<'_>) -> anyhow::Result<Opened> {
    let Opening {
        node_id, watchdog, ..
    } = *opening;
    let settings = &opening.settings.net;
    let records = records(&node_id, ResourceType::Net);
    if !settings.is_offered() && !records.exists() {
        tracing::info!(
            "no network functions are offered for lease; --macvlan-parent IFNAME or --sriov-pf IFNAME offers some"
        );
        return Ok(Opened::nothing());
    }
    check_names(settings, &records)?;
    let netlink = Arc::new(Netlink::open().context("reach the kernel's network links")?);
    let claims = Arc::new(Claims::of(&records));
    let mut interfaces = macvlan::open(opening, &netlink, &claims)?;
    interfaces.extend(sriov::open(opening, &netlink, &claims)?);
    if interfaces.is_empty() {
        return Ok(Opened::nothing());
    }
    watchdog.ends(ResourceType::Net, records);
    if settings.net_vlan.is_empty() {
        tracing::warn!("{NO_VLANS}");
    }
    let mut provider = Provider::new();
    let mut paths = NetPaths::default();
    let mut resources: Vec<OfferedResource> = Vec::new();
    for interface in interfaces {
        let id = interface.offer.resource_id;
        if resources.iter().any(|it| it.offer.resource_id == id) {
            bail!("{}: the interface is offered twice", interface.name);
        }
        resources.push(OfferedResource {
            described: Arc::new(OfferedInterface::new(&interface)),
            offer: interface.offer,
            // The records say which lease has which interface, until a reboot.
            continuity: Continuity::Known,
        });
        provider = provider.with_store(id, interface.store);
        paths.add(id, interface.path, interface.local);
    }
    let paths = Arc::new(paths);
    let provider = provider.with_path("network", &[Transport::Auto], paths.clone());
    Ok(Opened {
        offered: Some(Offered {
            watchdog: Some(watchdog.clone()),
            ..Offered::new(ResourceType::Net, resources, Arc::new(provider))
        }),
        local: Some(paths),
        ..Opened::nothing()
    })
}

/// See [`crate::kinds::Kind::check`].
fn check(checking: &Checking<'_>, found: &mut Findings) {
    let settings = &checking.settings.net;
    let records = records(&checking.node_id, ResourceType::Net);
    if !settings.is_offered() || found.lacks_if(check_names(settings, &records)).is_none() {
        return;
    }
    if !settings.sriov_pf.is_empty() {
        sriov::check(&places(&records), &settings.sriov_pf, found);
        found.refused_if(cdi::check(&checking.settings.shared));
    }
    if settings.net_vlan.is_empty() {
        found.warns(NO_VLANS);
    }
}

const NO_VLANS: &str = "every lease of a network function is refused: --net-vlan TENANT=LIST, such as blue=0,100-199, says \
                        which tenant may have which VLANs";

/// Refuses names of missing interfaces and a user without rights before the start ends or makes anything. An interface
/// may be missing if records exist: its leases are of an earlier run.
fn check_names(settings: &NetSettings, records: &Path) -> anyhow::Result<()> {
    let parents = settings.macvlan_parent.iter();
    let parents = parents.map(|it| ("--macvlan-parent", &it.interface));
    let card = settings.sriov_pf.iter();
    let wanted = parents.chain(card.map(|it| ("--sriov-pf", &it.interface)));
    for (option, name) in wanted.clone() {
        if !Path::new("/sys/class/net").join(name).exists() && !records.exists() {
            let names = fs::read_dir("/sys/class/net").into_iter().flatten();
            let names = names.filter_map(|it| it.ok()?.file_name().into_string().ok());
            let names = names.collect::<BTreeSet<_>>();
            let names = names.iter().map(|it| &**it).collect::<Vec<&str>>();
            bail!(
                "{option} {name}: there is no such interface; there are {}",
                names.join(", ")
            );
        }
    }
    let first = wanted.into_iter().next();
    match first.filter(|_| !geteuid().is_root()) {
        Some((option, name)) => bail!("{option} {name}: only root can lease network functions"),
        None => Ok(()),
    }
}

/// Reads `IFNAME` or `IFNAME=NUMBER`; 0 is no number of things to offer.
fn interface_and_number(text: &str) -> Option<(String, Option<u32>)> {
    let (interface, number) = match text.split_once('=') {
        Some((interface, number)) => {
            let number = number.parse().ok().filter(|it: &u32| *it > 0)?;
            (interface, Some(number))
        }
        None => (text, None),
    };
    let is_name = !interface.is_empty() && !interface.contains('/');
    is_name.then(|| (interface.to_owned(), number))
}

fn places(records: &Path) -> Places {
    Places {
        sysfs: "/sys".into(),
        dev: "/dev".into(),
        records: records.into(),
    }
}
