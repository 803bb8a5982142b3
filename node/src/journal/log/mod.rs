//! The log of commits: a file of fixed size in front of the journal's file (docs/decisions/0046).
//!
//! A commit is one frame, written with one call and made durable with one sync. All blocks of the file have been
//! written before, so this sync has no metadata to write.

mod scan;
mod sector;

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use scan::{Frame, Image};
use sector::{Chain, SECTOR, sectors_of};

use super::{
    JournalError, Value,
    base::{sibling, sync_directory},
    meter::Meter,
};

/// Added to the name of the journal's file.
const SUFFIX: &str = ".commits";

/// Sectors of one half: 1 MiB.
const HALF: usize = if cfg!(test) { 128 } else { 2048 };

/// No log is longer.
const BYTES_MAX: u64 = 64 << 20;

/// The log's file of the journal at `path`.
pub(super) fn path_of(path: &Path) -> PathBuf {
    sibling(path, SUFFIX)
}

/// A log that this process writes.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: File,
    meter: Arc<Meter>,
    identity: u64,
    /// The half that is written, and its sectors that are.
    half: usize,
    used: usize,
    before: Chain,
}

impl Log {
    /// Makes an empty log in place of an earlier one, durably. `journal`: the path of the journal, which does not need
    /// the earlier one any more.
    pub(super) fn create(journal: &Path, meter: &Arc<Meter>) -> Result<Self, JournalError> {
        let path = path_of(journal);
        let failed = |step, error| JournalError::io(&path, step, error);
        let mut identity = [0; 8];
        getrandom::fill(&mut identity)
            .map_err(|error| failed("choose a number", io::Error::other(error.to_string())))?;
        remove(journal)?;
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let log = Self {
            file: open.map_err(|error| failed("make the file", error))?,
            meter: Arc::clone(meter),
            identity: u64::from_le_bytes(identity),
            half: 0,
            used: 0,
            before: Chain::default(),
            path: path.clone(),
        };
        #[cfg(test)]
        meter.faults.on_new_log();
        let head = u64::try_from(HALF).unwrap_or(u64::MAX).to_le_bytes();
        let (head, _) = sector::write(log.identity, 0, Chain::default(), &head);
        let zeros = vec![0; HALF * SECTOR];
        let written = log
            .write(0, &head)
            .and_then(|()| log.write(1, &zeros))
            .and_then(|()| log.write(1 + HALF, &zeros))
            .and_then(|()| log.sync())
            .and_then(|()| sync_directory(journal));
        match written {
            Ok(()) => Ok(log),
            Err(error) => {
                // A full disk keeps the space that it has.
                fs::remove_file(&path).ok();
                Err(failed("write the file (it takes 2 MiB)", error))
            }
        }
    }

    pub(super) fn identity(&self) -> u64 {
        self.identity
    }

    /// Whether a half is large enough for this payload.
    pub(super) fn can_hold(payload: &[u8]) -> bool {
        sectors_of(payload.len()) <= HALF
    }

    /// Whether there is space for this payload in the half that is written.
    pub(super) fn has_room(&self, payload: &[u8]) -> bool {
        sectors_of(payload.len()) <= HALF - self.used
    }

    /// Writes a commit, durably. One without payload is in the journal's file, which must have it: there is nothing to
    /// bring in. After an error it may be there or not, and the log is of no use any more.
    pub(super) fn append(&mut self, number: u64, payload: &[u8]) -> Result<(), JournalError> {
        let (frame, chain) = sector::write(self.identity, number, self.before, payload);
        self.write(1 + self.half * HALF + self.used, &frame)
            .and_then(|()| self.sync())
            .map_err(|error| JournalError::io(&self.path, "commit", error))?;
        self.used += frame.len() / SECTOR;
        self.before = chain;
        Ok(())
    }

    /// Goes on at the beginning of the other half. The journal's file has every commit of that half.
    pub(super) fn turn(&mut self) {
        self.half = 1 - self.half;
        self.used = 0;
    }

    /// Whether a test wants the disk to be full.
    #[cfg(test)]
    pub(super) fn has_no_space(&self) -> bool {
        self.meter.faults.has_no_space()
    }

    fn write(&self, sector: usize, bytes: &[u8]) -> io::Result<()> {
        let offset = (sector * SECTOR) as u64;
        #[cfg(test)]
        self.meter.faults.on_log_write(offset, bytes)?;
        self.meter.count_write(bytes);
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.meter.counts().syncs += 1;
        let synced = self.file.sync_data();
        #[cfg(test)]
        let synced = self.meter.faults.on_log_sync(synced);
        synced
    }
}

/// The commits behind `after` of the log with this identity, which the journal at `journal` needs. `acknowledged`: see
/// [`Image::frames`].
pub(super) fn read(
    journal: &Path,
    identity: u64,
    after: u64,
    acknowledged: Option<u64>,
) -> Result<Vec<Frame>, JournalError> {
    let path = path_of(journal);
    let damaged = |why: &str| {
        JournalError::damaged(
            journal,
            format!("{}, its newest commits, {why}", path.display()),
        )
    };
    let bytes = bytes_of(&path)?.ok_or_else(|| damaged("is missing"))?;
    let image = Image::of(&bytes).map_err(damaged)?;
    if image.identity() != identity {
        return Err(damaged(
            "is of another journal, or of another time of this one",
        ));
    }
    let frames = image.frames(after, acknowledged);
    frames.map_err(|why| damaged(&format!("is damaged: {why}")))
}

/// Refuses a journal whose commits go up to `last` and which needs no log, if a log is there that goes further.
pub(super) fn refuse_newer(journal: &Path, last: u64) -> Result<(), JournalError> {
    let path = path_of(journal);
    let Some(bytes) = bytes_of(&path)? else {
        return Ok(());
    };
    let newest = Image::of(&bytes).map_or(0, |it| it.newest());
    if newest <= last {
        return Ok(());
    }
    let detail = format!(
        "{} has its commit {newest}, and it goes up to {last} only: it is an older copy",
        path.display()
    );
    Err(JournalError::damaged(journal, detail))
}

/// Removes the log, if there is one.
pub(super) fn remove(journal: &Path) -> Result<(), JournalError> {
    let path = path_of(journal);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(JournalError::io(&path, "remove the file", error))
        }
        _ => Ok(()),
    }
}

/// `None`: there is no file.
fn bytes_of(path: &Path) -> Result<Option<Value>, JournalError> {
    let read = || -> io::Result<Value> {
        let length = fs::metadata(path)?.len();
        if length > BYTES_MAX {
            return Err(io::Error::other(format!("{length} bytes are too many")));
        }
        Ok(Value::new(fs::read(path)?))
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read
            .map(Some)
            .map_err(|error| JournalError::io(path, "read", error)),
    }
}

#[cfg(test)]
mod tests;
