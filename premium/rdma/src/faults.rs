//! Test hook: makes steps of binds and cuts fail, as if the kernel refused them.
//!
//! A test cannot make a real kernel refuse. Without the feature `fault-injection` no step can be made to fail.

#[cfg(feature = "fault-injection")]
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;

/// The planned failures.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    #[cfg(feature = "fault-injection")]
    planned: Mutex<Vec<&'static str>>,
}

impl Faults {
    /// Runs the step, unless its failure is planned.
    pub(crate) fn or<T>(
        &self,
        name: &str,
        step: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match self.strike(name) {
            true => Err(Errno::EIO),
            false => step(),
        }
    }

    /// Whether the step must fail. Each planned failure happens once.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn strike(&self, step: &str) -> bool {
        let mut planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        let place = planned.iter().position(|fault| *fault == step);
        place.map(|place| planned.remove(place)).is_some()
    }

    /// Never fails a step: the feature is off.
    #[cfg(not(feature = "fault-injection"))]
    #[expect(clippy::unused_self, reason = "the same call as with the feature")]
    pub(crate) fn strike(&self, _step: &str) -> bool {
        false
    }

    #[cfg(feature = "fault-injection")]
    pub(crate) fn plan(&self, steps: &[&'static str]) {
        self.planned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(steps);
    }
}
