//! The daemon's side of the process that writes the journal: starts the process, sends it groups, restarts it when it
//! has ended.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    path::PathBuf,
    process::{Child, Stdio},
    sync::Arc,
};

use fabricbios_channel::{Channel, Outgoing};
use fabricbios_helper::Program;
use nix::sys::socket::MsgFlags;

use super::{
    CommitError, Group, JournalCounts, JournalError, Lost, Recovered, counter,
    message::{BATCH_BYTES, CHANNEL, Message},
    queue::SharedQueue,
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
    shared: Arc<SharedQueue>,
    /// `None` after the process has ended by itself.
    process: Option<Process>,
}

/// A drop waits for the process, which closes the journal first.
struct Process {
    channel: Channel,
    running: Running,
}

enum Running {
    Process(Child),
    #[cfg(test)]
    Thread(Option<std::thread::JoinHandle<anyhow::Result<()>>>),
}

/// Why a request to the process failed.
enum Failure {
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
        shared: Arc<SharedQueue>,
    ) -> Result<(Self, Recovered), JournalError> {
        let mut remote = Self {
            run_as,
            path,
            boot_id: boot_id.to_owned(),
            shared,
            process: None,
        };
        let mut process = remote.start()?;
        let opened = process.open(boot_id, false);
        let recovered = opened.map_err(|why| remote.explain(why, &mut process))?;
        remote.process = Some(process);
        Ok((remote, recovered))
    }

    /// Commits one transaction; `Ok`: it is durable, with this number. After an error the transaction may or may not be
    /// durable: retry it.
    pub(super) fn commit(&mut self, group: &Group) -> Result<u64, CommitError> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => self.start_again()?,
        };
        match process.commit(group) {
            Ok((number, counts)) => {
                self.process = Some(process);
                self.shared.lock().counts = counts;
                Ok(number)
            }
            Err(Failure::Refused(why)) => {
                self.process = Some(process);
                Err(CommitError::new(why))
            }
            Err(gone) => Err(CommitError::new(self.explain(gone, &mut process))),
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
        self.shared.lock().process = process.pid();
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
        Ok(Process { channel, running })
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

    fn commit(&mut self, group: &Group) -> Result<(u64, JournalCounts), Failure> {
        let mut batch = Outgoing::new(CHANNEL);
        for (key, value) in group {
            batch.push(&Message::Record(*key, value.clone()))?;
            if batch.unsent().len() > BATCH_BYTES {
                batch.send_to(&self.channel, None, MsgFlags::empty())?;
            }
        }
        batch.push(&Message::Commit)?;
        batch.send_to(&self.channel, None, MsgFlags::empty())?;
        match self.receive()? {
            Message::Committed(number, counts) => Ok((number, counts)),
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
