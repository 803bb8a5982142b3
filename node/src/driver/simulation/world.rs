//! The machine that is made up, and what outlives a process on it.

use std::{
    cell::{RefCell, RefMut},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BootTime, Extent, LeaseRecord, Now, Order, Proof, Report,
    StepError, Tag,
};
use fabricbios_wire::{Binding, Generation, LeaseId, LeasePhase, ResourceId};

use super::MILLISECOND;
use crate::{
    driver::{Environment, Input},
    fair::Owner,
    journal::{Change, CommitError, Seq},
    mailbox::Sender,
    records,
};

/// What happens later.
#[allow(
    clippy::large_enum_variant,
    reason = "a few hundred of them live at once, in a test"
)]
pub(super) enum Event {
    /// A backend does it, and says so.
    Order(Owner, Order),
    /// The disk has taken, or refused, what was handed in until then.
    Commit,
}

/// Somebody can reach bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) generation: Generation,
    pub(super) until: BootTime,
}

/// The machine without the driver: what it holds outlives the process.
pub(super) struct World {
    pub(super) random: fastrand::Rng,
    pub(super) now: u64,
    pub(super) has_faults: bool,
    pub(super) later: BTreeMap<(u64, u64), Event>,
    /// What comes to an end only when nothing fails any more.
    pub(super) stuck: Vec<Event>,
    pub(super) next: u64,
    pub(super) access: BTreeMap<LeaseId, Access>,
    /// Bytes that were given out and not made clean since.
    pub(super) used: BTreeMap<LeaseId, Extent>,
    /// The newest generation of each lease that was cut.
    pub(super) cut: BTreeMap<LeaseId, Generation>,
    /// Groups that are durable together or not at all.
    pub(super) waiting: Vec<Vec<Change>>,
    pub(super) submitted: u64,
    pub(super) commits_at: Option<u64>,
    pub(super) leases: BTreeMap<LeaseId, Vec<u8>>,
    pub(super) fences: BTreeMap<ResourceId, Vec<u8>>,
    /// Leases whose grant was told.
    pub(super) told: BTreeSet<LeaseId>,
    /// Of the driver that runs.
    pub(super) driver: Option<Sender<Input>>,
}

#[derive(Clone)]
pub(super) struct Simulated(pub(super) Rc<RefCell<World>>);

impl Simulated {
    pub(super) fn world(&self) -> RefMut<'_, World> {
        self.0.borrow_mut()
    }
}

impl Environment for Simulated {
    fn now(&self) -> Now {
        self.world().now()
    }

    fn random_lease_id(&mut self) -> Option<LeaseId> {
        let number = self.world().below(u64::MAX);
        Some(LeaseId(u128::from(number) + 1))
    }

    fn dispatch(&mut self, owner: Owner, order: Order) -> Option<Report> {
        self.world().ordered(owner, order)
    }

    fn submit(&mut self, changes: Vec<Change>) -> Seq {
        let mut world = self.world();
        world.waiting.push(changes);
        world.submitted += 1;
        world.commit_later();
        Seq(world.submitted)
    }

    fn has_room(&self) -> bool {
        true
    }

