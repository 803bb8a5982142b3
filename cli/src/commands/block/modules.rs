//! Modules of the kernel that devices need.

use std::process::{Command, Stdio};

/// Loads a module of the kernel, or says why not. One that is built in or loaded is no error.
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

/// This kernel lacks something: how that was seen, how loading its module went, and what would do instead.
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
