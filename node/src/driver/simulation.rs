//! The node on a simulated machine: clocks that jump, stores, paths and a disk that are slow, fail and hang, and a process
//! that dies at any moment. Real are the table, the driver, the dispatcher, the providers, the life of a binding, the
//! records and the header of pools. One seed determines a whole run.
//!
//! The table's own model (`control/lease/tests/model`) checks each answer. This simulation checks what clients and the
//! disk see: [`invariants`] has the list.
//!
//! Read first: `invariants.rs`, then `acts.rs`.

#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of a simulation are small"
)]

mod acts;
mod checks;
mod disk;
mod invariants;
mod kinds;
mod machine;
mod path;
mod process;
mod runner;
mod store;
mod tests;
mod threads;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    panic::resume_unwind,
    sync::mpsc::channel,
};

use fabricbios_lease::State;
use fabricbios_wire::{LeaseAllocRequest, Reply};

use super::*;
use crate::journal::Key;
use invariants::{Invariant, Mistake};
use machine::{Event, World};
use process::Simulated;
use runner::Log;
use store::pages_of;
use threads::{NewJob, Pause, Thread};

const TENANTS: [&str; 3] = ["alice", "bob", "carol"];
/// No access remains this long after a deadline: a cut may take ten times its limit, and the driver some turns.
const LATE: Duration = Duration::from_secs(11);
const MILLISECOND: u64 = 1_000_000;

/// A request without an answer yet.
struct Waiting {
    who: &'static str,
    about: Option<LeaseId>,
    /// The request for a lease, if it is one.
    alloc: Option<LeaseAllocRequest>,
    answer: oneshot::Receiver<Answer>,
}

struct Run {
    world: World,
    log: Log,
    /// `None` while no process runs.
    driver: Option<Driver<Simulated>>,
    threads: BTreeMap<u64, Thread>,
    next_thread: u64,
    /// Threads that go on only when all faults are removed.
    stuck: Vec<u64>,
    /// Jobs that wait for another job of their lease.
    blocked: VecDeque<NewJob>,
    waiting: Vec<Waiting>,
    /// All requests for leases, with their tenants.
    requests: Vec<(&'static str, LeaseAllocRequest)>,
    /// When the process started, or went on after a stop.
    went_on_at: u64,
    stalls_until: u64,
}

impl Run {
    fn new(seed: u64, mistake: Option<Mistake>, log: &Log) -> Self {
        let mut run = Self {
            world: World::new(seed, mistake, log),
            log: log.clone(),
            driver: None,
            threads: BTreeMap::new(),
            next_thread: 0,
            stuck: Vec::new(),
            blocked: VecDeque::new(),
            waiting: Vec::new(),
            requests: Vec::new(),
            went_on_at: 0,
            stalls_until: 0,
        };
        run.starts();
        run
    }

    /// Starts the process, again and again if a start fails, hangs or dies.
    fn starts(&mut self) {
        while self.driver.is_none() {
            let until = {
                let mut machine = self.world.lock();
                machine.say(|| "the process starts".to_owned());
                let dies = machine.happens(|it| it.start);
                let after = machine.below(100 * MILLISECOND);
                if dies { machine.now + after } else { u64::MAX }
            };
            let (tell, started) = channel();
            let world = self.world.clone();
            let start = move || drop(tell.send(process::start(&world)));
            self.begins(NewJob {
                name: "start",
                about: BTreeSet::new(),
                locks: false,
                work: Box::new(start),
            });
            let number = self.next_thread;
            let goes_on = |it: &Self| {
                let is_there = it.threads.contains_key(&number);
                is_there && !it.stuck.contains(&number) && it.world.lock().now < until
            };
            while goes_on(self) {
                self.go_on(until);
            }
            match started.try_recv() {
                Ok(Ok(driver)) => self.driver.insert(driver).begin(),
                Ok(Err(error)) => {
                    let machine = self.world.lock();
                    machine.say(|| format!("the start fails: {error:#}"));
                    drop(machine);
                    self.process_ends(false);
                }
                Err(_dead_or_stuck) => self.process_ends(false),
            }
        }
        self.went_on_at = self.world.lock().now;
        self.turns();
    }

