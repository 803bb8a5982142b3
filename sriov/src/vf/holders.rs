//! The processes that have a vfio group open, and their end.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use fabricbios_helper::Pidfd;
use fabricbios_lease::StepError;
use nix::{errno::Errno, sys::signal::Signal, unistd::Pid};

/// How long between two looks for a holder that keeps the group and was not found.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What the kernel calls the descriptor of a device that came from a group. It keeps the group open by itself.
const DEVICE: &str = "anon_inode:[vfio-device]";

/// Kills every process that has the group open, by its descriptor or by one of a device of it, until the kernel opens the
/// group for somebody else. Returns their numbers.
///
/// # Errors
/// The group is not free after `patience`: the processes that have it, as far as they were found, and its path.
pub(super) fn end_holders(group: &Path, patience: Duration) -> Result<Vec<i32>, StepError> {
    end_found(group, patience, &|patience| find(group, patience))
}

/// Kills the processes that have the group open now, and does not wait for their end. Returns their numbers.
///
/// # Errors
/// A process cannot be killed, or /proc cannot be read.
pub(super) fn kill_holders(group: &Path) -> Result<Vec<i32>, StepError> {
    let pids = find(group, LOOK_EVERY)?.pids;
    kill_all(&pids, group)?;
    Ok(pids)
}

/// Who keeps a group.
struct Found {
    /// Processes that have it open.
    pids: Vec<i32>,
    /// The kernel opens it for nobody else.
    is_busy: bool,
}

fn find(group: &Path, patience: Duration) -> Result<Found, StepError> {
    let mut pids = holders(group)?;
    let is_busy = is_busy(group, patience)?;
    // Not while the kernel closes the group: its last holder is known then, and other leases have devices too.
    if is_busy == Some(true) && pids.is_empty() {
        pids = processes(&|pid| has_only_device(&links(pid)))?;
    }
    Ok(Found {
        pids,
        is_busy: is_busy.unwrap_or(true),
    })
}

fn end_found(
    group: &Path,
    patience: Duration,
    find: &dyn Fn(Duration) -> Result<Found, StepError>,
) -> Result<Vec<i32>, StepError> {
    let until = Instant::now() + patience;
    let mut ended = Vec::new();
    // A holder may have started another one meanwhile.
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let Found { pids, is_busy } = find(left.max(LOOK_EVERY))?;
        if pids.is_empty() && !is_busy {
            return Ok(ended);
        }
        let killed = kill_all(&pids, group)?;
        if Instant::now() >= until {
            return Err(still_open(group, &pids));
        }
        for (pid, process) in pids.iter().zip(killed) {
            let Some(process) = process else { continue };
            wait(*pid, &process, group, until)?;
            ended.push(*pid);
        }
        if pids.is_empty() {
            thread::sleep(LOOK_EVERY);
        }
    }
}

fn still_open(group: &Path, pids: &[i32]) -> StepError {
    let who = match pids {
        [] => {
            "a process that was not found (it may have sent its descriptor away); find and end it"
                .to_owned()
        }
        pids => format!(
            "processes {pids:?}; they were killed, and have not ended or start others all the time: end them"
        ),
    };
    let detail = format!("{} is open in {who}", group.display());
    StepError::new("end holders", detail)
}

fn failed(pid: i32, group: &Path, why: &dyn std::fmt::Display) -> StepError {
    let detail = format!("process {pid} has {} open: {why}", group.display());
    StepError::new("end holders", detail)
}

fn kill_all(pids: &[i32], group: &Path) -> Result<Vec<Option<Pidfd>>, StepError> {
    // All, also after an error.
    let killed: Vec<_> = pids.iter().map(|pid| kill(*pid, group)).collect();
    killed.into_iter().collect()
}

/// `None`: it has ended, or has nothing open any more.
fn kill(pid: i32, group: &Path) -> Result<Option<Pidfd>, StepError> {
    let process = match Pidfd::open(Pid::from_raw(pid)) {
        Err(Errno::ESRCH) => return Ok(None),
        opened => opened.map_err(|errno| failed(pid, group, &errno))?,
    };
    // Between the search and pidfd_open(2) another process may have got the number.
    if !has_open(pid, group) && !has_only_device(&links(pid)) {
        return Ok(None);
    }
    tracing::warn!(pid, device = %group.display(), "killing the process that holds the device of an ended lease");
    match process.signal(Signal::SIGKILL) {
        Ok(()) | Err(Errno::ESRCH) => Ok(Some(process)),
        Err(errno) => Err(failed(pid, group, &errno)),
    }
}

