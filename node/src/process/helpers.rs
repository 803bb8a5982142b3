//! The supervisor process, which runs each call that may hang in a process of its own.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::Context;
use fabricbios_helper::{Handler, Program, Supervisor, supervise};
use nix::sys::prctl::set_name;

use crate::{
    kinds::KINDS,
    process::{detached::outlive_the_daemon, state_dir::open_lock},
};

/// The subcommand that runs [`supervisor_main`].
const SUBCOMMAND: &str = "supervisor";

/// The file that calls lock if they must not run twice at the same time.
const LOCK: &str = "calls.lock";

/// Starts the supervisor. It also finds calls that an earlier daemon on the same state directory has left running.
///
/// # Errors
/// The lock file cannot be opened, or no process can be started.
pub fn start(program: &Program, state_dir: &Path) -> anyhow::Result<Supervisor> {
    let file = open(&lock_of(state_dir))?;
    let started = Supervisor::start(program, SUBCOMMAND, file)
        .context("start the process that starts processes for calls that may hang")?;
    Ok(started.counting(&calls()))
}

/// The file that [`for_watchdog`] takes.
pub(crate) fn lock_of(state_dir: &Path) -> PathBuf {
    state_dir.join(LOCK)
}

/// The supervisor for a watchdog. Its program stays in memory, and the first call starts it.
///
/// # Errors
/// The lock file cannot be opened.
pub(crate) fn for_watchdog(lock: &Path) -> anyhow::Result<Supervisor> {
    let program = Program::running().context("open the program that runs")?;
    Ok(Supervisor::when_needed(&program, SUBCOMMAND, open(lock)?))
}

/// The supervisor for `check`, whose calls take no locks. The first call starts it, and it ends with the check.
///
/// # Errors
/// The program that runs cannot be opened.
pub(crate) fn for_check() -> anyhow::Result<Supervisor> {
    let program = Program::running().context("open the program that runs")?;
    let no_lock = File::open("/dev/null").context("open /dev/null")?;
    Ok(Supervisor::when_needed(&program, SUBCOMMAND, no_lock))
}

fn open(lock: &Path) -> anyhow::Result<File> {
    open_lock(lock).with_context(|| format!("open {}", lock.display()))
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
    KINDS.iter().flat_map(|kind| (kind.calls)()).collect()
}
