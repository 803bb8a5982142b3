//! The isolation of a worker. What a tenant sends is parsed by the vendor's driver (its compiler for one), so a worker is
//! prepared for being taken over: it then has one device, its streams, and nothing to reach anybody else with.

use std::ptr;

use nix::{
    errno::Errno,
    libc,
    sched::{CloneFlags, unshare},
    sys::{
        prctl::{set_dumpable, set_no_new_privs},
        resource::{Resource, setrlimit},
        signal::{SigHandler, Signal, signal},
        stat::{Mode, umask},
    },
    unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid, setsid},
};

use super::filter;

/// Processes and threads of a lease. The drivers of both vendors have some ten threads, and each queue of a session has one.
pub(crate) const THREADS_MAX: u64 = 512;
/// No file grows beyond this, whoever made it. Libraries' files in memory are smaller.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// The kernel's numbers of capabilities are below this.
const CAPABILITIES_END: libc::c_ulong = 64;

/// Leaves the daemon's terminal, and closes its descriptors but for the standard ones. Before anything is opened.
///
/// # Errors
/// For people: the system refuses.
pub(super) fn leave_daemon() -> Result<(), String> {
    setsid().map_err(|errno| format!("no session of its own: {errno}"))?;
    // SAFETY: the caller has nothing open beside the standard descriptors, and no library of others is loaded yet.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    let closed = Errno::result(closed).map(drop);
    closed.map_err(|errno| format!("the daemon's descriptors cannot be closed: {errno}"))
}

/// Leaves the network and the System V memory of the machine. Before the driver is loaded: its threads inherit this.
/// Returns what this machine does not allow.
pub(super) fn separate() -> Vec<String> {
    let mut lacks = Vec::new();
    for (flag, what) in [
        (CloneFlags::CLONE_NEWNET, "no network namespace of its own"),
        (CloneFlags::CLONE_NEWIPC, "no IPC namespace of its own"),
    ] {
        note(&mut lacks, what, unshare(flag));
    }
    lacks
}

/// The process is another user from now on, without capabilities. Before the context is opened. Returns what this machine does
/// not allow.
///
/// # Errors
/// For people: it cannot become that user.
pub(super) fn become_user(uid: u32, gids: &[u32]) -> Result<Vec<String>, String> {
    let mut lacks = Vec::new();
    for (what, limit, most) in [
        ("a limit for core dumps", Resource::RLIMIT_CORE, 0),
        ("a limit for threads", Resource::RLIMIT_NPROC, THREADS_MAX),
    ] {
        note(&mut lacks, what, setrlimit(limit, most, most));
    }
    note(
        &mut lacks,
        "the bounding set of capabilities",
        drop_bounding_set(),
    );
    set_user(uid, gids).map_err(|why| format!("no user of its own: {why}"))?;
    drop_capabilities().map_err(|errno| format!("its capabilities stay: {errno}"))?;
    // The change of the user has hidden the process's own /proc from it, and drivers read there.
    note(&mut lacks, "its own /proc", set_dumpable(true));
    Ok(lacks)
}

/// Gives up everything but what the process has open: the system calls that reach other processes, programs or networks fail,
/// in all threads.
///
/// # Errors
/// A part of this cannot be done.
pub(super) fn close() -> Result<(), String> {
    // A file that would grow too large is refused to the driver, and does not end it.
    // SAFETY: `SigIgn` runs no code.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }
        .and_then(|_| setrlimit(Resource::RLIMIT_FSIZE, FILE_BYTES_MAX, FILE_BYTES_MAX))
        .map_err(|errno| format!("a limit for files: {errno}"))?;
    umask(Mode::from_bits_truncate(0o077));
    set_dumpable(false)
        .map_err(|errno| format!("its memory can be read by other processes: {errno}"))?;
    set_no_new_privs().map_err(|errno| format!("no_new_privs: {errno}"))?;
    filter::install()
}

fn note(lacks: &mut Vec<String>, what: &str, done: Result<(), Errno>) {
    if let Err(errno) = done {
        lacks.push(format!("{what}: {errno}"));
    }
}

/// For all threads: the C library passes it on.
fn set_user(uid: u32, gids: &[u32]) -> Result<(), String> {
    if !geteuid().is_root() {
        return Err("it was not started by root".into());
    }
    if uid == 0 {
        return Err("its order says root".into());
    }
    let groups: Vec<Gid> = gids.iter().copied().map(Gid::from_raw).collect();
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    setgroups(&groups)
        .and_then(|()| setresgid(group, group, group))
        .and_then(|()| setresuid(user, user, user))
        .map_err(|errno| format!("user and group {uid}: {errno}"))
}

fn drop_bounding_set() -> Result<(), Errno> {
    for capability in 0..CAPABILITIES_END {
        // SAFETY: the call takes numbers.
        let done = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        match Errno::result(done) {
            Ok(_) => {}
            // The kernel does not know so many.
            Err(Errno::EINVAL) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Of this thread and those that it starts. Other threads have lost theirs with the change of the user.
fn drop_capabilities() -> Result<(), Errno> {
    let header = [CAPABILITY_VERSION, 0];
    let none = [0_u32; 6];
    // SAFETY: the header is a version and a process (0: this one), and version 3 has two sets of three words.
    let done = unsafe {
        libc::syscall(
            libc::SYS_capset,
            ptr::from_ref(&header),
            ptr::from_ref(&none),
        )
    };
    Errno::result(done).map(drop)
}

#[cfg(test)]
pub(super) mod tests;
