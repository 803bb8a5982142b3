//! The process that `run` leaves outside of the lease: it sends SIGTERM to the command ahead of the end of the lease,
//! renews the lease on request, and afterwards reports why the lease ended.
//!
//! The command keeps the process, and so the exit status, of `fabricctl run`. This process is not its child, because a command
//! may wait for all of its children.

use std::{
    env,
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use fabricbios_client::{Node, Renewals};
use fabricbios_helper::Pidfd;
use fabricbios_local::AskError;
use fabricbios_wire::{LeaseError, LeaseId, LeasePhase, Request};
use nix::{
    sys::signal::Signal,
    unistd::{Pid, setsid},
};

use super::Access;
use crate::{
    args::{End, RunWatch},
    failure::Failure,
    json::{Object, field},
    lease_text,
    output::Output,
    time_text,
};

/// An end counts as early if it comes at least this long before the end of the term: the daemon and this process do not
/// read the clock at the same moment.
const EARLY_MIN: Duration = Duration::from_secs(1);

/// SIGTERM comes at most this long before the end, unless the caller sets another time.
const WARN_MAX: Duration = Duration::from_secs(5);
/// SIGTERM comes at most this fraction (1/20) of the term before the end: renewals come earlier, see `Renewals`.
const WARN_SHARE: u32 = 20;
/// The line that reports that the watch has begun.
const READY: &str = "ready";
/// How long this process asks the node for the cause of an end.
const CAUSE_MAX: Duration = Duration::from_secs(3);
/// The pause before an unanswered question is asked again.
const LOOK: Duration = Duration::from_millis(100);

/// The watching process, as seen by the process that becomes the command.
#[derive(Debug)]
pub(super) struct Watcher(UnixStream);

impl Watcher {
    /// Reports that this process is in the lease.
    pub(super) fn entered(mut self) {
        // If the watching process has ended, the command runs unwatched.
        self.0.write_all(&[1]).ok();
    }
}

/// Starts the watching process; returns when it is ready. The watching process ends if this process does not enter the
/// lease.
pub(super) fn start(
    lease: LeaseId,
    socket: &Path,
    end: End,
    access: &Access,
    output: Output,
) -> Result<Watcher, Failure> {
    let cannot = |error: &dyn std::fmt::Display| Failure::local("watch the lease", error);
    if end.renew {
        access.identity()?;
    }
    let itself = Pidfd::open(Pid::this()).map_err(|error| cannot(&error))?;
    let itself = itself.as_fd().try_clone_to_owned();
    let (ours, its) = UnixStream::pair().map_err(|error| cannot(&error))?;
    let mut command = Command::new(env::current_exe().map_err(|error| cannot(&error))?);
    command.args(["--node", &access.node]);
    if let Some(id) = access.node_id {
        command.args(["--node-id", &id.to_string()]);
    }
    if let Some(identity) = &access.identity {
        command.arg("--identity").arg(identity);
    }
    let patience = access.patience.as_secs().to_string();
    command.args(["--patience-secs", &patience]);
    command.args(output.json.then_some("--json"));
    command.args(["run-watch", "--lease", &lease.to_string()]);
    command.arg("--local-socket").arg(socket);
    let warn_secs = end.warn_secs.map(|secs| format!("--warn-secs={secs}"));
    command.args(warn_secs);
    command.args(end.renew.then_some("--renew"));
    command.args(["--pid", &std::process::id().to_string()]);
    command.stdin(itself.map_err(|error| cannot(&error))?);
    let started = command.stdout(OwnedFd::from(its)).status();
    // This closes the watching process's end of the socket here.
    drop(command);
    started.map_err(|error| cannot(&error))?;
    let mut line = String::new();
    let read = BufReader::new(&ours).read_line(&mut line);
    read.map_err(|error| cannot(&error))?;
    match line.trim_end() {
        READY => Ok(Watcher(ours)),
        other => Err(Failure::from_json(other).unwrap_or_else(|| cannot(&"its process has ended"))),
    }
}

/// Starts this program once more; in that second process (`is_apart`) watches.
pub(super) fn run(what: &RunWatch, access: &Access, output: Output) -> Result<(), Failure> {
    let cannot = |error: &io::Error| Failure::local("watch the lease", error);
    if !what.is_apart {
        let mut command = Command::new(env::current_exe().map_err(|error| cannot(&error))?);
        command.args(env::args_os().skip(1)).arg("--is-apart");
        return command.spawn().map(drop).map_err(|error| cannot(&error));
    }
    // A new session: signals of the terminal go to the command only.
    setsid().ok();
    let begun = Watch::begin(what, access, output);
    let line = match &begun {
        Ok(_) => READY.to_owned(),
        Err(failure) => failure.json(),
    };
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    let mut command = UnixStream::from(stdout.map_err(|error| cannot(&error))?);
    let entered = writeln!(command, "{line}").and_then(|()| command.read_exact(&mut [0]));
    if let (Ok(watch), Ok(())) = (begun, entered) {
        watch.until_the_end();
    }
    Ok(())
}

struct Watch<'a> {
    what: &'a RunWatch,
    access: Access,
    output: Output,
    process: Pidfd,
}

impl<'a> Watch<'a> {
    fn begin(what: &'a RunWatch, access: &Access, output: Output) -> Result<Self, Failure> {
        let process = io::stdin().as_fd().try_clone_to_owned();
        let process: OwnedFd =
            process.map_err(|error| Failure::local("watch the command", &error))?;
        let mut watch = Self {
            what,
            access: access.clone(),
            output,
            process: process.into(),
        };
        if what.end.renew {
            let node = access.connect()?;
            // The cause of the end is asked of the same node.
            watch.access.node_id = node.id();
            let renewals = Renewals::open(&node, what.lease, 0)?;
            let lease = what.lease;
            thread::spawn(move || {
                let lost = loop {
                    if let Err(error) = renewals.renew_next() {
                        break error;
                    }
                };
                report(
                    output,
                    lease,
                    "not_renewed",
                    format!("is not renewed any more: {lost}"),
                );
            });
        }
        Ok(watch)
    }

