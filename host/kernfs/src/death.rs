//! Test hook: the process aborts after a named step, so that a test sees what the next process does with the rest.
//!
//! The environment variable `FABRICBIOS_DIE_AFTER=NAME` selects the step, `NAME#2` its second time. Only debug builds
//! do so.

#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicU32, Ordering};

/// Test hook: aborts if `FABRICBIOS_DIE_AFTER` names this step and this time. `all` has the names of all steps.
pub fn step_passed(all: &[&str], name: &'static str) {
    debug_assert!(all.contains(&name), "{name} is not among {all:?}");
    #[cfg(debug_assertions)]
    if let Ok(wanted) = std::env::var("FABRICBIOS_DIE_AFTER") {
        static TIMES: AtomicU32 = AtomicU32::new(0);
        let (step, time) = wanted.split_once('#').unwrap_or((&wanted, "1"));
        if step == name && time == (TIMES.fetch_add(1, Ordering::Relaxed) + 1).to_string() {
            std::process::abort();
        }
    }
}
