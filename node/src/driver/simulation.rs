//! The driver with its table on a simulated machine: a clock that jumps, providers and a disk that are slow, fail and
//! hang, and a process that dies at any moment. One seed determines a whole run.
//!
//! The table's own model (`control/lease/tests/model`) checks each answer. This simulation checks only the driver's
//! part: that no answer comes before its change is durable, the order of steps, and the state after a crash.

#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of a simulation are small"
)]

mod offers;
mod runner;
mod world;

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use fabricbios_lease::{NetworkRights, Policy};
use fabricbios_wire::{Epoch, Generation, NodeId, ResourceId};

use super::*;
use crate::{
    inventory::detection::{Detection, Found},
    journal::{Key, Recovered},
    process::service,
};
use offers::{Offered, SEEDS_OF_EACH_KIND};
use runner::{Log, Plan};
use world::{Event, Simulated, World};

const POOL: ResourceId = ResourceId(1);
const TENANTS: [&str; 3] = ["alice", "bob", "carol"];
const BOOT: &str = "boot";
/// No access remains this long after a deadline: a cut may take ten times its limit, and the driver some turns.
const LATE: Duration = Duration::from_secs(11);
const MILLISECOND: u64 = 1_000_000;

/// A request without an answer yet.
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
    /// Leases whose grant was answered, and the tenant who requested each.
    granted: BTreeMap<LeaseId, &'static str>,
    /// The leases of `granted` whose end was reported to a client.
    over: BTreeSet<LeaseId>,
}

fn table(world: &World) -> LeaseTable {
    let untagged = |tenant: &str| (tenant.to_owned(), "0".parse().expect("a list"));
    let mut table = LeaseTable::new(Policy {
        network: NetworkRights {
            vlans: TENANTS.map(untagged).into(),
            ..NetworkRights::default()
        },
        ..Policy::default()
    });
    table.offer(world.offered.kind, world.offered.offer());
    let recovered = Recovered {
        epoch: Epoch(2),
        last_boot_id: Some(BOOT.to_owned()),
        written_unix_ms: world.now().unix_ms,
        records: world.records.clone(),
        ..Recovered::default()
    };
    service::restore(&mut table, world.now(), BOOT, &recovered, &|_| true).unwrap();
    table
}

fn start(world: &Simulated) -> Driver<Simulated> {
    let table = table(&world.world());
    // State of leases that are not on record is removed before the driver begins: no client knows these leases.
    let known: BTreeSet<LeaseId> = table
        .holders(POOL)
        .map(|(binding_id, _)| binding_id.lease_id)
        .collect();
    world.world().access.retain(|id, _| known.contains(id));
    world.world().used.retain(|id, _| known.contains(id));
    let inventory = Inventory::new(
        NodeId([0; 32]),
        Epoch(2),
        Detection::fixed(Found::default()).into(),
    );
    let (mailbox, sender) = Mailbox::new().unwrap();
    world.world().driver = Some(sender);
    let mut driver = Driver::new(table, world.clone(), inventory, mailbox);
    driver.begin();
    driver
}

impl Run {
    fn new(seed: u64, log: &Log) -> Self {
        let world = World::new(seed, Offered::of(seed), log.clone());
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
        self.world.world().below(bound)
    }

    fn ask(&mut self, who: &'static str, role: Role, about: Option<LeaseId>, request: Request) {
        let (reply, answer) = oneshot::channel();
        self.world.world().say(|| format!("{who} asks {request:?}"));
        let asked = Input::Request {
            requester: Requester {
                tenant: who.into(),
                reached: None,
                control: None,
                reply,
            },
            role,
            request,
        };
        let driver = self.world.world().driver.clone().unwrap();
        driver.request(Some(who.into()), asked).unwrap();
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
                let secs = self.below(6) as u32 + 1;
                let request = {
                    let mut world = self.world.world();
                    let offered = world.offered;
                    offered.request(secs, |bound| world.below(bound))
                };
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

    /// Advances the time to the next event, but not beyond `until`.
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

    /// Checks that no client learns of a change that a crash can undo, or of an end before its proof.
    fn told(&mut self, who: &'static str, about: Option<LeaseId>, answer: Answer) {
        self.world
            .world()
            .say(|| format!("{who} is answered {answer:?}"));
        let Ok(Reply::Lease(info)) = answer else {
            return;
        };
        let id = info.lease_id;
        let world = self.world.world();
        assert!(
            world.records.contains_key(&Key::Lease(id)),
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

    /// Checks that the table contains every lease with access, and that no access lasts long after its deadline.
    fn check(&self) {
        assert_eq!(self.driver.table.check(), [], "invariants");
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

    /// The process dies: running orders are carried out or not, and their reports are lost.
    fn crash(&mut self) {
        {
            let mut world = self.world.world();
            world.say(|| "the process dies".to_owned());
            world.driver = None;
            let kept = world.waiting.len() as u64 + 1;
            let kept = world.below(kept) as usize;
            world.waiting.truncate(kept);
            world.write_down();
            world.commits_at = None;
            // The kernel ends the stuck threads of a dead process.
            world.stuck.clear();
            for (_, event) in std::mem::take(&mut world.later) {
                if matches!(event, Event::Order(..)) && world.percent(50) {
                    world.happens(event);
                }
            }
            // The next process finds exports by their names, which do not contain generations.
            world.cut.clear();
            let found = world.access.values_mut();
            found.for_each(|access| access.generation = Generation(0));
            world.now += 1 + world.below(3_000) * MILLISECOND;
        }
        self.waiting.clear();
        for id in self.granted.keys().filter(|id| !self.over.contains(id)) {
            let is_known = self.world.world().records.contains_key(&Key::Lease(*id));
            assert!(is_known, "{id} was told of, and is lost");
        }
        for id in &self.over {
            let ended = self.world.world().record(*id).flatten();
            assert!(ended.is_some(), "the end of {id} was told, and is lost");
        }
        self.driver = start(&self.world);
        self.started_at = self.world.world().now;
    }

    /// Removes all faults and checks that the whole capacity becomes free again.
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
        assert_eq!(free, [world.offered.offer().capacity], "{census:?}");
    }
}

/// Runs one simulation. Returns the number of granted leases.
fn run(plan: &Plan, log: &Log) -> usize {
    let mut run = Run::new(plan.seed, log);
    for act in 0..60 {
        let pause = run.below(400) * MILLISECOND;
        let until = run.world.world().now + pause;
        while run.world.world().now < until {
            run.go_on(until);
        }
        match plan.has(act) {
            Some(true) => log.act(act),
            Some(false) => continue,
            None => break,
        }
        match run.below(25) {
            0 => run.crash(),
            _ => run.client_acts(),
        }
    }
    let granted = run.granted.len();
    run.ends();
    granted
}

#[test]
fn whatever_fails_and_whenever_it_dies_nobody_is_told_too_early_and_all_comes_back() {
    if let Some(plan) = Plan::asked() {
        return runner::run_all(&plan, run);
    }
    for kind in (1..=100).take(SEEDS_OF_EACH_KIND) {
        let (mut granted, mut runs) = (0, 0);
        for seed in (kind..=100).step_by(SEEDS_OF_EACH_KIND) {
            let (outcome, _) = runner::run_one(&Plan::of(seed), false, run);
            let leases = outcome.unwrap_or_else(|failure| panic!("seed {seed}: {failure:?}"));
            (granted, runs) = (granted + leases, runs + 1);
        }
        // Otherwise a simulated fault fences the resource at once, and the run tests nothing.
        assert!(granted > 5 * runs, "{granted} leases in {runs} runs");
    }
}
