//! An imitation of the kernel: it keeps links as the real one does, and refuses the calls that the test chooses.

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::BorrowedFd,
    sync::{Mutex, MutexGuard},
};

use fabricbios_contract::testing::Calls;
use fabricbios_sriov::{
    macvlan::Kernel,
    netlink::{Action, By, Error, Link, Rule},
};
use fabricbios_wire::{LeaseId, MacAddress};
use netlink_packet_route::link::MacVlanMode;

/// The index of `parent0`.
pub(crate) const PARENT: u32 = 2;

#[derive(Debug, Default)]
struct Device {
    link: Link,
    peer: Option<u32>,
    is_away: bool,
    rules: Vec<Rule>,
    rate: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    devices: BTreeMap<u32, Device>,
    next: u32,
    /// The kinds of links that were listed.
    listed: Vec<String>,
    /// Whether the last rule of each set is forgotten.
    is_forgetful: bool,
}

#[derive(Debug)]
pub(crate) struct FakeKernel {
    /// The calls that change something, and the looks for rules that pass frames.
    pub(crate) calls: Calls,
    state: Mutex<State>,
}

impl FakeKernel {
    pub(crate) fn new() -> Self {
        let link = Link {
            index: PARENT,
            name: "parent0".into(),
            is_up: true,
            mtu: 1500,
            ..Link::default()
        };
        let parent = Device {
            link,
            ..Device::default()
        };
        Self {
            calls: Calls::default(),
            state: Mutex::new(State {
                devices: BTreeMap::from([(PARENT, parent)]),
                next: PARENT + 1,
                ..State::default()
            }),
        }
    }

    /// Removes the parent and the macvlans on it.
    pub(crate) fn lose_parent(&self) {
        let mut state = self.state();
        let parent = state.find("parent0").unwrap().link.index;
        let is_its = |it: &Device| it.link.index == parent || it.link.parent == Some(parent);
        state.devices.retain(|_, it| !is_its(it));
    }

    /// Makes a parent with this name and a new index. Returns the index.
    pub(crate) fn make_parent(&self) -> u32 {
        let link = Link {
            name: "parent0".into(),
            is_up: true,
            mtu: 1500,
            ..Link::default()
        };
        self.state().add(link).unwrap()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The names of all links except the parent, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let state = self.state();
        let names = state.devices.values().map(|it| it.link.name.clone());
        let mut names: Vec<String> = names.filter(|it| it != "parent0").collect();
        names.sort();
        names
    }

    /// The names of the links that are up.
    pub(crate) fn up(&self) -> Vec<String> {
        let state = self.state();
        let up = state.devices.values().filter(|it| it.link.is_up);
        up.map(|it| it.link.name.clone()).collect()
    }

    /// Whether any rule redirects frames.
    pub(crate) fn redirects(&self) -> bool {
        let state = self.state();
        let mut rules = state.devices.values().flat_map(|it| &it.rules);
        rules.any(|(_, action)| *action != Action::Drop)
    }

    /// The kinds of links that were listed since the last call.
    pub(crate) fn listed(&self) -> Vec<String> {
        std::mem::take(&mut self.state().listed)
    }

    /// Whether frames pass between a device of the lease that is up and another one.
    pub(crate) fn passes(&self, lease: LeaseId) -> bool {
        let state = self.state();
        let its = |it: &&Device| it.link.name[3..] == lease.to_string()[..12];
        let mut up = state
            .devices
            .values()
            .filter(its)
            .filter(|it| it.link.is_up);
        up.any(|it| it.rules.iter().any(|(_, action)| *action != Action::Drop))
    }

    pub(crate) fn set_forgetful(&self, is_forgetful: bool) {
        self.state().is_forgetful = is_forgetful;
    }

    pub(crate) fn rename(&self, from: &str, to: &str) {
        let mut state = self.state();
        let device = state.devices.values_mut().find(|it| it.link.name == from);
        device.unwrap().link.name = to.into();
    }

    /// Begins a call, which the test may have chosen to fail.
    fn begin(
        &self,
        call: &'static str,
        about: &dyn fmt::Display,
    ) -> Result<MutexGuard<'_, State>, Error> {
        match self.calls.begin(call) {
            Ok(()) => Ok(self.state()),
            Err(_) => Err(Error::refused(call, about, libc::ENOENT)),
        }
    }
}

impl State {
    fn add(&mut self, link: Link) -> Result<u32, Error> {
        if self.devices.values().any(|it| it.link.name == link.name) {
            return Err(Error::refused("make", &link.name, libc::EEXIST));
        }
        let index = self.next;
        self.next += 1;
        let link = Link { index, ..link };
        let device = Device {
            link,
            ..Device::default()
        };
        self.devices.insert(index, device);
        Ok(index)
    }

