//! Access to the cores of a lease: the tenant's processes enter its cgroup, and end with it.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use fabricbios_cgroup::{Root, end_processes, enter};
use fabricbios_contract::{
    Caller, DataPath, Entered, Given, Guard, LocalAccess, LocalRefusal, Part, Revoked,
};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Custody, Gate, Linger, Lookup, Proof,
    StepError,
};
use fabricbios_wire::{Binding, CpuBinding, CpuPartition, CpuQuota, KindBinding, LeaseId};
use nix::time::{ClockId, clock_gettime};

use crate::{
    STEPS,
    cgroupfs::{CpuRoot, aside},
    ranges,
};

/// The path to CPU cores, see the module.
#[derive(Debug)]
pub struct CpuPath {
    root: Root,
    proc: Tree,
    guard: Arc<dyn Guard>,
    leases: Mutex<Custody<Arc<Entry>>>,
}

/// One lease.
#[derive(Debug, Default)]
struct Entry {
    state: Mutex<BindingState>,
    /// Held while the kernel lets a process in or thaws the cgroup, which may wait in the kernel.
    admission: Mutex<()>,
    /// Nanoseconds on the boot-time clock; 0 until the first `extend` after a bind.
    deadline: AtomicU64,
}

#[derive(Debug, Default)]
struct BindingState {
    gate: Gate,
    tenant: Arc<str>,
    /// Bound, and no cut has been proved since.
    is_open: bool,
}

