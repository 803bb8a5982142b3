//! Ends leases of GPUs without the daemon.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fabricbios_cgroup::Endings;
use fabricbios_contract::EndByName;
use fabricbios_helper::Supervisor;
use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

use crate::{cut::Cutter, gpus::root_at, record::Records};

/// The file in the directory of the records that names the root cgroup.
pub(crate) const ROOT: &str = "cgroup";

/// Ends leases of GPUs in the watchdog: kills workers, all processes in the leases' cgroups, and those of the leases'
/// users that have a device open.
#[derive(Debug)]
pub struct GpuEnd {
    cutter: Cutter,
    endings: Endings,
}

impl GpuEnd {
    /// Uses the records in this directory. `supervisor` makes the calls of [`handlers`](crate::management::handlers).
    ///
    /// # Errors
    /// The root cgroup named there is not in a file system of cgroup v2.
    pub fn at(records: &Path, supervisor: Supervisor) -> Result<Self, StepError> {
        let named = fs::read_to_string(records.join(ROOT)).ok();
        let named = named.map(PathBuf::from);
        Ok(Self {
            cutter: Cutter {
                records: Records::at(records),
                root: named.as_deref().map(root_at).transpose()?,
                proc: Tree::new("/proc"),
                supervisor,
            },
            endings: Endings::default(),
        })
    }
}

impl EndByName for GpuEnd {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        let Some(record) = self.cutter.records.find(lease)? else {
            return Ok(());
        };
        let stopped = self.cutter.stop(lease, &record);
        let (its, of_lease) = (self.cutter.clone(), record.clone());
        let finish = move || Ok(its.finish(lease, &of_lease)?.to_string());
        let finished = self.endings.wait(lease, self.endings.moment(), finish)?;
        stopped?;
        if finished.is_none() {
            let why = "it was killed and has not ended yet";
            return Err(StepError::new("wait", why));
        }
        // Processes may have come since.
        self.cutter.check(lease, &record).map(drop)
    }
}