fn wait(pid: i32, process: &Pidfd, group: &Path, until: Instant) -> Result<(), StepError> {
    let patience = until.saturating_duration_since(Instant::now());
    match process.ends_within(patience) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let place = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
            let why = format!(
                "it does not end after SIGKILL (it waits in {})",
                place.trim()
            );
            Err(failed(pid, group, &why))
        }
        Err(error) => Err(failed(pid, group, &error)),
    }
}

/// Whether somebody has the group open, as the kernel opens it once; `None`: not known after `patience`. Nobody has one that
/// is not there.
///
/// open(2) waits while the kernel closes what a killed process had of the group (`group_lock` in drivers/vfio/group.c), so
/// another thread calls it.
fn is_busy(group: &Path, patience: Duration) -> Result<Option<bool>, StepError> {
    let (tell, told) = mpsc::channel();
    let at = group.to_owned();
    let open = move || tell.send(File::options().read(true).write(true).open(at).map(drop));
    let started = thread::Builder::new().name("vfio-open".into()).spawn(open);
    started.map_err(|error| StepError::new("open vfio group", error))?;
    let Ok(opened) = told.recv_timeout(patience) else {
        return Ok(None);
    };
    match opened {
        Ok(()) => Ok(Some(false)),
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EBUSY) => Ok(Some(true)),
            Some(Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) => Ok(Some(false)),
            _ => {
                let detail = format_args!("{}: {error}", group.display());
                Err(StepError::new("open vfio group", detail))
            }
        },
    }
}

/// A process with the group of another function has its device from there.
fn has_only_device(links: &[PathBuf]) -> bool {
    let is_group = |link: &PathBuf| {
        let number = link.file_name().and_then(|it| it.to_str());
        let number = number.map(|it| it.strip_prefix("noiommu-").unwrap_or(it));
        number.is_some_and(|it| it.parse::<u32>().is_ok())
            && link.parent().is_some_and(|it| it.ends_with("vfio"))
    };
    links.iter().any(|it| it == Path::new(DEVICE)) && !links.iter().any(is_group)
}

/// What the descriptors of a process lead to. A process that has ended has none.
fn links(pid: i32) -> Vec<PathBuf> {
    let links = descriptors(pid).filter_map(|it| fs::read_link(it).ok());
    links.collect()
}

/// Those of every thread: a thread may have its own (unshare(2)), and the first one may have ended before the others.
fn descriptors(pid: i32) -> impl Iterator<Item = PathBuf> {
    let entries = |at: PathBuf| fs::read_dir(at).into_iter().flatten().flatten();
    let threads = entries(format!("/proc/{pid}/task").into());
    let descriptors = threads.flat_map(move |it| entries(it.path().join("fd")));
    descriptors.map(|it| it.path())
}

/// The processes that have the device open.
///
/// # Errors
/// /proc cannot be read.
pub(super) fn holders(device: &Path) -> Result<Vec<i32>, StepError> {
    processes(&|pid| has_open(pid, device))
}

fn processes(chosen: &dyn Fn(i32) -> bool) -> Result<Vec<i32>, StepError> {
    let failed =
        |error: io::Error| StepError::new("look for holders", format_args!("/proc: {error}"));
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let pid = name.to_str().and_then(|it| it.parse().ok());
        found.extend(pid.filter(|pid| chosen(*pid)));
    }
    Ok(found)
}

/// A process that has ended has nothing open.
fn has_open(pid: i32, device: &Path) -> bool {
    descriptors(pid).any(|link| leads_to(&link, device))
}

/// Compares the names first: only the metadata of a device can be read without waiting for somebody.
fn leads_to(link: &Path, device: &Path) -> bool {
    if !fs::read_link(link).is_ok_and(|it| it.ends_with(last_two(device))) {
        return false;
    }
    let (Ok(its), Ok(known)) = (fs::metadata(link), fs::metadata(device)) else {
        return false;
    };
    match known.file_type().is_char_device() {
        true => its.file_type().is_char_device() && its.rdev() == known.rdev(),
        false => (its.dev(), its.ino()) == (known.dev(), known.ino()),
    }
}

