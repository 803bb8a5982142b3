//! The isolation of a worker. The vendor's driver parses the tenant's input (its compiler does, for example), so the
//! isolation assumes that the tenant takes over the worker: the worker then has one device and its streams, and no way
//! to reach other processes.

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

use super::{filter, start::StartError};

/// Most processes and threads of a lease. The drivers of both vendors have some ten threads, and each queue of a
/// session has one.
pub(crate) const THREADS_MAX: u64 = 512;
/// Most bytes of a file that the worker writes, whoever made the file. Files in memory that libraries make are smaller.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// All capability numbers of the kernel are below this number.
const CAPABILITIES_END: libc::c_ulong = 64;

/// Leaves the daemon's terminal, and closes its descriptors except the standard ones. Call it before anything is
/// opened.
///
/// # Errors
/// A system call fails.
pub(super) fn leave_daemon() -> Result<(), StartError> {
    setsid().map_err(lacks("no session of its own"))?;
    // SAFETY: the caller has opened only the standard descriptors, and has loaded no foreign library yet.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    let closed = Errno::result(closed).map(drop);
    closed.map_err(lacks("the daemon's descriptors cannot be closed"))
}

/// Converts the error of a part of the isolation that no worker can do without.
fn lacks(part: &'static str) -> impl FnOnce(Errno) -> StartError {
    move |errno| StartError::Isolation(part, errno)
}

/// Leaves the network and the System V memory of the machine. Call it before the driver is loaded, because its threads
/// inherit the isolation. Returns the parts that this machine does not allow.
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

/// Makes the process another user, without capabilities. Call it before the context is opened. Returns the parts that
/// this machine does not allow.
///
/// # Errors
/// The process cannot become that user.
pub(super) fn become_user(uid: u32, gids: &[u32]) -> Result<Vec<String>, StartError> {
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
    set_user(uid, gids)?;
    drop_capabilities().map_err(self::lacks("its capabilities stay"))?;
    // The change of user has hidden the process's own /proc from the process, and drivers read there.
    note(&mut lacks, "its own /proc", set_dumpable(true));
    Ok(lacks)
}

/// Gives up all other rights: system calls that reach other processes, programs or networks fail, in all threads. Open
/// descriptors stay.
///
/// # Errors
/// A part of the isolation fails.
pub(super) fn close() -> Result<(), StartError> {
    // Writing beyond the file size limit is an error for the driver, and does not kill the process.
    // SAFETY: `SigIgn` runs no code.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }
        .and_then(|_| setrlimit(Resource::RLIMIT_FSIZE, FILE_BYTES_MAX, FILE_BYTES_MAX))
        .map_err(lacks("a limit for files"))?;
    umask(Mode::from_bits_truncate(0o077));
    set_dumpable(false).map_err(lacks("its memory can be read by other processes"))?;
    set_no_new_privs().map_err(lacks("no_new_privs"))?;
    Ok(filter::install()?)
}

fn note(lacks: &mut Vec<String>, what: &str, done: Result<(), Errno>) {
    if let Err(errno) = done {
        lacks.push(format!("{what}: {errno}"));
    }
}

/// Sets the user for all threads: the C library makes the call in each thread.
fn set_user(uid: u32, gids: &[u32]) -> Result<(), StartError> {
    if !geteuid().is_root() {
        return Err(StartError::NotRoot);
    }
    if uid == 0 {
        return Err(StartError::OrderedRoot);
    }
    let groups: Vec<Gid> = gids.iter().copied().map(Gid::from_raw).collect();
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    setgroups(&groups)
        .and_then(|()| setresgid(group, group, group))
        .and_then(|()| setresuid(user, user, user))
        .map_err(|errno| StartError::User { uid, errno })
}

fn drop_bounding_set() -> Result<(), Errno> {
    for capability in 0..CAPABILITIES_END {
        // SAFETY: the call takes numbers.
        let done = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        match Errno::result(done) {
            Ok(_) => {}
            // The kernel has no capability with this number.
            Err(Errno::EINVAL) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Drops the capabilities of this thread and its later threads. The change of user has dropped those of the other
/// threads.
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
