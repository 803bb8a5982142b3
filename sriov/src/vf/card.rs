//! A network card and its virtual functions, as a start of the node prepares them.

use std::{path::PathBuf, sync::Arc, time::Duration};

use fabricbios_helper::Supervisor;
use fabricbios_lease::{
    AllocationMode, Condition, Dimension, Durability, FenceScope, Offer, StepError, Takes,
};
use fabricbios_wire::{Enforcement, LeaseId, PciFunction, ResourceId};

use super::{
    call::{Act, Operator, SILENCE_MAX},
    cut::{Cutter, ENDS_WITHIN},
    drivers::Driver,
    identify::{identified, refused, wait_for_link},
    links::Links,
    pci::{Pci, file_of},
    record::Records,
    settings::NEUTRAL,
};
use crate::{
    Claims,
    link::{self, Trouble},
    netlink::{By, VfState},
};

/// Bits per second of a megabit.
pub(super) const MBPS: u64 = 1_000_000;

/// The name of the offer's dimension that counts virtual functions.
pub const DIMENSION: &str = "virtual functions";

/// The driver that hands a function to a process.
pub(super) const VFIO: &str = "vfio-pci";

/// The time limit of a cut: the wait for the end of killed holders, and 1 s for the rest.
const CUT_WITHIN: Duration = ENDS_WITHIN.saturating_add(Duration::from_secs(1));

/// The time limit of a cut whose proof waits until a driver is unbound.
const UNBOUND_WITHIN: Duration = SILENCE_MAX.saturating_add(Duration::from_secs(1));

/// How often a start looks at the link of the card.
const LINK_LOOKS: u32 = 100;

/// The directories of the kernel and of this node for virtual functions.
#[derive(Clone, Debug)]
pub struct Places {
    /// `/sys`.
    pub sysfs: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
    /// The directory of the node's records, which a reboot empties.
    pub records: PathBuf,
}

/// The settings of a card.
#[derive(Clone, Debug)]
pub struct CardConfig {
    /// Name of the card's interface.
    pub interface: String,
    /// Largest number of virtual functions to offer; `None`: all.
    pub count: Option<u32>,
    /// The directories.
    pub places: Places,
    /// What the node's leases have.
    pub claims: Arc<Claims>,
    /// The directory in which container engines look for CDI specifications: a tmpfs such as `/run/cdi`.
    pub cdi: String,
    /// The program of this node, in a file that container engines can execute as their hook.
    pub hook: PathBuf,
    /// Makes calls that may hang. Its program must handle [`calls`](super::calls).
    pub supervisor: Supervisor,
    /// The links of the node's network namespace.
    pub links: Arc<dyn Links>,
}

/// A card whose virtual functions are on offer.
#[derive(Debug)]
pub struct Card {
    name: String,
    pub(super) index: u32,
    pub(super) function: PciFunction,
    pub(super) driver: Driver,
    rate_bps: u64,
    total: u32,
    /// Whether this start has made the virtual functions.
    has_made: bool,
    /// The functions on offer, each with its number on the card.
    pub(super) functions: Vec<(u32, PciFunction)>,
    pub(super) operator: Operator,
    pub(super) links: Arc<dyn Links>,
    pub(super) claims: Arc<Claims>,
    pub(super) records: Records,
    pub(super) cutter: Cutter,
    pub(super) cdi: String,
    hook: PathBuf,
    records_directory: PathBuf,
}

impl Card {
    /// Makes the virtual functions if there are none, and cleans those that are in no use. Functions in other use stay
    /// as they are and are not offered. May take many seconds.
    ///
    /// # Errors
    /// The interface is no card with virtual functions; its driver is unknown; it has fewer functions than `count`; its
    /// link is down and no start since the last reboot has recorded its rate; or a function cannot be cleaned.
    pub fn open(config: CardConfig) -> Result<Self, StepError> {
        let CardConfig {
            interface: name,
            count,
            places,
            claims,
            cdi,
            hook,
            supervisor,
            links,
        } = config;
        let cutter = Cutter::new(&places, supervisor, []);
        let pci = cutter.pci().clone();
        let (function, driver, total) = identified(&pci, &name, count)?;
        let missing = || refused(&name, "the node's network namespace has no such interface");
        let link = links.link(By::Name(&name))?.ok_or_else(missing)?;
        let records = cutter.records.clone();
        records.make_directory()?;
        let operator = cutter.operator.clone();
        links.set_up(By::Index(link.index))?;
        let mut card = Self {
            index: link.index,
            function,
            driver,
            rate_bps: 0,
            total,
            has_made: false,
            functions: Vec::new(),
            operator,
            links,
            claims,
            records,
            cutter,
            cdi,
            hook,
            records_directory: places.records,
            name,
        };
        let were_there = card.make_functions(count.unwrap_or(total))?;
        card.has_made = !were_there;
        match card.find_functions(count, were_there) {
            Ok(()) => Ok(card),
            Err(error) => {
                card.close();
                Err(error)
            }
        }
    }

