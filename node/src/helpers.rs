//! Calls of the daemon's that may hang, and the process that starts a process for each.

use std::path::Path;

use anyhow::Context;
use fabricbios_helper::{Handler, Program, Supervisor, supervise};
use nix::sys::prctl::set_name;

use crate::{block::ListExports, left_behind::outlive_the_daemon, state_dir::open_lock};

/// What runs [`supervisor_main`].
const SUBCOMMAND: &str = "supervisor";

/// What calls lock that must not be at the same thing twice.
const LOCK: &str = "calls.lock";

/// Starts the process; calls that a daemon on the same state directory has left behind are found by it.
pub fn start(program: &Program, state_dir: &Path) -> anyhow::Result<Supervisor> {
    let lock = state_dir.join(LOCK);
    let file = open_lock(&lock).with_context(|| format!("open {}", lock.display()))?;
    Supervisor::start(program, SUBCOMMAND, file)
        .context("start the process that starts processes for calls that may hang")
}

/// Is that process, until the daemon is gone.
pub fn supervisor_main() -> anyhow::Result<()> {
    outlive_the_daemon()?;
    set_name(c"fb-supervisor")?;
    Ok(supervise(&calls())?)
}

fn calls() -> Vec<Handler> {
    let mut calls = fabricbios_nvmet::calls();
    calls.extend(fabricbios_pool::calls());
    calls.push(Handler::of::<ListExports>());
    calls
}
