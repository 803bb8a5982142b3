//! The store of CPU cores: a cgroup for each lease. The cgroups are the record of which lease has which CPUs.

mod ended;
mod share;

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use fabricbios_cgroup::{LEASE, Limits, Root, end_processes};
use fabricbios_contract::{Part, Store, TellCondition, stray_binding_id};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{BindError, BindOrder, BindingId, CoreGroup, Placement, Proof, StepError};
use fabricbios_wire::{LeaseId, ResourceId};
use nix::errno::Errno;

use crate::{
    ENDS_WITHIN, Group, STEPS,
    cgroupfs::{Cgroup, CpuRoot, SHARED, STUCK, aside},
    root::{Prepared, prepare},
    watch::{Watch, Watched, cpus_of},
};
use share::Share;

/// Settings of a store.
#[derive(Clone, Debug)]
pub struct CpuConfig {
    /// The node's root cgroup.
    pub root: Root,
    /// The groups on offer.
    pub groups: Vec<Group>,
    /// `/sys`.
    pub sys: Tree,
    /// `/proc`.
    pub proc: Tree,
    /// Limits of a lease, per logical CPU of the lease.
    pub limits: Limits,
}

/// See the module.
#[derive(Debug)]
pub struct CpuStore {
    config: CpuConfig,
    prepared: Prepared,
    /// Held while the CPUs of leases change.
    turn: Mutex<()>,
    watch: Watch,
}

impl CpuStore {
    /// The CPUs that leases of an earlier run have. Changes nothing.
    ///
    /// # Errors
    /// A cgroup cannot be read.
    pub fn held(root: &Root) -> Result<BTreeSet<u32>, StepError> {
        let mut held = BTreeSet::new();
        for prefix in [LEASE, STUCK] {
            for (_, below) in root.of_leases("list leases", "", prefix)? {
                held.extend(root.read_list("list leases", &format!("{below}/cpuset.cpus"))?);
            }
        }
        Ok(held)
    }

    /// Takes the root cgroup, and makes it if it does not exist.
    ///
    /// # Errors
    /// The kernel lacks a controller that every lease needs (`cpuset` and `cpu` of cgroup v2), or another process has
    /// the root cgroup.
    pub fn open(config: CpuConfig) -> Result<Self, StepError> {
        let config = CpuConfig {
            root: config.root.with_steps(STEPS),
            ..config
        };
        let held = Self::held(&config.root)?;
        let mut cpus = cpus_of(&config.groups);
        cpus.extend(held);
        let store = Self {
            prepared: prepare(&config.root, &cpus)?,
            watch: Watch::start(
                config.root.clone(),
                config.sys.clone(),
                config.groups.clone(),
            )?,
            turn: Mutex::default(),
            config,
        };
        store.set_shared(&BTreeSet::new())?;
        Ok(store)
    }

    /// Ends all leases in a root cgroup whose CPUs are no longer on offer; `proc` is `/proc`, `sys` is `/sys`.
    ///
    /// # Errors
    /// The error of the first lease that could not be removed completely. All other leases are ended.
    pub fn end_all(root: &Root, sys: Tree, proc: Tree) -> Result<(), StepError> {
        let root = &root.clone().with_steps(STEPS);
        let leases = root.leases("list leases")?;
        // The store offers no CPUs, so it takes them from the best_effort leases. Their processes must have ended
        // before.
        for &lease in &leases {
            if let Some(below) = root.find("find lease", lease)? {
                tracing::warn!(lease_id = %lease, "ending a lease of CPU cores that are not on offer any more");
                end_processes(root, &proc, &below, Some(&aside(lease)), ENDS_WITHIN)?;
            }
        }
        let store = Self::open(CpuConfig {
            root: root.clone(),
            groups: Vec::new(),
            sys,
            proc,
            // This store makes no lease.
            limits: Limits {
                memory_bytes: 0,
                processes: 0,
            },
        })?;
        let release = |&lease: &LeaseId| {
            let released = store.release(stray_binding_id(ResourceId(0), lease), None, &|| ());
            released.map_err(|error| StepError {
                detail: format!("lease {lease}: {}", error.detail),
                ..error
            })
        };
        let released: Vec<_> = leases.iter().map(release).collect();
        released.into_iter().try_for_each(|it| it.map(drop))
    }

    /// Why no exclusive leases are possible; `None`: they are.
    #[must_use]
    pub fn not_exclusive(&self) -> Option<&str> {
        self.prepared.not_exclusive.as_deref()
    }