    /// The process ends, and some time passes.
    fn process_ends(&mut self, is_in_order: bool) {
        self.world.lock().say(|| "the process ends".to_owned());
        let threads = std::mem::take(&mut self.threads);
        threads.into_values().for_each(Thread::dies);
        self.driver = None;
        self.stuck.clear();
        self.blocked.clear();
        self.waiting.clear();
        self.stalls_until = 0;
        let mut machine = self.world.lock();
        machine.process_ends(is_in_order);
        machine.now += 1 + machine.below(3_000) * MILLISECOND;
    }

    fn driver(&mut self) -> &mut Driver<Simulated> {
        self.driver.as_mut().expect("a process runs")
    }

    fn ask(&mut self, who: &'static str, role: Role, about: Option<LeaseId>, request: Request) {
        let (reply, answer) = oneshot::channel();
        let alloc = match &request {
            Request::LeaseAlloc(alloc) => Some(alloc.clone()),
            _ => None,
        };
        let driver = {
            let machine = self.world.lock();
            machine.say(|| format!("{who} asks {request:?}"));
            machine.driver.clone().expect("a process runs")
        };
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
        driver.request(Some(who.into()), asked).unwrap();
        self.waiting.push(Waiting {
            who,
            about,
            alloc,
            answer,
        });
        self.turns();
    }

    fn go_on_for(&mut self, span: u64) {
        let until = self.world.lock().now + span;
        while self.world.lock().now < until {
            self.go_on(until);
        }
    }

    /// Advances the time to the next event, but not beyond `until`.
    fn go_on(&mut self, until: u64) {
        let wake = self.driver.as_ref().and_then(Driver::next_wake);
        let event = {
            let mut machine = self.world.lock();
            let behind = machine.behind;
            let timer = match machine.now < self.stalls_until {
                true => Some(self.stalls_until),
                false => wake.map(|at| at.0.saturating_add(behind)),
            };
            let due = machine.later.first_key_value().map(|(&(at, _), _)| at);
            let next = due.into_iter().chain(timer).min().unwrap_or(until);
            machine.now = next.clamp(machine.now, until);
            let is_due = due.is_some_and(|at| at <= machine.now);
            is_due.then(|| machine.later.pop_first()).flatten()
        };
        match event.map(|(_, event)| event) {
            Some(Event::Begin(job)) => self.begins(job),
            Some(Event::GoOn(thread)) => self.runs(thread),
            Some(Event::Commit) => self.world.lock().commits(),
            None => {}
        }
        self.turns();
    }

    fn begins(&mut self, job: NewJob) {
        let mut held = self.threads.values();
        if job.locks && held.any(|it| !it.locks.is_disjoint(&job.about)) {
            return self.blocked.push_back(job);
        }
        self.next_thread += 1;
        self.threads.insert(self.next_thread, Thread::new(job));
        self.runs(self.next_thread);
    }

    fn runs(&mut self, number: u64) {
        match self.threads[&number].run() {
            Pause::Until(at) => self.world.lock().at(at, Event::GoOn(number)),
            Pause::Stuck => self.stuck.push(number),
            Pause::Panicked(panic) => resume_unwind(panic),
            Pause::Done => {
                self.threads.remove(&number);
                let blocked = std::mem::take(&mut self.blocked);
                blocked.into_iter().for_each(|it| self.begins(it));
            }
        }
    }

    fn turns(&mut self) {
        if self.driver.is_none() {
            return;
        }
        if self.world.lock().now < self.stalls_until {
            return self.check();
        }
        while self.driver().turn().expect("nobody halts it") {}
        self.hear();
        // While the driver does not run, no fence is new and its cause does not age.
        let table = &self.driver.as_ref().expect("a process runs").table;
        self.world.lock().check_fences(table);
        self.check();
    }

