//! The names of all steps. A test lets the daemon die after each step, to see how the next daemon goes on.

/// All steps that change something: of the start, of a grant, of an entry, of a cut, of a release; in their order.
pub const STEPS: &[&str] = &[
    "make root",
    "enable controllers",
    "root exclusive",
    "make shared",
    "shared cpus",
    "make lease",
    "limit lease",
    "cpus",
    "mems",
    "exclusive",
    "partition",
    "quota",
    "thaw",
    "make caller",
    "limit caller",
    "enter",
    "freeze",
    "kill",
    "move aside",
    "dissolve",
    "remove lease",
    "aside cpus",
    "remove aside",
];
