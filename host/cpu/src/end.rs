//! Ends leases of CPU cores, by the lease's name alone.

use std::path::Path;

use fabricbios_cgroup::{Endings, NoRoot, Root, end_processes};
use fabricbios_contract::EndByName;
use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

use crate::{
    ENDS_WITHIN, STEPS,
    cgroupfs::{CpuRoot, aside},
};

/// Ends leases of CPU cores without the daemon.
#[derive(Debug)]
pub struct CpuEnd {
    root: Root,
    proc: Tree,
    endings: Endings,
}

impl CpuEnd {
    /// Ends leases of the node whose root cgroup has this path.
    ///
    /// # Errors
    /// The path is in no file system of cgroup v2.
    pub fn at(path: &Path) -> Result<Self, NoRoot> {
        Ok(Self::of(Root::at(path)?, Tree::new("/proc")))
    }

    /// Ends leases in this root cgroup; `proc` is `/proc`.
    #[must_use]
    pub fn of(root: Root, proc: Tree) -> Self {
        let root = root.with_steps(STEPS);
        let endings = Endings::default();
        Self {
            root,
            proc,
            endings,
        }
    }
}

impl EndByName for CpuEnd {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        let (root, proc) = (self.root.clone(), self.proc.clone());
        let end = move |patience| {
            let Some(below) = root.find("find lease", lease)? else {
                return Ok(());
            };
            end_processes(&root, &proc, &below, Some(&aside(lease)), patience).map(drop)
        };
        self.endings.end(lease, ENDS_WITHIN, end)
    }
}
