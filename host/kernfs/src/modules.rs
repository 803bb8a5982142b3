//! Kernel modules.

use std::{
    fs,
    process::{Command, Stdio},
};

/// The file that contains the path of the kernel's own program for loading modules, so that PATH is not searched.
const MODPROBE: &str = "/proc/sys/kernel/modprobe";

/// Loads a kernel module. Succeeds if the module is built in or loaded already.
///
/// # Errors
/// The program cannot be started or fails; the text has its name, message and status.
pub fn load_module(module: &str) -> Result<(), String> {
    let program = fs::read_to_string(MODPROBE).map_err(|error| format!("{MODPROBE}: {error}"))?;
    let program = program.trim_end();
    let output = Command::new(program)
        .arg(module)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {} ({})", why.trim_end(), output.status))
}
