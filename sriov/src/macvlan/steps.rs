//! The names of all steps that change something.

/// All steps of a grant, of a hand-over, of a cut and of a release, in their order. A test lets the daemon die after
/// each step.
pub const STEPS: &[&str] = &[
    "write record",
    "make macvlan",
    "note on macvlan",
    "make veth pair",
    "note on veth",
    "rules for sent frames",
    "rules for received frames",
    "shape sent frames",
    "shape received frames",
    "set macvlan up",
    "set veth up",
    "set interface up",
    "move to namespace",
    "delete rule for sent frames",
    "delete rule for received frames",
    "delete macvlan",
    "delete veth pair",
    "remove record",
];

/// Test hook: the step is done.
pub(super) fn passed(step: &'static str) {
    fabricbios_kernfs::step_passed(STEPS, step);
}
