//! The end of all processes of a lease, by the name of its cgroup alone.

use std::time::{Duration, Instant};

use fabricbios_helper::Pidfd;
use fabricbios_kernfs::Tree;
use fabricbios_lease::{Proof, StepError};
use nix::{sys::signal::Signal, unistd::Pid};

use crate::{enter::field, root::Root};

/// Longest wait for the next killed process to end. After it, tracers of the remaining processes are killed; after the
/// same time again, the remaining processes are moved aside.
const PATIENCE: Duration = Duration::from_millis(300);

/// Largest number of processes that an error describes.
const DESCRIBED_MAX: usize = 8;

/// `PF_EXITING` of the kernel's `include/linux/sched.h`, in field 9 of `/proc/PID/stat`.
const PF_EXITING: u64 = 0x4;

/// Ends a lease's processes: freezes and kills them, and waits for their end. When this returns, none of them runs, and
/// a process that is moved into the cgroup later is frozen. For the arguments and the rest see [`end_killed`].
///
/// # Errors
/// A process may still run, or has not given back its memory and files within `patience`.
pub fn end_processes(
    root: &Root,
    proc: &Tree,
    below: &str,
    aside: Option<&str>,
    patience: Duration,
) -> Result<Proof, StepError> {
    let frozen = freeze_and_kill(root, below)?;
    Ok(frozen.and(end_killed(root, proc, below, aside, patience)?))
}

/// Afterwards each process of the cgroup is frozen when it leaves the kernel, and has a pending SIGKILL. Does not wait
/// for their end.
///
/// # Errors
/// A process may still run.
pub fn freeze_and_kill(root: &Root, below: &str) -> Result<Proof, StepError> {
    let began = Instant::now();
    root.write("freeze", &format!("{below}/cgroup.freeze"), "1")?;
    kill(root, below)?;
    Ok(Proof::of("freeze", began.elapsed(), ""))
}

fn kill(root: &Root, below: &str) -> Result<(), StepError> {
    root.write("kill", &format!("{below}/cgroup.kill"), "1")
}

/// Waits for the end of the processes of a frozen cgroup, which it kills again: one may have come since. A tracer that
/// holds a killed process (`PTRACE_O_TRACEEXIT`) is killed too, if it has the same user or is not root's. A process
/// that cannot die (state D) is moved to the cgroup `aside`. A process that is exiting cannot be moved
/// (`cgroup_migrate_add_task` of the kernel). It runs no program code any more, but still has its memory and files, so
/// this waits for its end. `proc` is `/proc`; `patience` limits the wait for all processes together. Without `aside` no
/// process is moved.
///
/// # Errors
/// A process has not given back its memory and files within `patience`.
pub fn end_killed(
    root: &Root,
    proc: &Tree,
    below: &str,
    aside: Option<&str>,
    patience: Duration,
) -> Result<Proof, StepError> {
    let mut proof = Proof::default();
    kill(root, below)?;
    let killed = Instant::now();
    let (mut tracers, mut moved) = (Vec::new(), Vec::new());
    let mut fewest = usize::MAX;
    let mut since = Instant::now();
    while root.is_populated("kill", below)? {
        if killed.elapsed() > patience {
            let left = described(proc, &root.members("kill", below)?);
            let at = root.path(below);
            let why = format_args!(
                "{}: {left} was killed and has not ended within {} ms",
                at.display(),
                patience.as_millis()
            );
            return Err(StepError::new("kill", why));
        }
        // An error means that the list is too long for one read: the wait goes on.
        let members = root
            .members("kill", below)
            .map_or(usize::MAX, |it| it.len());
        if members < fewest {
            (fewest, since) = (members, Instant::now());
        } else if since.elapsed() > PATIENCE {
            let mut alive = root.members("kill", below)?;
            alive.retain(|&pid| !is_exiting(proc, pid));
            let is_first = tracers.is_empty();
            tracers.extend(kill_tracers(proc, &alive));
            if let Some(aside) = aside
                && !alive.is_empty()
                && (!is_first || tracers.is_empty())
            {
                moved.extend(move_aside(root, proc, &alive, below, aside)?);
            }
            since = Instant::now();
        }
        root.wait("kill", below, PATIENCE / 10)?;
    }
    let mut found = Vec::new();
    if !tracers.is_empty() {
        found.push(format!("killed tracers: {}", tracers.join(", ")));
    }
    if !moved.is_empty() {
        let moved = moved.join(", ");
        found.push(format!("cannot die and moved aside: {moved}"));
    }
    proof.add("kill", killed.elapsed(), found.join("; "));
    Ok(proof)
}

