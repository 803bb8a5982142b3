//! Steps of binds and cuts that tests make fail, to see what follows when the kernel refuses one.
//!
//! No kernel can be talked into refusing at will. Without the feature `fault-injection` there is
//! nothing here, and nothing can be made to fail.

#[cfg(feature = "fault-injection")]
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;

/// The steps to come that fail without being tried.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    #[cfg(feature = "fault-injection")]
    planned: Mutex<Vec<&'static str>>,
}

impl Faults {
    /// The step, unless it is to fail.
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

    /// Whether the next such step is to fail; once per time it was planned.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn strike(&self, step: &str) -> bool {
        let mut planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        let place = planned.iter().position(|fault| *fault == step);
        place.map(|place| planned.remove(place)).is_some()
    }

    /// Whether the next such step is to fail: never.
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
