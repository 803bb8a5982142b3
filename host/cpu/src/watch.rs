//! Watches the cpuset partitions of live leases, and checks that the cores on offer are online.
//!
//! The kernel reports a change of `cpuset.cpus.partition` by POLLPRI. It does not report that a CPU went offline or
//! that a sibling came online, so everything is checked once a second too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use fabricbios_cgroup::Root;
use fabricbios_contract::TellCondition;
use fabricbios_kernfs::Tree;
use fabricbios_lease::{Condition, StepError};
use fabricbios_wire::{CpuPartition, LeaseId};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};

use crate::{Group, cgroupfs::CpuRoot, list, topology::check_single_threads};

const EVERY: Duration = Duration::from_secs(1);

/// How long a partition may be invalid before its lease is lost.
const HEALS_WITHIN: Duration = Duration::from_secs(10);

/// A lease whose partition is watched.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    /// Its cgroup, below the root.
    pub(crate) below: String,
    pub(crate) partition: CpuPartition,
    pub(crate) groups: Vec<Group>,
    /// No core of the machine may have a second online CPU.
    pub(crate) is_strict: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Watch {
    shared: Arc<Shared>,
}

struct Shared {
    root: Root,
    sys: Tree,
    /// The groups on offer.
    groups: Vec<Group>,
    wake: EventFd,
    state: Mutex<State>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    leases: BTreeMap<LeaseId, Watched>,
    /// Since when each partition is invalid: while it is, other tasks may run on its CPUs.
    invalid: BTreeMap<LeaseId, Instant>,
    /// Whether the last check found a fault of a lease.
    is_faulty: bool,
    condition: Condition,
    tell: Option<TellCondition>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    pub(crate) fn start(root: Root, sys: Tree, groups: Vec<Group>) -> Result<Self, StepError> {
        let fail = |why: String| StepError::new("watch partitions", why);
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let shared = Arc::new(Shared {
            root,
            sys,
            groups,
            wake: wake.map_err(|error| fail(error.to_string()))?,
            state: Mutex::default(),
        });
        let weak = Arc::downgrade(&shared);
        let thread = thread::Builder::new().name("cpu partitions".into());
        thread
            .spawn(move || watch(&weak))
            .map_err(|error| fail(error.to_string()))?;
        Ok(Self { shared })
    }

    pub(crate) fn add(&self, lease: LeaseId, watched: Watched) {
        self.shared.state().leases.insert(lease, watched);
        self.wake();
    }

    pub(crate) fn forget(&self, lease: LeaseId) {
        let mut state = self.shared.state();
        state.leases.remove(&lease);
        state.invalid.remove(&lease);
        drop(state);
        self.wake();
    }

    /// Checks every lease in this thread, as if the time were `now`.
    pub(crate) fn check(&self, now: Instant) {
        check(&self.shared, now);
    }

    pub(crate) fn tell(&self, tell: TellCondition) {
        let mut state = self.shared.state();
        if state.condition != Condition::Good {
            tell(state.condition.clone());
        }
        state.tell = Some(tell);
    }

    fn wake(&self) {
        // A full counter wakes the thread too.
        self.shared.wake.write(1).ok();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.wake();
    }
}

fn watch(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        shared.wake.read().ok();
        let leases = shared.state().leases.clone();
        let open = |watched: &Watched| {
            let file = File::open(
                shared
                    .root
                    .path(&watched.below)
                    .join("cpuset.cpus.partition"),
            );
            // Only changes after this read wake the poll; the check follows the read.
            file.and_then(|file| std::io::read_to_string(&file).map(|_now| file))
                .ok()
        };
        let files: Vec<File> = leases.values().filter_map(open).collect();
        check(&shared, Instant::now());
        let mut fds = vec![PollFd::new(shared.wake.as_fd(), PollFlags::POLLIN)];
        fds.extend(
            files
                .iter()
                .map(|file| PollFd::new(file.as_fd(), PollFlags::POLLPRI)),
        );
        let timeout = PollTimeout::try_from(EVERY).unwrap_or(PollTimeout::MAX);
        if let Err(error) = poll(&mut fds, timeout) {
            tracing::warn!(%error, "partitions are not watched for a moment");
            thread::sleep(EVERY);
        }
    }
}

/// Checks and heals all partitions, and reports a new condition.
fn check(shared: &Shared, now: Instant) {
    let mut state = shared.state();
    let is_news = !state.is_faulty;
    let State {
        leases, invalid, ..
    } = &mut *state;
    let mut faults = Vec::new();
    for (&lease, watched) in leases {
        let fault = fault(shared, watched, is_news);
        match &fault {
            Some(Fault {
                is_invalid: true, ..
            }) => {
                invalid.entry(lease).or_insert(now);
            }
            _ => {
                invalid.remove(&lease);
            }
        }
        faults.extend(fault.map(|fault| format!("lease {lease}: {}", fault.why)));
    }
    let is_lost = |since: &Instant| now.saturating_duration_since(*since) >= HEALS_WITHIN;
    let lost = invalid.iter().filter(|(_, since)| is_lost(since));
    let leases: Vec<LeaseId> = lost.map(|(lease, _)| *lease).collect();
    let is_faulty = !faults.is_empty();
    let of_leases = state.leases.values().flat_map(|it| &it.groups);
    let of_leases: BTreeSet<u32> = of_leases.map(|group| group.number).collect();
    let mut missing = Vec::new();
    for group in &shared.groups {
        let Err(why) = group.check(&shared.sys) else {
            continue;
        };
        missing.push(group.number);
        // The faults of leases are listed already.
        if !of_leases.contains(&group.number) {
            faults.push(why.to_string());
        }
    }
    let why = faults.join("; ");
    let condition = match (leases.is_empty(), missing.is_empty(), faults.is_empty()) {
        (false, ..) => Condition::Lost { why, leases },
        (true, false, _) => Condition::Partial { why, missing },
        (true, true, false) => Condition::Degraded(why),
        (true, true, true) => Condition::Good,
    };
    state.is_faulty = is_faulty;
    if condition != state.condition {
        state.condition = condition.clone();
        if let Some(tell) = &state.tell {
            tell(condition);
        }
    }
}

