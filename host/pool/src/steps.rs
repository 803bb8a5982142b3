//! The names of the steps of a pool; a test can abort the daemon after each of them.

/// The steps of making and of removing a volume; each leaves a different state behind. A directory has no step "unmap
/// volume". The journal does the step "journal grant"; the pool only learns that it is done.
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
