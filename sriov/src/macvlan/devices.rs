//! The devices of one lease: see the module `macvlan`.

use std::{fmt, time::Instant};

use fabricbios_lease::{Proof, StepError};
use fabricbios_wire::{Generation, HandOver, LeaseId, MacAddress, NodeId};
use netlink_packet_route::link::MacVlanMode;

use super::{kernel::Kernel, record::MacvlanRecord, steps};
use crate::netlink::{Action, By, Frames, Link, Rule, TAGS, Tag};

/// The kinds of the devices, as the kernel names them.
const MACVLAN: &str = "macvlan";
const VETH: &str = "veth";

/// Digits of the lease's id in a device name, which has at most 15 bytes.
pub(super) const NAME_DIGITS: usize = 12;

/// The names of a lease's devices.
#[derive(Clone, Debug)]
pub(super) struct Devices {
    lease: LeaseId,
    pub(super) macvlan: String,
    pub(super) node_end: String,
    /// The only one of the devices that the tenant gets.
    pub(super) tenant_end: String,
}

/// The indexes of the devices with rules: `fbn`, where the tenant's frames arrive, and `fbm`, where frames from the
/// wire arrive. A device keeps its index when its name changes. `None`: the device does not exist.
pub(super) type Indexes = [Option<u32>; 2];

/// The wanted state of a lease's devices.
#[derive(Clone, Debug)]
pub(super) struct Plan<'a> {
    pub(super) record: &'a MacvlanRecord,
    /// See [`note_of`].
    pub(super) note: &'a str,
    /// The index of the parent. `mtu` is the parent's MTU.
    pub(super) parent: u32,
    pub(super) mtu: u32,
    pub(super) is_shaped: bool,
}

impl Plan<'_> {
    /// The rate in bytes per second; `None`: not shaped.
    fn rate(&self) -> Option<u64> {
        self.is_shaped.then_some((self.record.rate_bps / 8).max(1))
    }

    /// The rules for frames from the tenant. A frame that the tenant has tagged never passes, not even inside the tag
    /// of the lease.
    fn sent(&self, macvlan: u32) -> Vec<Rule> {
        let tag = self
            .record
            .vlan
            .map_or(Tag::Kept, |it| Tag::Added(it.get()));
        let out = Action::Redirect { tag, to: macvlan };
        let mut rules = drop_tagged();
        rules.push((Frames::From(self.record.mac), out));
        rules.push((Frames::All, Action::Drop));
        rules
    }

    /// The rules for frames from the wire.
    fn received(&self, node_end: u32) -> Vec<Rule> {
        let to = node_end;
        let (mut rules, frames, tag) = match self.record.vlan {
            Some(vlan) => (Vec::new(), Frames::OfVlan(vlan.get()), Tag::Removed),
            None => (drop_tagged(), Frames::All, Tag::Kept),
        };
        rules.push((frames, Action::Redirect { tag, to }));
        // This rule also drops untagged frames after a cut.
        rules.push((Frames::All, Action::Drop));
        rules
    }
}

fn drop_tagged() -> Vec<Rule> {
    let tags = TAGS.into_iter().map(Frames::Tagged);
    tags.map(|it| (it, Action::Drop)).collect()
}

impl Devices {
    pub(super) fn of(lease: LeaseId) -> Self {
        let id = lease.to_string();
        let name = |letter: char| format!("fb{letter}{}", &id[..NAME_DIGITS]);
        Self {
            lease,
            macvlan: name('m'),
            node_end: name('n'),
            tenant_end: name('t'),
        }
    }

