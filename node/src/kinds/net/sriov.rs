//! Virtual functions of a network card on offer.

use std::{path::Path, str::FromStr, sync::Arc};

use anyhow::{Context, anyhow};
use fabricbios_sriov::{
    Claims,
    netlink::Netlink,
    vf::{Card, CardConfig, Places, VfEnd, VfPath, VfStore},
};
use fabricbios_wire::ResourceType;

use super::{Interface, interface_and_number, places};
use crate::{
    inventory::hardware::resource_id,
    kinds::{Opening, cdi, own_program, records, settings::values::BadValue},
    process::check::Findings,
};

/// The context of an error.
const END: &str = "end leases of virtual functions that an earlier run has left; offer their card again with --sriov-pf, or end the process named here";

/// `IFNAME` or `IFNAME=N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SriovPf {
    /// The interface of the card.
    pub interface: String,
    /// How many of its functions are offered at most.
    pub count: Option<u32>,
}

impl FromStr for SriovPf {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let parsed = interface_and_number(text);
        parsed
            .map(|(interface, count)| Self { interface, count })
            .ok_or(BadValue::Form(
                "an interface expected",
                "eth0, or with a number of virtual functions, eth0=4",
            ))
    }
}

/// Opens the cards of `--sriov-pf`: each card is its own resource.
///
/// # Errors
/// A card has no virtual functions to lease, or other users can write to the directory for container engines.
pub(super) fn open(
    opening: &Opening<'_>,
    netlink: &Arc<Netlink>,
    claims: &Arc<Claims>,
) -> anyhow::Result<Vec<Interface>> {
    let Opening {
        node_id,
        supervisor,
        ..
    } = *opening;
    let places = places(&records(&node_id, ResourceType::Net));
    let end = VfEnd::new(&places, supervisor.clone(), None);
    let wanted = &opening.settings.net.sriov_pf;
    let (mut there, mut failed) = (Vec::new(), Vec::new());
    // All checks come before any card is changed.
    for it @ SriovPf { interface, count } in wanted {
        match Card::check(&places, interface, *count) {
            Ok(function) => there.push((it, function)),
            Err(error) => failed.push((interface, error)),
        }
    }
    let offered: Vec<_> = there.iter().map(|(_, function)| *function).collect();
    for (interface, error) in failed {
        let is_gone = !Path::new("/sys/class/net").join(interface).exists();
        if !is_gone || !end.all_are_gone(&offered)? {
            return Err(anyhow!("--sriov-pf {interface}: {error}"));
        }
        tracing::error!(interface, %error, "--sriov-pf: the card of an earlier run's leases is gone: the node starts without it");
    }
    let (cdi, hook) = (cdi::directory(&opening.settings.shared)?, own_program()?);
    let cards = there.into_iter().map(|(SriovPf { interface, count }, _)| {
        let card = Card::open(CardConfig {
            interface: interface.clone(),
            count: *count,
            places: places.clone(),
            claims: claims.clone(),
            cdi: cdi.to_string_lossy().into_owned(),
            hook: hook.clone(),
            supervisor: supervisor.clone(),
            links: netlink.clone(),
        });
        card.map_err(|error| anyhow!("--sriov-pf {interface}: {error}"))
    });
    let cards = all_or_none(cards, Card::close)?;
    if let Err(error) = end.end_unoffered(&offered) {
        cards.into_iter().for_each(Card::close);
        return Err(error).context(END);
    }
    let interfaces = cards.into_iter();
    Ok(interfaces
        .map(|card| interface(opening, Arc::new(card)))
        .collect())
}

/// Makes the checks that a start makes before it changes any card.
pub(super) fn check(places: &Places, wanted: &[SriovPf], found: &mut Findings) {
    for SriovPf { interface, count } in wanted {
        if let Err(error) = Card::check(places, interface, *count) {
            found.lacks(format_args!("--sriov-pf {interface}: {error}"));
        }
    }
}

/// All opened items, or the first error; on an error the opened items are closed, the last one first.
fn all_or_none<T, E>(
    opened: impl Iterator<Item = Result<T, E>>,
    close: impl Fn(T),
) -> Result<Vec<T>, E> {
    let mut all = Vec::new();
    for one in opened {
        match one {
            Ok(one) => all.push(one),
            Err(error) => {
                all.into_iter().rev().for_each(close);
                return Err(error);
            }
        }
    }
    Ok(all)
}

/// An open card on offer.
fn interface(opening: &Opening<'_>, card: Arc<Card>) -> Interface {
    tracing::info!(
        card = card.name(),
        functions = card.count(),
        of = card.total(),
        rate_bps = card.rate_bps(),
        "virtual functions are leased"
    );
    let offer = card.offer(resource_id(
        &opening.node_id,
        ResourceType::Net,
        card.name(),
    ));
    if let Some(why) = &offer.needs_vlan {
        tracing::warn!(card = card.name(), "untagged leases are refused: {why}");
    }
    let guard = opening.watchdog.guard(ResourceType::Net);
    let path = Arc::new(VfPath::new(card.clone(), guard));
    Interface {
        name: card.name().to_owned(),
        offer,
        functions: Some(card.count()),
        store: Arc::new(VfStore::new(card)),
        path: path.clone(),
        local: path,
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn of_cards_of_which_one_fails_none_stays_open() {
        let closed = RefCell::new(Vec::new());
        let close = |card: u32| closed.borrow_mut().push(card);
        let cards = [Ok(1), Ok(2), Err("three"), Ok(4)];
        assert_eq!(all_or_none(cards.into_iter(), close), Err("three"));
        assert_eq!(closed.take(), [2, 1]);
        let cards = [Ok::<_, &str>(1), Ok(2)];
        assert_eq!(all_or_none(cards.into_iter(), close), Ok(vec![1, 2]));
        assert!(closed.take().is_empty());
    }

    #[test]
    fn more_functions_than_the_card_has_are_found_before_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let at = |path: &str| directory.path().join(path);
        let card = at("bus/pci/devices/0000:03:00.0");
        fs::create_dir_all(&card).unwrap();
        fs::write(card.join("sriov_totalvfs"), "4\n").unwrap();
        symlink("../../drivers/mlx5_core", card.join("driver")).unwrap();
        fs::create_dir_all(at("class/net/pf0")).unwrap();
        symlink(&card, at("class/net/pf0/device")).unwrap();
        let places = Places {
            sysfs: directory.path().into(),
            ..super::places(Path::new("/nowhere"))
        };
        let checked = |text: &str| {
            let mut found = Findings::default();
            check(&places, &[text.parse().unwrap()], &mut found);
            found
        };
        for good in ["pf0", "pf0=4"] {
            assert!(!checked(good).stop_a_start(), "{}", checked(good));
        }
        for (bad, why) in [("pf0=99", "the card has 4"), ("pf1", "no such interface")] {
            let found = checked(bad);
            assert!(
                found.stop_a_start() && found.to_string().contains(why),
                "{found}"
            );
        }
    }

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
        for text in ["", "=4", "eth0=", "eth0=x", "eth0=-1", "eth0=0", "a/b"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
