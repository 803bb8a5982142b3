//! Test hook: makes steps of binds and cuts fail, as if the kernel refused them.
//!
//! A test cannot make a real kernel refuse. Without the feature `fault-injection` no step can be made to fail.

use std::fmt;

use nix::errno::Errno;

/// Decides by the name of a step whether it fails.
#[cfg(feature = "fault-injection")]
pub(crate) type Fails = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// The steps that fail.
#[derive(Default)]
pub(crate) struct Faults {
    #[cfg(feature = "fault-injection")]
    fails: std::sync::OnceLock<Fails>,
}

impl Faults {
    /// Runs the step, unless it must fail.
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

    /// Whether the step must fail.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn strike(&self, step: &str) -> bool {
        self.fails.get().is_some_and(|fails| fails(step))
    }

    /// Never fails a step: the feature is off.
    #[cfg(not(feature = "fault-injection"))]
    #[expect(clippy::unused_self, reason = "the same call as with the feature")]
    pub(crate) fn strike(&self, _step: &str) -> bool {
        false
    }

    /// Lets `fails` decide from now on. Only the first call counts.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn decide(&self, fails: Fails) {
        self.fails.set(fails).ok();
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faults")
    }
}
