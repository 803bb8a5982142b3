//! Calls that may never return, made by a process that can be given up.
//!
//! A thread that waits in the kernel without being interruptible cannot be ended, and the process that it
//! belongs to neither. So such a call is another process's: it is killed and forgotten, and whatever it
//! held is said.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Most bytes that are kept of one line of its standard output, and of all that it complains about.
const TEXT_BYTES_MAX: usize = 1 << 14;

/// A program that makes one such call.
#[derive(Clone, Debug)]
pub struct Sacrifice {
    command: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
}

/// Why it did not do what it was for.
#[derive(Debug)]
pub enum Sacrificed {
    /// It could not be started.
    NotStarted(io::Error),
    /// It ended and said why.
    Failed(String),
    /// It made no progress for this long; it was killed and may stay for as long as the kernel likes.
    Stuck {
        /// Its process id.
        pid: u32,
        /// For how long nothing came from it.
        silent: Duration,
        /// Where in the kernel it waits, if that is told (`/proc/PID/wchan`).
        waits_in: Option<String>,
    },
}

impl fmt::Display for Sacrificed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted(error) => write!(f, "cannot be started: {error}"),
            Self::Failed(why) => f.write_str(why),
            Self::Stuck {
                pid,
                silent,
                waits_in,
            } => {
                write!(
                    f,
                    "no progress for {} ms: process {pid}",
                    silent.as_millis()
                )?;
                match waits_in {
                    Some(place) => write!(f, " waits in {place}"),
                    None => f.write_str(" waits in the kernel"),
                }
            }
        }
    }
}

impl std::error::Error for Sacrificed {}

impl Sacrifice {
    /// A program and its arguments.
    #[must_use]
    pub fn new<A: Into<OsString>>(command: impl IntoIterator<Item = A>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            variables: Vec::new(),
        }
    }

    /// With this in its environment, by which somebody else can know it.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Reads the beginning of a file or device, not from a cache.
    #[must_use]
    pub fn read_of(path: &Path) -> Self {
        let mut from = OsString::from("if=");
        from.push(path);
        let how = ["of=/dev/null", "bs=4096", "count=1", "iflag=direct"];
        let words = ["dd".into(), from].into_iter();
        Self::new(words.chain(how.map(OsString::from)))
    }

    /// Runs it. Each line on its standard output is progress; after `silence_max` without one it is given
    /// up. Also when it is given up it may have done its work, or do it later: nothing can be said about
    /// that before it has ended.
    pub fn run(&self, silence_max: Duration, progress: &dyn Fn(&str)) -> Result<(), Sacrificed> {
        let mut running = self.start().map_err(Sacrificed::NotStarted)?;
        match running.watch(silence_max, progress) {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(Sacrificed::Failed(running.complaint(status))),
            Ok(None) => Err(running.stuck(silence_max)),
            Err(error) => Err(Sacrificed::Failed(format!("cannot be watched: {error}"))),
        }
    }

    fn start(&self) -> io::Result<Running> {
        let (program, arguments) = self
            .command
            .split_first()
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut child = Command::new(program)
            .args(arguments)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(descriptor) => Ok(Running::new(child, descriptor)),
            Err(error) => {
                child.kill()?;
                reap(child);
                Err(error.into())
            }
        }
    }
}

/// A process that has not been waited for. Dropped, it is killed, and waited for by a thread of its own.
struct Running {
    child: Option<Child>,
    /// The process as a descriptor, readable when it has ended: unlike its number it is never another's.
    descriptor: OwnedFd,
    output: Option<ChildStdout>,
    errors: Option<ChildStderr>,
    /// What there is of the line that it is writing.
    line: Vec<u8>,
    complaints: Vec<u8>,
}

/// Which of the three things that are waited for can be read.
struct Ready {
    output: bool,
    errors: bool,
    ended: bool,
}

impl Running {
    fn new(mut child: Child, descriptor: OwnedFd) -> Self {
        Self {
            output: child.stdout.take(),
            errors: child.stderr.take(),
            child: Some(child),
            descriptor,
            line: Vec::new(),
            complaints: Vec::new(),
        }
    }