    fn hear(&mut self) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            match waiting.answer.try_recv() {
                Ok(answer) => self.told(&waiting, &answer),
                Err(_not_yet) => self.waiting.push(waiting),
            }
        }
    }

    /// Checks that no client learns of a change that a crash can undo.
    fn told(&mut self, waiting: &Waiting, answer: &Answer) {
        let (who, about) = (waiting.who, waiting.about);
        let mut machine = self.world.lock();
        machine.say(|| format!("{who} is answered {answer:?}"));
        let Ok(Reply::Lease(info)) = answer else {
            return;
        };
        let id = info.lease_id;
        let is_durable = match about {
            None => machine.records.contains_key(&Key::Lease(id)),
            Some(_) => machine.record(id).flatten().is_some(),
        };
        if !is_durable {
            let why = format_args!("what is told of lease {id} is not on record");
            machine.breaks(Invariant::NoAnswerBeforeDurable, why);
        }
        if let Some(token) = waiting.alloc.as_ref().and_then(|it| it.request_token) {
            machine.check_request(who, token, info);
        }
        match about {
            None => drop(machine.granted.entry(id).or_insert(who)),
            Some(_) => drop(machine.over.insert(id)),
        }
    }

    /// Every client that knows of its access writes all of its pages.
    fn clients_write(&mut self) {
        let machine = &mut *self.world.lock();
        let known = |lease: &LeaseId| machine.granted.contains_key(lease);
        for ((_, lease), object) in machine.objects.iter().filter(|((_, it), _)| known(it)) {
            let part = machine.parts.get(&(object.resource_id, *lease));
            let pages = machine.pages.get_mut(&object.resource_id);
            if let (true, Some(part), Some(pages)) = (object.is_usable(machine.now), part, pages) {
                pages[pages_of(part.extent())].fill(*lease);
                machine.wrote.insert(*lease);
            }
        }
    }

    fn check(&mut self) {
        let table = &self.driver.as_ref().expect("a process runs").table;
        let broken = table.check();
        let uncut: BTreeMap<LeaseId, State> = table.uncut().collect();
        let is_fenced = |id| {
            let mut all = table.availability();
            all.any(|it| it.resource_id == id && it.fenced)
        };
        let went_on_at = self.went_on_at;
        let mut machine = self.world.lock();
        if !broken.is_empty() {
            machine.breaks(Invariant::TableHolds, format_args!("{broken:?}"));
        }
        for ((path, lease), object) in machine.objects.clone() {
            if !object.is_open {
                continue;
            }
            let what = format!("lease {lease} over {path}");
            let state = uncut.get(&lease);
            if machine.is_ended(path, lease, &object) {
                machine.breaks(Invariant::NoAccessAfterProof, &what);
            }
            let is_excused = || machine.could_not_cut(path, lease) && is_fenced(object.resource_id);
            if state.is_none() && !is_excused() {
                machine.breaks(Invariant::AccessIsKnown, &what);
            }
            if !object.is_usable(machine.now) {
                continue;
            }
            let from = object.until.0.max(went_on_at);
            let is_late = machine.now > from.saturating_add(LATE.as_nanos() as u64);
            // An unknown lease is behind a fence of the whole resource.
            if is_late && state.is_some_and(|it| *it != State::Fenced) {
                machine.breaks(Invariant::CutOnTime, format_args!("{what}: {state:?}"));
            }
            let part = machine.parts.get(&(object.resource_id, lease)).cloned();
            machine.check_bytes(object.resource_id, lease, part.as_ref());
        }
        if let Some(why) = machine.broken.clone() {
            machine.say(|| why.clone());
            drop(machine);
            resume_unwind(Box::new(why));
        }
    }
}
