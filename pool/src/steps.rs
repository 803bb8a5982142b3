//! The names of a pool's own steps, behind each of which a test lets the daemon die.

/// Every step that leaves something else behind than the one before: of making a volume, and of taking it away.
/// A directory has nothing to unmap. "journal grant" is the journal's, as far as the pool knows.
const STEPS: &[&str] = &[
    "make volume",
    "journal grant",
    "count grant",
    "unmap volume",
    "destroy volume",
];

/// A step is done.
pub(crate) fn passed(step: &'static str) {
    fabricbios_kernfs::step_passed(STEPS, step);
}
