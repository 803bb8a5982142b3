//! The simulated machine, and its state that outlives a process.

use std::{
    cell::{RefCell, RefMut},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, LeaseRecord, Now, Order, Placement,
    Proof, Report, StepError,
};
use fabricbios_wire::{Binding, Generation, LeaseId, LeasePhase};

use super::{MILLISECOND, offers::Offered, runner::Log};
use crate::{
    driver::{Environment, Input, fair::Owner, mailbox::Sender},
    journal::{Change, CommitError, Key, Seq, Value, records},
};

/// A later event.
#[allow(
    clippy::large_enum_variant,
    reason = "a few hundred of them live at once, in a test"
)]
pub(super) enum Event {
    /// A provider carries out the order and reports.
    Order(Owner, Order),
    /// The disk has committed, or failed to commit, the submissions so far.
    Commit,
}

/// A client can reach the bytes of a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) generation: Generation,
    pub(super) until: BootTime,
}

/// The machine without the driver: its state outlives the process.
pub(super) struct World {
    pub(super) offered: Offered,
    pub(super) random: fastrand::Rng,
    pub(super) now: u64,
    pub(super) has_faults: bool,
    pub(super) later: BTreeMap<(u64, u64), Event>,
    /// Events that happen only after all faults are removed.
    pub(super) stuck: Vec<Event>,
    pub(super) next: u64,
    pub(super) access: BTreeMap<LeaseId, Access>,
    /// Parts of granted leases that are not clean yet.
    pub(super) used: BTreeMap<LeaseId, Placement>,
    /// The newest generation of each lease that was cut.
    pub(super) cut: BTreeMap<LeaseId, Generation>,
    /// Groups of changes, each durable as a whole or not at all.
    pub(super) waiting: Vec<Vec<Change>>,
    pub(super) submitted: u64,
    pub(super) commits_at: Option<u64>,
    pub(super) records: BTreeMap<Key, Value>,
    /// Leases whose grant was reported to a client.
    pub(super) told: BTreeSet<LeaseId>,
    /// The mailbox of the running driver.
    pub(super) driver: Option<Sender<Input>>,
    log: Log,
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
    pub(super) fn new(seed: u64, offered: Offered, log: Log) -> Self {
        Self {
            offered,
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
            records: BTreeMap::new(),
            told: BTreeSet::new(),
            driver: None,
            log,
        }
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        let ms = self.now / MILLISECOND;
        self.log.line(|| format!("{ms:>8} ms  {}", what()));
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
        // Usually soon; sometimes later than every time limit.
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
        if let Order::Confirm(binding_id) = order {
            let is_known = self.record(binding_id.lease_id).is_some();
            assert!(is_known, "{binding_id} is confirmed before it is on record");
        }
        match order {
            // Usually at once, like the paths in the daemon's process.
            Order::Extend(..) if !self.fails(20) => return Some(self.carried_out(order)),
            Order::Fenced(_) => {}
            order if self.fails(1) => self.stuck.push(Event::Order(owner, order)),
            order => self.later(Event::Order(owner, order)),
        }
        None
    }

    /// A path that has cut the binding refuses; sometimes a path cuts by itself.
    fn extended(&mut self, binding_id: BindingId, until: BootTime) -> Result<(), AlreadyCut> {
        if self.access.contains_key(&binding_id.lease_id) && self.fails(3) {
            self.end_access(binding_id);
        }
        let was_cut = self.cut.get(&binding_id.lease_id);
        if was_cut.is_some_and(|cut| *cut >= binding_id.generation) {
            return Err(AlreadyCut);
        }
        if let Some(access) = self.access.get_mut(&binding_id.lease_id) {
            access.until = until;
        }
        Ok(())
    }

    pub(super) fn happens(&mut self, event: Event) {
        match event {
            Event::Commit => self.commits(),
            Event::Order(owner, order) => {
                if let Order::Cut(binding_id, _) = order {
                    self.reports(&owner, Report::EndBegan(binding_id));
                }
                let report = self.carried_out(order);
                self.reports(&owner, report);
            }
        }
    }

    fn reports(&self, owner: &Owner, report: Report) {
        self.say(|| format!("reported: {report:?}"));
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
        // Changes whose sync failed may be in the file nevertheless.
        if !fails || self.percent(50) {
            self.write_down();
        }
        self.say(|| format!("the disk has written up to {up_to}, fails: {fails}"));
        let outcome = match fails {
            true => Err(CommitError::new("the disk is full")),
            false => Ok(Seq(up_to)),
        };
        if outcome.is_err() || self.submitted > up_to {
            self.commit_later();
        }
        if let Some(driver) = &self.driver {
            driver.notify(Input::Durable(outcome));
        }
    }

