//! The names of a pool's own steps, behind each of which a test lets the daemon die.

/// Every step that leaves something else behind than the one before: of making a volume, and of taking it away.
/// A directory has nothing to unmap.
const STEPS: &[&str] = &[
    "count grant",
    "make volume",
    "unmap volume",
    "destroy volume",
];

/// A step is done.
pub(crate) fn passed(step: &'static str) {
    fabricbios_kernfs::step_passed(STEPS, step);
}
