//! The names of all steps, and a death behind any of them, to see what the next process makes of what is
//! left.
//!
//! The whole daemon has to die for that, so it is asked for by environment: `FABRICBIOS_DIE_AFTER=NAME`
//! ends the process right behind the first step of that name. Only builds for debugging do so.

/// Every step that changes something: of taking a port, of an export, of a new key, of a cut, of a
/// removal; in the order in which they are taken.
pub const STEPS: &[&str] = &[
    "anchor subsystem",
    "anchor allow_any_host",
    "port",
    "port addr_trtype",
    "port addr_adrfam",
    "port addr_traddr",
    "port addr_trsvcid",
    "link anchor",
    "write credentials",
    "subsystem",
    "allow_any_host",
    "serial",
    "model",
    "read volume",
    "namespace",
    "device_path",
    "device_uuid",
    "device_nguid",
    "host",
    "dhchap_key",
    "dhchap_ctrl_key",
    "enable",
    "allow host",
    "link port",
    "rekey dhchap_key",
    "rekey dhchap_ctrl_key",
    "rekey credentials",
    "disallow host",
    "unlink port",
    "sweep link",
    "sweep unlink",
    "remove namespace",
    "remove subsystem",
    "remove host",
    "remove credentials",
];

/// A step is done.
pub(super) fn passed(step: &'static str) {
    debug_assert!(STEPS.contains(&step), "{step} is not among STEPS");
    #[cfg(debug_assertions)]
    if std::env::var_os("FABRICBIOS_DIE_AFTER").is_some_and(|wanted| wanted == step) {
        std::process::abort();
    }
}
