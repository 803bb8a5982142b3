//! Limits on the resources of the node that all processes of a lease together can use.

use fabricbios_lease::StepError;

use crate::root::Root;

/// The limits of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory, without swap: bytes.
    pub memory_bytes: u64,
    /// Number of processes and threads. Values above [`Limits::PROCESSES_MAX`] count as that.
    pub processes: u64,
}

impl Limits {
    /// Largest number of processes and threads in Linux, and the largest limit that it accepts: `PID_MAX_LIMIT` of the
    /// kernel's `include/linux/threads.h`.
    pub const PROCESSES_MAX: u32 = 4 << 20;

    /// The controllers that enforce the limits.
    pub const CONTROLLERS: [&str; 2] = ["memory", "pids"];

    /// Sets the limits that a lease's cgroup does not have yet, as far as the cgroup has the controllers. This is a
    /// step of the kind.
    ///
    /// # Errors
    /// A limit cannot be read or written.
    pub fn set(self, root: &Root, below: &str) -> Result<(), StepError> {
        const STEP: &str = "limit lease";
        for (file, value) in [
            ("memory.swap.max", 0),
            ("memory.max", self.memory_bytes),
            ("pids.max", self.processes.min(Self::PROCESSES_MAX.into())),
        ] {
            let at = format!("{below}/{file}");
            // A kernel without swap has no limit for swap.
            if root.exists(STEP, &at)? && root.read(STEP, &at)? == "max" {
                root.write(STEP, &at, &value.to_string())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use fabricbios_kernfs::Tree;

    use super::*;

    #[test]
    fn no_limit_is_more_than_the_kernel_takes() {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().join("lease-1");
        fs::create_dir(&at).unwrap();
        let root = Root::of(Arc::new(Tree::new(place.path())), "").with_steps(&["limit lease"]);
        for (processes, expected) in [(100, "100"), (4_194_304, "4194304"), (1 << 40, "4194304")] {
            fs::write(at.join("pids.max"), "max").unwrap();
            let limits = Limits {
                memory_bytes: 1,
                processes,
            };
            limits.set(&root, "lease-1").unwrap();
            assert_eq!(fs::read_to_string(at.join("pids.max")).unwrap(), expected);
        }
    }
}
