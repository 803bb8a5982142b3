//! The names of all steps. A test kills the daemon after each step and checks how the next daemon continues.

/// All steps that change something, in order: of a grant, of a session, of a cut, of a release.
pub const STEPS: &[&str] = &[
    "make root",
    "enable controllers",
    "make record",
    "make lease",
    "limit lease",
    "device controller",
    "take containers",
    "write CDI spec",
    "open nodes",
    "thaw",
    "make worker cgroup",
    "start worker",
    "make caller",
    "limit caller",
    "enter",
    "close worker",
    "remove CDI spec",
    "close nodes",
    "take no containers",
    "deny devices",
    "freeze",
    "kill",
    "move aside",
    "kill worker",
    "end containers",
    "end holders",
    "reset device",
    "scrub",
    "remove lease",
    "remove aside",
    "remove record",
];

/// Test hook: the step is done.
pub(crate) fn passed(step: &'static str) {
    fabricbios_kernfs::step_passed(STEPS, step);
}