    /// How it ended, or none if it fell silent.
    fn watch(
        &mut self,
        silence_max: Duration,
        progress: &dyn Fn(&str),
    ) -> io::Result<Option<ExitStatus>> {
        let mut heard = Instant::now();
        loop {
            let patience = silence_max.saturating_sub(heard.elapsed());
            let ready = self.wait(patience)?;
            if self.listen(&ready, progress)? {
                heard = Instant::now();
            }
            // What it said before it ended is read first. What its own children say later is not.
            if ready.ended && !ready.output && !ready.errors {
                return self.collect().map(Some);
            }
            if heard.elapsed() >= silence_max {
                return Ok(None);
            }
        }
    }

    fn wait(&self, patience: Duration) -> io::Result<Ready> {
        // A patience that the kernel cannot count is one without an end.
        let timeout = Timespec::try_from(patience).ok();
        let mut waited = vec![PollFd::new(&self.descriptor, PollFlags::IN)];
        waited.extend(
            self.output
                .iter()
                .map(|pipe| PollFd::new(pipe, PollFlags::IN)),
        );
        waited.extend(
            self.errors
                .iter()
                .map(|pipe| PollFd::new(pipe, PollFlags::IN)),
        );
        match poll(&mut waited, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut answers = waited.iter().map(|one| !one.revents().is_empty());
        let mut next = |is_waited_for| is_waited_for && answers.next().unwrap_or(false);
        Ok(Ready {
            ended: next(true),
            output: next(self.output.is_some()),
            errors: next(self.errors.is_some()),
        })
    }

    /// Reads what there is. True if that was progress.
    fn listen(&mut self, ready: &Ready, progress: &dyn Fn(&str)) -> io::Result<bool> {
        if ready.errors && !read_some(&mut self.errors, &mut self.complaints)? {
            self.errors = None;
        }
        self.complaints.truncate(TEXT_BYTES_MAX);
        if ready.output && !read_some(&mut self.output, &mut self.line)? {
            self.output = None;
        }
        Ok(self.say_lines(progress))
    }

    fn say_lines(&mut self, progress: &dyn Fn(&str)) -> bool {
        let mut said = false;
        while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
            progress(String::from_utf8_lossy(&self.line[..end]).trim_end());
            self.line.drain(..=end);
            said = true;
        }
        self.line.truncate(TEXT_BYTES_MAX);
        said
    }

    fn collect(&mut self) -> io::Result<ExitStatus> {
        let mut child = self.child.take().ok_or(io::ErrorKind::NotFound)?;
        child.wait()
    }

    fn complaint(&self, status: ExitStatus) -> String {
        let text = String::from_utf8_lossy(&self.complaints);
        match text.trim() {
            "" => status.to_string(),
            text => format!("{text} ({status})"),
        }
    }

    fn stuck(&self, silent: Duration) -> Sacrificed {
        let pid = self.child.as_ref().map_or(0, Child::id);
        Sacrificed::Stuck {
            pid,
            silent,
            waits_in: waits_in(pid),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            // Fails only for one that has ended, which is as well.
            pidfd_send_signal(&self.descriptor, Signal::KILL).ok();
            reap(child);
        }
    }
}

/// Waits for it in a thread of its own, for as long as that takes: without that it stays as a zombie.
fn reap(mut child: Child) {
    thread::Builder::new()
        .name("reaper".to_owned())
        .spawn(move || child.wait())
        .ok();
}

/// False at the end.
fn read_some(pipe: &mut Option<impl Read>, text: &mut Vec<u8>) -> io::Result<bool> {
    let Some(pipe) = pipe else { return Ok(false) };
    let mut chunk = [0; 4096];
    let taken = pipe.read(&mut chunk)?;
    text.extend_from_slice(&chunk[..taken]);
    Ok(taken > 0)
}

/// The kernel function that a process sleeps in: `0` stands for none, and only root is told.
fn waits_in(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/wchan")).ok()?;
    let text = text.trim();
    (!text.is_empty() && text != "0").then(|| text.to_owned())
}

#[cfg(test)]
mod tests;
