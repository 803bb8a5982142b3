//! The process that starts the helper processes, and the daemon's handle of it.

use std::fs::File;
use std::io::{self, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Stdio, exit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use fabricbios_channel::{Channel, ChannelError};
use nix::errno::Errno;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::MsgFlags;
use nix::unistd::{ForkResult, Pid, close, fork, getpid, getppid};
use serde::{Deserialize, Serialize};

use crate::call::{CHANNEL, Call, Caller, Handler};
use crate::in_flight::InFlight;
use crate::pidfd::{Pidfd, set_niceness};
use crate::{CallError, Program, Session};

/// The supervisor forks within milliseconds. After this time without an answer it counts as stopped.
const STARTS_WITHIN: Duration = Duration::from_secs(5);

/// The first message on the channel of a session. The pidfd of the helper process comes beside it.
#[derive(Serialize, Deserialize)]
enum Began {
    Process(u32),
    Refused(i32),
}

/// Starts a helper process for each session. If the supervisor has died, the next call replaces it.
#[derive(Clone, Debug)]
pub struct Supervisor(Arc<Inner>, InFlight);

#[derive(Debug)]
struct Inner {
    kind: Kind,
    running: Mutex<Running>,
}

#[derive(Debug)]
enum Kind {
    Process {
        program: Program,
        argument: String,
        lock: File,
    },
    Threads(Arc<Vec<Handler>>),
}

/// The supervisor process.
#[derive(Debug, Default)]
struct Running {
    /// Grows by one with each new supervisor.
    number: u64,
    process: Option<(Channel, Child)>,
}

/// Why a session did not begin.
enum NotBegun {
    /// The supervisor with this number does not answer or no longer exists.
    Supervisor(u64, io::Error),
    Refused(io::Error),
}

impl From<io::Error> for NotBegun {
    fn from(error: io::Error) -> Self {
        Self::Refused(error)
    }
}

impl Supervisor {
    /// Starts the supervisor. The program must run [`supervise`] if its first argument is `argument`. `lock` is a file
    /// that only this user can open; every daemon that may have left a call behind must use the same file. Call this
    /// before the process opens a device: a child has a copy of every descriptor until it executes its program.
    ///
    /// # Errors
    /// The supervisor's process cannot be started.
    pub fn start(program: &Program, argument: &str, lock: File) -> io::Result<Self> {
        let supervisor = Self::when_needed(program, argument, lock);
        supervisor.0.replace(&mut supervisor.0.running())?;
        Ok(supervisor)
    }

    /// Like [`Supervisor::start`], but the first call starts the supervisor.
    #[must_use]
    pub fn when_needed(program: &Program, argument: &str, lock: File) -> Self {
        let kind = Kind::Process {
            program: program.clone(),
            argument: argument.to_owned(),
            lock,
        };
        Self::of(kind, InFlight::default())
    }

    fn of(kind: Kind, in_flight: InFlight) -> Self {
        let running = Mutex::default();
        Self(Arc::new(Inner { kind, running }), in_flight)
    }

    /// The same supervisor, which counts the calls of these handlers while they are in flight.
    #[must_use]
    pub fn counting(self, handlers: &[Handler]) -> Self {
        Self(self.0, InFlight::of(handlers))
    }

    /// The calls in flight, of all clones of this.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        self.1.clone()
    }

    /// For tests: makes calls in threads of this process.
    #[doc(hidden)]
    #[must_use]
    pub fn of_threads(handlers: Vec<Handler>) -> Self {
        let in_flight = InFlight::of(&handlers);
        Self::of(Kind::Threads(Arc::new(handlers)), in_flight)
    }

    /// Makes one call in a separate process; see [`Session::ask`].
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call<C: Call>(
        &self,
        call: &C,
        silence_max: Duration,
        progress: &dyn Fn(&str),
    ) -> Result<C::Answer, CallError> {
        self.session()?.ask(call, silence_max, progress)
    }

    /// Starts a helper process for calls.
    ///
    /// # Errors
    /// [`CallError::NotStarted`], also after a second try with a new supervisor.
    pub fn session(&self) -> Result<Session, CallError> {
        let begun = match self.0.begin(&self.1) {
            Err(NotBegun::Supervisor(number, error)) => {
                tracing::warn!(%error, "the process that starts helper processes is replaced");
                self.0.give_up(number);
                self.0.begin(&self.1)
            }
            begun => begun,
        };
        begun.map_err(|why| {
            CallError::NotStarted(match why {
                NotBegun::Supervisor(_, error) | NotBegun::Refused(error) => error,
            })
        })
    }

    /// Number of the supervisor's process; `None`: no supervisor runs.
    #[doc(hidden)]
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.0
            .running()
            .process
            .as_ref()
            .map(|(_, child)| child.id())
    }
}

