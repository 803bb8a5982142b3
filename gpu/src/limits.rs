//! What the processes of a lease can take of the node: its worker, and its programs.

use fabricbios_cgroup::Root;
use fabricbios_lease::StepError;

use crate::worker::THREADS_MAX;

const STEP: &str = "limit lease";

/// The limits of each lease.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) memory_bytes: u64,
}

impl Limits {
    /// `None`, with a line in the log: this machine does not let control groups below the root have such limits.
    pub(crate) fn if_allowed(self, root: &Root) -> Option<Self> {
        const CONTROLLERS: [&str; 2] = ["memory", "pids"];
        let enabled = root.make(&CONTROLLERS);
        match enabled.and_then(|()| root.enable("", &CONTROLLERS)) {
            Ok(()) => Some(self),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "this machine does not allow limits of memory and processes for leases of GPUs: a tenant's modules can make its \
                     worker take any amount of the node's memory"
                );
                None
            }
        }
    }

    /// Sets them for the control group of a lease. If its memory is used up, all of its processes end, and nobody else's.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn set(&self, root: &Root, below: &str) -> Result<(), StepError> {
        for (file, value) in [
            ("memory.max", self.memory_bytes),
            ("memory.swap.max", 0),
            ("memory.oom.group", 1),
            ("pids.max", THREADS_MAX),
        ] {
            let file = format!("{below}/{file}");
            // A kernel without swap has no limit for it.
            if root.exists(STEP, &file)? {
                root.write(STEP, &file, &value.to_string())?;
            }
        }
        Ok(())
    }
}
