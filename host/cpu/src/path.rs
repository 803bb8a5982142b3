//! Access to the cores of a lease: the tenant's processes enter the lease's cgroup and end with the lease.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use fabricbios_cgroup::{NoRoot, Root, end_killed, enter, freeze_and_kill};
use fabricbios_contract::{
    Bindings, Caller, DataPath, Entered, Given, Guard, LocalAccess, LocalRefusal, Part, Revoked,
};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Linger, Proof, StepError,
};
use fabricbios_wire::{Binding, CpuBinding, CpuPartition, CpuQuota, KindBinding, LeaseId};

use crate::{
    ENDS_WITHIN, STEPS,
    cgroupfs::{Cgroup, CpuRoot, aside},
    ranges,
};

/// The path to CPU cores, see the module.
#[derive(Debug)]
pub struct CpuPath {
    root: Root,
    proc: Tree,
    bindings: Bindings,
}

impl CpuPath {
    /// The path for leases in the root cgroup at `path`.
    ///
    /// # Errors
    /// The path is in no file system of cgroup v2.
    pub fn at(path: &Path, guard: Arc<dyn Guard>) -> Result<Self, NoRoot> {
        Ok(Self::of(Root::at(path)?, Tree::new("/proc"), guard))
    }

    /// The path for leases in a root cgroup; `proc` is `/proc`.
    #[must_use]
    pub fn of(root: Root, proc: Tree, guard: Arc<dyn Guard>) -> Self {
        Self {
            root: root.with_steps(STEPS),
            proc,
            bindings: Bindings::guarded_by(guard),
        }
    }

    /// Freezes and kills the processes, and waits for none of them: other leases are due. A process in a system call runs
    /// until it leaves the kernel; the proof shows that none is left.
    fn stop(&self, lease: LeaseId) -> Result<Revoked, StepError> {
        let below = self.root.find("find lease", lease)?;
        let Some(below) = below else {
            return Ok(Revoked::by(Proof::nothing_to_cut(
                "the lease has no cgroup",
            )));
        };
        freeze_and_kill(&self.root, &below).map(Revoked::by)
    }

    /// Waits for the end of the killed processes, and proves it, from the state that the kernel reports. The cgroup
    /// stays frozen: even a process that root moves into it does not run.
    fn prove(&self, lease: LeaseId) -> Result<Proof, StepError> {
        let Some(below) = self.root.find("verify", lease)? else {
            return Ok(Proof::default());
        };
        let freeze = format!("{below}/cgroup.freeze");
        let mut proof = Proof::default();
        // The processes of a lease that was not cut go on.
        if self.root.read("verify", &freeze)? == "1" {
            let aside = aside(lease);
            proof = end_killed(&self.root, &self.proc, &below, Some(&aside), ENDS_WITHIN)?;
        }
        let began = Instant::now();
        let frozen = self.root.read("verify", &freeze)?;
        let members = self.root.members("verify", &below)?;
        if frozen != "1" || self.root.is_populated("verify", &below)? || !members.is_empty() {
            let why = format!(
                "{}: cgroup.freeze is {frozen}, processes {members:?}",
                self.root.path(&below).display()
            );
            return Err(StepError::new("verify", why));
        }
        proof.add("read cgroup", began.elapsed(), "frozen, 0 processes");
        Ok(proof)
    }

    /// The coordinates of the lease, read from the kernel.
    fn coordinates(&self, below: &str) -> Result<CpuBinding, StepError> {
        let read = |name: &str| self.root.read("read lease", &format!("{below}/{name}"));
        // A best_effort lease has no cpuset of its own: the cpuset of its parent applies.
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
}

fn parse_quota(text: &str) -> Option<CpuQuota> {
    let (quota, period) = text.split_once(' ')?;
    Some(CpuQuota {
        quota_us: quota.parse().ok()?,
        period_us: period.parse().ok()?,
    })
}

impl DataPath for CpuPath {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let making = self.bindings.begin(order)?;
        let Cgroup(below) = &*part.record()?;
        let coordinates = self.coordinates(below).map_err(BindError::Failed)?;
        // An earlier cut has frozen the cgroup.
        let thaw = || {
            let file = format!("{below}/cgroup.freeze");
            let thawed = self.root.write("thaw", &file, "0");
            thawed.map_err(BindError::Failed)
        };
        making.beside(thaw)?;
        let mut binding = Binding::plain(order.terms.resource_type());
        binding.kind = KindBinding::Cpu(Some(Box::new(coordinates)));
        Ok(binding)
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        self.bindings.extend(binding_id, deadline)
    }

    fn revoke(&self, binding_id: BindingId, _linger: Linger) -> Result<Revoked, StepError> {
        let lease = binding_id.lease_id;
        self.bindings.revoke(binding_id, |()| self.stop(lease))
    }

    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        self.bindings.verify(
            binding_id,
            revoked,
            |()| self.stop(lease),
            |(), _| self.prove(lease),
        )
    }

    fn remove(&self, binding_id: BindingId, _progress: &dyn Fn()) -> Result<(), StepError> {
        // The store removes the cgroup.
        self.bindings.remove(binding_id.lease_id, |()| Ok(()))
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.root.leases("list leases")
    }
}

impl LocalAccess for CpuPath {
    fn remaining(&self, lease: LeaseId, caller: &Caller) -> Result<Duration, LocalRefusal> {
        let entry = self.bindings.in_use(lease)?;
        entry.remaining(|tenant| caller.check(tenant))
    }

    fn enter(
        &self,
        lease: LeaseId,
        caller: &Caller,
        given: Given,
    ) -> Result<Entered, LocalRefusal> {
        let entry = self.bindings.in_use(lease)?;
        // The admission is held until the process is in the cgroup.
        let _admission = entry.admit(|tenant| caller.check(tenant))?;
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