impl Entry {
    fn state(&self) -> MutexGuard<'_, BindingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admission(&self) -> MutexGuard<'_, ()> {
        self.admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn is_admitting(&self) -> bool {
        matches!(self.admission.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Checks that the caller may enter now.
    fn check(&self, caller: &Caller) -> Result<(), LocalRefusal> {
        let state = self.state();
        let generation = match state.gate.generation() {
            Some(generation) => generation,
            None => return Err(LocalRefusal::NotActive("it is not bound yet".into())),
        };
        caller.check(&state.tenant)?;
        if !state.is_open || !state.gate.admits(generation) {
            return Err(LocalRefusal::NotActive("it was cut".into()));
        }
        if now() >= self.deadline.load(Ordering::Acquire) {
            return Err(LocalRefusal::NotActive("its deadline has passed".into()));
        }
        Ok(())
    }
}

impl CpuPath {
    /// The path to leases in the root cgroup at `path`.
    ///
    /// # Errors
    /// The path is in no file system of cgroup v2.
    pub fn at(path: &Path, guard: Arc<dyn Guard>) -> Result<Self, String> {
        Ok(Self::of(Root::at(path)?, Tree::new("/proc"), guard))
    }

    /// The path to leases in a root cgroup; `proc` is `/proc`.
    #[must_use]
    pub fn of(root: Root, proc: Tree, guard: Arc<dyn Guard>) -> Self {
        Self {
            root: root.with_steps(STEPS),
            proc,
            guard,
            leases: Mutex::default(),
        }
    }

    fn leases(&self) -> MutexGuard<'_, Custody<Arc<Entry>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, lease: LeaseId) -> Option<Arc<Entry>> {
        self.leases().find_or_make(lease)
    }

    fn end_processes(&self, lease: LeaseId) -> Result<Proof, StepError> {
        match self.root.find("find lease", lease)? {
            Some(below) => end_processes(&self.root, &self.proc, &below, &aside(lease)),
            None => Ok(Proof::nothing_to_cut("the lease has no cgroup")),
        }
    }

    /// The coordinates, as the kernel has them.
    fn coordinates(&self, below: &str) -> Result<CpuBinding, StepError> {
        let read = |name: &str| self.root.read("read lease", &format!("{below}/{name}"));
        // A best_effort lease has no cpuset of its own, but that of its parent.
        let (of, quota) = match below.split_once('/') {
            Some((parent, _)) => (parent, Some(read("cpu.max")?)),
            None => (below, None),
        };
        let numbers = |name: &str| self.root.read_list("read lease", &format!("{of}/{name}"));
        let partition = match quota {
            Some(_) => CpuPartition::Member,
            None => {
                let text = read("cpuset.cpus.partition")?;
                let parsed = text.parse();
                parsed.map_err(|error| {
                    StepError::new("read lease", format_args!("{below}: {error}"))
                })?
            }
        };
        Ok(CpuBinding {
            cpus: ranges(&numbers("cpuset.cpus.effective")?),
            cgroup: self.root.path(below).display().to_string(),
            partition,
            memory_nodes: ranges(&numbers("cpuset.mems")?),
            quota: quota.as_deref().and_then(parse_quota),
        })
    }

    /// Opens the gate, and thaws the cgroup that an earlier cut froze. Processes of an older binding that was not cut
    /// go on: a new binding of cores has no new key.
    fn open(&self, entry: &Entry, order: &BindOrder, below: &str) -> Result<(), BindError> {
        let generation = order.binding_id.generation;
        let _admission = entry.admission();
        if !entry.state().gate.admits(generation) {
            return Err(BindError::Cancelled);
        }
        let thawed = self
            .root
            .write("thaw", &format!("{below}/cgroup.freeze"), "0");
        thawed.map_err(BindError::Failed)?;
        let mut state = entry.state();
        if let Some(before) = state
            .gate
            .generation()
            .filter(|it| !state.gate.is_revoked(*it))
        {
            state.gate.ended(before);
        }
        state.gate.open(generation)?;
        state.tenant = Arc::clone(&order.tenant);
        state.is_open = true;
        entry.deadline.store(0, Ordering::Release);
        Ok(())
    }
}

fn parse_quota(text: &str) -> Option<CpuQuota> {
    let (quota, period) = text.split_once(' ')?;
    Some(CpuQuota {
        quota_us: quota.parse().ok()?,
        period_us: period.parse().ok()?,
    })
}

/// The time on the clock of deadlines.
fn now() -> u64 {
    // The call fails only if the kernel does not have the clock; then every lease counts as ended.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
    now.map_or(u64::MAX, |it| {
        u64::try_from(it.as_nanos()).unwrap_or(u64::MAX)
    })
}

impl DataPath for CpuPath {
    fn bind(&self, order: &BindOrder, _part: &Part) -> Result<Binding, BindError> {
        let lease = order.binding_id.lease_id;
        let entry = self.entry(lease).ok_or(BindError::Cancelled)?;
        self.guard.check(order)?;
        let found = self
            .root
            .find("find lease", lease)
            .map_err(BindError::Failed)?;
        let below = found.ok_or_else(|| {
            let at = self.root.path("");
            let why = format_args!("{}: lease {lease} has no cgroup there", at.display());
            BindError::Failed(StepError::new("find lease", why))
        })?;
        let coordinates = self.coordinates(&below).map_err(BindError::Failed)?;
        self.open(&entry, order, &below)?;
        let mut binding = Binding::plain(order.terms.resource_type());
        binding.kind = KindBinding::Cpu(Some(Box::new(coordinates)));
        Ok(binding)
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        match self.leases().find(binding_id.lease_id) {
            Lookup::Here(entry) if entry.state().gate.is_closed(binding_id.generation) => {
                return Err(AlreadyCut);
            }
            Lookup::Here(entry) => entry.deadline.store(deadline.0, Ordering::Release),
            Lookup::Released => return Err(AlreadyCut),
            // The lease is bound later.
            Lookup::Unknown => {}
        }
        self.guard.extend(binding_id, deadline);
        Ok(())
    }

    /// The processes have been killed: nobody is there to tell.
    fn fenced(&self, _binding_id: BindingId) {}

    /// Nothing waits for the kernel under the lock of a lease's state.
    fn extends_at_once(&self) -> bool {
        true
    }

    fn rotate(&self, binding_id: BindingId) -> Result<Binding, BindError> {
        Err(BindError::Refused(no_key(binding_id)))
    }

    fn retire_key(&self, binding_id: BindingId) -> Result<Binding, StepError> {
        Err(no_key(binding_id))
    }

    fn revoke(&self, binding_id: BindingId, _linger: Linger) -> Result<Revoked, StepError> {
        let lease = binding_id.lease_id;
        let Some(entry) = self.entry(lease) else {
            let proof = Proof::nothing_to_cut("the lease was removed before");
            return Ok(Revoked::proved(proof));
        };
        // Nothing enters from here on; what entered before is ended below.
        let closed = entry.state().gate.revoke(binding_id.generation);
        if let Err(moved_on) = closed {
            return Ok(Revoked::proved(moved_on.into()));
        }
        let is_admitting = entry.is_admitting();
        let mut steps = self.end_processes(lease)?;
        if is_admitting {
            // A process on its way in may arrive after the kill, and a cgroup be thawed after the freeze.
            drop(entry.admission());
            steps = steps.and(self.end_processes(lease)?);
        }
        let mut state = entry.state();
        state.gate.ended(binding_id.generation);
        state.is_open = false;
        Ok(Revoked {
            steps,
            ..Revoked::default()
        })
    }

    /// Reads what the kernel says. The cgroup stays frozen: even a process that root moves into it does not run.
    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        let mut proof = revoked.map(|it| it.steps.clone()).unwrap_or_default();
        let Some(entry) = self.entry(lease) else {
            return Ok(Proof::nothing_to_cut("the lease was removed before"));
        };
        if let Err(moved_on) = entry.state().gate.check_current(binding_id.generation) {
            return Ok(moved_on.into());
        }
        let began = Instant::now();
        if let Some(below) = self.root.find("verify", lease)? {
            let frozen = self
                .root
                .read("verify", &format!("{below}/cgroup.freeze"))?;
            let members = self.root.members("verify", &below)?;
            if frozen != "1" || self.root.is_populated("verify", &below)? || !members.is_empty() {
                let why = format!(
                    "{}: cgroup.freeze is {frozen}, processes {members:?}",
                    self.root.path(&below).display()
                );
                return Err(StepError::new("verify", why));
            }
            proof.add("read cgroup", began.elapsed(), "frozen, 0 processes");
        }
        self.guard.over(binding_id);
        Ok(proof)
    }

    fn remove(&self, binding_id: BindingId, _progress: &dyn Fn()) -> Result<(), StepError> {
        let Some(entry) = self.entry(binding_id.lease_id) else {
            return Ok(());
        };
        let mut state = entry.state();
        if state.is_open {
            let why = format_args!("{binding_id}: it was not revoked");
            return Err(StepError::new("remove", why));
        }
        state.gate.remove();
        drop(state);
        self.leases().release(binding_id.lease_id);
        Ok(())
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.root.leases("list leases")
    }
}

impl LocalAccess for CpuPath {
    fn enter(
        &self,
        lease: LeaseId,
        caller: &Caller,
        given: Given,
    ) -> Result<Entered, LocalRefusal> {
        let entry = LocalRefusal::unless_here(self.leases().find(lease))?;
        // Held until the process is in: a cut that begins meanwhile kills again after it.
        let _admission = entry.admission();
        entry.check(caller)?;
        let Given::Process(process) = given else {
            let why = format!("a lease of CPU cores takes a process and no {given}");
            return Err(LocalRefusal::Unsupported(why));
        };
        let below = self
            .root
            .find("enter", lease)
            .map_err(LocalRefusal::Failed)?;
        let below = below.ok_or(LocalRefusal::NotFound)?;
        enter(&self.root, &self.proc, &below, caller, &process)
    }
}

fn no_key(binding_id: BindingId) -> StepError {
    let why = format_args!("{binding_id}: a lease of CPU cores has no key");
    StepError::new("change key", why)
}
