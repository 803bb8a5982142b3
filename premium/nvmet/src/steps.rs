//! The names of all steps. A test lets the daemon die after each step, to see how the next daemon goes on.

/// All steps that change something: of taking a port, of an export, of a new key, of a cut, of a removal; in their
/// order.
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
    "mark host",
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
    "unmark host",
    "remove credentials",
];

/// Test hook: the step is done.
pub(super) fn passed(step: &'static str) {
    fabricbios_kernfs::step_passed(STEPS, step);
}
