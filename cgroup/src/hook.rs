//! The hook of container engines (OCI runtime specification, config.md "POSIX-platform Hooks", `createRuntime`): a lease's CDI
//! specification names it. The engine runs it before the container's program, and starts nothing if it fails.

use std::{
    io::{self, Read},
    path::Path,
};

use fabricbios_wire::LeaseId;
use serde::Deserialize;

use crate::Containers;

/// The subcommand that runs [`hook_main`].
pub const HOOK: &str = "cdi-hook";

/// The steps of the hook, for the test hook.
const STEPS: &[&str] = &["register container"];

/// A container's state has its annotations too.
const STATE_BYTES_MAX: u64 = 4 << 20;

/// The part of a container's state that is used (OCI runtime specification, runtime.md "State").
#[derive(Deserialize)]
struct State {
    /// Its first process.
    pid: i32,
}

/// The command line of the hook of a lease, for a specification: `program` and its arguments. `records` is the directory of
/// the records of the lease's kind.
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

/// Registers the container whose state is in standard input.
///
/// # Errors
/// For the engine's user: the container must not be started.
pub fn hook_main(records: &Path, lease: LeaseId) -> Result<(), String> {
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
    let registered = Containers::of(records, lease, STEPS).register(pid);
    registered.map_err(|why| format!("lease {lease}: {why}"))
}
