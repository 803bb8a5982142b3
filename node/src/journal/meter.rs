//! Counts writes and syncs of the journal's files, and notes a failed sync of the file below redb.

use std::{
    fs::File,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use fabricbios_lease::Histogram;
use redb::{StorageBackend, backends::FileBackend};
use serde::{Deserialize, Serialize};

/// Disk operations of the process that writes the journal, up to its last commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalCounts {
    /// Committed groups.
    pub commits: u64,
    /// Calls of fdatasync.
    pub syncs: u64,
    /// Calls of write.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// The figures of a journal, for metrics.
#[derive(Clone, Debug, Default)]
pub struct JournalFigures {
    /// Disk operations of the process that writes it.
    pub counts: JournalCounts,
    /// Changed records that wait for the next commit.
    pub waiting: usize,
    /// How long commits took, from the group of changes to its report.
    pub commit_times: Histogram,
    /// Commits that failed.
    pub failed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Meter {
    counts: Mutex<JournalCounts>,
    /// A sync of the journal's file has failed since it was last written as a whole.
    pub(super) sync_failed: AtomicBool,
    #[cfg(test)]
    pub(super) faults: super::tests::Faults,
}

impl Meter {
    pub(super) fn counts(&self) -> MutexGuard<'_, JournalCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count_write(&self, bytes: &[u8]) {
        let mut counts = self.counts();
        counts.writes += 1;
        counts.written_bytes += bytes.len() as u64;
    }
}

/// redb's file backend with a meter. It does not lock the file: the journal has a lock of its own, which it keeps when
/// it replaces redb's handle after an error.
#[derive(Debug)]
pub(super) struct Metered {
    file: FileBackend,
    meter: Arc<Meter>,
}

impl Metered {
    pub(super) fn new(file: File, meter: Arc<Meter>) -> Result<Self, redb::DatabaseError> {
        Ok(Self {
            file: FileBackend::new(file)?,
            meter,
        })
    }
}

impl StorageBackend for Metered {
    fn len(&self) -> Result<u64, io::Error> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        #[cfg(test)]
        self.meter.faults.on_set_len(len);
        self.file.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.meter.counts().syncs += 1;
        let synced = self.file.sync_data();
        #[cfg(test)]
        let synced = self.meter.faults.on_sync(synced);
        synced.inspect_err(|_| self.meter.sync_failed.store(true, Ordering::Relaxed))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        #[cfg(test)]
        self.meter.faults.on_write(offset, data)?;
        self.meter.count_write(data);
        self.file.write(offset, data)
    }

    fn close(&self) -> Result<(), io::Error> {
        self.file.close()
    }
}