/// Kills the tracers of these processes, and describes the killed tracers. A tracer of root that traces another user's
/// process is not the tenant's: [`describe`] only names it.
fn kill_tracers(proc: &Tree, pids: &[i32]) -> Vec<String> {
    let mut killed = Vec::new();
    for tracee in pids.iter().flat_map(|&pid| tasks(proc, pid)) {
        let Some(tracer) = tracer_of(proc, &tracee) else {
            continue;
        };
        let Ok(process) = Pidfd::open(Pid::from_raw(tracer)) else {
            continue;
        };
        let (of_tracer, of_tracee) = (user(proc, &tracer.to_string()), user(proc, &tracee));
        let is_tenants = of_tracer.is_some_and(|it| it != 0) || of_tracer == of_tracee;
        // The tracer still traces, so the descriptor is not of another process with the same number.
        if is_tenants && tracer_of(proc, &tracee) == Some(tracer) {
            let what = describe(proc, tracer);
            if process.signal(Signal::SIGKILL).is_ok() {
                tracing::warn!(
                    tracer = what,
                    tracee,
                    "killed a tracer that keeps a killed process of a lease"
                );
                killed.push(what);
            }
        }
    }
    killed
}

/// The directories of a process's threads in `/proc`.
fn tasks(proc: &Tree, pid: i32) -> Vec<String> {
    let threads = proc.list(format!("{pid}/task")).unwrap_or_default();
    let each = threads.iter().map(|thread| format!("{pid}/task/{thread}"));
    each.collect()
}

/// The process that traces a thread. The kernel names the tracing thread, and `/proc` lists only processes.
fn tracer_of(proc: &Tree, tracee: &str) -> Option<i32> {
    let thread: i32 = status_field(proc, tracee, "TracerPid")?.parse().ok()?;
    // 0: no tracer.
    let thread = Some(thread).filter(|it| *it != 0)?;
    status_field(proc, &thread.to_string(), "Tgid")?
        .parse()
        .ok()
}

/// The effective user of a process or thread.
fn user(proc: &Tree, of: &str) -> Option<u32> {
    let users = status_field(proc, of, "Uid")?;
    users.split_whitespace().nth(1)?.parse().ok()
}

fn status_field(proc: &Tree, of: &str, name: &str) -> Option<String> {
    let status = proc.read(format!("{of}/status")).ok()?;
    field(&status, name).map(str::to_owned)
}

/// Whether the kernel is ending all threads of a process.
fn is_exiting(proc: &Tree, pid: i32) -> bool {
    let flags = |task: &String| -> Option<u64> {
        let stat = proc.read(format!("{task}/stat")).ok()?;
        // The program name, in brackets, may contain any character.
        let (_, rest) = stat.rsplit_once(')')?;
        rest.split_whitespace().nth(6)?.parse().ok()
    };
    let mut threads = tasks(proc, pid);
    // A thread whose file no longer exists has ended.
    threads.retain(|it| flags(it).is_some_and(|flags| flags & PF_EXITING == 0));
    threads.is_empty()
}

/// Moves processes that a kill does not end to their own cgroup, and describes them.
fn move_aside(
    root: &Root,
    proc: &Tree,
    pids: &[i32],
    below: &str,
    aside: &str,
) -> Result<Vec<String>, StepError> {
    if !root.exists("move aside", aside)? {
        root.mkdir("move aside", aside)?;
    }
    let mut moved = Vec::new();
    let target = root.name(&format!("{aside}/cgroup.procs"));
    for &pid in pids {
        let what = describe(proc, pid);
        // A dead process leaves its cgroup by itself. The write does not move a process that has begun to exit.
        let written = root.fs().write(&target, &pid.to_string());
        if written.is_ok() && root.members("move aside", aside)?.contains(&pid) {
            tracing::error!(
                cgroup = below,
                process = what,
                "it was killed and does not die; it is moved aside"
            );
            moved.push(what);
        }
    }
    root.passed("move aside");
    Ok(moved)
}

/// Describes processes by number, name and state. Limited to some of them: a tenant may have any number, and other
/// leases are due.
#[must_use]
pub fn described(proc: &Tree, pids: &[i32]) -> String {
    let (shown, others) = pids.split_at(pids.len().min(DESCRIBED_MAX));
    let mut each: Vec<String> = shown.iter().map(|&pid| describe(proc, pid)).collect();
    if !others.is_empty() {
        each.push(format!("and {} more", others.len()));
    }
    each.join(", ")
}

fn describe(proc: &Tree, pid: i32) -> String {
    let of = pid.to_string();
    let field = |name: &str| status_field(proc, &of, name).unwrap_or_else(|| "?".into());
    let (name, state) = (field("Name"), field("State"));
    let tracer = tasks(proc, pid).iter().find_map(|it| tracer_of(proc, it));
    let traced = tracer.map_or(String::new(), |it| format!(", traced by pid {it}"));
    format!("pid {pid} ({name}, state {state}{traced})")
}
