//! The journal's file below its log: a database of redb.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use fabricbios_lease::OtherFormat;
use redb::{Builder, Database, DatabaseError, ReadOnlyDatabase, ReadableDatabase};

use super::{
    JournalError, Recovered, contents,
    meter::{Meter, Metered},
};

/// redb's default is one gibibyte. The journal is read once, so a cache only helps commits.
const CACHE_BYTES: usize = 16 << 20;

/// The path with this at its end.
pub(super) fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes the names of the files beside this one durable.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Writes a complete file under another name and moves it into place, so that at every moment
/// `path` is a whole journal or absent.
pub(super) fn write_whole(
    path: &Path,
    contents: &Recovered,
    meter: &Arc<Meter>,
) -> Result<(), JournalError> {
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
    fs::rename(&at, path)
        .and_then(|()| sync_directory(path))
        .map_err(|e| JournalError::io(path, "move the file into place", e))
}

/// Opens a journal that its process has closed, and changes nothing.
pub(super) fn open_read_only(path: &Path) -> Result<ReadOnlyDatabase, JournalError> {
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
    Ok(database)
}

pub(super) fn open_checked(path: &Path, meter: &Arc<Meter>) -> Result<Database, JournalError> {
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
    let head = guarded(path, "read the format", || contents::head(database))?;
    OtherFormat::refuse(head.format).map_err(|why| JournalError::OtherFormat {
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
pub(super) fn guarded<T>(
    path: &Path,
    step: &str,
    act: impl FnOnce() -> Result<T, redb::Error>,
) -> Result<T, JournalError> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(result) => result.map_err(|e| JournalError::redb(path, step, e)),
        Err(_panic) => Err(JournalError::damaged(path, format!("{step}: redb gave up"))),
    }
}
