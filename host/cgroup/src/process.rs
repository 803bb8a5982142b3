//! A process by number and start time, so that a later process with the same number is not mistaken for it.

use std::{fmt, fs, str::FromStr, time::Duration};

use fabricbios_helper::Pidfd;
use fabricbios_lease::StepError;
use nix::{errno::Errno, sys::signal::Signal, unistd::Pid};
use serde::{Deserialize, Serialize};

/// A process of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Start time in clock ticks since the boot (`/proc/PID/stat`, field 22).
    start: u64,
}

impl Process {
    /// The process that has this number now.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        Some(Self {
            pid,
            start: start_of(pid)?,
        })
    }

    /// Whether any thread of the process still runs or has not given back its memory and files. /proc shows the state
    /// of the first thread, which may end before the others.
    #[must_use]
    pub fn is_there(self) -> bool {
        match Pidfd::open(Pid::from_raw(self.pid)) {
            Err(Errno::ESRCH) => false,
            // A process whose end is unknown counts as running.
            Err(_) => true,
            Ok(process) => {
                self.is(&process) && !matches!(process.ends_within(Duration::ZERO), Ok(true))
            }
        }
    }

    /// Whether the open descriptor is of this process and not of a later one with the same number.
    fn is(self, _opened: &Pidfd) -> bool {
        start_of(self.pid) == Some(self.start)
    }

    /// Number and name, for people.
    #[must_use]
    pub fn describe(self) -> String {
        let field = |name: &str| {
            let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().to_owned())
        };
        let (name, state) = (field("Name:"), field("State:"));
        let (name, state) = (name.unwrap_or_default(), state.unwrap_or_default());
        format!("pid {} ({name}, state {state})", self.pid)
    }

    /// Sends SIGKILL to the process, if it is there, and does not wait for its end.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn send_kill(self, step: &'static str) -> Result<(), StepError> {
        self.killed(step).map(drop)
    }

    /// Kills the process and waits until it has ended and given back its memory and files.
    ///
    /// # Errors
    /// The process has not ended within `patience`.
    pub fn kill(self, step: &'static str, patience: Duration) -> Result<(), StepError> {
        let Some(process) = self.killed(step)? else {
            return Ok(());
        };
        match process.ends_within(patience) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.not_killed(
                step,
                &format!(
                    "it was killed and has not ended within {} ms",
                    patience.as_millis()
                ),
            )),
            Err(error) => Err(self.not_killed(step, &error)),
        }
    }

    /// The process, after SIGKILL was sent to it. `None`: it has ended.
    fn killed(self, step: &'static str) -> Result<Option<Pidfd>, StepError> {
        let process = match Pidfd::open(Pid::from_raw(self.pid)) {
            Err(Errno::ESRCH) => return Ok(None),
            opened => opened.map_err(|errno| self.not_killed(step, &errno))?,
        };
        // The descriptor may be of a later process with the same number.
        if !self.is(&process) {
            return Ok(None);
        }
        match process.signal(Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => Ok(Some(process)),
            Err(errno) => Err(self.not_killed(step, &errno)),
        }
    }

    fn not_killed(self, step: &'static str, why: &dyn fmt::Display) -> StepError {
        StepError::new(step, format_args!("{}: {why}", self.describe()))
    }
}

/// Start time of the process with this number.
fn start_of(pid: i32) -> Option<u64> {
    field_of_stat(pid, 22)
}

/// Number of the parent process.
pub(crate) fn parent_of(pid: i32) -> Option<i32> {
    field_of_stat(pid, 4)
}

/// The state of a thread, as a letter of proc_pid_stat(5); a process number means its first thread.
#[must_use]
pub fn state_of(pid: i32) -> Option<char> {
    field_of_stat(pid, 3)
}

/// The field of `/proc/PID/stat` with this number in proc_pid_stat(5); it must be behind the name.
fn field_of_stat<T: FromStr>(pid: i32, number: usize) -> Option<T> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program name, in brackets, may contain any character. The state, field 3, follows it.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio, id},
        thread,
    };

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
        // A process that only has the same number is not killed.
        other.kill("kill", Duration::ZERO).unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::of(i32::try_from(child.id()).unwrap()).unwrap();
        process.kill("kill", Duration::from_secs(60)).unwrap();
        assert!(!process.is_there());
        child.wait().unwrap();
        process.kill("kill", Duration::ZERO).unwrap();
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_there_until_the_last_one_has() {
        // The first thread ends; another thread waits for the end of the input.
        let script = "import ctypes, sys, threading\n\
                      threading.Thread(target=sys.stdin.read).start()\n\
                      print(flush=True)\n\
                      ctypes.CDLL(None).syscall(60, 0)\n";
        let mut child = Command::new("python3");
        let child = child.arg("-c").arg(script);
        let child = child.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let process = Process::of(i32::try_from(child.id()).unwrap()).unwrap();
        let is_zombie = || process.describe().contains("zombie");
        while !is_zombie() {
            thread::yield_now();
        }
        assert!(process.is_there());
        process.kill("kill", Duration::from_secs(60)).unwrap();
        assert!(!process.is_there());
        child.wait().unwrap();
    }
}