    /// The groups in the form that the lease table counts.
    #[must_use]
    pub fn core_groups(&self) -> Vec<CoreGroup> {
        let group = |group: &Group| CoreGroup {
            number: group.number,
            cpus: u32::try_from(group.cpus.len()).unwrap_or(u32::MAX),
            node: group.node,
        };
        self.config.groups.iter().map(group).collect()
    }

    /// Checks the partitions of all leases, as the watch does after each change that the kernel reports. `now`: the
    /// time up to which a partition has been invalid.
    pub fn check_partitions(&self, now: Instant) {
        self.watch.check(now);
    }

    fn root(&self) -> &Root {
        &self.config.root
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives `shared` the CPUs on offer that no lease has, except those in `taken`. If none are left, the table grants
    /// no best_effort lease and ends those of an earlier run; until then the file keeps its old value.
    fn set_shared(&self, taken: &BTreeSet<u32>) -> Result<(), StepError> {
        let held = Self::held(self.root())?;
        let mut cpus = cpus_of(&self.config.groups);
        cpus.retain(|cpu| !held.contains(cpu) && !taken.contains(cpu));
        let file = format!("{SHARED}/cpuset.cpus");
        if self.root().read_list("shared cpus", &file)? == cpus {
            return Ok(());
        }
        match self.root().write_list("shared cpus", &file, &cpus) {
            // The kernel refuses to take the last CPU from a cpuset that has processes.
            Err(error) if taken.is_empty() && error.errno == Some(Errno::ENOSPC as i32) => Ok(()),
            written => written,
        }
    }
}

impl Store for CpuStore {
    /// Does nothing: cores have no contents.
    fn prepare(&self, _order: &BindOrder, _progress: &dyn Fn()) -> Result<(), StepError> {
        Ok(())
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let lease = order.binding_id.lease_id;
        let _turn = self.turn();
        let share = self.share(order).map_err(BindError::Failed)?;
        let found = self
            .root()
            .find("find lease", lease)
            .map_err(BindError::Failed)?;
        let opened = match &found {
            Some(below) => self
                .check_or_heal(below, &share)
                .and_then(|()| self.limit(below, share.cpus()))
                .map_err(BindError::Failed),
            None if order.adopts => {
                let at = self.root().path("");
                let why = format_args!("{}: the lease has no cgroup there", at.display());
                return Err(BindError::Failed(StepError::new("find lease", why)));
            }
            None => self.make(lease, &share),
        };
        let below = found.unwrap_or_else(|| share.cgroup(lease));
        if let Share::Exclusive {
            groups,
            partition,
            is_strict,
        } = share
            // A lease of an earlier run goes on, even if its check failed, until the watch gives it up.
            && (opened.is_ok() || order.adopts)
        {
            self.watch.add(
                lease,
                Watched {
                    below: below.clone(),
                    partition,
                    groups,
                    is_strict,
                },
            );
        }
        opened?;
        Ok(Part::with(order.placement.clone(), Cgroup(below)))
    }

    /// Does nothing: a reboot ends all leases, even those in an older journal.
    fn confirm(&self, _binding_id: BindingId) -> Result<(), StepError> {
        Ok(())
    }

    fn forget(&self, binding_id: BindingId, _placement: &Placement) -> Result<(), StepError> {
        let _turn = self.turn();
        self.remove(binding_id.lease_id, Vec::new())
    }

    fn release(
        &self,
        binding_id: BindingId,
        placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        // A path has ended the processes already, unless the lease was never bound. This waits without the lock.
        if let Some(below) = self.root().find("remove lease", lease)? {
            end_processes(
                self.root(),
                &self.config.proc,
                &below,
                Some(&aside(lease)),
                ENDS_WITHIN,
            )?;
        }
        progress();
        let groups = match placement {
            Some(Placement::Cores(numbers)) => self.groups(numbers).unwrap_or_default(),
            _ => Vec::new(),
        };
        {
            let _turn = self.turn();
            self.remove(lease, cpus_of(&groups))?;
        }
        self.wait_for_stuck(lease)?;
        let _turn = self.turn();
        self.set_shared(&BTreeSet::new())?;
        Ok(Proof::nothing_to_clean(
            "cores keep no bytes; the lease's processes have ended and its control group is removed",
        ))
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.root().leases("list leases")
    }

    fn tell_condition(&self, tell: TellCondition) {
        self.watch.tell(tell);
    }
}
