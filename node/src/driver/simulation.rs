//! The driver with its table on a machine that is made up: a clock that jumps, backends and a disk that take their time,
//! fail and hang, and a process that dies at any moment. One number is a whole run, and the same run each time.
//!
//! The table's own model (`lease/tests/model`) knows what each answer has to be. Here it is looked at what only the
//! driver can get wrong: what is told before it is durable, what is done in which order, and what a crash leaves.

#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of a simulation are small"
)]

use std::{
    cell::{RefCell, RefMut},
    collections::BTreeMap,
    rc::Rc,
};

use fabricbios_lease::{
    Availability, BindError, BindOrder, Extent, Layout, LeaseRecord, Now, Offer, Outlives, Policy,
    Proof, StepError, Tag,
};
use fabricbios_wire::{
    Binding, Epoch, Generation, LeaseAllocRequest, LeasePhase, NodeId, ResourceId, ResourceType,
    Transport,
};

use super::*;
use crate::{detect::Detected, journal::Recovered, mailbox::Sender, service};

const POOL: ResourceId = ResourceId(1);
const PAGE: u64 = 4096;
const PAGES: u64 = 16;
const TENANTS: [&str; 3] = ["alice", "bob", "carol"];
const BOOT: &str = "boot";
/// No access is left so long after a deadline: a cut may take ten times its patience, and the driver some turns.
const LATE: Duration = Duration::from_secs(11);
const MILLISECOND: u64 = 1_000_000;

/// Numbers that follow from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) % bound
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// What happens later.
enum Event {
    /// A backend does it, and says so.
    Order(Owner, Order),
    /// The disk has taken, or refused, what was handed in until then.
    Commit,
}

/// Somebody can reach bytes.
#[derive(Clone, Copy, Debug)]
struct Access {
    generation: Generation,
    until: BootTime,
}

/// The machine without the driver: what it holds outlives the process.
struct World {
    random: Random,
    now: u64,
    has_faults: bool,
    later: BTreeMap<(u64, u64), Event>,
    /// What comes to an end only when nothing fails any more.
    stuck: Vec<Event>,
    next: u64,
    access: BTreeMap<LeaseId, Access>,
    /// Bytes that were given out and not made clean since.
    used: BTreeMap<LeaseId, Extent>,
    /// The newest generation of each lease that was cut.
    cut: BTreeMap<LeaseId, Generation>,
    /// Groups that are durable together or not at all.
    waiting: Vec<Vec<Change>>,
    submitted: u64,
    commits_at: Option<u64>,
    leases: BTreeMap<LeaseId, Vec<u8>>,
    fences: BTreeMap<ResourceId, Vec<u8>>,
    /// Leases whose grant was told.
    told: BTreeSet<LeaseId>,
    /// Of the driver that runs.
    driver: Option<Sender<Input>>,
}

#[derive(Clone)]
struct Simulated(Rc<RefCell<World>>);

impl Simulated {
    fn world(&self) -> RefMut<'_, World> {
        self.0.borrow_mut()
    }
}

impl Environment for Simulated {
    fn now(&self) -> Now {
        self.world().now()
    }

    fn random_lease_id(&mut self) -> Option<LeaseId> {
        let number = self.world().random.below(u64::MAX);
        Some(LeaseId(u128::from(number) + 1))
    }

    fn dispatch(&mut self, owner: Owner, order: Order) {
        self.world().ordered(owner, order);
    }