    /// Makes all devices, not yet set up, and reads their state back.
    pub(super) fn make(
        &self,
        kernel: &dyn Kernel,
        plan: &Plan<'_>,
        generation: Generation,
    ) -> Result<Indexes, StepError> {
        let MacvlanRecord { parent, mac, .. } = plan.record;
        let note = format!("{} {} {} {parent}", plan.note, self.lease, generation.0);
        kernel.make_macvlan(&self.macvlan, plan.parent, *mac)?;
        steps::passed("make macvlan");
        kernel.set_alias(&self.macvlan, &note)?;
        steps::passed("note on macvlan");
        kernel.make_veth(&self.node_end, &self.tenant_end, *mac, plan.mtu)?;
        steps::passed("make veth pair");
        kernel.set_alias(&self.node_end, &note)?;
        steps::passed("note on veth");
        let (macvlan, node_end) = (
            find(kernel, &self.macvlan)?.index,
            find(kernel, &self.node_end)?.index,
        );
        kernel.set_rules(node_end, &plan.sent(macvlan))?;
        steps::passed("rules for sent frames");
        kernel.set_rules(macvlan, &plan.received(node_end))?;
        steps::passed("rules for received frames");
        if let Some(rate) = plan.rate() {
            kernel.shape(macvlan, rate)?;
            steps::passed("shape sent frames");
            kernel.shape(node_end, rate)?;
            steps::passed("shape received frames");
        }
        self.check(kernel, plan)
    }

    /// Reads the limits back. Returns the indexes of the devices with rules.
    pub(super) fn check(&self, kernel: &dyn Kernel, plan: &Plan<'_>) -> Result<Indexes, StepError> {
        let macvlan = find(kernel, &self.macvlan)?;
        let node_end = find(kernel, &self.node_end)?;
        let is = |what, found: &dyn fmt::Debug, expected: &dyn fmt::Debug| {
            let (found, expected) = (format!("{found:?}"), format!("{expected:?}"));
            (found == expected).then_some(()).ok_or_else(|| {
                let why = format!("{}: {what} is {found}, not {expected}", self.macvlan);
                StepError::new("read back", why)
            })
        };
        is("the parent", &macvlan.parent, &Some(plan.parent))?;
        is("the address", &macvlan.mac, &Some(plan.record.mac))?;
        let mode = Some(MacVlanMode::Private);
        is("the mode", &macvlan.macvlan_mode, &mode)?;
        is("the kind of the pair", &node_end.kind, &Some(VETH))?;
        let expected = |rules: Vec<Rule>| rules.into_iter().map(Some).collect::<Vec<_>>();
        let sent = expected(plan.sent(macvlan.index));
        let received = expected(plan.received(node_end.index));
        is(
            "rules for sent frames",
            &kernel.rules(node_end.index)?,
            &sent,
        )?;
        is(
            "rules for received frames",
            &kernel.rules(macvlan.index)?,
            &received,
        )?;
        for link in [&macvlan, &node_end] {
            is("the rate", &kernel.shaped(link.index)?, &plan.rate())?;
        }
        Ok([Some(node_end.index), Some(macvlan.index)])
    }

    /// Opens access.
    pub(super) fn set_up(&self, kernel: &dyn Kernel, hand_over: HandOver) -> Result<(), StepError> {
        kernel.set_up(&self.macvlan)?;
        steps::passed("set macvlan up");
        kernel.set_up(&self.node_end)?;
        steps::passed("set veth up");
        if hand_over == HandOver::Interface {
            kernel.set_up(&self.tenant_end)?;
            steps::passed("set interface up");
        }
        Ok(())
    }

    /// Finds the indexes of the devices with rules by their names.
    pub(super) fn indexes(&self, kernel: &dyn Kernel) -> Result<Indexes, StepError> {
        let [sent, received] = [&self.node_end, &self.macvlan].map(|it| kernel.index_of(it));
        Ok([sent?, received?])
    }

    /// Deletes the rules that pass frames, and reads back that they are gone; the last remaining rule drops every
    /// frame. A tenant that is root in its namespace cannot restore the rules: they are on devices in the node's
    /// namespace, and the tenant has only `fbt`.
    ///
    /// Does not delete the devices: that would wait for the kernel's lock of network devices (rtnl), which every user
    /// with a namespace can keep busy.
    pub(super) fn cut(&self, kernel: &dyn Kernel, indexes: Indexes) -> Result<Proof, StepError> {
        let mut proof = Proof::default();
        let rules = [
            "delete rule for sent frames",
            "delete rule for received frames",
        ];
        for (step, index) in rules.into_iter().zip(indexes) {
            let began = Instant::now();
            let was_there = match index {
                Some(index) => kernel.delete_redirect(index)?,
                None => false,
            };
            steps::passed(step);
            proof.add(
                step,
                began.elapsed(),
                if was_there { "gone" } else { "there was none" },
            );
        }
        Ok(proof)
    }

