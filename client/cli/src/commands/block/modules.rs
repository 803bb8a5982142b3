//! Kernel modules that devices need.

/// The message about a missing driver: what is missing, the result of loading its module, and the alternative.
pub(super) fn no_driver(
    kind: &str,
    place: &str,
    module: &str,
    loaded: Result<(), String>,
    instead: &str,
) -> String {
    let why = loaded.err().unwrap_or_else(|| "it said nothing".to_owned());
    format!(
        "this kernel has no {kind}: {place} is not there and `modprobe {module}` did not help ({why}); \
         install the kernel's modules, or {instead}"
    )
}