    /// For a start that fails: removes the virtual functions if this start has made them. No lease has one yet.
    pub fn close(self) {
        if !self.has_made {
            return;
        }
        let (card, name) = (self.function, &self.name);
        let removed = { self.operator }.call("remove virtual functions", card, Act::Create(0));
        match removed {
            Ok(()) => {
                tracing::info!(
                    card = name,
                    "the virtual functions of this start are removed"
                );
            }
            Err(error) => {
                tracing::warn!(card = name, %error, "the virtual functions of this start stay");
            }
        }
    }

    fn find_functions(&mut self, count: Option<u32>, were_there: bool) -> Result<(), StepError> {
        let card = self;
        // A card may take its link down while it makes functions.
        let looks = match card.records.rate_of(&card.name, None)? {
            Some(_) if were_there => 1,
            _ => LINK_LOOKS,
        };
        let told = wait_for_link(&card.operator.pci, &card.name, looks);
        let known = card.records.rate_of(&card.name, told)?;
        card.rate_bps = known
            .ok_or_else(|| refused(&card.name, "its link is down, so there is no rate to lease"))?;
        if told.is_none() {
            tracing::warn!(card = card.name, "the link is down: leases reach nothing");
        }
        card.functions = card.usable(were_there)?;
        card.functions
            .truncate(count.map_or(usize::MAX, |it| it as usize));
        Ok(())
    }

    /// Makes the checks of [`Card::open`] that come before any change. Returns the function of the card.
    ///
    /// # Errors
    /// The interface is no card with virtual functions, its driver is unknown, or it has fewer functions than `count`.
    pub fn check(
        places: &Places,
        interface: &str,
        count: Option<u32>,
    ) -> Result<PciFunction, StepError> {
        let pci = Pci::new(&places.sysfs);
        identified(&pci, interface, count).map(|(function, ..)| function)
    }

    /// The interface of the card.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The card itself.
    #[must_use]
    pub fn function(&self) -> PciFunction {
        self.function
    }

    /// The rate of the link, in bits per second.
    #[must_use]
    pub fn rate_bps(&self) -> u64 {
        self.rate_bps
    }

