//! Macvlan interfaces on offer.

use std::{path::Path, str::FromStr, sync::Arc};

use anyhow::Context;
use fabricbios_kernfs::Tree;
use fabricbios_sriov::{
    Claims,
    macvlan::{MacvlanPath, MacvlanStore, Parent, ParentConfig, end_unoffered, had_leases},
    netlink::Netlink,
};
use fabricbios_wire::ResourceType;

use super::{Interface, interface_and_number};
use crate::{
    inventory::hardware::resource_id,
    kinds::{Opening, settings::values::BadValue},
};

/// `IFNAME` or `IFNAME=MBPS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacvlanParent {
    /// The interface.
    pub interface: String,
    /// The megabits per second to offer.
    pub mbps: Option<u32>,
}

const FORM: &str =
    "no interface, such as eth0, or one with megabits per second to offer, such as eth0=1000";

impl FromStr for MacvlanParent {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let parsed = interface_and_number(text);
        parsed
            .map(|(interface, mbps)| Self { interface, mbps })
            .ok_or_else(|| BadValue::Other(text.to_owned(), FORM))
    }
}

/// Opens the interfaces of `--macvlan-parent`, and ends leases that an earlier run has left on other parents.
pub(super) fn open(
    opening: &Opening<'_>,
    netlink: &Arc<Netlink>,
    claims: &Arc<Claims>,
) -> anyhow::Result<Vec<Interface>> {
    let node_id = opening.node_id;
    let wanted = &opening.settings.net.macvlan_parent;
    let open = |MacvlanParent { interface, mbps }: &MacvlanParent| {
        let parent = Parent::open(ParentConfig {
            name: interface.clone(),
            node_id,
            mbps: mbps.map(u64::from),
            claims: claims.clone(),
            sys: Tree::new("/sys"),
            kernel: netlink.clone(),
        });
        let is_gone = !Path::new("/sys/class/net").join(interface).exists();
        let parent = match parent {
            Err(error) if is_gone && had_leases(claims, interface)? => {
                tracing::error!(%error, "--macvlan-parent: an interface with leases of an earlier run is gone: the node starts without it");
                return Ok(None);
            }
            parent => Arc::new(parent.context("--macvlan-parent")?),
        };
        tracing::info!(parent = interface, "macvlan interfaces are leased");
        let guard = opening.watchdog.guard(ResourceType::Net);
        let path = Arc::new(MacvlanPath::new(parent.clone(), guard));
        anyhow::Ok(Some(Interface {
            name: interface.clone(),
            offer: parent.offer(resource_id(&node_id, ResourceType::Net, interface)),
            functions: None,
            store: Arc::new(MacvlanStore::new(parent)),
            path: path.clone(),
            local: path,
        }))
    };
    let interfaces = wanted.iter().filter_map(|it| open(it).transpose());
    let interfaces = interfaces.collect::<anyhow::Result<Vec<_>>>()?;
    let offered: Vec<&str> = interfaces.iter().map(|it| &*it.name).collect();
    end_unoffered(&**netlink, node_id, claims, &offered)
        .context("end macvlan leases of an earlier run")?;
    Ok(interfaces)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    #[test]
    fn a_parent_is_named_alone_or_with_a_rate() {
        for (text, mbps) in [("eth0", None), ("eth0=1000", Some(1000))] {
            let read: MacvlanParent = text.parse().unwrap();
            assert_eq!((&*read.interface, read.mbps), ("eth0", mbps));
        }
        for text in ["", "=5", "eth0=", "eth0=fast", "eth0=-1", "eth0=0", "a/b"] {
            assert!(text.parse::<MacvlanParent>().is_err(), "{text}");
        }
    }
}