    /// Proves that no rule passes frames.
    pub(super) fn check_cut(
        &self,
        kernel: &dyn Kernel,
        indexes: Indexes,
    ) -> Result<Proof, StepError> {
        let began = Instant::now();
        for (name, index) in [&self.node_end, &self.macvlan].into_iter().zip(indexes) {
            let gone = || format!("{name}: no interface has this name");
            let index = index.ok_or_else(|| StepError::new("look for rules", gone()))?;
            if kernel.redirects(index)? {
                let why = format!(
                    "{name} (interface {index}) passes frames of lease {}",
                    self.lease
                );
                return Err(StepError::new("look for rules", why));
            }
        }
        let mut proof = Proof::default();
        proof.add("look for rules", began.elapsed(), "none passes frames");
        Ok(proof)
    }

    /// Deletes the devices, the macvlan first: then no frame passes. The node's end of the veth pair takes the tenant's
    /// end with it, in whichever namespace that is.
    pub(super) fn delete(&self, kernel: &dyn Kernel) -> Result<Proof, StepError> {
        let mut proof = Proof::default();
        for (step, name, kind) in [
            ("delete macvlan", &self.macvlan, MACVLAN),
            ("delete veth pair", &self.node_end, VETH),
        ] {
            let began = Instant::now();
            let link = kernel.link(By::Name(name))?;
            let ours = link.filter(|it| it.kind.as_deref() == Some(kind));
            let found = match ours {
                Some(link) if kernel.delete(link.index)? => link.index.to_string(),
                _ => "there was none".to_owned(),
            };
            steps::passed(step);
            proof.add(step, began.elapsed(), found);
        }
        Ok(proof)
    }

    /// Proves that no device of the lease exists, under any name. `address`: a parent and an address; no macvlan of
    /// that parent may have it.
    pub(super) fn check_gone(
        &self,
        kernel: &dyn Kernel,
        address: Option<(u32, MacAddress)>,
    ) -> Result<Proof, StepError> {
        let mut proof = Proof::default();
        let began = Instant::now();
        let names = [&self.macvlan, &self.node_end, &self.tenant_end];
        for kind in [MACVLAN, VETH] {
            let left = kernel.links(kind)?.into_iter().find(|it| {
                let is_named = names.contains(&&it.name);
                let its = it.parent.zip(it.mac).filter(|_| kind == MACVLAN);
                let has_address = its.is_some() && its == address;
                is_named
                    || has_address
                    || noted(it).is_some_and(|(_, lease, _)| lease == self.lease)
            });
            if let Some(left) = left {
                let why = format!("interface {} ({kind}) of lease {}", left.name, self.lease);
                return Err(StepError::new("look for interfaces", why));
            }
        }
        proof.add("look for interfaces", began.elapsed(), "none");
        Ok(proof)
    }
}

/// The beginning of the note on every device of a node.
pub(super) fn note_of(node_id: NodeId) -> String {
    format!("fabricbios-{}", &node_id.to_string()[..8])
}

/// The leases of a node that have devices, also those of an earlier process, each with its parent.
pub(super) fn leases_noted(
    kernel: &dyn Kernel,
    note: &str,
) -> Result<Vec<(LeaseId, String)>, StepError> {
    let mut leases = Vec::new();
    for kind in [MACVLAN, VETH] {
        let links = kernel.links(kind)?;
        let noted = links.iter().filter_map(noted);
        let ours = noted.filter(|(by, ..)| *by == note);
        leases.extend(ours.map(|(_, lease, parent)| (lease, parent.to_owned())));
    }
    leases.sort_unstable();
    leases.dedup();
    Ok(leases)
}

/// The node, the lease and the parent that the note on a device names.
fn noted(link: &Link) -> Option<(&str, LeaseId, &str)> {
    let words: Vec<&str> = link.alias.as_deref()?.split(' ').collect();
    match words[..] {
        [by, lease, _generation, parent] => Some((by, lease.parse().ok()?, parent)),
        _ => None,
    }
}

fn find(kernel: &dyn Kernel, name: &str) -> Result<Link, StepError> {
    let link = kernel.link(By::Name(name))?;
    link.ok_or_else(|| StepError::new("look for interface", format_args!("{name}: it is gone")))
}
