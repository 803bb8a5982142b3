//! The daemon's end of the process that writes the journal: started, told what to write, started again when it has ended.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;

use fabricbios_helper::Program;

use super::process::unexpected;
use super::queue::Shared;
use super::talk::{Talk, Word};
use super::{CommitError, Group, JournalCounts, JournalError, Recovered};

/// Who writes the journal.
pub(super) enum Scribe {
    /// A process of that program.
    Program(Program),
    /// A thread, which hears and says the same.
    #[cfg(test)]
    Thread(Arc<super::meter::Meter>),
}

pub(super) struct Remote {
    scribe: Scribe,
    path: PathBuf,
    shared: Arc<Shared>,
    /// None after it has ended by itself.
    process: Option<Process>,
}

/// Dropped, it is waited for: it closes the journal first.
struct Process {
    talk: Talk,
    running: Running,
}

enum Running {
    Process(Child),
    #[cfg(test)]
    Thread(Option<std::thread::JoinHandle<io::Result<()>>>),
}

/// Why what was asked of it is not done.
enum NotDone {
    Refused(String),
    Gone(io::Error),
}

impl From<io::Error> for NotDone {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl Remote {
    pub(super) fn open(
        scribe: Scribe,
        path: PathBuf,
        boot_id: &str,
        shared: Arc<Shared>,
    ) -> Result<(Self, Recovered), JournalError> {
        let mut remote = Self {
            scribe,
            path,
            shared,
            process: None,
        };
        let mut process = remote.start().map_err(JournalError::Process)?;
        let opened = process.open(Some(boot_id));
        let recovered =
            opened.map_err(|why| JournalError::Process(remote.explain(why, &mut process)))?;
        remote.process = Some(process);
        Ok((remote, recovered))
    }

    /// One transaction; `Ok` means that it is on the disk, and is its number. After an error it may be or may not be
    /// there: trying it again is right either way.
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
            Err(NotDone::Refused(why)) => {
                self.process = Some(process);
                Err(CommitError::new(why))
            }
            Err(gone) => Err(CommitError::new(self.explain(gone, &mut process))),
        }
    }

    fn start_again(&self) -> Result<Process, CommitError> {
        let mut process = self.start().map_err(CommitError::new)?;
        tracing::warn!(pid = process.pid(), "another process writes the journal");
        let opened = process.open(None);
        opened.map_err(|why| CommitError::new(self.explain(why, &mut process)))?;
        Ok(process)
    }

    fn start(&self) -> Result<Process, String> {
        let process = self.spawn().map_err(|error| {
            let path = self.path.display();
            format!("journal {path}: the process that writes it cannot be started: {error}")
        })?;
        self.shared.lock().process = process.pid();
        Ok(process)
    }

    fn spawn(&self) -> io::Result<Process> {
        let (ours, its) = UnixStream::pair()?;
        let running = match &self.scribe {
            Scribe::Program(program) => Running::Process(
                { program.command() }
                    .args(["journal", "--path"])
                    .arg(&self.path)
                    .stdin(OwnedFd::from(its))
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()?,
            ),
            #[cfg(test)]
            Scribe::Thread(meter) => {
                let (talk, path, meter) = (Talk::over(its)?, self.path.clone(), meter.clone());
                let serve = move || super::process::serve(talk, &path, meter);
                Running::Thread(Some(std::thread::spawn(serve)))
            }
        };
        let talk = Talk::over(ours)?;
        Ok(Process { talk, running })
    }

    fn explain(&self, why: NotDone, process: &mut Process) -> String {
        match why {
            NotDone::Refused(why) => why,
            NotDone::Gone(error) => format!(
                "journal {}: process {}, which writes it, has ended ({}): {error}",
                self.path.display(),
                process.pid(),
                process.end()
            ),
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

    /// Without a boot id it goes on where another one has ended, and has nothing to tell.
    fn open(&mut self, boot_id: Option<&str>) -> Result<Recovered, NotDone> {
        self.talk.say(&Word::Begin(boot_id.map(str::to_owned)))?;
        self.talk.flush()?;
        let mut records = BTreeMap::new();
        loop {
            match self.talk.hear()? {
                Word::Record(key, Some(value)) => drop(records.insert(key, value)),
                Word::Opened(recovered) => {
                    return Ok(Recovered {
                        records,
                        ..recovered
                    });
                }
                Word::Refused(why) => return Err(NotDone::Refused(why)),
                _ => return Err(unexpected().into()),
            }
        }
    }

    fn commit(&mut self, group: &Group) -> Result<(u64, JournalCounts), NotDone> {
        for (key, value) in group {
            self.talk.say(&Word::Record(*key, value.clone()))?;
        }
        self.talk.say(&Word::Commit)?;
        self.talk.flush()?;
        match self.talk.hear()? {
            Word::Committed(number, counts) => Ok((number, counts)),
            Word::Refused(why) => Err(NotDone::Refused(why)),
            _ => Err(unexpected().into()),
        }
    }

    /// Waits for its end, which it reaches when it hears nothing more, and tells how that was.
    fn end(&mut self) -> String {
        self.talk.end();
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
