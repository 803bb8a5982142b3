//! Kernel modules that devices need.

use std::{
    fs,
    process::{Command, Stdio},
};

/// The program that the kernel itself would run, so that PATH is not searched.
const MODPROBE: &str = "/proc/sys/kernel/modprobe";

/// Loads a kernel module. A module that is built in or loaded already is no error.
pub(super) fn load_module(module: &str) -> Result<(), String> {
    let program = fs::read_to_string(MODPROBE).map_err(|error| format!("{MODPROBE}: {error}"))?;
    let output = Command::new(program.trim_end())
        .arg(module)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", program.trim_end()))?;
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
