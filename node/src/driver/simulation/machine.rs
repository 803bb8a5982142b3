//! The simulated machine: clocks, faults, the journal's disk, and the objects and bytes that outlive a process.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_contract::Inline;
use fabricbios_lease::{BootTime, Now, Offer, Placement, StepError};
use fabricbios_wire::{Generation, LeaseId, RequestToken, ResourceId};

use super::{
    MILLISECOND,
    invariants::{Invariant, Mistake},
    kinds::{self, Kind},
    runner::Log,
    threads::{self, NewJob, Pause},
};
use crate::{
    driver::{Input, mailbox::Sender, workers::Job},
    journal::{Change, Key, Value},
};

/// A later event.
pub(super) enum Event {
    /// A job begins.
    Begin(NewJob),
    /// The thread of this number goes on.
    GoOn(u64),
    /// The disk has committed, or failed to commit, the submissions so far.
    Commit,
}

/// The objects of a lease on a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    pub(super) resource_id: ResourceId,
    pub(super) generation: Generation,
    pub(super) is_open: bool,
    pub(super) until: BootTime,
    pub(super) checks_deadlines: bool,
    pub(super) old_key: bool,
    /// An earlier process made it. The kernel knows the lease's name alone.
    pub(super) is_left: bool,
}

impl Object {
    /// Whether an order for this generation is about the object.
    pub(super) fn is_of(&self, generation: Generation) -> bool {
        self.is_left || self.generation <= generation
    }

    /// Whether its client has access.
    pub(super) fn is_usable(&self, now: u64) -> bool {
        self.is_open && (!self.checks_deadlines || now < self.until.0)
    }
}

/// How often faults happen, per 1,000; chosen for each seed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    pub(super) fail: u64,
    pub(super) stick: u64,
    pub(super) slow: u64,
    pub(super) disk: u64,
    /// The process dies while it starts.
    pub(super) start: u64,
}

/// The longest time of a call that is not late.
pub(super) const SOON: u64 = 20 * MILLISECOND;
/// The longest time of a call that is.
const SLOW: u64 = 60_000 * MILLISECOND;

/// The end of a call that is stuck in the kernel.
pub(super) const STUCK: u64 = u64::MAX;

/// The first number of a stamp that is no lease: zeroes, and bytes from before the pool.
pub(super) const ZEROES: LeaseId = LeaseId(0);
pub(super) const BEFORE_THE_POOL: LeaseId = LeaseId(1);

