//! A death behind a named step, to see what the next process makes of what is left.
//!
//! The whole daemon has to die for that, so it is asked for by environment: `FABRICBIOS_DIE_AFTER=NAME`
//! ends the process right behind the first step of that name. Only builds for debugging do so.

/// A step of this name, which is one of `all`, is done; where that is the one, nothing more is.
pub fn step_passed(all: &[&str], name: &'static str) {
    debug_assert!(all.contains(&name), "{name} is not among {all:?}");
    #[cfg(debug_assertions)]
    if std::env::var_os("FABRICBIOS_DIE_AFTER").is_some_and(|wanted| wanted == name) {
        std::process::abort();
    }
}
