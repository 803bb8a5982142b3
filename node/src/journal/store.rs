//! The journal's files: opens, checks and reads them, and commits groups.
//!
//! A commit goes into the log (`log/`). From time to time a checkpoint brings what the log has into the journal's file
//! (`base.rs`), and the log begins anew. After an end in order the journal's file has everything, and there is no log.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use fabricbios_helper::{FileBytes, Pidfd};
use nix::errno::Errno;
use redb::{Database, ReadableDatabase};

use super::{
    Group, JournalError, Key, Recovered,
    base::{guarded, open_checked, open_read_only, sibling, write_whole},
    changes::{Changes, Stamp},
    contents::{self, Head},
    counter::Counters,
    log::{self, Log},
    meter::Meter,
    open::Open,
};
use crate::process::{clock, state_dir::open_lock};

/// How long the process of an earlier daemon may take to write its last group and end.
const GOES_WITHIN: Duration = Duration::from_secs(5);

pub(super) struct Store {
    path: PathBuf,
    meter: Arc<Meter>,
    counters: Counters,
    /// `None` after a failed commit: a failed write or sync of either file makes both of no use.
    open: Option<Open>,
    /// The newest commit that was reported; `None`: none was by this process.
    reported: Option<u64>,
    /// The boot of this start, until it is written with the first leases or fences. A start that dies before that leaves
    /// records with the clock of the boot before.
    boot_id: Option<String>,
    /// Held while this process may write.
    _lock: File,
}

impl Store {
    /// Opens the journal and counts this start. Returns the contents, with the boot id of the last start that wrote
    /// leases or fences; `boot_id` replaces it with the first ones.
    pub(super) fn open(
        path: &Path,
        counters: Counters,
        meter: Arc<Meter>,
    ) -> Result<(Self, Recovered), JournalError> {
        let lock = take_lock(path)?;
        if !path
            .try_exists()
            .map_err(|e| JournalError::io(path, "look for the file", e))?
        {
            log::refuse_newer(path, 0)?;
            write_whole(path, &Recovered::default(), &meter)?;
        }
        let mut store = Self::of(path, counters, meter, lock);
        let database = store.settled()?;
        let mut found = guarded(path, "read", || contents::read(&database))?;
        found.epoch.0 += 1;
        let log = Log::create(path, &store.meter)?;
        guarded(
            path,
            "write down this start (it takes some free space)",
            || contents::write_start(&database, &found, log.identity()),
        )?;
        let open = Open::new(path, database, log, &store.counters, found.commits);
        store.open = Some(open);
        Ok((store, found))
    }

    /// Replaces a process that has ended. Opens the file at the first commit; returns no records.
    pub(super) fn resume(
        path: &Path,
        counters: Counters,
        meter: Arc<Meter>,
    ) -> Result<(Self, Recovered), JournalError> {
        // A sync of the ended process may have failed.
        meter.sync_failed.store(true, Ordering::Relaxed);
        let lock = take_lock(path)?;
        // The ended process may have written the boot; to write it again changes nothing.
        let store = Self::of(path, counters, meter, lock);
        Ok((store, Recovered::default()))
    }

    fn of(path: &Path, counters: Counters, meter: Arc<Meter>, lock: File) -> Self {
        Self {
            path: path.to_owned(),
            meter,
            boot_id: Some(counters.boot_id.clone()),
            counters,
            open: None,
            reported: None,
            _lock: lock,
        }
    }