/// A fault of a lease's CPUs that could not be healed.
struct Fault {
    why: String,
    /// The partition is invalid: other tasks may run on the CPUs.
    is_invalid: bool,
}

/// Checks one lease and heals its partition. Only the first repair is logged (`is_news`).
fn fault(shared: &Shared, watched: &Watched, is_news: bool) -> Option<Fault> {
    let root = &shared.root;
    let valid = |why: String| Fault {
        why,
        is_invalid: false,
    };
    let found = match read(root, watched) {
        Ok(found) => found,
        Err(error) => return Some(valid(error.to_string())),
    };
    let cpus = cpus_of(&watched.groups);
    let is_invalid = |found: &Found| found.partition != watched.partition.name();
    let is_well = |found: &Found| !is_invalid(found) && found.cpus == cpus;
    let changed = || {
        let mut groups = watched.groups.iter();
        let changed = groups.find_map(|group| group.check(&shared.sys).err());
        let changed = changed.or_else(|| match watched.is_strict {
            true => check_single_threads(&shared.sys).err(),
            false => None,
        });
        changed.map(|why| valid(why.to_string()))
    };
    if is_well(&found) {
        return changed();
    }
    let at = root.path(&watched.below);
    if let Some(other) = overlapping(root, &watched.below, &cpus) {
        return Some(Fault {
            why: format!(
                "{}: cpuset.cpus.partition is `{}`, because {other}, and these CPUs are the lease's: empty that file",
                at.display(),
                found.partition
            ),
            is_invalid: is_invalid(&found),
        });
    }
    if is_news {
        tracing::error!(
            cgroup = %at.display(), partition = found.partition, cpus = list(&found.cpus),
            "somebody changed the partition of a lease; making it again"
        );
    }
    heal(root, &watched.below, watched.partition);
    let not_as_made = |found: &Found| {
        format!(
            "{}: cpuset.cpus.partition is `{}` and cpuset.cpus.effective `{}`; it was made as {} of {}",
            at.display(),
            found.partition,
            list(&found.cpus),
            watched.partition,
            list(&cpus)
        )
    };
    match read(root, watched) {
        Ok(found) if is_well(&found) => changed(),
        Ok(found) => Some(Fault {
            // The kernel removes offline CPUs from the cpuset.
            why: changed().map_or_else(|| not_as_made(&found), |it| it.why),
            is_invalid: is_invalid(&found),
        }),
        Err(error) => Some(valid(error.to_string())),
    }
}

/// Names another cgroup in the root that has CPUs of the lease. Beside it the kernel would not make the partition valid
/// again. Without a new attempt, the kernel keeps the CPUs away from the rest of the machine.
pub(crate) fn overlapping(root: &Root, below: &str, cpus: &[u32]) -> Option<String> {
    for name in root.children("watch partitions", "").ok()? {
        let file = format!("{name}/cpuset.cpus");
        let named = root
            .read_list("watch partitions", &file)
            .unwrap_or_default();
        if name != below && named.iter().any(|cpu| cpus.contains(cpu)) {
            return Some(format!(
                "{} is `{}`",
                root.path(&file).display(),
                list(&named)
            ));
        }
    }
    None
}

/// Makes the partition again. `member` is written first: without that, kernel 6.12 loses the CPUs.
pub(crate) fn heal(root: &Root, below: &str, partition: CpuPartition) {
    let file = format!("{below}/cpuset.cpus.partition");
    for value in [CpuPartition::Member, partition] {
        if let Err(error) = root.write("partition", &file, value.name()) {
            tracing::warn!(%error, "the partition cannot be made again");
        }
    }
}

struct Found {
    partition: String,
    cpus: Vec<u32>,
}

fn read(root: &Root, watched: &Watched) -> Result<Found, StepError> {
    let below = &watched.below;
    Ok(Found {
        partition: root.read(
            "watch partitions",
            &format!("{below}/cpuset.cpus.partition"),
        )?,
        cpus: root.read_list(
            "watch partitions",
            &format!("{below}/cpuset.cpus.effective"),
        )?,
    })
}

pub(crate) fn cpus_of(groups: &[Group]) -> Vec<u32> {
    let mut cpus: Vec<u32> = groups.iter().flat_map(|it| it.cpus.clone()).collect();
    cpus.sort_unstable();
    cpus
}
