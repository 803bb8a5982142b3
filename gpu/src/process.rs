//! A process by number and start time, so that a number that was given out again is not taken for it.

use std::{fs, time::Duration};

use fabricbios_helper::Pidfd;
use fabricbios_lease::StepError;
use nix::{errno::Errno, sys::signal::Signal, unistd::Pid};
use serde::{Deserialize, Serialize};

/// A process of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Ticks since the boot (`/proc/PID/stat`, field 22).
    start: u64,
}

impl Process {
    /// The process that has the number now.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let (start, _) = stat(pid)?;
        Some(Self { pid, start })
    }

    /// Whether it still runs, or has not given back what it had. The files of one that was not waited for are closed.
    pub(crate) fn is_there(self) -> bool {
        stat(self.pid).is_some_and(|(start, is_zombie)| start == self.start && !is_zombie)
    }

    /// For people.
    pub(crate) fn describe(self) -> String {
        let field = |name: &str| {
            let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().to_owned())
        };
        let (name, state) = (field("Name:"), field("State:"));
        let (name, state) = (name.unwrap_or_default(), state.unwrap_or_default());
        format!("pid {} ({name}, state {state})", self.pid)
    }

    /// Kills it and waits until it has ended and given back what it had.
    ///
    /// # Errors
    /// It has not ended after `patience`.
    pub(crate) fn kill(self, step: &'static str, patience: Duration) -> Result<(), StepError> {
        let fail = |why: String| StepError::new(step, format!("{}: {why}", self.describe()));
        let process = match Pidfd::open(Pid::from_raw(self.pid)) {
            Err(Errno::ESRCH) => return Ok(()),
            opened => opened.map_err(|errno| fail(errno.to_string()))?,
        };
        // The descriptor may be of the next process with this number.
        if !self.is_there() {
            return Ok(());
        }
        match process.signal(Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(fail(errno.to_string())),
        }
        match process.ends_within(patience) {
            Ok(true) => Ok(()),
            Ok(false) => Err(fail(format!(
                "it was killed and has not ended within {} ms",
                patience.as_millis()
            ))),
            Err(error) => Err(fail(error.to_string())),
        }
    }
}

/// The start of the process with this number, and whether it has ended and was not waited for.
fn stat(pid: i32) -> Option<(u64, bool)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((start, matches!(state, "Z" | "X")))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, id};

    use super::*;

    #[test]
    fn a_process_is_known_by_number_and_start() {
        let own = Process::of(i32::try_from(id()).unwrap()).unwrap();
        assert!(own.is_there() && own.describe().contains("state "));
        let other = Process {
            start: own.start + 1,
            ..own
        };
        assert!(!other.is_there());
        // Nothing is killed that only has the number.
        other.kill("kill", Duration::ZERO).unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::of(i32::try_from(child.id()).unwrap()).unwrap();
        process.kill("kill", Duration::from_secs(60)).unwrap();
        assert!(!process.is_there());
        child.wait().unwrap();
        process.kill("kill", Duration::ZERO).unwrap();
    }
}
