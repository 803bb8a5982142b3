//! The isolation of a worker. What a tenant sends is parsed by the vendor's driver (its compiler for one), so a worker is
//! prepared for being taken over: it then has one device, its streams, and nothing to reach anybody else with.

use std::{fs, ptr};

use nix::{
    errno::Errno,
    libc,
    sched::{CloneFlags, unshare},
    sys::{
        prctl::{set_dumpable, set_no_new_privs},
        resource::{Resource, setrlimit},
    },
    unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid},
};

use super::filter;

/// The drivers of both vendors have some ten threads, and each queue of a session has one.
const THREADS_MAX: u64 = 512;
/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// The kernel's numbers of capabilities are below this.
const CAPABILITIES_END: libc::c_ulong = 64;

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
pub(super) fn become_user(uid: u32, gids: &[u32]) -> Vec<String> {
    let mut lacks = Vec::new();
    note(
        &mut lacks,
        "core dumps",
        setrlimit(Resource::RLIMIT_CORE, 0, 0),
    );
    note(
        &mut lacks,
        "the first process to be killed when the machine has no memory left",
        first_to_be_killed(),
    );
    if geteuid().is_root() {
        note(
            &mut lacks,
            "a limit for threads",
            setrlimit(Resource::RLIMIT_NPROC, THREADS_MAX, THREADS_MAX),
        );
        note(
            &mut lacks,
            "the bounding set of capabilities",
            drop_bounding_set(),
        );
        set_user(&mut lacks, uid, gids);
    } else {
        lacks.push("no user of its own: it was not started by root".into());
    }
    if uid == 0 {
        lacks.push("no user of its own: its order says root".into());
    }
    note(&mut lacks, "capabilities", drop_capabilities());
    // The change of the user has hidden the process's own /proc from it, and drivers read there.
    note(&mut lacks, "its own /proc", set_dumpable(true));
    lacks
}

/// Gives up everything but what the process has open: the system calls that reach other processes, programs or networks fail,
/// in all threads.
///
/// # Errors
/// A part of this cannot be done.
pub(super) fn close() -> Result<(), String> {
    set_dumpable(false)
        .map_err(|errno| format!("its memory can be read by other processes: {errno}"))?;
    set_no_new_privs().map_err(|errno| format!("no_new_privs: {errno}"))?;
    filter::install()
}

/// A tenant's module may make the vendor's compiler take any amount of the machine's memory.
fn first_to_be_killed() -> Result<(), Errno> {
    let written = fs::write("/proc/self/oom_score_adj", "1000");
    written.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))
}

fn note(lacks: &mut Vec<String>, what: &str, done: Result<(), Errno>) {
    if let Err(errno) = done {
        lacks.push(format!("{what}: {errno}"));
    }
}

/// For all threads: the C library passes it on.
fn set_user(lacks: &mut Vec<String>, uid: u32, gids: &[u32]) {
    let groups: Vec<Gid> = gids.iter().copied().map(Gid::from_raw).collect();
    note(lacks, "no groups of its own", setgroups(&groups));
    let group = Gid::from_raw(uid);
    note(lacks, "no group of its own", setresgid(group, group, group));
    let user = Uid::from_raw(uid);
    note(lacks, "no user of its own", setresuid(user, user, user));
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
mod tests;