    /// Commits one transaction; `Ok`: it is durable, with this number. After an error the next call opens the files
    /// anew. The group may or may not be in them: retry it.
    pub(super) fn commit(&mut self, group: Group) -> Result<u64, JournalError> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.reopened()?,
        };
        let is_of_boot = |key: &Key| matches!(key, Key::Lease(_) | Key::Fence(_));
        let begins = self.boot_id.take_if(|_| group.keys().any(is_of_boot));
        let changes = Changes {
            stamp: Stamp {
                written_unix_ms: self.boot_id.is_none().then(|| clock::now().unix_ms),
                boot_id: begins.clone(),
            },
            records: group,
        };
        let committed = open.commit(changes);
        if committed.is_err() {
            self.boot_id = self.boot_id.take().or(begins);
        }
        let number = committed?;
        self.reported = Some(number);
        self.open = Some(open);
        self.meter.counts().commits += 1;
        Ok(number)
    }

    /// Closes both files in order: the journal's file then has everything.
    pub(super) fn close(mut self) -> Result<(), JournalError> {
        let open = self.open.take();
        open.map_or(Ok(()), |open| open.close(&self.counters))
    }

    /// Opens both files after a failure, or in place of a process that has ended.
    fn reopened(&self) -> Result<Open, JournalError> {
        let database = self.settled()?;
        let Head { commits, .. } = guarded(&self.path, "read", || contents::head(&database))?;
        let log = Log::create(&self.path, &self.meter)?;
        guarded(&self.path, "begin a log", || {
            let changes = Changes::default();
            contents::checkpoint(&database, commits, &changes, Some(log.identity()))
        })?;
        let (path, counters) = (&self.path, &self.counters);
        Ok(Open::new(path, database, log, counters, commits))
    }

    /// The journal's file with every commit, and without a log.
    fn settled(&self) -> Result<Database, JournalError> {
        let path = &self.path;
        let database = open_checked(path, &self.meter)?;
        let reported = |log| self.reported.or_else(|| self.counters.read(log));
        let (head, last, changes) = in_log(path, &database, reported)?;
        let database = match (self.meter.sync_failed.load(Ordering::Relaxed), head.log) {
            (true, _) => self.rewritten(database, last, changes)?,
            (false, Some(_)) => {
                guarded(path, "bring in the newest commits", || {
                    contents::checkpoint(&database, last, &changes, None)
                })?;
                database
            }
            (false, None) => database,
        };
        if let Some(log) = head.log {
            self.counters.end(log);
        }
        Ok(database)
    }

    /// After a failed sync the kernel may count pages as clean that never reached the disk, and a
    /// later sync of the same file would then succeed without them. A new file has no such pages.
    fn rewritten(
        &self,
        old: Database,
        last: u64,
        changes: Changes,
    ) -> Result<Database, JournalError> {
        let path = &self.path;
        let mut contents = guarded(path, "read", || contents::read(&old))?;
        changes.apply(&mut contents);
        contents.commits = last;
        drop(old);
        let failed = |it| self.meter.sync_failed.store(it, Ordering::Relaxed);
        failed(false);
        write_whole(path, &contents, &self.meter).inspect_err(|_| failed(true))?;
        open_checked(path, &self.meter)
    }
}

/// What the log has and this file lacks, and the number of the newest commit. `reported`: the newest commit that was
/// reported, of the log with this identity.
fn in_log(
    path: &Path,
    database: &impl ReadableDatabase,
    reported: impl Fn(u64) -> Option<u64>,
) -> Result<(Head, u64, Changes), JournalError> {
    let head = guarded(path, "read", || contents::head(database))?;
    let mut changes = Changes::default();
    let Some(log) = head.log else {
        log::refuse_newer(path, head.commits)?;
        return Ok((head, head.commits, changes));
    };
    let frames = log::read(path, log, head.commits, reported(log))?;
    let last = frames.last().map_or(head.commits, |(number, _)| *number);
    for (number, payload) in frames {
        let later = Changes::decode(&payload)
            .map_err(|error| JournalError::damaged(path, format!("commit {number}: {error}")))?;
        changes.add(later);
    }
    Ok((head, last, changes))
}

/// Reads a journal that its process has closed, and changes nothing.
pub(super) fn look(path: &Path) -> Result<Recovered, JournalError> {
    let database = open_read_only(path)?;
    let (_, last, changes) = in_log(path, &database, |_| None)?;
    let mut found = guarded(path, "read", || contents::read(&database))?;
    changes.apply(&mut found);
    found.commits = last;
    Ok(found)
}

/// Locks a file of its own, because the journal's file is sometimes replaced.
fn take_lock(path: &Path) -> Result<File, JournalError> {
    let at = sibling(path, ".lock");
    let failed = |step, error| JournalError::io(path, format!("{step} {}", at.display()), error);
    let file = open_lock(&at).map_err(|error| failed("open", error))?;
    let patience_ends = Instant::now() + GOES_WITHIN;
    loop {
        let holder = FileBytes::ALL
            .try_lock(&file)
            .map_err(|error| failed("lock", error))?;
        let Some(holder) = holder else {
            return Ok(file);
        };
        let left = patience_ends.saturating_duration_since(Instant::now());
        if holder.as_raw() == 0 {
            let elsewhere = io::Error::other("its holder is in another PID namespace");
            return Err(failed("lock", elsewhere));
        }
        let process = match Pidfd::open(holder) {
            // The holder has ended meanwhile.
            Err(Errno::ESRCH) => continue,
            opened => opened.map_err(|error| failed("find the holder of", error.into()))?,
        };
        let ended = process.ends_within(left);
        if !ended.map_err(|error| failed("wait for the holder of", error))? {
            return Err(JournalError::InUse {
                path: path.to_owned(),
                holder: holder.as_raw(),
            });
        }
    }
}