    fn standing(&self, available: Availability) -> Standing {
        Standing {
            available,
            degraded: false,
        }
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
    fn now(&self) -> Now {
        Now {
            boot: BootTime(self.now),
            unix_ms: 1_800_000_000_000 + self.now / MILLISECOND,
        }
    }

    fn fails(&mut self, chance: u64) -> bool {
        self.has_faults && self.random.percent(chance)
    }

    fn later(&mut self, event: Event) {
        // Mostly soon; now and then beyond every patience.
        let most_ms = if self.fails(2) { 60_000 } else { 40 };
        let after = self.random.below(most_ms * MILLISECOND);
        self.next += 1;
        self.later.insert((self.now + after, self.next), event);
    }

    fn commit_later(&mut self) {
        if self.commits_at.is_none() {
            self.commits_at = Some(self.submitted);
            self.later(Event::Commit);
        }
    }

    fn ordered(&mut self, owner: Owner, order: Order) {
        match order {
            Order::Extend(tag, until) => {
                if let Some(access) = self.access.get_mut(&tag.lease_id) {
                    access.until = until;
                }
            }
            Order::Fenced(_) => {}
            order if self.fails(1) => self.stuck.push(Event::Order(owner, order)),
            order => self.later(Event::Order(owner, order)),
        }
    }

    fn happens(&mut self, event: Event) {
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
        if !fails || self.random.percent(50) {
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
    fn write_down(&mut self) {
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
    fn record(&self, id: LeaseId) -> Option<Option<LeasePhase>> {
        let record: LeaseRecord = records::decode(self.leases.get(&id)?).unwrap();
        Some(record.ended)
    }

    fn carried_out(&mut self, order: Order) -> Report {
        let failed = |step: &str| StepError::new(step, "on purpose");
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
            Order::Release(tag, extent) => {
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
            Order::Extend(..) | Order::Fenced(_) => unreachable!("done where it is dispatched"),
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
        let (tag, extent) = (order.tag, order.extent);
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

/// What a client has asked and not heard of yet.
struct Waiting {
    who: &'static str,
    about: Option<LeaseId>,
    answer: oneshot::Receiver<Answer>,
}

struct Run {
    world: Simulated,
    driver: Driver<Simulated>,
    started_at: u64,
    waiting: Vec<Waiting>,
    /// Leases whose grant was told, and by whom they were asked for.
    granted: BTreeMap<LeaseId, &'static str>,
    /// Of these, those whose end was told.
    over: BTreeSet<LeaseId>,
}

fn table(world: &World) -> LeaseTable {
    let mut table = LeaseTable::new(Policy::default());
    let offer = Offer {
        resource_id: POOL,
        capacity: PAGES * PAGE,
        align: PAGE,
        transports: vec![Transport::NvmeTcp],
        outlives: Outlives::Machine,
        layout: Layout::Stretches,
        read_only: false,
    };
    table.offer(ResourceType::Block, offer);
    let recovered = Recovered {
        epoch: Epoch(2),
        last_boot_id: Some(BOOT.to_owned()),
        written_unix_ms: world.now().unix_ms,
        leases: world.leases.clone().into_iter().collect(),
        fences: world.fences.clone().into_iter().collect(),
        ..Recovered::default()
    };
    service::restore(&mut table, world.now(), BOOT, recovered, true).unwrap();
    table
}

fn start(world: &Simulated) -> Driver<Simulated> {
    let table = table(&world.world());
    // What is of no lease on record was told to nobody: it is taken away before the driver begins.
    let known: BTreeSet<LeaseId> = table.holders(POOL).map(|(tag, _)| tag.lease_id).collect();
    world.world().access.retain(|id, _| known.contains(id));
    world.world().used.retain(|id, _| known.contains(id));
    let inventory = Inventory {
        node_id: NodeId([0; 32]),
        epoch: Epoch(2),
        detected: Detected::default(),
        arenas: Vec::new(),
        pools: Vec::new(),
    };
    let (mailbox, sender) = Mailbox::new().unwrap();
    world.world().driver = Some(sender);
    let mut driver = Driver::new(table, world.clone(), inventory, mailbox);
    driver.begin();
    driver
}

impl Run {
    fn new(seed: u64) -> Self {
        let world = World {
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
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
        };
        let world = Simulated(Rc::new(RefCell::new(world)));
        let started_at = world.world().now;
        Self {
            driver: start(&world),
            started_at,
            world,
            waiting: Vec::new(),
            granted: BTreeMap::new(),
            over: BTreeSet::new(),
        }
    }

    fn below(&self, bound: u64) -> u64 {
        self.world.world().random.below(bound)
    }

    fn ask(&mut self, who: &'static str, role: Role, about: Option<LeaseId>, request: Request) {
        let (reply, answer) = oneshot::channel();
        let asked = Input::Asked {
            tenant: who.into(),
            role,
            reached: None,
            request,
            reply,
        };
        let driver = self.world.world().driver.clone().unwrap();
        assert!(driver.ask(Some(who.into()), asked));
        self.waiting.push(Waiting { who, about, answer });
        self.turns();
    }

    fn client_acts(&mut self) {
        let tenant = TENANTS[self.below(3) as usize];
        let which = self.below(self.granted.len().max(1) as u64) as usize;
        let lease = self
            .granted
            .iter()
            .nth(which)
            .map(|(id, tenant)| (*id, *tenant));
        match (self.below(10), lease) {
            (0..4, _) | (_, None) => {
                let pages = self.below(5) + 1;
                let secs = self.below(6) as u32 + 1;
                let request = LeaseAllocRequest::new(ResourceType::Block, pages * PAGE, secs);
                self.ask(tenant, Role::Tenant, None, Request::LeaseAlloc(request));
            }
            (4 | 5, Some((id, holder))) => {
                self.ask(holder, Role::Tenant, Some(id), Request::LeaseFree(id));
            }
            (6, Some((id, _))) => {
                self.ask("root", Role::Operator, Some(id), Request::LeaseRevoke(id));
            }
            (7, Some((lease_id, holder))) => {
                let request = Request::LeaseRotate {
                    lease_id,
                    overlap_ms: 500,
                };
                self.ask(holder, Role::Tenant, None, request);
            }
            (8, _) => self.ask("root", Role::Operator, None, Request::FenceClear(POOL)),
            (_, Some((lease_id, holder))) => {
                let request = Request::LeaseRenew {
                    lease_id,
                    lease_secs: 0,
                };
                self.ask(holder, Role::Tenant, None, request);
            }
        }
    }

    /// Lets time go on to the next thing that happens, but not beyond `until`.
    fn go_on(&mut self, until: u64) {
        let (next, due) = {
            let world = self.world.world();
            let event = world.later.first_key_value().map(|(&(at, _), _)| at);
            let timer = self.driver.next_wake().map(|at| at.0);
            let next = event.into_iter().chain(timer).min().unwrap_or(until);
            (next.clamp(world.now, until), event)
        };
        self.world.world().now = next;
        if due.is_some_and(|at| at <= next) {
            let mut world = self.world.world();
            if let Some((_, event)) = world.later.pop_first() {
                world.happens(event);
            }
        }
        self.turns();
    }

    fn turns(&mut self) {
        while self.driver.turn().expect("nobody halts it") {}
        self.hear();
        self.check();
    }

    fn hear(&mut self) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            match waiting.answer.try_recv() {
                Ok(answer) => self.told(waiting.who, waiting.about, answer),
                Err(_not_yet) => self.waiting.push(waiting),
            }
        }
    }

    /// Nobody is told of what a crash undoes, and of an end only once it is one.
    fn told(&mut self, who: &'static str, about: Option<LeaseId>, answer: Answer) {
        let Ok(Reply::Lease(info)) = answer else {
            return;
        };
        let id = info.lease_id;
        let world = self.world.world();
        assert!(
            world.leases.contains_key(&id),
            "{id} is told of and on no record"
        );
        drop(world);
        if about.is_none() {
            self.granted.entry(id).or_insert(who);
            self.world.world().told.insert(id);
            return;
        }
        assert!(
            !self.world.world().access.contains_key(&id),
            "{id} is told to be over and reachable"
        );
        let ended = self.world.world().record(id).flatten();
        assert!(ended.is_some(), "the end of {id} is told and on no record");
        self.over.insert(id);
    }

    /// The table knows of everything that can be reached, and nothing can be for long after its time.
    fn check(&self) {
        let uncut: BTreeMap<LeaseId, State> = self.driver.table.uncut().collect();
        let world = self.world.world();
        for (id, access) in &world.access {
            let state = uncut.get(id);
            assert!(
                state.is_some(),
                "{id} can be reached, and the table says otherwise"
            );
            let from = access.until.0.max(self.started_at);
            let is_late = world.now > from.saturating_add(LATE.as_nanos() as u64);
            assert!(
                !is_late || state == Some(&State::Fenced),
                "{id} is late: {state:?}"
            );
        }
    }

    /// The process dies: what was on its way is done or not, and nobody hears of it.
    fn crash(&mut self) {
        {
            let mut world = self.world.world();
            world.driver = None;
            let kept = world.waiting.len() as u64 + 1;
            let kept = world.random.below(kept) as usize;
            world.waiting.truncate(kept);
            world.write_down();
            world.commits_at = None;
            // The kernel lets go of a dead process's threads.
            world.stuck.clear();
            for (_, event) in std::mem::take(&mut world.later) {
                if matches!(event, Event::Order(..)) && world.random.percent(50) {
                    world.happens(event);
                }
            }
            // The next process finds exports by their names, which say nothing of bindings.
            world.cut.clear();
            let found = world.access.values_mut();
            found.for_each(|access| access.generation = Generation(0));
            world.now += 1 + world.random.below(3_000) * MILLISECOND;
        }
        self.waiting.clear();
        for id in self.granted.keys().filter(|id| !self.over.contains(id)) {
            let is_known = self.world.world().leases.contains_key(id);
            assert!(is_known, "{id} was told of, and is lost");
        }
        for id in &self.over {
            let ended = self.world.world().record(*id).flatten();
            assert!(ended.is_some(), "the end of {id} was told, and is lost");
        }
        self.driver = start(&self.world);
        self.started_at = self.world.world().now;
    }

    /// Without further faults everything comes back.
    fn ends(mut self) {
        {
            let mut world = self.world.world();
            world.has_faults = false;
            let stuck = std::mem::take(&mut world.stuck);
            stuck.into_iter().for_each(|event| world.later(event));
        }
        let settle = |run: &mut Self| {
            let end = run.world.world().now + 120_000 * MILLISECOND;
            while run.world.world().now < end {
                run.go_on(end);
            }
        };
        settle(&mut self);
        self.ask("root", Role::Operator, None, Request::FenceClear(POOL));
        settle(&mut self);
        let census = self.driver.table.census();
        let world = self.world.world();
        assert!(
            world.access.is_empty() && world.used.is_empty(),
            "{census:?} {:?}",
            world.used
        );
        let free: Vec<u64> = self
            .driver
            .table
            .availability()
            .map(|it| it.available)
            .collect();
        assert_eq!(free, [PAGES * PAGE], "{census:?}");
    }
}

fn run(seed: u64) {
    let mut run = Run::new(seed);
    for _ in 0..60 {
        let pause = run.below(400) * MILLISECOND;
        let until = run.world.world().now + pause;
        while run.world.world().now < until {
            run.go_on(until);
        }
        match run.below(25) {
            0 => run.crash(),
            _ => run.client_acts(),
        }
    }
    run.ends();
}

#[test]
fn whatever_fails_and_whenever_it_dies_nobody_is_told_too_early_and_all_comes_back() {
    let only = std::env::var("FABRICBIOS_SEED").ok();
    let seeds = match only.map(|seed| seed.parse().unwrap()) {
        Some(seed) => seed..=seed,
        None => 1..=300,
    };
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "again with FABRICBIOS_SEED={seed}");
    }
}
