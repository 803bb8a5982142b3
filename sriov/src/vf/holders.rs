//! The processes that have a vfio group open, and their end.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use fabricbios_helper::Pidfd;
use fabricbios_lease::StepError;
use nix::{errno::Errno, sys::signal::Signal, unistd::Pid};

/// Longest wait for the end of killed holders. A virtual machine with much memory takes seconds.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Kills every process that has the device open, and waits until it has ended. Returns their numbers.
///
/// # Errors
/// A process does not end in time: its number and what it has open.
pub(super) fn end_holders(device: &Path) -> Result<Vec<i32>, StepError> {
    let until = Instant::now() + ENDS_WITHIN;
    let mut ended = Vec::new();
    // A holder may have started another one meanwhile.
    loop {
        let found = holders(device)?;
        if found.is_empty() {
            return Ok(ended);
        }
        for pid in found {
            end(pid, device, until)?;
            ended.push(pid);
        }
    }
}

fn end(pid: i32, device: &Path, until: Instant) -> Result<(), StepError> {
    let failed = |why: &dyn std::fmt::Display| {
        let detail = format!("process {pid} has {} open: {why}", device.display());
        StepError::new("end holders", detail)
    };
    let process = match Pidfd::open(Pid::from_raw(pid)) {
        Err(Errno::ESRCH) => return Ok(()),
        opened => opened.map_err(|errno| failed(&errno))?,
    };
    // Between the search and pidfd_open(2) another process may have got the number.
    if !has_open(pid, device) {
        return Ok(());
    }
    tracing::warn!(pid, device = %device.display(), "killing the process that holds the device of an ended lease");
    match process.signal(Signal::SIGKILL) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(errno) => return Err(failed(&errno)),
    }
    let patience = until.saturating_duration_since(Instant::now());
    match process.ends_within(patience) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let place = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
            Err(failed(&format_args!(
                "it does not end after SIGKILL (it waits in {})",
                place.trim()
            )))
        }
        Err(error) => Err(failed(&error)),
    }
}

/// The processes that have the device open.
///
/// # Errors
/// /proc cannot be read.
pub(super) fn holders(device: &Path) -> Result<Vec<i32>, StepError> {
    let failed =
        |error: io::Error| StepError::new("look for holders", format_args!("/proc: {error}"));
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let pid = name.to_str().and_then(|it| it.parse().ok());
        found.extend(pid.filter(|pid| has_open(*pid, device)));
    }
    Ok(found)
}

/// A process that has ended has nothing open.
fn has_open(pid: i32, device: &Path) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    let mut links = descriptors.filter_map(|it| Some(it.ok()?.path()));
    links.any(|link| leads_to(&link, device))
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
        fs::File,
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
        let mut ended = end_holders(&ours).unwrap();
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
}
