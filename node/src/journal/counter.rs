//! The number of the newest commit that was reported, in memory, where it outlives the daemon but not the boot.
//!
//! With it a start on the same boot knows whether the end of the log was ever reported (docs/decisions/0046).

use std::{
    env,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Where counters are. `None`: nothing is counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub(super) directory: Option<PathBuf>,
    pub(super) boot_id: String,
}

/// The counter of one log.
#[derive(Debug)]
pub(super) struct Counter {
    path: PathBuf,
    file: File,
    boot_id: String,
}

/// The directory that the service manager has made for the daemon in /run, and keeps over restarts.
pub(super) fn directory() -> Option<PathBuf> {
    let all = env::var_os("RUNTIME_DIRECTORY")?;
    // The unit may have more than one.
    let first = env::split_paths(&all).next()?;
    first.is_absolute().then_some(first)
}

impl Counters {
    fn path(&self, log: u64) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(format!("journal-{log:016x}")))
    }

    /// Begins to count the commits of this log; `None`: that is impossible, or not wanted.
    pub(super) fn begin(&self, log: u64) -> Option<Counter> {
        let path = self.path(log)?;
        let mut open = OpenOptions::new();
        let open = open.write(true).create_new(true).mode(0o600).open(&path);
        Some(Counter {
            file: open.ok()?,
            path,
            boot_id: self.boot_id.clone(),
        })
    }

    /// The newest commit of this log that was reported; `None`: this is not known.
    pub(super) fn read(&self, log: u64) -> Option<u64> {
        let text = fs::read_to_string(self.path(log)?).ok()?;
        let (number, boot_id) = text.trim_end().split_once(' ')?;
        (boot_id == self.boot_id).then(|| number.parse().ok())?
    }

    /// Forgets the counter of a log that is gone.
    pub(super) fn end(&self, log: u64) {
        if let Some(path) = self.path(log) {
            remove(&path).ok();
        }
    }
}

impl Counter {
    /// Counts a commit, before it is reported. Where this fails, the next start has no counter.
    ///
    /// # Errors
    /// The counter is too low and cannot be removed.
    pub(super) fn count(&mut self, number: u64) -> io::Result<()> {
        let line = format!("{number:020} {}\n", self.boot_id);
        self.file
            .write_all_at(line.as_bytes(), 0)
            .or_else(|_| remove(&self.path))
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
