//! What all processes of a lease can take of the node.

use fabricbios_lease::StepError;

use crate::root::Root;

/// The limits of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory, without swap: bytes.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub processes: u64,
}

impl Limits {
    /// The controllers that have them.
    pub const CONTROLLERS: [&str; 2] = ["memory", "pids"];

    /// Sets those that a lease's cgroup does not have yet, as far as it has the controllers. This is a step of the kind.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set(self, root: &Root, below: &str) -> Result<(), StepError> {
        const STEP: &str = "limit lease";
        for (file, value) in [
            ("memory.swap.max", 0),
            ("memory.max", self.memory_bytes),
            ("pids.max", self.processes),
        ] {
            let at = format!("{below}/{file}");
            // A kernel without swap has no limit of it.
            if root.exists(STEP, &at)? && root.read(STEP, &at)? == "max" {
                root.write(STEP, &at, &value.to_string())?;
            }
        }
        Ok(())
    }
}