    fn until_the_end(&self) {
        let lease = self.what.lease;
        let ends = loop {
            let asked = Instant::now();
            match self.ask() {
                Ok(left) => break Some(self.warn_in_time(asked + left)),
                Err(error) if is_over(&error) => break None,
                // The daemon may be starting.
                Err(AskError::Unreachable { .. } | AskError::Unanswered { .. }) => {
                    if self.process.ends_within(LOOK).unwrap_or(true) {
                        break None;
                    }
                }
                // An older daemon does not know this question. Renewals go on.
                Err(_) => {
                    let message = "is not watched: the daemon does not say how long the lease lasts, and no SIGTERM comes ahead of the end";
                    report(self.output, lease, "not_watched", message.to_owned());
                    break None;
                }
            }
        };
        self.process.ends_within(Duration::MAX).ok();
        if self.ask().is_err_and(|error| is_over(&error)) {
            report(self.output, lease, "over", self.end(ends));
        }
    }

    /// Sends SIGTERM before the end, until the command or the lease has ended; returns the end of the term.
    fn warn_in_time(&self, mut ends: Instant) -> Instant {
        let mut longest = ends.saturating_duration_since(Instant::now());
        let mut warned = false;
        loop {
            let share = longest / WARN_SHARE;
            let warn = match self
                .what
                .end
                .warn_secs
                .map(|secs| Duration::from_secs(secs.into()))
            {
                Some(secs) if self.what.end.renew => secs.min(share),
                Some(secs) => secs,
                None => WARN_MAX.min(share),
            };
            let left = ends.saturating_duration_since(Instant::now());
            let pause = match warned {
                false => left.saturating_sub(warn),
                true => left.max(LOOK),
            };
            if self.process.ends_within(pause).unwrap_or(true) {
                return ends;
            }
            let asked = Instant::now();
            match self.ask() {
                Ok(left) => {
                    ends = asked + left;
                    longest = longest.max(left);
                    if left > warn {
                        warned = false;
                        continue;
                    }
                }
                Err(error) if is_over(&error) => return ends,
                // The lease also ends without the daemon, at the end of its term.
                Err(_unknown) => {}
            }
            if !warned && !warn.is_zero() && self.process.signal(Signal::SIGTERM).is_ok() {
                let (left, pid) = (span(ends), self.what.pid);
                let message =
                    format!("ends in {left} unless it is renewed: SIGTERM to process {pid}");
                report(self.output, self.what.lease, "ends_soon", message);
            }
            warned = true;
        }
    }

    fn ask(&self) -> Result<Duration, AskError> {
        fabricbios_local::remaining(&self.what.socket.local_socket, self.what.lease)
    }

    /// How the lease ended: as the node reports it to the identity, else by comparison with the end of the term.
    fn end(&self, ends: Option<Instant>) -> String {
        let is_early = ends.filter(|ends| *ends > Instant::now() + EARLY_MIN);
        let (access, lease) = (self.access.clone(), self.what.lease);
        let (answer, answered) = mpsc::channel();
        thread::spawn(move || {
            let node = access.connect().ok();
            answer.send(node.and_then(|node| cause(&node, lease))).ok();
        });
        // The caller's standard error stays open for this long.
        let cause = answered.recv_timeout(CAUSE_MAX).ok().flatten();
        match (cause, is_early) {
            (Some(cause), _) => format!("is over: {cause}"),
            (None, Some(ends)) => format!(
                "is over {} before its term: it was given back or revoked, or its node ended it; `fabricctl lease query {}` \
                 says which",
                span(ends),
                self.what.lease
            ),
            (None, None) if ends.is_some() => "is over: its term has ended".to_owned(),
            (None, None) => "is over".to_owned(),
        }
    }
}

/// The cause of the end. Waits until the node has it: the node ends the processes before it marks the lease as over.
fn cause(node: &Node, lease: LeaseId) -> Option<String> {
    loop {
        let info = node.lease(Request::LeaseQuery(lease)).ok()?;
        match (&info.end, info.phase) {
            (Some(end), _) => return Some(lease_text::cause(end)),
            (None, LeasePhase::Binding | LeasePhase::Active) => thread::sleep(LOOK),
            (None, phase) => return Some(phase.to_string()),
        }
    }
}

/// The time from now until `until`, as text.
fn span(until: Instant) -> String {
    let left = until.saturating_duration_since(Instant::now()).as_millis();
    time_text::span(u64::try_from(left).unwrap_or(u64::MAX))
}

/// Whether access to the lease has ended.
fn is_over(error: &AskError) -> bool {
    use LeaseError::{Expired, NotFound};
    matches!(error, AskError::Refused(refusal) if matches!(refusal.error, Expired | NotFound))
}

/// Prints a line about the lease.
fn report(output: Output, lease: LeaseId, event: &'static str, message: String) {
    let message = format!("lease {lease} {message}");
    let json = Object::from([
        field("lease_id", lease.to_string()),
        field("event", event),
        field("message", &*message),
    ]);
    let line = match output.json {
        true => serde_json::to_string(&json).unwrap_or_default(),
        false => format!("fabricctl: {}", crate::output::one_line(&message)),
    };
    // Standard error may be closed.
    writeln!(io::stderr(), "{line}").ok();
}