    fn close(self) -> Result<(), CommitError> {
        Ok(())
    }
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            now: 1_000 * MILLISECOND,
            has_faults: true,
            later: BTreeMap::new(),
            stuck: Vec::new(),
            next: 0,
            access: BTreeMap::new(),
            used: BTreeMap::new(),
            cut: BTreeMap::new(),
            waiting: Vec::new(),
            submitted: 0,
            commits_at: None,
            leases: BTreeMap::new(),
            fences: BTreeMap::new(),
            told: BTreeSet::new(),
            driver: None,
        }
    }

    pub(super) fn now(&self) -> Now {
        Now {
            boot: BootTime(self.now),
            unix_ms: 1_800_000_000_000 + self.now / MILLISECOND,
        }
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.random.u64(..bound)
    }

    pub(super) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn fails(&mut self, chance: u64) -> bool {
        self.has_faults && self.percent(chance)
    }

    pub(super) fn later(&mut self, event: Event) {
        // Mostly soon; now and then beyond every patience.
        let most_ms = if self.fails(2) { 60_000 } else { 40 };
        let after = self.below(most_ms * MILLISECOND);
        self.next += 1;
        self.later.insert((self.now + after, self.next), event);
    }

    fn commit_later(&mut self) {
        if self.commits_at.is_none() {
            self.commits_at = Some(self.submitted);
            self.later(Event::Commit);
        }
    }

    fn ordered(&mut self, owner: Owner, order: Order) -> Option<Report> {
        if let Order::Confirm(tag) = order {
            let is_known = self.record(tag.lease_id).is_some();
            assert!(is_known, "{tag} is confirmed before it is on record");
        }
        match order {
            // Mostly at once, like the paths of this process.
            Order::Extend(..) if !self.fails(20) => return Some(self.carried_out(order)),
            Order::Fenced(_) => {}
            order if self.fails(1) => self.stuck.push(Event::Order(owner, order)),
            order => self.later(Event::Order(owner, order)),
        }
        None
    }

    /// A path that has cut the binding refuses; now and then one cuts on its own.
    fn extended(&mut self, tag: Tag, until: BootTime) -> Result<(), AlreadyCut> {
        if self.access.contains_key(&tag.lease_id) && self.fails(3) {
            self.end_access(tag);
        }
        let was_cut = self.cut.get(&tag.lease_id);
        if was_cut.is_some_and(|cut| *cut >= tag.generation) {
            return Err(AlreadyCut);
        }
        if let Some(access) = self.access.get_mut(&tag.lease_id) {
            access.until = until;
        }
        Ok(())
    }

    pub(super) fn happens(&mut self, event: Event) {
        match event {
            Event::Commit => self.commits(),
            Event::Order(owner, order) => {
                if let Order::Cut(tag, _) = order {
                    self.reports(&owner, Report::EndBegan(tag));
                }
                let report = self.carried_out(order);
                self.reports(&owner, report);
            }
        }
    }

    fn reports(&self, owner: &Owner, report: Report) {
        if let Some(driver) = &self.driver {
            let at = BootTime(self.now);
            driver.report(owner.clone(), Input::Report { at, report });
        }
    }

    fn commits(&mut self) {
        let Some(up_to) = self.commits_at.take() else {
            return;
        };
        let fails = self.fails(10);
        // What could not be synced may be there all the same.
        if !fails || self.percent(50) {
            self.write_down();
        }
        let outcome = match fails {
            true => Err(CommitError::new("the disk is full")),
            false => Ok(Seq(up_to)),
        };
        if outcome.is_err() || self.submitted > up_to {
            self.commit_later();
        }
        if let Some(driver) = &self.driver {
            driver.done(Input::Durable(outcome));
        }
    }

    /// All that waits: what came since the commit began may be in it, and is told of by the next one.
    pub(super) fn write_down(&mut self) {
        for change in self.waiting.drain(..).flatten() {
            match change {
                Change::PutLease(id, record) => drop(self.leases.insert(id, record)),
                Change::RemoveLease(id) => drop(self.leases.remove(&id)),
                Change::PutFence(id, record) => drop(self.fences.insert(id, record)),
                Change::RemoveFence(id) => drop(self.fences.remove(&id)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// How a lease ended, if it has, as the journal says; none: it says nothing of it.
    pub(super) fn record(&self, id: LeaseId) -> Option<Option<LeasePhase>> {
        let record: LeaseRecord = records::decode(self.leases.get(&id)?).unwrap();
        Some(record.ended)
    }

    fn carried_out(&mut self, order: Order) -> Report {
        let failed = |step: &'static str| StepError::new(step, "on purpose");
        match order {
            Order::Bind(order) => Report::Bind(order.tag, self.bind(&order)),
            Order::Rotate(tag) => Report::Rotate(
                tag,
                match self.fails(10) {
                    true => Err(BindError::Failed(failed("rotate"))),
                    false => Ok(Binding::default()),
                },
            ),
            Order::RetireKey(tag) => Report::RetireKey(tag, Ok(Binding::default())),
            Order::Cut(tag, _) => Report::Cut(
                tag,
                match self.fails(4) {
                    true => Err(failed("cut")),
                    false => {
                        self.end_access(tag);
                        Ok(Proof::default())
                    }
                },
            ),
            Order::Release(tag, placement) => {
                let extent = placement.extent();
                assert!(
                    !self.access.contains_key(&tag.lease_id),
                    "{tag} is released and reachable"
                );
                // After a crash the journal must not say that a lease lives whose bytes are clean, if anybody knows of it.
                let is_told = self.told.contains(&tag.lease_id);
                let lives = self.record(tag.lease_id) == Some(None);
                assert!(!is_told || !lives, "{tag} is released and lives on record");
                let used = self.used.get(&tag.lease_id);
                assert!(
                    used.is_none_or(|it| *it == extent),
                    "{tag} has {used:?}, not {extent:?}"
                );
                Report::Release(
                    tag,
                    match self.fails(4) {
                        true => Err(failed("scrub")),
                        false => {
                            self.used.remove(&tag.lease_id);
                            Ok(())
                        }
                    },
                )
            }
            Order::Reset(resource_id, leases) => {
                for (tag, _) in leases {
                    self.end_access(tag);
                    self.used.remove(&tag.lease_id);
                }
                Report::Reset(resource_id, Ok(()))
            }
            Order::Extend(tag, until) => Report::Extended(tag, until, self.extended(tag, until)),
            Order::Confirm(tag) => Report::Confirmed(
                tag,
                match self.fails(4) {
                    true => Err(failed("confirm")),
                    false => Ok(()),
                },
            ),
            Order::Fenced(_) => unreachable!("done where it is dispatched"),
        }
    }

    fn end_access(&mut self, tag: Tag) {
        let newest = self.cut.entry(tag.lease_id).or_insert(tag.generation);
        *newest = (*newest).max(tag.generation);
        let found = self.access.get(&tag.lease_id);
        if found.is_some_and(|access| access.generation <= tag.generation) {
            self.access.remove(&tag.lease_id);
        }
    }

    fn bind(&mut self, order: &BindOrder) -> Result<Binding, BindError> {
        let (tag, extent) = (order.tag, order.extent());
        let was_cut = self.cut.get(&tag.lease_id);
        if was_cut.is_some_and(|cut| *cut >= tag.generation) {
            return Err(BindError::Cancelled);
        }
        if self.fails(10) {
            return Err(BindError::Failed(StepError::new("bind", "on purpose")));
        }
        let others = self.used.iter().filter(|(id, _)| **id != tag.lease_id);
        for (id, theirs) in others {
            let apart = theirs.offset + theirs.length <= extent.offset
                || extent.offset + extent.length <= theirs.offset;
            assert!(
                apart,
                "{tag} is given {extent:?}, of which {id} has {theirs:?}"
            );
        }
        self.used.insert(tag.lease_id, extent);
        let access = Access {
            generation: tag.generation,
            until: BootTime(u64::MAX),
        };
        self.access.insert(tag.lease_id, access);
        if self.fails(3) {
            return Err(BindError::Stranded(StepError::new(
                "bind",
                "it is half made",
            )));
        }
        Ok(Binding::default())
    }
}
