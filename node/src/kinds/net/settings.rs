//! The operator's settings of network functions.

use clap::Args;

use super::{
    macvlan::MacvlanParent,
    rights::{self, NetMac, NetVlan},
    sriov::SriovPf,
};
use crate::kinds::settings::{Conflicts, KindSettings, values};

/// The settings of network functions.
#[derive(Args, Clone, Debug, Default)]
pub struct NetSettings {
    /// Network interface on which macvlan interfaces are offered for lease: their rates are shaped, and their tenants are
    /// held to their addresses. MBPS: megabits per second to offer, where the driver tells no speed, or less than it tells
    /// [repeatable; default: none].
    #[arg(long, value_name = "IFNAME[=MBPS]")]
    pub macvlan_parent: Vec<MacvlanParent>,

    /// Network card whose virtual functions (SR-IOV) are offered for lease: all that it can have, or N of them with
    /// IFNAME=N. They are made at the start, unless there are some already. Each card is a resource of its own [repeatable;
    /// default: none].
    #[arg(long, value_name = "IFNAME[=N]")]
    pub sriov_pf: Vec<SriovPf>,

    /// The VLANs that TENANT may have: numbers and ranges such as 0,100-199, where 0 is the untagged network. What is not
    /// listed is refused; two tenants share a VLAN if it is listed for both [repeatable: several tenants; default: no
    /// tenant has any].
    #[arg(long, value_name = "TENANT=LIST")]
    pub net_vlan: Vec<NetVlan>,

    /// MAC addresses, with commas between them, that TENANT may ask for, and no tenant without such an entry. Any other
    /// address that a tenant asks for must be locally administered [repeatable: several tenants; default: none].
    #[arg(long, value_name = "TENANT=LIST")]
    pub net_mac: Vec<NetMac>,

    /// Highest sum of transmit rates that the leases of one tenant may hold, in megabits per second [default: all that is
    /// on offer].
    #[arg(long, value_name = "MBPS", value_parser = values::number(0..=u32::MAX, 10_000))]
    pub net_per_tenant_max: Option<u32>,
}

impl NetSettings {
    pub(super) fn is_offered(&self) -> bool {
        self.interfaces().next().is_some()
    }

    /// The interfaces on offer.
    pub(super) fn interfaces(&self) -> impl Iterator<Item = &String> {
        let parents = self.macvlan_parent.iter().map(|it| &it.interface);
        parents.chain(self.sriov_pf.iter().map(|it| &it.interface))
    }
}

/// See [`crate::kinds::Kind::conflicts`].
pub(super) fn conflicts(settings: &KindSettings, conflicts: &mut Conflicts<'_>) {
    let it = &settings.net;
    conflicts.needs(
        &[
            ("net-vlan", !it.net_vlan.is_empty()),
            ("net-mac", !it.net_mac.is_empty()),
            ("net-per-tenant-max", it.net_per_tenant_max.is_some()),
        ],
        it.is_offered(),
        "--macvlan-parent IFNAME or --sriov-pf IFNAME",
        "no network function is leased",
    );
    rights::check(it, conflicts);
    let cards = it.sriov_pf.iter().map(|it| &it.interface);
    conflicts.once("sriov-pf", "interface", cards);
    let parents = it.macvlan_parent.iter().map(|it| &it.interface);
    conflicts.once("macvlan-parent", "interface", parents);
}

#[cfg(test)]
pub(super) mod tests;
