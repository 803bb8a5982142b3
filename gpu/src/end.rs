//! Ends leases of GPUs without the daemon.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fabricbios_cgroup::{Endings, Root};
use fabricbios_contract::EndByName;
use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

use crate::{
    gpus::{end, root_at},
    record::Records,
    sessions::ENDS_WITHIN,
};

/// The file in the directory of the records that names the root cgroup.
pub(crate) const ROOT: &str = "cgroup";

/// Ends leases of GPUs in the watchdog: kills workers and all processes in the leases' cgroups.
#[derive(Debug)]
pub struct GpuEnd {
    records: Records,
    root: Option<Root>,
    proc: Tree,
    endings: Endings,
}

impl GpuEnd {
    /// Uses the records in this directory.
    ///
    /// # Errors
    /// The root cgroup named there is not in a file system of cgroup v2.
    pub fn at(records: &Path) -> Result<Self, StepError> {
        let named = fs::read_to_string(records.join(ROOT)).ok();
        let named = named.map(PathBuf::from);
        Ok(Self {
            records: Records::at(records),
            root: named.as_deref().map(root_at).transpose()?,
            proc: Tree::new("/proc"),
            endings: Endings::default(),
        })
    }
}

impl EndByName for GpuEnd {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        let (root, records, proc) = (self.root.clone(), self.records.clone(), self.proc.clone());
        let end = move |patience| match records.find(lease)? {
            Some(record) => end(root.as_ref(), &proc, &records, lease, &record, patience).map(drop),
            None => Ok(()),
        };
        self.endings.end(lease, ENDS_WITHIN, end)
    }
}
