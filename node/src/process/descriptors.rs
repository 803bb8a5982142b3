//! Limits the file descriptors of grants and of streams to GPU sessions. A lease of blocks over UDP keeps one
//! descriptor open, and so does such a stream. Ends of leases need some descriptors for a moment, for kernel objects
//! and helper processes.
//!
//! The kernel counts the open descriptors. Other connections of the control plane use no descriptor.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, anyhow};
use fabricbios_http::process::{descriptors as used, descriptors_max as limit};
use fabricbios_lease::StepError;
use fabricbios_wire::{LeaseError, Refusal, RefusalClass};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors reserved for cuts, proofs, releases and the journal: 64 cuts at once, 16 releases at once in each of two
/// pools, each with a process and its pipes, and half of this sum again.
const KEPT: u64 = 384;

/// Most descriptors of one grant, or of a stream to a session: its file, a process and its pipes.
const OF_A_GRANT: u64 = 16;

/// Number of bindings and streams that are being made.
static GRANTING: AtomicU64 = AtomicU64::new(0);

/// Counts as one binding or stream until dropped.
#[derive(Debug)]
pub(crate) struct Granting(());

/// Raises the soft limit to the hard limit and logs it. `Err`: too few for any lease.
pub(crate) fn raise() -> anyhow::Result<()> {
    let (current, maximum) =
        getrlimit(Resource::RLIMIT_NOFILE).context("read the limit of file descriptors")?;
    setrlimit(Resource::RLIMIT_NOFILE, maximum, maximum)
        .context("raise the soft limit of file descriptors")?;
    let room = check(used()?, limit(), 1);
    room.map_err(|error| anyhow!("no lease could be granted: {error}"))?;
    tracing::info!(
        from = current,
        to = maximum,
        kept = KEPT,
        "file descriptors"
    );
    Ok(())
}

/// Call before a binding is made. `Err`: the remaining descriptors are reserved for ends of leases.
pub(crate) fn for_a_grant() -> Result<Granting, StepError> {
    let granting = GRANTING.fetch_add(1, Ordering::Relaxed) + 1;
    let guard = Granting(());
    let used = used().map_err(|error| refused(format_args!("/proc/self/fd: {error}")))?;
    check(used, limit(), granting).map(|()| guard)
}

/// Call before a stream is connected to the worker of a session, which may have to be started. `Err`: the remaining
/// descriptors are reserved for ends of leases.
pub(crate) fn for_a_stream() -> Result<Granting, Refusal> {
    for_a_grant().map_err(|error| {
        Refusal::new(
            LeaseError::Unavailable,
            RefusalClass::Transient,
            error.to_string(),
        )
    })
}

fn check(used: u64, limit: u64, granting: u64) -> Result<(), StepError> {
    if used + granting * OF_A_GRANT + KEPT <= limit {
        return Ok(());
    }
    Err(refused(format_args!(
        "{used} of {limit} file descriptors are in use, {granting} bindings and streams to sessions that are being made may need \
         {OF_A_GRANT} each, and {KEPT} are kept for the ends of leases: start the daemon with a higher hard limit (LimitNOFILE= of \
         systemd, ulimit -Hn of a shell)"
    )))
}

fn refused(detail: impl std::fmt::Display) -> StepError {
    StepError::new("open another file", detail)
}

impl Drop for Granting {
    fn drop(&mut self) {
        GRANTING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn every_open_file_counts() {
        let before = used().unwrap();
        let files: Vec<File> = (0..100).map(|_| File::open("/dev/null").unwrap()).collect();
        assert!(used().unwrap() >= before + 100);
        drop(files);
    }

    #[test]
    fn grants_stop_before_what_ends_of_leases_need_and_say_what_to_do() {
        check(624, 1024, 1).unwrap();
        let error = check(625, 1024, 1).unwrap_err().to_string();
        assert!(
            error.contains("625 of 1024") && error.contains("LimitNOFILE="),
            "{error}"
        );
        check(600, 1024, 2).unwrap();
        check(609, 1024, 2).unwrap_err();
    }

    #[test]
    fn a_stream_to_a_session_takes_none_of_what_ends_of_leases_need() {
        let before = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let room = |more: u64| {
            let limit = used().unwrap() + OF_A_GRANT + KEPT + more;
            setrlimit(Resource::RLIMIT_NOFILE, limit, before.1).unwrap();
        };
        room(8);
        drop(for_a_stream().unwrap());
        let taken: Vec<File> = (0..9).map(|_| File::open("/dev/null").unwrap()).collect();
        let refusal = for_a_stream().unwrap_err();
        let told = (refusal.error, refusal.class);
        assert_eq!(told, (LeaseError::Unavailable, RefusalClass::Transient));
        assert!(
            refusal.message.contains("are kept for the ends of leases"),
            "{refusal}"
        );
        drop(taken);
        drop(for_a_stream().unwrap());
        setrlimit(Resource::RLIMIT_NOFILE, before.0, before.1).unwrap();
    }
}