/// See the module.
#[derive(Default)]
pub(super) struct Machine {
    pub(super) random: fastrand::Rng,
    pub(super) rates: Rates,
    pub(super) mistake: Option<Mistake>,
    /// Nanoseconds since the boot.
    pub(super) now: u64,
    pub(super) boot: u32,
    /// The boot of the last commit.
    pub(super) written_on: Option<u32>,
    /// The wall clock at the boot.
    pub(super) booted_unix_ms: u64,
    /// How far the driver's clock is behind, by a mistake.
    pub(super) behind: u64,
    pub(super) later: BTreeMap<(u64, u64), Event>,
    pub(super) next: u64,
    pub(super) offers: BTreeMap<ResourceId, (&'static Kind, Offer)>,
    /// What the driver's thread may call itself on the paths over UDP, by resource.
    pub(super) inline: BTreeMap<ResourceId, Inline>,
    /// The objects of each path, by its name.
    pub(super) objects: BTreeMap<(&'static str, LeaseId), Object>,
    /// The parts that the stores have given out and not cleaned.
    pub(super) parts: BTreeMap<(ResourceId, LeaseId), Placement>,
    /// Leases with a part of which the table has known nothing since the start.
    pub(super) strays: BTreeSet<LeaseId>,
    /// Who wrote each page.
    pub(super) pages: BTreeMap<ResourceId, Vec<LeaseId>>,
    /// The two copies of each pool's header.
    pub(super) headers: BTreeMap<ResourceId, [Vec<u8>; 2]>,
    /// The lease that a client was told for each request.
    pub(super) requests: BTreeMap<(&'static str, RequestToken), LeaseId>,
    /// Leases whose client has written all of its pages.
    pub(super) wrote: BTreeSet<LeaseId>,
    /// The newest generation whose end this process has proved.
    pub(super) proved: BTreeMap<LeaseId, Generation>,
    /// The outcome of the newest cut on each path by this process: the generation whose end is proved; `None`: it failed.
    pub(super) cuts: BTreeMap<(&'static str, LeaseId), Option<Generation>>,
    /// Leases that could not be cut or cleaned.
    pub(super) fenced: BTreeSet<LeaseId>,
    /// Leases behind a fence at the last check, or on record at the start, and the time of that check.
    pub(super) behind_fences: BTreeSet<LeaseId>,
    pub(super) checked_at: u64,
    /// Leases of which a call of this process failed, hung or was late: the end of the last such call, or [`STUCK`].
    pub(super) in_trouble_until: BTreeMap<LeaseId, u64>,
    /// The process, or a job of its start, is late until this time, and every lease with it.
    pub(super) held_up_until: u64,
    /// Leases of the remediations under way.
    pub(super) resetting: BTreeMap<ResourceId, Vec<LeaseId>>,
    /// Groups of changes, each durable as a whole or not at all.
    pub(super) waiting: Vec<Vec<Change>>,
    pub(super) submitted: u64,
    pub(super) commits_at: Option<u64>,
    pub(super) records: BTreeMap<Key, Value>,
    pub(super) written_unix_ms: u64,
    /// The records before the last commit that was tried.
    pub(super) before: BTreeMap<Key, Value>,
    /// Leases whose grant, and leases whose end, was reported to a client.
    pub(super) granted: BTreeMap<LeaseId, &'static str>,
    pub(super) over: BTreeSet<LeaseId>,
    /// The mailbox of the running driver.
    pub(super) driver: Option<Sender<Input>>,
    /// What the order that is being dispatched is about, and whether its job takes locks.
    pub(super) dispatching: (BTreeSet<LeaseId>, bool),
    pub(super) broken: Option<String>,
    pub(super) log: Log,
}

/// The machine, for all of its threads.
#[derive(Clone)]
pub(super) struct World(Arc<Mutex<Machine>>);

impl World {
    pub(super) fn new(seed: u64, mistake: Option<Mistake>, log: &Log) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut rate = |most: u64| random.u64(..=most) * random.u64(..=1);
        let rates = Rates {
            fail: rate(40),
            stick: rate(6),
            slow: rate(20),
            disk: rate(200),
            start: rate(200),
        };
        let mut chosen: Vec<&Kind> = kinds::KINDS.iter().collect();
        random.shuffle(&mut chosen);
        chosen.truncate(random.usize(1..=3));
        let offers = chosen.iter().flat_map(|&kind| {
            let offers = (kind.offers)().into_iter();
            offers.map(move |it| (it.resource_id, (kind, it)))
        });
        let offers: BTreeMap<ResourceId, (&Kind, Offer)> = offers.collect();
        let inline = offers.iter().map(|(id, (kind, _))| {
            let is_inline = random.bool();
            (
                *id,
                if is_inline {
                    kind.inline
                } else {
                    Inline::Nothing
                },
            )
        });
        let inline = inline.collect();
        let mut machine = Machine {
            random,
            rates,
            mistake,
            now: 1_000 * MILLISECOND,
            boot: 1,
            booted_unix_ms: 1_800_000_000_000,
            offers,
            inline,
            log: log.clone(),
            ..Machine::default()
        };
        let chosen: Vec<_> = chosen.iter().map(|it| it.resource_type).collect();
        machine.say(|| format!("offers {chosen:?}, {rates:?}, inline {:?}", machine.inline));
        super::store::make_pools(&mut machine);
        Self(Arc::new(Mutex::new(machine)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A look for all leases that have something in a path or a store.
    pub(super) fn lists(&self) -> Result<(), StepError> {
        self.step("list", LeaseId(0))
    }

    /// A call that waits for nothing: it may fail.
    pub(super) fn at_once(&self, what: &'static str, lease: LeaseId) -> Result<(), StepError> {
        let mut machine = self.lock();
        machine.say(|| format!("lease {lease}: {what}"));
        if !machine.happens(|it| it.fail) {
            return Ok(());
        }
        let now = machine.now;
        machine.troubles(&[lease].into(), now);
        Err(StepError::new(what, "on purpose"))
    }

    /// A call of the kernel or of a device: takes some time, may be stuck, may fail.
    pub(super) fn step(&self, what: &'static str, lease: LeaseId) -> Result<(), StepError> {
        let fails = {
            let mut machine = self.lock();
            let (is_stuck, takes) = (machine.happens(|it| it.stick), machine.takes());
            machine.say(|| format!("lease {lease}: {what}"));
            let fails = machine.happens(|it| it.fail);
            let ends = machine.now + takes;
            let (why, until) = match is_stuck {
                true => (Pause::Stuck, STUCK),
                false => (Pause::Until(ends), ends),
            };
            if is_stuck || fails || takes > SOON {
                machine.troubles(&[lease].into(), until);
            }
            drop(machine);
            threads::pause(why);
            fails
        };
        match fails {
            true => Err(StepError::new(what, "on purpose")),
            false => Ok(()),
        }
    }
}

impl Machine {
    pub(super) fn now(&self) -> Now {
        Now {
            boot: BootTime(self.now - self.behind),
            unix_ms: self.booted_unix_ms + self.now / MILLISECOND,
        }
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.random.u64(..bound)
    }

    pub(super) fn happens(&mut self, rate: fn(Rates) -> u64) -> bool {
        let rate = rate(self.rates);
        rate > 0 && self.below(1_000) < rate
    }

    pub(super) fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// From now on everything works, and what is stuck goes on. A slow call of the same lease may have begun meanwhile.
    pub(super) fn has_no_faults(&mut self) {
        self.rates = Rates::default();
        let stuck = self.in_trouble_until.values_mut();
        stuck
            .filter(|until| **until == STUCK)
            .for_each(|until| *until = self.now + SLOW);
    }

    /// Usually at most [`SOON`]; sometimes later than every time limit.
    pub(super) fn takes(&mut self) -> u64 {
        let most = if self.happens(|it| it.slow) {
            SLOW
        } else {
            SOON
        };
        self.below(most)
    }

    /// Every lease is late for so long. Neither the disk nor the driver's thread can do that: a cut waits for no disk, and
    /// the driver hears all reports before it counts anybody as late.
    pub(super) fn holds_up(&mut self, span: u64) {
        self.held_up_until = self.held_up_until.max(self.now + span);
    }

    /// A call of these leases fails, hangs or is late, and ends then.
    pub(super) fn troubles(&mut self, leases: &BTreeSet<LeaseId>, until: u64) {
        for lease in leases {
            let its = self.in_trouble_until.entry(*lease).or_default();
            *its = until.max(*its);
        }
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        let ms = self.now / MILLISECOND;
        // Ids here have 64 bits.
        let short = || what().replace("0000000000000000", "");
        self.log.line(|| format!("{ms:>7} ms  {}", short()));
    }

    /// The first invariant that breaks counts.
    pub(super) fn breaks(&mut self, invariant: Invariant, why: impl std::fmt::Display) {
        self.broken
            .get_or_insert_with(|| format!("{invariant}: {why}"));
    }

    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.next += 1;
        self.later.insert((at, self.next), event);
    }

    /// Has the dispatcher's job begin soon.
    pub(super) fn job(&mut self, name: &'static str, work: Job) {
        let (about, locks) = match threads::about() {
            // The proof of a cut.
            Some(about) => (about, true),
            None => self.dispatching.clone(),
        };
        let job = NewJob {
            name,
            about,
            locks,
            work,
        };
        let takes = self.takes();
        match takes > SOON {
            true if job.about.is_empty() => self.holds_up(takes),
            true => self.troubles(&job.about, self.now + takes),
            false => {}
        }
        self.at(self.now + takes, Event::Begin(job));
    }
}