    fn find(&mut self, name: &str) -> Result<&mut Device, Error> {
        let found = self.devices.values_mut().find(|it| it.link.name == name);
        found.ok_or_else(|| Error::refused("find", &name, libc::ENODEV))
    }

    fn at(&mut self, index: u32) -> Result<&mut Device, Error> {
        let found = self.devices.get_mut(&index);
        found.ok_or_else(|| Error::refused("find", &index, libc::ENODEV))
    }
}

impl Kernel for FakeKernel {
    fn link(&self, by: By<'_>) -> Result<Option<Link>, Error> {
        let state = self.state();
        let is_it = |it: &&Device| match by {
            By::Index(index) => it.link.index == index,
            By::Name(name) => it.link.name == name,
        };
        let here = state.devices.values().filter(|it| !it.is_away);
        Ok(here.clone().find(is_it).map(|it| it.link.clone()))
    }

    fn links(&self, kind: &str) -> Result<Vec<Link>, Error> {
        let mut state = self.state();
        state.listed.push(kind.to_owned());
        let here = state.devices.values().filter(|it| !it.is_away);
        let of_kind = here.filter(|it| it.link.kind.as_deref() == Some(kind));
        Ok(of_kind.map(|it| it.link.clone()).collect())
    }

    fn make_macvlan(&self, name: &str, parent: u32, mac: MacAddress) -> Result<(), Error> {
        let link = Link {
            name: name.into(),
            kind: Some("macvlan".into()),
            mac: Some(mac),
            parent: Some(parent),
            macvlan_mode: Some(MacVlanMode::Private),
            ..Link::default()
        };
        self.begin("make macvlan", &name)?.add(link).map(drop)
    }

    fn make_veth(&self, name: &str, peer: &str, mac: MacAddress, mtu: u32) -> Result<(), Error> {
        let mut state = self.begin("make veth", &name)?;
        let end = |name: &str, mac| Link {
            name: name.into(),
            kind: Some("veth".into()),
            mac,
            mtu,
            ..Link::default()
        };
        let one = state.add(end(name, None))?;
        let other = state.add(end(peer, Some(mac)))?;
        state.at(one)?.peer = Some(other);
        state.at(other)?.peer = Some(one);
        Ok(())
    }

    fn set_alias(&self, name: &str, alias: &str) -> Result<(), Error> {
        let mut state = self.begin("set alias", &name)?;
        state.find(name)?.link.alias = Some(alias.into());
        Ok(())
    }

    fn set_rules(&self, index: u32, rules: &[Rule]) -> Result<(), Error> {
        let mut state = self.begin("set rules", &index)?;
        let kept = rules.len() - usize::from(state.is_forgetful);
        state.at(index)?.rules = rules[..kept].to_vec();
        Ok(())
    }

    fn index_of(&self, name: &str) -> Result<Option<u32>, Error> {
        let found = self.state().find(name).map(|it| it.link.index);
        Ok(found.ok())
    }

    fn redirects(&self, index: u32) -> Result<bool, Error> {
        let mut state = self.begin("get redirect", &index)?;
        let rules = state.at(index).map(|it| &it.rules).into_iter().flatten();
        Ok(rules.into_iter().any(|(_, action)| *action != Action::Drop))
    }

    fn delete_redirect(&self, index: u32) -> Result<bool, Error> {
        let mut state = self.begin("delete redirect", &index)?;
        let Ok(device) = state.at(index) else {
            return Ok(false);
        };
        let before = device.rules.len();
        device.rules.retain(|(_, action)| *action == Action::Drop);
        Ok(device.rules.len() < before)
    }

    fn rules(&self, index: u32) -> Result<Vec<Option<Rule>>, Error> {
        Ok(self
            .state()
            .at(index)?
            .rules
            .iter()
            .copied()
            .map(Some)
            .collect())
    }

    fn shape(&self, index: u32, rate: u64) -> Result<(), Error> {
        self.begin("shape", &index)?.at(index)?.rate = Some(rate);
        Ok(())
    }

    fn shaped(&self, index: u32) -> Result<Option<u64>, Error> {
        Ok(self.state().at(index)?.rate)
    }

    fn set_up(&self, name: &str) -> Result<(), Error> {
        self.begin("set up", &name)?.find(name)?.link.is_up = true;
        Ok(())
    }

    fn move_to(&self, index: u32, _namespace: BorrowedFd<'_>) -> Result<(), Error> {
        self.begin("move", &index)?.at(index)?.is_away = true;
        Ok(())
    }

    fn delete(&self, index: u32) -> Result<bool, Error> {
        let mut state = self.begin("delete", &index)?;
        let Some(gone) = state.devices.remove(&index) else {
            return Ok(false);
        };
        gone.peer.map(|peer| state.devices.remove(&peer));
        Ok(true)
    }
}
