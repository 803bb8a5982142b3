//! What a lease leaves: its cgroup, its CPUs, and processes that cannot die.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use fabricbios_cgroup::described;
use fabricbios_lease::StepError;
use fabricbios_wire::{CpuPartition, LeaseId};

use super::CpuStore;
use crate::{
    cgroupfs::{CpuRoot, aside, exclusive},
    list,
};

/// How long a release waits for processes that cannot die.
const PATIENCE: Duration = Duration::from_secs(2);

impl CpuStore {
    /// Removes a lease's cgroup and gives its CPUs back to the machine. If processes of the lease were moved aside, no
    /// other lease gets the CPUs. The lease's processes have ended. `cpus`: the CPUs on record.
    pub(super) fn remove(&self, lease: LeaseId, cpus: Vec<u32>) -> Result<(), StepError> {
        let (root, mut cpus) = (self.root(), cpus);
        self.watch.forget(lease);
        if let Some(below) = root.find("remove lease", lease)? {
            if below == exclusive(lease) {
                cpus = root.read_list("remove lease", &format!("{below}/cpuset.cpus"))?;
                // Kernel 6.12 loses the CPUs of an invalid partition that is removed while it is a partition.
                let file = format!("{below}/cpuset.cpus.partition");
                root.write("dissolve", &file, CpuPartition::Member.name())?;
            }
            root.remove("remove lease", &below)?;
        }
        self.check_back(&cpus)?;
        let aside = aside(lease);
        if !cpus.is_empty() && root.exists("aside cpus", &aside)? {
            // A restart reads these CPUs from this file, see [`Self::held`].
            root.write_list("aside cpus", &format!("{aside}/cpuset.cpus"), &cpus)?;
        }
        self.set_shared(&BTreeSet::new())
    }

    /// Checks that the rest of the machine has the CPUs of a lease again.
    fn check_back(&self, cpus: &[u32]) -> Result<(), StepError> {
        let online = self.config.sys.read_list("devices/system/cpu/online");
        let online = online.map_err(|error| StepError::new("give back", error))?;
        let effective = self
            .root()
            .read_list("give back", "cpuset.cpus.effective")?;
        let missing = cpus
            .iter()
            .filter(|cpu| online.contains(cpu) && !effective.contains(cpu));
        let missing: Vec<u32> = missing.copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let why = format!(
            "{}/cpuset.cpus.effective: `{}`, and the lease's CPUs {} are not back",
            self.root().path("").display(),
            list(&effective),
            list(&missing)
        );
        Err(StepError::new("give back", why))
    }

    /// Waits up to [`PATIENCE`] for the end of processes that were moved aside, and removes their cgroup.
    pub(super) fn wait_for_stuck(&self, lease: LeaseId) -> Result<(), StepError> {
        const STEP: &str = "remove aside";
        let (root, below) = (self.root(), aside(lease));
        if !root.exists(STEP, &below)? {
            return Ok(());
        }
        let until = Instant::now() + PATIENCE;
        while root.is_populated(STEP, &below)? {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let stuck = described(&self.config.proc, &root.members(STEP, &below)?);
                let why = format!(
                    "{}: {stuck} was killed and does not die; it ends when what it waits for in the kernel does",
                    root.path(&below).display()
                );
                return Err(StepError::new(STEP, why));
            }
            root.wait(STEP, &below, left)?;
        }
        root.remove(STEP, &below)
    }
}
