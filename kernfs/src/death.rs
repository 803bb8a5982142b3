//! Test hook: the process aborts after a named step, so that a test sees what the next process does with the rest.
//!
//! The environment variable `FABRICBIOS_DIE_AFTER=NAME` selects the step. Only debug builds do so.

/// Test hook: aborts if `FABRICBIOS_DIE_AFTER` names this step. `all` has the names of all steps.
pub fn step_passed(all: &[&str], name: &'static str) {
    debug_assert!(all.contains(&name), "{name} is not among {all:?}");
    #[cfg(debug_assertions)]
    if std::env::var_os("FABRICBIOS_DIE_AFTER").is_some_and(|wanted| wanted == name) {
        std::process::abort();
    }
}
