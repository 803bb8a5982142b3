//! The end of leases of GPUs without the daemon.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use fabricbios_cgroup::Root;
use fabricbios_contract::EndByName;
use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

use crate::{
    gpus::{end, root_at},
    record::Records,
};

/// The file in the directory of the records that names the root cgroup.
pub(crate) const ROOT: &str = "cgroup";

/// So long a process that was killed is waited for: other leases wait too, and the end is tried again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Ends leases of GPUs in the watchdog: kills workers and all processes in the leases' cgroups.
#[derive(Debug)]
pub struct GpuEnd {
    records: Records,
    root: Option<Root>,
    proc: Tree,
}

impl GpuEnd {
    /// With records in this directory.
    ///
    /// # Errors
    /// The root cgroup that is named there is in no file system of cgroup v2.
    pub fn at(records: &Path) -> Result<Self, StepError> {
        let named = fs::read_to_string(records.join(ROOT)).ok();
        let named = named.map(PathBuf::from);
        Ok(Self {
            records: Records::at(records),
            root: named.as_deref().map(root_at).transpose()?,
            proc: Tree::new("/proc"),
        })
    }
}

impl EndByName for GpuEnd {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        match self.records.find(lease)? {
            Some(record) => {
                let (root, records) = (self.root.as_ref(), &self.records);
                let ended = end(root, &self.proc, records, lease, &record, PATIENCE);
                ended.map(drop)
            }
            None => Ok(()),
        }
    }
}
