//! The names of the steps of a pool; a test can abort the daemon after each of them.

/// The steps of making and of removing a volume; each leaves another state behind. A directory has nothing to unmap.
/// "journal grant" is the journal's step; the pool sees only that it has been done.
const STEPS: &[&str] = &[
    "make volume",
    "journal grant",
    "count grant",
    "unmap volume",
    "destroy volume",
];

/// Reports that a step is done.
pub(crate) fn passed(step: &'static str) {
    fabricbios_kernfs::step_passed(STEPS, step);
}
