//! Kernel modules that devices need.

use std::process::{Command, Stdio};

/// Loads a kernel module. A module that is built in or loaded already is no error.
pub(super) fn load_module(module: &str) -> Result<(), String> {
    let output = Command::new("modprobe")
        .arg(module)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("modprobe: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

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
