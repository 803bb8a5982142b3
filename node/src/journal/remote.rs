//! The daemon's side of the process that writes the journal: starts the process, sends it groups, restarts it when it
//! has ended.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use fabricbios_channel::{Channel, ChannelError, Outgoing, Problem};
use fabricbios_helper::Program;
use nix::sys::socket::MsgFlags;

use super::{
    CommitError, Group, JournalCounts, JournalError, Lost, Recovered, counter,
    message::{BATCH_BYTES, CHANNEL, Message},
};

/// How the writer of the journal runs.
pub(super) enum RunAs {
    /// In a process of this program.
    Program(Program),
    /// In a thread, with the same messages.
    #[cfg(test)]
    Thread(Arc<super::meter::Meter>),
}

pub(super) struct Remote {
    run_as: RunAs,
    path: PathBuf,
    boot_id: String,
    /// The id of the newest process, for who closes the journal.
    pid: Arc<AtomicU32>,
    /// `None` after the process has ended by itself.
    process: Option<Process>,
}

/// A drop waits for the process, which closes the journal first.
struct Process {
    channel: Channel,
    /// The socket of `channel` once more, for the driver's poll(2).
    readable: Arc<OwnedFd>,
    running: Running,
}

/// The process has made a group durable.
pub(super) struct Committed {
    /// The number of the commit.
    pub(super) number: u64,
    pub(super) counts: JournalCounts,
}

/// Most bytes that the driver sends: as many as an empty socket takes at once.
const SENT_NOW_MAX: usize = 64 << 10;

enum Running {
    Process(Child),
    #[cfg(test)]
    Thread(Option<std::thread::JoinHandle<anyhow::Result<()>>>),
}

/// Why a request to the process failed.
pub(super) enum Failure {
    Refused(String),
    Gone(Lost),
}

impl<E: Into<Lost>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Gone(error.into())
    }
}

impl Remote {
    pub(super) fn open(
        run_as: RunAs,
        path: PathBuf,
        boot_id: &str,
        pid: Arc<AtomicU32>,
    ) -> Result<(Self, Recovered), JournalError> {
        let mut remote = Self {
            run_as,
            path,
            boot_id: boot_id.to_owned(),
            pid,
            process: None,
        };
        let mut process = remote.start()?;
        let opened = process.open(boot_id, false);
        let recovered = opened.map_err(|why| remote.explain(why, &mut process))?;
        remote.process = Some(process);
        Ok((remote, recovered))
    }

    /// Commits one transaction; `Ok`: it is durable. After an error the transaction may or may not be durable: retry it.
    pub(super) fn commit(&mut self, group: &Group) -> Result<Committed, CommitError> {
        let process = match self.process.take() {
            Some(process) => process,
            None => self.start_again()?,
        };
        let sent = self.process.insert(process).send(group);
        sent.map_err(|failure| self.explained(failure))?;
        self.outcome()
    }

    /// Waits for the outcome of a group that was sent.
    pub(super) fn outcome(&mut self) -> Result<Committed, CommitError> {
        let process = self.process.as_mut();
        let outcome = process.map_or(Err(Lost::Closed.into()), Process::outcome);
        outcome.map_err(|failure| self.explained(failure))
    }

    /// Sends a group without waiting. `false`: that is not possible.
    pub(super) fn send_now(&mut self, group: &Group) -> Result<bool, Failure> {
        let process = self.process.as_mut();
        process.map_or(Ok(false), |process| process.send_now(group))
    }

    /// The outcome of a group that was sent, if it is here.
    pub(super) fn outcome_now(&mut self) -> Option<Result<Committed, Failure>> {
        let process = self.process.as_mut();
        process.map_or(Some(Err(Lost::Closed.into())), Process::outcome_now)
    }

    /// What is readable when the outcome of a group is here, or the process has ended.
    pub(super) fn readable(&self) -> Option<Arc<OwnedFd>> {
        let process = self.process.as_ref();
        process.map(|process| Arc::clone(&process.readable))
    }

    /// Why a group is not durable. Waits for the end of a process that is of no more use.
    pub(super) fn explained(&mut self, failure: Failure) -> CommitError {
        match failure {
            Failure::Refused(why) => CommitError::new(why),
            Failure::Gone(lost) => match self.process.take() {
                Some(mut process) => CommitError::new(self.explain(lost.into(), &mut process)),
                None => CommitError::new(lost),
            },
        }
    }

    fn start_again(&self) -> Result<Process, CommitError> {
        let mut process = self.start().map_err(CommitError::new)?;
        tracing::warn!(pid = process.pid(), "another process writes the journal");
        let opened = process.open(&self.boot_id, true);
        opened.map_err(|why| CommitError::new(self.explain(why, &mut process)))?;
        Ok(process)
    }

    fn start(&self) -> Result<Process, JournalError> {
        let process = self.spawn().map_err(|error| JournalError::NotStarted {
            path: self.path.clone(),
            error,
        })?;
        self.pid.store(process.pid(), Ordering::Relaxed);
        Ok(process)
    }