/// `vfio/7`: a container has its own place for it.
fn last_two(device: &Path) -> PathBuf {
    let parts = device.components().rev().take(2).collect::<Vec<_>>();
    parts.iter().rev().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::{
        cell::Cell,
        os::unix::process::ExitStatusExt,
        process::{Child, Command, Stdio},
    };

    use super::*;

    fn holder_of(file: &Path) -> Child {
        let mut holder = Command::new("sleep");
        holder.arg("600").stdin(File::open(file).unwrap());
        holder.stdout(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn every_holder_of_the_device_is_killed_and_nobody_else() {
        let directory = tempfile::tempdir().unwrap();
        let (ours, other) = (directory.path().join("7"), directory.path().join("a/7"));
        fs::create_dir(directory.path().join("a")).unwrap();
        fs::write(&ours, "").unwrap();
        fs::write(&other, "").unwrap();
        let mut children = [holder_of(&ours), holder_of(&ours), holder_of(&other)];
        let pids = children.each_ref().map(|it| it.id().cast_signed());
        let mut ended = end_holders(&ours, Duration::from_secs(60)).unwrap();
        ended.sort_unstable();
        let mut expected = pids[..2].to_vec();
        expected.sort_unstable();
        assert_eq!(ended, expected);
        assert!(holders(&ours).unwrap().is_empty());
        assert_eq!(holders(&other).unwrap(), [pids[2]]);
        for child in &mut children {
            // Those that were killed have ended already.
            child.kill().ok();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_process_is_a_holder_if_only_a_thread_of_it_has_the_group_open() {
        let directory = tempfile::tempdir().unwrap();
        let group = directory.path().join("7");
        fs::write(&group, "").unwrap();
        let pid = std::process::id().cast_signed();
        thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let (stay, stays) = mpsc::channel::<()>();
            let at = &group;
            scope.spawn(move || {
                // SAFETY: the call takes no pointer, and only this thread has its own table of descriptors then.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
                let open = File::open(at).unwrap();
                tell.send(()).unwrap();
                stays.recv().ok();
                drop(open);
            });
            told.recv().unwrap();
            assert_eq!(holders(&group).unwrap(), [pid]);
            drop(stay);
        });
        assert!(holders(&group).unwrap().is_empty());
    }

    #[test]
    fn holders_are_killed_also_without_time_to_wait_for_their_end() {
        let directory = tempfile::tempdir().unwrap();
        let group = directory.path().join("7");
        fs::write(&group, "").unwrap();
        let mut holder = holder_of(&group);
        let error = end_holders(&group, Duration::ZERO).unwrap_err();
        assert!(
            error.to_string().contains(&holder.id().to_string()),
            "{error}"
        );
        assert_eq!(holder.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert!(end_holders(&group, Duration::ZERO).unwrap().is_empty());
    }

    #[test]
    fn a_process_that_keeps_only_the_device_is_a_holder() {
        let has = |names: &[&str]| {
            let links: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
            has_only_device(&links)
        };
        assert!(has(&["/dev/vfio/vfio", DEVICE]));
        // It may close the container too.
        assert!(has(&["/dev/null", DEVICE]));
        assert!(!has(&["/dev/vfio/vfio", "/dev/vfio/8", DEVICE]));
        assert!(!has(&["/dev/vfio/noiommu-8", DEVICE]));
        assert!(!has(&["/dev/vfio/vfio"]));
    }

    #[test]
    fn a_busy_group_is_not_over_and_its_end_has_a_bound() {
        let group = Path::new("/dev/vfio/7");
        for pids in [Vec::new(), vec![i32::MAX]] {
            let looks = Cell::new(0);
            let find = |_| {
                looks.set(looks.get() + 1);
                assert!(looks.get() < 1_000_000, "it looks for ever");
                // A process that has ended before it is killed, again and again.
                Ok(Found {
                    pids: pids.clone(),
                    is_busy: true,
                })
            };
            let error = end_found(group, Duration::from_millis(1), &find).unwrap_err();
            assert!(error.to_string().contains("/dev/vfio/7"), "{error}");
            assert!(pids.is_empty() || error.to_string().contains(&pids[0].to_string()));
        }
    }
}