impl Inner {
    fn running(&self) -> MutexGuard<'_, Running> {
        // Each change is one assignment, so a panic leaves no half-done change.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, in_flight: &InFlight) -> Result<Session, NotBegun> {
        let (mut ours, its) = Channel::pair(CHANNEL)?;
        let number = match &self.kind {
            Kind::Process { .. } => self.hand_over(its)?,
            Kind::Threads(handlers) => {
                let handlers = Arc::clone(handlers);
                let its = Channel::over(CHANNEL, its);
                began(&its, None).map_err(io::Error::from)?;
                thread::Builder::new()
                    .name("calls".into())
                    .spawn(move || Caller::new(its, None).serve(&handlers))?;
                0
            }
        };
        let silent = |why: &str| NotBegun::Supervisor(number, io::Error::other(why.to_owned()));
        match ours.receive_within(STARTS_WITHIN) {
            Ok(Some(Began::Process(pid))) => Ok(Session {
                process: ours.take_descriptor().map(Pidfd::from),
                channel: ours,
                pid,
                in_flight: in_flight.clone(),
            }),
            Ok(Some(Began::Refused(errno))) => {
                Err(NotBegun::Refused(io::Error::from_raw_os_error(errno)))
            }
            Ok(None) => Err(silent("it has ended")),
            Err(error) if error.is_silence() => Err(silent("no process was started in time")),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Passes one end of a channel to the supervisor. Returns the supervisor's number.
    fn hand_over(&self, end: OwnedFd) -> Result<u64, NotBegun> {
        let mut running = self.running();
        if running.process.is_none() {
            self.replace(&mut running)?;
        }
        let number = running.number;
        let Some((socket, _)) = &running.process else {
            return Err(io::Error::from(io::ErrorKind::NotFound).into());
        };
        let sent = socket.send(&(), Some(end.as_fd()), MsgFlags::MSG_DONTWAIT);
        sent.map_err(|error| NotBegun::Supervisor(number, error.into()))?;
        Ok(number)
    }

    fn replace(&self, running: &mut Running) -> io::Result<()> {
        let Kind::Process {
            program,
            argument,
            lock,
        } = &self.kind
        else {
            return Ok(());
        };
        let (ours, its) = Channel::pair(CHANNEL)?;
        let mut command = program.command();
        let child = command
            .arg(argument)
            .stdin(its)
            .stdout(lock.try_clone()?)
            .stderr(Stdio::null())
            .spawn()?;
        running.process = Some((ours, child));
        running.number += 1;
        Ok(())
    }

    /// Kills the supervisor with this number, unless a newer one has replaced it. Its calls in progress end too.
    fn give_up(&self, number: u64) {
        let mut running = self.running();
        if running.number == number
            && let Some((_, mut child)) = running.process.take()
        {
            // The process may have ended already.
            child.kill().ok();
            thread::spawn(move || child.wait());
        }
    }
}

/// Runs the supervisor: forks a process for each channel received from standard input, a socket, until the socket is
/// closed. Standard output is the file in which calls take their locks. The process must have one thread.
///
/// # Errors
/// The socket cannot be read, or signals cannot be set up.
pub fn supervise(handlers: &[Handler]) -> io::Result<()> {
    let mut socket = Channel::over(CHANNEL, stdin().as_fd().try_clone_to_owned()?);
    close(0)?;
    let lock = File::from(stdout().as_fd().try_clone_to_owned()?);
    // The kernel reaps the children.
    reap_by(SigHandler::SigIgn)?;
    // The thread that starts a supervisor may have a raised priority. Calls must not have it.
    set_niceness(0).ok();
    // With locked memory a forked process needs no disk for its pages. Without the right to lock memory the supervisor
    // works too.
    mlockall(MlockAllFlags::MCL_CURRENT).ok();
    let own = getpid();
    while let Some(()) = socket.receive()? {
        let Some(end) = socket.take_descriptor() else {
            continue;
        };
        let channel = Channel::over(CHANNEL, end);
        // SAFETY: this process has one thread, so in the child no lock is held and nothing is half done.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                drop(socket);
                let ended = make_calls(own, channel, lock, handlers);
                exit(i32::from(ended.is_err()));
            }
            Ok(ForkResult::Parent { .. }) => {}
            Err(errno) => {
                // If this message is lost, the caller sees that the channel is closed.
                let refused = Began::Refused(errno as i32);
                channel.send(&refused, None, MsgFlags::MSG_DONTWAIT).ok();
            }
        }
    }
    Ok(())
}

/// Runs in the forked process.
fn make_calls(
    supervisor: Pid,
    channel: Channel,
    lock: File,
    handlers: &[Handler],
) -> io::Result<()> {
    // The process must die with its daemon: the next daemon may lease the same bytes to another tenant.
    set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != supervisor {
        return Err(Errno::ESRCH.into());
    }
    reap_by(SigHandler::SigDfl)?;
    began(&channel, Some(Pidfd::open(getpid())?))?;
    Caller::new(channel, Some(lock)).serve(handlers)
}

fn began(channel: &Channel, process: Option<Pidfd>) -> Result<(), ChannelError> {
    let began = Began::Process(std::process::id());
    let process = process.as_ref().map(AsFd::as_fd);
    channel.send(&began, process, MsgFlags::empty())
}

fn reap_by(handler: SigHandler) -> io::Result<()> {
    // SAFETY: `SigIgn` and `SigDfl` run no code of this program.
    unsafe { signal(Signal::SIGCHLD, handler) }?;
    Ok(())
}