    /// Writes all waiting changes. Changes submitted since the commit began may be included; the next commit reports
    /// them.
    pub(super) fn write_down(&mut self) {
        for change in self.waiting.drain(..).flatten() {
            match change.value {
                Some(record) => self.records.insert(change.key, record),
                None => self.records.remove(&change.key),
            };
        }
    }

    /// The outcome of a lease in the journal: `None` without a record, `Some(None)` while the lease lives.
    pub(super) fn record(&self, id: LeaseId) -> Option<Option<LeasePhase>> {
        let record: LeaseRecord = records::decode(self.records.get(&Key::Lease(id))?).unwrap();
        Some(record.ended)
    }

    fn carried_out(&mut self, order: Order) -> Report {
        let failed = |step: &'static str| StepError::new(step, "on purpose");
        match order {
            Order::Bind(order) => Report::Bind(order.binding_id, self.bind(&order)),
            Order::Rotate(binding_id) => Report::Rotate(
                binding_id,
                match self.fails(10) {
                    true => Err(BindError::Failed(failed("rotate"))),
                    false => Ok(Binding::plain(self.offered.kind)),
                },
            ),
            Order::RetireKey(binding_id) => {
                Report::RetireKey(binding_id, Ok(Binding::plain(self.offered.kind)))
            }
            Order::Cut(binding_id, _) => Report::Cut(
                binding_id,
                match self.fails(4) {
                    true => Err(failed("cut")),
                    false => {
                        self.end_access(binding_id);
                        Ok(Proof::default())
                    }
                },
            ),
            Order::Release(binding_id, placement) => {
                assert!(
                    !self.access.contains_key(&binding_id.lease_id),
                    "{binding_id} is released and reachable"
                );
                // After a crash the journal must not contain a live lease whose bytes are scrubbed, if a client knows
                // the lease.
                let is_told = self.told.contains(&binding_id.lease_id);
                let lives = self.record(binding_id.lease_id) == Some(None);
                assert!(
                    !is_told || !lives,
                    "{binding_id} is released and lives on record"
                );
                let used = self.used.get(&binding_id.lease_id);
                assert!(
                    used.is_none_or(|it| *it == placement),
                    "{binding_id} has {used:?}, not {placement:?}"
                );
                Report::Release(
                    binding_id,
                    match self.fails(4) {
                        true => Err(failed("scrub")),
                        false => {
                            self.used.remove(&binding_id.lease_id);
                            Ok(Proof::nothing_to_clean("made up"))
                        }
                    },
                )
            }
            Order::Reset(resource_id, leases) => {
                for (binding_id, _) in leases {
                    self.end_access(binding_id);
                    self.used.remove(&binding_id.lease_id);
                }
                Report::Reset(resource_id, Ok(()))
            }
            Order::Extend(binding_id, until) => {
                Report::Extended(binding_id, until, self.extended(binding_id, until))
            }
            Order::Confirm(binding_id) => Report::Confirmed(
                binding_id,
                match self.fails(4) {
                    true => Err(failed("confirm")),
                    false => Ok(()),
                },
            ),
            Order::Fenced(_) => unreachable!("done where it is dispatched"),
        }
    }

    fn end_access(&mut self, binding_id: BindingId) {
        let newest = self
            .cut
            .entry(binding_id.lease_id)
            .or_insert(binding_id.generation);
        *newest = (*newest).max(binding_id.generation);
        let found = self.access.get(&binding_id.lease_id);
        if found.is_some_and(|access| access.generation <= binding_id.generation) {
            self.access.remove(&binding_id.lease_id);
        }
    }

    fn bind(&mut self, order: &BindOrder) -> Result<Binding, BindError> {
        let binding_id = order.binding_id;
        let was_cut = self.cut.get(&binding_id.lease_id);
        if was_cut.is_some_and(|cut| *cut >= binding_id.generation) {
            return Err(BindError::Cancelled);
        }
        if self.fails(10) {
            return Err(BindError::Failed(StepError::new("bind", "on purpose")));
        }
        let part = order.placement.clone();
        self.used.insert(binding_id.lease_id, part);
        let held: Vec<&Placement> = self.used.values().collect();
        self.offered.assert_apart(&held);
        let access = Access {
            generation: binding_id.generation,
            until: BootTime(u64::MAX),
        };
        self.access.insert(binding_id.lease_id, access);
        if self.fails(3) {
            return Err(BindError::Stranded(StepError::new(
                "bind",
                "it is half made",
            )));
        }
        Ok(Binding::plain(self.offered.kind))
    }
}