    fn spawn(&self) -> io::Result<Process> {
        let (channel, its) = Channel::pair(CHANNEL)?;
        let running = match &self.run_as {
            RunAs::Program(program) => Running::Process(
                { program.command() }
                    .args(["journal", "--path"])
                    .arg(&self.path)
                    .args(self.counters())
                    .stdin(its)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()?,
            ),
            #[cfg(test)]
            RunAs::Thread(meter) => {
                let (path, meter) = (self.path.clone(), meter.clone());
                let serve =
                    move || super::process::serve(Channel::over(CHANNEL, its), &path, None, meter);
                Running::Thread(Some(std::thread::spawn(serve)))
            }
        };
        let readable = Arc::new(channel.as_fd().try_clone_to_owned()?);
        Ok(Process {
            channel,
            readable,
            running,
        })
    }

    fn counters(&self) -> Vec<OsString> {
        let argument = |it: PathBuf| [OsString::from("--counters"), it.into()];
        counter::directory()
            .into_iter()
            .flat_map(argument)
            .collect()
    }

    fn explain(&self, why: Failure, process: &mut Process) -> JournalError {
        match why {
            Failure::Refused(why) => JournalError::Refused(why),
            Failure::Gone(lost) => JournalError::Ended {
                path: self.path.clone(),
                pid: process.pid(),
                status: process.end(),
                lost,
            },
        }
    }
}

impl Process {
    fn pid(&self) -> u32 {
        match &self.running {
            Running::Process(child) => child.id(),
            #[cfg(test)]
            Running::Thread(_) => std::process::id(),
        }
    }

    /// Opens the journal in the process. One that replaces another returns no records.
    fn open(&mut self, boot_id: &str, replaces: bool) -> Result<Recovered, Failure> {
        let boot_id = boot_id.to_owned();
        let begin = Message::Begin { boot_id, replaces };
        self.channel.send(&begin, None, MsgFlags::empty())?;
        let mut records = BTreeMap::new();
        loop {
            match self.receive()? {
                Message::Record(key, Some(value)) => drop(records.insert(key, value)),
                Message::Opened(recovered) => {
                    return Ok(Recovered {
                        records,
                        ..recovered
                    });
                }
                Message::Refused(why) => return Err(Failure::Refused(why)),
                _ => return Err(Lost::Unexpected.into()),
            }
        }
    }

    /// Waits while the socket is full.
    fn send(&mut self, group: &Group) -> Result<(), Failure> {
        let mut batch = Outgoing::new(CHANNEL);
        for (key, value) in group {
            batch.push(&Message::Record(*key, value.clone()))?;
            if batch.unsent().len() > BATCH_BYTES {
                batch.send_to(&self.channel, None, MsgFlags::empty())?;
            }
        }
        batch.push(&Message::Commit)?;
        batch.send_to(&self.channel, None, MsgFlags::empty())?;
        Ok(())
    }

    /// Sends without waiting. `false`: the group is too long for that.
    fn send_now(&mut self, group: &Group) -> Result<bool, Failure> {
        let mut batch = Outgoing::new(CHANNEL);
        for (key, value) in group {
            batch.push(&Message::Record(*key, value.clone()))?;
            if batch.unsent().len() > SENT_NOW_MAX {
                return Ok(false);
            }
        }
        batch.push(&Message::Commit)?;
        match batch.send_to(&self.channel, None, MsgFlags::MSG_DONTWAIT)? {
            true => Ok(true),
            false => Err(Lost::Full.into()),
        }
    }

    fn outcome(&mut self) -> Result<Committed, Failure> {
        let answer = self.receive()?;
        Self::committed(answer)
    }

    /// The outcome, if it is here.
    fn outcome_now(&mut self) -> Option<Result<Committed, Failure>> {
        let answer = match self.channel.receive_within(Duration::ZERO) {
            Ok(answer) => answer.ok_or_else(|| Lost::Closed.into()),
            Err(ChannelError {
                problem: Problem::Silent(_),
                ..
            }) => return None,
            Err(error) => Err(error.into()),
        };
        Some(answer.and_then(Self::committed))
    }

    fn committed(answer: Message) -> Result<Committed, Failure> {
        match answer {
            Message::Committed(number, counts) => Ok(Committed { number, counts }),
            Message::Refused(why) => Err(Failure::Refused(why)),
            _ => Err(Lost::Unexpected.into()),
        }
    }

    fn receive(&mut self) -> Result<Message, Failure> {
        Ok(self.channel.receive()?.ok_or(Lost::Closed)?)
    }

    /// Closes the socket, which ends the process, waits for the end and returns the exit status.
    fn end(&mut self) -> String {
        self.channel.close();
        match &mut self.running {
            Running::Process(child) => match child.wait() {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            },
            #[cfg(test)]
            Running::Thread(thread) => {
                format!("{:?}", thread.take().map(std::thread::JoinHandle::join))
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
