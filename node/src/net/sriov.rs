//! Virtual functions of a network card on offer.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

use anyhow::{anyhow, bail};
use fabricbios_contract::{EndByName, Provider};
use fabricbios_sriov::{
    netlink::Netlink,
    vf::{Card, CardConfig, VfEnd, VfPath, VfStore},
};
use fabricbios_wire::{ResourceType, Transport};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use super::{OfferedInterface, places, records};
use crate::providers::{Continuity, Offered, Opened, Opening};

/// Where container engines look.
const CDI: &str = "/run/cdi";

/// `IFNAME` or `IFNAME=N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SriovPf {
    /// The interface of the card.
    pub interface: String,
    /// How many of its functions are offered at most.
    pub count: Option<u32>,
}

/// The text names no card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSriovPf;

impl fmt::Display for BadSriovPf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "an interface expected, such as eth0, or with a number of virtual functions, eth0=4",
        )
    }
}

impl std::error::Error for BadSriovPf {}

impl FromStr for SriovPf {
    type Err = BadSriovPf;

    fn from_str(text: &str) -> Result<Self, BadSriovPf> {
        let (interface, count) = match text.split_once('=') {
            Some((interface, count)) => (interface, Some(count.parse().map_err(|_| BadSriovPf)?)),
            None => (text, None),
        };
        let is_name = !interface.is_empty() && !interface.contains('/');
        is_name
            .then(|| Self {
                interface: interface.to_owned(),
                count,
            })
            .ok_or(BadSriovPf)
    }
}

/// Opens what `--sriov-pf` asks for.
///
/// # Errors
/// The card has no virtual functions to lease, or the directory for container engines is no tmpfs.
pub fn open(opening: &Opening<'_>) -> anyhow::Result<Opened> {
    let Opening {
        settings,
        node_id,
        watchdog,
        supervisor,
        ..
    } = *opening;
    let records = records(&node_id);
    let Some(SriovPf { interface, count }) = settings.sriov_pf.clone() else {
        end_all(&records)?;
        return Ok(Opened::nothing());
    };
    let cdi = settings.cdi_dir.clone().unwrap_or_else(|| CDI.into());
    check_tmpfs(&cdi)?;
    let card = Card::open(CardConfig {
        interface,
        count,
        places: places(&records),
        cdi: cdi.to_string_lossy().into_owned(),
        supervisor: supervisor.clone(),
        links: Arc::new(Netlink::open()?),
    });
    let card = Arc::new(card.map_err(|error| anyhow!("--sriov-pf: {error}"))?);
    let described = OfferedInterface::new(&node_id, card.name(), card.count());
    let resource_id = described.resource_id;
    tracing::info!(
        card = card.name(),
        functions = card.count(),
        of = card.total(),
        rate_bps = card.rate_bps(),
        "virtual functions are leased"
    );
    let offer = card.offer(resource_id);
    watchdog.ends(ResourceType::Net, records);
    let guard = watchdog.guard(ResourceType::Net);
    let path = Arc::new(VfPath::new(card.clone(), guard));
    let provider = Provider::new()
        .with_store(resource_id, Arc::new(VfStore::new(card)))
        .with_path("SR-IOV", &[Transport::Auto], path.clone());
    let mut offered = Offered::new(
        ResourceType::Net,
        offer,
        Arc::new(described),
        Arc::new(provider),
    );
    for resource in &mut offered.resources {
        // The records say which lease has what, until a reboot.
        resource.continuity = Continuity::Known;
    }
    Ok(Opened {
        offered: Some(Offered {
            watchdog: Some(watchdog.clone()),
            ..offered
        }),
        local: Some(path),
        ..Opened::nothing()
    })
}

/// A specification must not outlive a reboot: it names a device of the machine.
fn check_tmpfs(cdi: &PathBuf) -> anyhow::Result<()> {
    std::fs::create_dir_all(cdi)
        .map_err(|error| anyhow!("--cdi-dir {}: {error}", cdi.display()))?;
    if statfs(cdi)?.filesystem_type() != TMPFS_MAGIC {
        bail!(
            "--cdi-dir {}: it must be a tmpfs, which a reboot empties",
            cdi.display()
        );
    }
    Ok(())
}

/// Ends the access of leases that an earlier run with `--sriov-pf` has left. Their functions are cleaned when the flag is
/// given again.
fn end_all(records: &PathBuf) -> anyhow::Result<()> {
    let end = VfEnd::new(&places(records));
    for lease in end.leases()? {
        tracing::warn!(lease_id = %lease, "ending a lease of a virtual function, of which none are on offer any more");
        end.end(lease)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_named_alone_or_with_a_number() {
        let read = |text: &str| text.parse::<SriovPf>();
        let eth0 = |count| {
            Ok(SriovPf {
                interface: "eth0".into(),
                count,
            })
        };
        assert_eq!(read("eth0"), eth0(None));
        assert_eq!(read("eth0=4"), eth0(Some(4)));
        for text in ["", "=4", "eth0=", "eth0=x", "eth0=-1", "a/b"] {
            assert_eq!(read(text), Err(BadSriovPf), "{text}");
        }
    }
}
