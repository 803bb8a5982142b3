//! Limits the resources of the node that a lease's worker and programs can take.

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
    /// Enables the controllers for the control groups below the root. If the machine does not allow a controller, its
    /// limits are missing and the log says so.
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

    /// Sets the limits for the control group of a lease. If the memory is used up, the kernel kills all processes of
    /// this lease and no others.
    ///
    /// # Errors
    /// A limit cannot be written.
    pub(crate) fn set(&self, root: &Root, below: &str) -> Result<(), StepError> {
        let limits = fabricbios_cgroup::Limits {
            memory_bytes: self.memory_bytes,
            processes: THREADS_MAX,
        };
        limits.set(root, below)?;
        let whole = format!("{below}/memory.oom.group");
        // The file is missing if its controller is.
        if root.exists(STEP, &whole)? {
            root.write(STEP, &whole, "1")?;
        }
        Ok(())
    }
}
