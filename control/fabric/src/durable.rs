//! Files that are either whole or absent: written aside, synced, then renamed into place.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

/// Makes `path` hold `contents`, readable by its owner only. A crash leaves the old file or the
/// new one.
pub(crate) fn write_private(path: &Path, contents: &[u8]) -> io::Result<()> {
    let aside = aside(path);
    let written = write_new(&aside, contents).and_then(|()| rename(&aside, path));
    if written.is_err() {
        // The first error is reported. A temporary file that remains is harmless.
        fs::remove_file(&aside).ok();
    }
    written.and_then(|()| sync_parent(path))
}

/// Creates `path` if it does not exist, readable by its owner only.
pub(crate) fn make_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn aside(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{name}.{}.{count}.new", process::id()))
}

fn write_new(path: &Path, contents: &[u8]) -> io::Result<()> {
    // A file with this name is from a dead process with the same id.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(test)]
    faults::check(faults::Step::Rename, to)?;
    fs::rename(from, to)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    faults::check(faults::Step::Sync, path)?;
    match path.parent() {
        Some(parent) if parent != Path::new("") => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// A test names the step that fails in its thread.
#[cfg(test)]
pub(crate) mod faults {
    use std::{cell::Cell, io, path::Path};

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Step {
        Rename,
        Sync,
    }

    thread_local! {
        static FAILS: Cell<Option<(Step, &'static str)>> = const { Cell::new(None) };
    }

    /// Runs `what` while this step fails at files with this name.
    pub(crate) fn with<T>(step: Step, name: &'static str, what: impl FnOnce() -> T) -> T {
        FAILS.set(Some((step, name)));
        let outcome = what();
        FAILS.set(None);
        outcome
    }

    pub(super) fn check(step: Step, path: &Path) -> io::Result<()> {
        match FAILS.get() {
            Some((at, name)) if at == step && path.ends_with(name) => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_written_file_is_private_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        write_private(&path, b"one").unwrap();
        write_private(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_write_that_cannot_be_finished_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taken");
        fs::create_dir(&path).unwrap();
        write_private(&path, b"one").unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