    /// How many virtual functions the card can have.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.total
    }

    /// How many virtual functions are on offer.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.functions.len()).unwrap_or(u32::MAX)
    }

    /// The command line of the hook that registers containers of a lease.
    pub(super) fn hook(&self, lease: LeaseId) -> Vec<String> {
        fabricbios_cgroup::hook(&self.hook, &self.records_directory, lease)
    }

    /// The condition while the card exists: the limits that the node does not enforce with it.
    pub(super) fn present(&self) -> Condition {
        Condition::Degraded(self.driver.degraded())
    }

    /// The present condition. A card that was removed comes back with another index and other functions. Waits for no
    /// lock that a tenant can keep busy.
    pub(super) fn condition(&self) -> Condition {
        let name = &self.name;
        match self.links.index_of(name) {
            Ok(Some(index)) if index == self.index => match self.link_trouble() {
                None => self.present(),
                // A card that is down accepts no rates.
                Some(Trouble::Down(why)) => Condition::Unavailable(why),
                Some(Trouble::NoCarrier(why)) => {
                    Condition::Degraded(format!("{why}; {}", self.driver.degraded()))
                }
            },
            Ok(Some(_)) => Condition::Unavailable(format!(
                "{name}: it is another interface than at the start of the node; start the node again"
            )),
            Ok(None) => Condition::Unavailable(format!(
                "{name}: the card is gone; start the node again when it is back"
            )),
            Err(error) => Condition::Degraded(error.to_string()),
        }
    }

    /// The leases with a function of this card.
    pub(super) fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        let all = self.records.readable()?.into_iter();
        let of_card = all.filter(|(_, it)| it.card == self.function);
        Ok(of_card.map(|(lease, _)| lease).collect())
    }

    pub(super) fn link_trouble(&self) -> Option<Trouble> {
        link::trouble(self.operator.pci.tree(), &self.name)
    }

    /// The offer for the lease table. A lease has a rate and one virtual function.
    #[must_use]
    pub fn offer(&self, resource_id: ResourceId) -> Offer {
        let rate = Dimension {
            name: "rate".to_owned(),
            capacity: self.rate_bps,
            takes: Takes::Asked,
        };
        let functions = Dimension {
            name: DIMENSION.to_owned(),
            capacity: self.count().into(),
            takes: Takes::Each(1),
        };
        Offer {
            resource_id,
            capacity: self.rate_bps,
            // Cards accept whole megabits only.
            align: MBPS,
            transports: Vec::new(),
            durability: Durability::Boot,
            fence_scope: FenceScope::Separate,
            cut_within: Some(match self.driver.is_cut_by_bus_master {
                true => CUT_WITHIN,
                false => UNBOUND_WITHIN.max(CUT_WITHIN),
            }),
            allocation_mode: AllocationMode::Vector(vec![rate, functions]),
            read_only: false,
            classes: None,
            rate: Some(match self.driver.shapes {
                true => Enforcement::Enforced,
                false => Enforcement::BestEffort,
            }),
            needs_vlan: self.driver.needs_vlan(),
        }
    }

    /// Makes the functions. Returns whether there were functions already: then their number stays, because a change
    /// would end all of them.
    fn make_functions(&self, count: u32) -> Result<bool, StepError> {
        let pci = &self.operator.pci;
        // A driver must not take a function before the function has an address.
        pci.write(&file_of(self.function, "sriov_drivers_autoprobe"), "0")?;
        let existing: u32 = pci
            .number(&file_of(self.function, "sriov_numvfs"))
            .unwrap_or(0);
        if existing > 0 {
            tracing::info!(
                card = self.name,
                existing,
                "the card has virtual functions already; their number is not changed"
            );
            return Ok(true);
        }
        tracing::info!(
            card = self.name,
            count,
            "making virtual functions; this takes some seconds"
        );
        self.operator
            .call("make virtual functions", self.function, Act::Create(count))?;
        tracing::info!(card = self.name, count, "the virtual functions are made");
        Ok(false)
    }

    /// Cleans the functions that are in no use. Returns these and the functions of leases on record.
    fn usable(&self, were_there: bool) -> Result<Vec<(u32, PciFunction)>, StepError> {
        let held = self.records.readable()?;
        let states = self.links.functions(self.index)?;
        let mut usable = Vec::new();
        for (number, function) in self.operator.pci.functions_of(self.function)? {
            if held.iter().any(|(_, record)| record.function == function) {
                usable.push((number, function));
                continue;
            }
            let state = states.iter().find(|it| it.number == number);
            if let Some(why) = self.used_by_others(function, state.filter(|_| were_there))? {
                tracing::warn!(card = self.name, %function, "not offered: {why}");
                continue;
            }
            self.operator.unbind(function)?;
            self.operator.reset(function)?;
            NEUTRAL.apply(&*self.links, self.index, number)?;
            usable.push((number, function));
        }
        Ok(usable)
    }

    /// Describes the use of the function by others; `None`: it is not in use.
    fn used_by_others(
        &self,
        function: PciFunction,
        state: Option<&VfState>,
    ) -> Result<Option<String>, StepError> {
        let pci = &self.operator.pci;
        let why = match pci.driver(function)? {
            None => None,
            Some(driver) if driver == self.driver.function => match &*pci.interfaces(function)? {
                [] => Some("its interface is in another network namespace".to_owned()),
                [name] => match self.links.link(By::Name(name))? {
                    Some(link) if !link.is_up => None,
                    _ => Some(format!("its interface {name} is up")),
                },
                names => Some(format!("it has the interfaces {names:?}")),
            },
            Some(driver) if driver == VFIO => {
                let group = pci.group(function)?.unwrap_or_default();
                let device = self.cutter.groups.join(group.to_string());
                let opened = self.operator.check_free(function, &device);
                opened
                    .err()
                    .map(|error| format!("its vfio group is in use: {error}"))
            }
            Some(driver) => Some(format!("its driver is {driver}")),
        };
        let mac = state.and_then(|it| it.mac).filter(|it| it.0 != [0; 6]);
        Ok(why.or_else(|| {
            mac.map(|mac| format!("it has the address {mac}, which this node did not set"))
        }))
    }
}
