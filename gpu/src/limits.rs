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
    /// Gives the control groups below the root the controllers. A machine that does not allow one lacks its limits: the log says so.
    pub(crate) fn enable(root: &Root) {
        for controller in ["memory", "pids"] {
            let made = root.make(&[controller]);
            if let Err(error) = made.and_then(|()| root.enable("", &[controller])) {
                tracing::warn!(
                    %error,
                    controller,
                    "this machine does not allow all limits for leases of GPUs: what a tenant sends can make its worker take any \
                     amount of the node's memory, or of its processes"
                );
            }
        }
    }

    /// Sets them for the control group of a lease. If its memory is used up, all of its processes end, and nobody else's.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn set(&self, root: &Root, below: &str) -> Result<(), StepError> {
        let limits = fabricbios_cgroup::Limits {
            memory_bytes: self.memory_bytes,
            processes: THREADS_MAX,
        };
        limits.set(root, below)?;
        let whole = format!("{below}/memory.oom.group");
        // It is missing with its controller.
        if root.exists(STEP, &whole)? {
            root.write(STEP, &whole, "1")?;
        }
        Ok(())
    }
}
