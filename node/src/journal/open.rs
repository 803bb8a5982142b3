//! Both files of the journal, while they can be written.

use std::{
    io,
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
};

use nix::sys::statvfs::statvfs;
use redb::Database;

use super::{
    JournalError,
    base::guarded,
    changes::Changes,
    contents,
    counter::{Counter, Counters},
    log::{self, Log},
};

/// With less space than this on the disk, each commit goes into the journal's file: a disk without space refuses grants
/// at once, and not when the log is full.
const SPACE_FOR_A_LOG: u64 = 8 << 20;

pub(super) struct Open {
    path: PathBuf,
    base: Base,
    log: Log,
    counter: Option<Counter>,
    /// The number of the newest commit.
    last: u64,
    /// What the half of the log that is written has. The journal's file has what the other half has, or gets it now.
    pending: Changes,
}

/// The journal's file. A thread writes its checkpoints, while commits go on in the other half of the log.
enum Base {
    Idle(Database),
    Busy(JoinHandle<Result<Database, JournalError>>),
    /// A checkpoint has failed; the log has what the file lacks.
    Failed,
}

impl Open {
    /// `last`: the number of the newest commit, which the journal's file has, as all before.
    pub(super) fn new(
        path: &Path,
        database: Database,
        log: Log,
        counters: &Counters,
        last: u64,
    ) -> Self {
        Self {
            path: path.to_owned(),
            base: Base::Idle(database),
            counter: counters.begin(log.identity()),
            log,
            last,
            pending: Changes::default(),
        }
    }

    /// Commits one transaction, durably, and returns its number. After an error it may be there or not, and this is of no
    /// use any more.
    pub(super) fn commit(&mut self, changes: Changes) -> Result<u64, JournalError> {
        let payload = changes.encode().map_err(|error| {
            JournalError::io(&self.path, "encode a group", io::Error::other(error))
        })?;
        if self.base.has_ended() {
            self.base = Base::Idle(self.base.take(&self.path)?);
        }
        let number = self.last + 1;
        if Log::can_hold(&payload) && self.has_space() {
            if !self.log.has_room(&payload) {
                self.turn()?;
            }
            self.log.append(number, &payload)?;
            self.pending.add(changes);
        } else {
            self.pending.add(changes);
            self.checkpoint(number, Some(self.log.identity()))?;
            self.log.turn();
            // Without it, one flipped bit of the journal's file shows the commit before, and nothing shows this one.
            self.log.append(number, &[])?;
        }
        self.last = number;
        if let Some(counter) = &mut self.counter {
            let counted = counter.count(number);
            counted.map_err(|error| JournalError::io(&self.path, "count in memory", error))?;
        }
        Ok(number)
    }

    fn has_space(&self) -> bool {
        #[cfg(test)]
        if self.log.has_no_space() {
            return false;
        }
        // A file system that does not tell has space until a write fails.
        statvfs(&self.path).map_or(true, |of| {
            of.blocks_available().saturating_mul(of.fragment_size()) >= SPACE_FOR_A_LOG
        })
    }

    /// Goes on in the other half of the log, while a thread brings this one into the journal's file. Waits until the file
    /// has the other half.
    fn turn(&mut self) -> Result<(), JournalError> {
        let database = self.base.take(&self.path)?;
        let (path, log, last) = (self.path.clone(), self.log.identity(), self.last);
        let pending = std::mem::take(&mut self.pending);
        let write = move || {
            write(&path, &database, last, &pending, Some(log))?;
            Ok(database)
        };
        let thread = thread::Builder::new().name("checkpoint".to_owned());
        let started = thread.spawn(write);
        let started =
            started.map_err(|error| JournalError::io(&self.path, "start a checkpoint", error))?;
        self.base = Base::Busy(started);
        self.log.turn();
        Ok(())
    }

    /// Brings all that is pending into the journal's file. `log`: see [`contents::checkpoint`].
    fn checkpoint(&mut self, last: u64, log: Option<u64>) -> Result<(), JournalError> {
        let database = self.base.take(&self.path)?;
        write(&self.path, &database, last, &self.pending, log)?;
        self.pending = Changes::default();
        self.base = Base::Idle(database);
        Ok(())
    }

    /// Closes both files in order: the journal's file then has everything.
    pub(super) fn close(mut self, counters: &Counters) -> Result<(), JournalError> {
        self.checkpoint(self.last, None)?;
        counters.end(self.log.identity());
        log::remove(&self.path)
    }
}

impl Drop for Open {
    /// Waits for the thread: one at a time has the file open.
    fn drop(&mut self) {
        if let Base::Busy(thread) = std::mem::replace(&mut self.base, Base::Failed) {
            thread.join().ok();
        }
    }
}

impl Base {
    fn has_ended(&self) -> bool {
        matches!(self, Self::Busy(thread) if thread.is_finished())
    }

    /// The file, after the last checkpoint.
    fn take(&mut self, path: &Path) -> Result<Database, JournalError> {
        let gave_up = |why| JournalError::io(path, "make a checkpoint", io::Error::other(why));
        match std::mem::replace(self, Self::Failed) {
            Self::Idle(database) => Ok(database),
            Self::Busy(thread) => thread
                .join()
                .unwrap_or_else(|_panic| Err(gave_up("its thread has panicked"))),
            Self::Failed => Err(gave_up("the one before has failed")),
        }
    }
}

fn write(
    path: &Path,
    database: &Database,
    last: u64,
    changes: &Changes,
    log: Option<u64>,
) -> Result<(), JournalError> {
    guarded(path, "commit", || {
        contents::checkpoint(database, last, changes, log)
    })
}
