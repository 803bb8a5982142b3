//! The names of all steps that change something.

/// All steps of a grant, of a hand-over, of a cut and of a release, in their order. A test lets the daemon die after
/// each step.
pub const STEPS: &[&str] = &[
    "claim function",
    "set address",
    "set VLAN",
    "set spoof check",
    "set trust",
    "set rate",
    "bind driver",
    "name interface",
    "set interface up",
    "take containers",
    "write CDI spec",
    "move to namespace",
    "bus master off",
    "remove CDI spec",
    "take no containers",
    "freeze",
    "kill",
    "end containers",
    "end holders",
    "unbind driver",
    "reset function",
    "remove record",
];

/// Test hook: the step is done.
pub(super) fn passed(step: &'static str) {
    fabricbios_kernfs::step_passed(STEPS, step);
}
