//! The hook of container engines (OCI runtime specification, config.md "POSIX-platform Hooks", `createRuntime`). A
//! lease's CDI specification names the hook. The engine runs the hook before the container's program, and does not
//! start the program if the hook fails.

use std::{
    fs,
    io::{self, Read, Write},
    path::Path,
};

use fabricbios_wire::LeaseId;
use serde::Deserialize;

use crate::Containers;

/// The subcommand that runs [`hook_main`].
pub const HOOK: &str = "cdi-hook";

/// The steps of the hook, for the test hook.
const STEPS: &[&str] = &["register container"];

/// Longest text of a container's state, which includes the annotations.
const STATE_BYTES_MAX: u64 = 4 << 20;

/// The kernel's log takes lines of 976 bytes (`LOG_LINE_MAX` in its `kernel/printk/printk.c`), in some cases with a
/// longer prefix.
const LINE_BYTES_MAX: usize = 900;

/// The used part of a container's state (OCI runtime specification, runtime.md "State").
#[derive(Deserialize)]
struct State {
    /// Its first process.
    pid: i32,
}

/// The command line of the hook of a lease, for a specification: `program` and its arguments. `records` is the
/// directory of the records of the lease's kind.
#[must_use]
pub fn hook(program: &Path, records: &Path, lease: LeaseId) -> Vec<String> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    vec![
        text(program),
        HOOK.to_owned(),
        "--records".to_owned(),
        text(records),
        "--lease".to_owned(),
        lease.to_string(),
    ]
}

/// Registers the container whose state is in standard input. A failure is also written to the kernel's log: an engine
/// shows only the exit status.
///
/// # Errors
/// The reason, for the engine's user: the engine must not start the container.
pub fn hook_main(records: &Path, lease: LeaseId) -> Result<(), String> {
    let registered = register(records, lease).map_err(|why| format!("lease {lease}: {why}"));
    registered.inspect_err(|why| {
        // Only root can write there, and a kernel may have no log.
        let log = fs::File::options().write(true).open("/dev/kmsg");
        log.and_then(|mut log| log.write_all(line(why).as_bytes()))
            .ok();
    })
}

/// One line for the kernel's log, of the level "error".
fn line(why: &str) -> String {
    let why = why.replace(char::is_control, " ");
    let mut line = format!("<3>fabricbiosd {HOOK}: {why}");
    while line.len() > LINE_BYTES_MAX {
        line.pop();
    }
    // Without a line end the kernel shows the line only when the next line comes.
    line.push('\n');
    line
}

fn register(records: &Path, lease: LeaseId) -> Result<(), String> {
    let mut state = Vec::new();
    let read = io::stdin()
        .lock()
        .take(STATE_BYTES_MAX)
        .read_to_end(&mut state);
    read.map_err(|error| format!("the container's state: {error}"))?;
    let State { pid } = serde_json::from_slice(&state)
        .map_err(|error| format!("the container's state on standard input: {error}"))?;
    if pid <= 0 {
        return Err(format!(
            "the container's state says that its process is {pid}"
        ));
    }
    Containers::of(records, lease, STEPS).register(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_of_the_kernels_log() {
        assert_eq!(
            line("lease 7: the container's\ngroup\x1b[31m"),
            "<3>fabricbiosd cdi-hook: lease 7: the container's group [31m\n"
        );
        let long = line(&"é".repeat(LINE_BYTES_MAX));
        assert!((LINE_BYTES_MAX..=LINE_BYTES_MAX + 1).contains(&long.len()));
        assert!(long.ends_with("é\n"));
    }
}
