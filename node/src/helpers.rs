//! The supervisor process, which runs each call that may hang in a process of its own.

use std::path::Path;

use anyhow::Context;
use fabricbios_helper::{Handler, Program, Supervisor, supervise};
use nix::sys::prctl::set_name;

use crate::{block::ListExports, detached::outlive_the_daemon, state_dir::open_lock};

/// The subcommand that runs [`supervisor_main`].
const SUBCOMMAND: &str = "supervisor";

/// Locked by calls that must not run twice at the same time.
const LOCK: &str = "calls.lock";

/// Starts the supervisor, which also finds calls that an earlier daemon on the same state directory has left running.
///
/// # Errors
/// The lock file cannot be opened, or no process can be started.
pub fn start(program: &Program, state_dir: &Path) -> anyhow::Result<Supervisor> {
    let lock = state_dir.join(LOCK);
    let file = open_lock(&lock).with_context(|| format!("open {}", lock.display()))?;
    Supervisor::start(program, SUBCOMMAND, file)
        .context("start the process that starts processes for calls that may hang")
}

/// Runs the supervisor until the daemon is gone.
///
/// # Errors
/// The process cannot detach from the daemon, or its socket fails.
pub fn supervisor_main() -> anyhow::Result<()> {
    outlive_the_daemon()?;
    set_name(c"fb-supervisor")?;
    Ok(supervise(&calls())?)
}

fn calls() -> Vec<Handler> {
    let mut calls = fabricbios_nvmet::calls();
    calls.extend(fabricbios_pool::calls());
    calls.extend(fabricbios_sriov::vf::calls());
    calls.extend(fabricbios_gpu::management::handlers());
    calls.push(Handler::of::<ListExports>());
    calls
}
