//! The journal's file: opens, checks and reads it, and commits groups.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use fabricbios_helper::{FileBytes, Pidfd};
use fabricbios_lease::OtherFormat;
use nix::errno::Errno;
use redb::{Builder, Database, DatabaseError, ReadableDatabase};

use super::{
    Group, JournalError, Key, Recovered,
    contents::{self, Boot},
    meter::{Meter, Metered},
};
use crate::process::state_dir::open_lock;

/// redb's default is one gibibyte. The journal is read once, so a cache only helps commits.
const CACHE_BYTES: usize = 16 << 20;

/// How long the process of an earlier daemon may take to write its last group and end.
const GOES_WITHIN: Duration = Duration::from_secs(5);

pub(super) struct Store {
    path: PathBuf,
    meter: Arc<Meter>,
    /// `None` after a failed commit: redb refuses a handle after an I/O error.
    database: Option<Database>,
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
        boot_id: &str,
        meter: Arc<Meter>,
    ) -> Result<(Self, Recovered), JournalError> {
        let lock = take_lock(path)?;
        if !path
            .try_exists()
            .map_err(|e| JournalError::io(path, "look for the file", e))?
        {
            write_whole(path, &Recovered::default(), &meter)?;
        }
        let database = open_checked(path, &meter)?;
        let mut found = guarded(path, "read", || contents::read(&database))?;
        found.epoch.0 += 1;
        guarded(
            path,
            "write down this start (it takes some free space)",
            || contents::write_start(&database, &found),
        )?;
        let store = Self {
            path: path.to_owned(),
            meter,
            database: Some(database),
            boot_id: Some(boot_id.to_owned()),
            _lock: lock,
        };
        Ok((store, found))
    }

    /// Replaces a process that has ended. Opens the file at the first commit; returns no records.
    pub(super) fn resume(
        path: &Path,
        boot_id: &str,
        meter: Arc<Meter>,
    ) -> Result<(Self, Recovered), JournalError> {
        // A sync of the ended process may have failed.
        meter.sync_failed.store(true, Ordering::Relaxed);
        let store = Self {
            _lock: take_lock(path)?,
            path: path.to_owned(),
            meter,
            database: None,
            // The ended process may have written it; to write it again changes nothing.
            boot_id: Some(boot_id.to_owned()),
        };
        Ok((store, Recovered::default()))
    }

    /// Commits one transaction; `Ok`: it is durable, with this number. After an error the next call opens the file
    /// anew. The group may or may not be in the file: retry it.
    pub(super) fn commit(&mut self, group: &Group) -> Result<u64, JournalError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => self.reopen()?,
        };
        let is_of_boot = |key: &Key| matches!(key, Key::Lease(_) | Key::Fence(_));
        let boot_id = self.boot_id.take_if(|_| group.keys().any(is_of_boot));
        let number = guarded(&self.path, "commit", || {
            let boot = match (&boot_id, &self.boot_id) {
                (Some(first), _) => Boot::Begins(first),
                (None, None) => Boot::GoesOn,
                (None, Some(_)) => Boot::IsNotWritten,
            };
            contents::write_group(&database, group, boot)
        });
        if number.is_err() {
            self.boot_id = self.boot_id.take().or(boot_id);
        }
        let number = number?;
        self.database = Some(database);
        self.meter.counts().commits += 1;
        Ok(number)
    }

    fn reopen(&self) -> Result<Database, JournalError> {
        if self.meter.sync_failed.load(Ordering::Relaxed) {
            self.rewrite()?;
        }
        open_checked(&self.path, &self.meter)
    }

    /// After a failed sync the kernel may count pages as clean that never reached the disk, and a
    /// later sync of the same file would then succeed without them. A new file has no such pages.
    fn rewrite(&self) -> Result<(), JournalError> {
        let contents = {
            let old = open_checked(&self.path, &self.meter)?;
            guarded(&self.path, "read", || contents::read(&old))?
        };
        let failed = |it| self.meter.sync_failed.store(it, Ordering::Relaxed);
        failed(false);
        write_whole(&self.path, &contents, &self.meter).inspect_err(|_| failed(true))
    }
}

/// Reads a journal that its process has closed, and changes nothing.
pub(super) fn look(path: &Path) -> Result<Recovered, JournalError> {
    let found = fs::metadata(path).map_err(|e| JournalError::io(path, "open", e))?;
    refuse_empty(path, &found)?;
    let opened = guarded(path, "open", || match builder().open_read_only(path) {
        Err(DatabaseError::RepairAborted) => Ok(None),
        opened => Ok(Some(opened?)),
    });
    let database = opened?.ok_or_else(|| JournalError::NeedsRepair {
        path: path.to_owned(),
    })?;
    check_format(path, &database)?;
    guarded(path, "read", || contents::read(&database))
}

fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
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

/// Writes a complete file under another name and moves it into place, so that at every moment
/// `path` is a whole journal or absent.
fn write_whole(path: &Path, contents: &Recovered, meter: &Arc<Meter>) -> Result<(), JournalError> {
    let at = sibling(path, ".new");
    let mut open = OpenOptions::new();
    open.read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600);
    let file = open
        .open(&at)
        .map_err(|e| JournalError::io(path, "make the file", e))?;
    guarded(path, "write the file", || {
        let database = builder().create_with_backend(Metered::new(file, Arc::clone(meter))?)?;
        contents::write_contents(&database, contents)
    })?;
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    fs::rename(&at, path)
        .and_then(|()| File::open(directory.unwrap_or(Path::new(".")))?.sync_all())
        .map_err(|e| JournalError::io(path, "move the file into place", e))
}

fn open_checked(path: &Path, meter: &Arc<Meter>) -> Result<Database, JournalError> {
    let open = OpenOptions::new().read(true).write(true).open(path);
    let file = open.map_err(|e| JournalError::io(path, "open", e))?;
    let found = file
        .metadata()
        .map_err(|e| JournalError::io(path, "open", e))?;
    refuse_empty(path, &found)?;
    let (database, whole) = guarded(path, "open", || {
        let mut database = builder().create_with_backend(Metered::new(file, Arc::clone(meter))?)?;
        let whole = database.check_integrity()?;
        Ok((database, whole))
    })?;
    if !whole {
        return Err(JournalError::damaged(path, "checksums do not match"));
    }
    check_format(path, &database)?;
    Ok(database)
}

/// redb would take an empty file for a new one.
fn refuse_empty(path: &Path, found: &Metadata) -> Result<(), JournalError> {
    match found.len() {
        0 => Err(JournalError::damaged(path, "the file is empty")),
        _ => Ok(()),
    }
}

fn check_format(path: &Path, database: &impl ReadableDatabase) -> Result<(), JournalError> {
    let found = guarded(path, "read the format", || contents::format_of(database))?;
    OtherFormat::refuse(found).map_err(|why| JournalError::OtherFormat {
        path: path.to_owned(),
        why,
    })
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Runs redb and turns a panic into an error: redb can panic on a damaged file.
fn guarded<T>(
    path: &Path,
    step: &str,
    act: impl FnOnce() -> Result<T, redb::Error>,
) -> Result<T, JournalError> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(result) => result.map_err(|e| JournalError::redb(path, step, e)),
        Err(_panic) => Err(JournalError::damaged(path, format!("{step}: redb gave up"))),
    }
}
