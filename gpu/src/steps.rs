//! The names of all steps. A test lets the daemon die after each, to see how the next daemon goes on.

/// All steps that change something: of a grant, of a session, of a cut, of a release; in their order.
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
