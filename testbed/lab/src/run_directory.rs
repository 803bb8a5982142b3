//! The directory of one boot on the host: its logs, its shared files, its exit code.
//!
//! A successful run removes its directory; of the failed runs the newest are kept.

use crate::machine::Files;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// How many failed runs are kept.
const KEPT: usize = 30;

#[derive(Debug, Clone)]
pub(crate) struct RunDirectory {
    path: PathBuf,
    name: String,
    nonce: String,
}

impl RunDirectory {
    pub(crate) fn create(logs: &Path, name: &str) -> Result<Self> {
        std::fs::create_dir_all(logs)?;
        prune(logs)?;
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        // Makes names unique: two lanes can begin in the same microsecond.
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let nonce = format!("{}-{}-{run}", since.as_micros(), std::process::id());
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '_'
            }
        };
        let file_name: String = name.chars().map(plain).take(60).collect();
        let path = logs.join(format!("{file_name}-{nonce}"));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        std::fs::create_dir(path.join("share"))?;
        Ok(Self {
            path,
            name: name.to_owned(),
            nonce,
        })
    }

    /// The files of one boot; `shared` is the run whose shared directory it uses.
    pub(crate) fn files(&self, kernel: &Path, shared: &Path) -> Files {
        Files {
            kernel: kernel.to_owned(),
            initramfs: self.initramfs(),
            share: shared.join("share"),
            console: self.console_log(),
            exit: self.exit_file(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn nonce(&self) -> &str {
        &self.nonce
    }

    pub(crate) fn initramfs(&self) -> PathBuf {
        self.path.join("initramfs.cpio")
    }

    pub(crate) fn console_log(&self) -> PathBuf {
        self.path.join("console.log")
    }

    pub(crate) fn output_log(&self) -> PathBuf {
        self.path.join("output.log")
    }

    pub(crate) fn qemu_log(&self) -> PathBuf {
        self.path.join("qemu.log")
    }

    pub(crate) fn exit_file(&self) -> PathBuf {
        self.path.join("exit")
    }

    /// Removes the files that do not help to find the cause of a failure: after success, the whole directory.
    pub(crate) fn close(&self, succeeded: bool) -> Result<()> {
        let removed = if succeeded {
            std::fs::remove_dir_all(&self.path)
        } else {
            std::fs::remove_file(self.initramfs())
        };
        removed.with_context(|| format!("cannot tidy up {}", self.path.display()))
    }
}

fn prune(logs: &Path) -> Result<()> {
    let entries = std::fs::read_dir(logs)?.filter_map(Result::ok);
    let directories = entries.filter(|entry| entry.path().join("share").is_dir());
    let mut aged: Vec<(SystemTime, PathBuf)> = directories
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    aged.sort();
    let excess = aged.len().saturating_sub(KEPT);
    for (_, path) in &aged[..excess] {
        // Another run may remove the same directories.
        if let Err(error) = std::fs::remove_dir_all(path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("cannot remove {}", path.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_leaves_nothing_and_failure_leaves_the_logs() {
        let logs = tempfile::tempdir().unwrap();
        for (succeeded, left) in [(true, 0), (false, 1)] {
            let run = RunDirectory::create(logs.path(), "a suite/with odd name").unwrap();
            std::fs::write(run.initramfs(), "x").unwrap();
            std::fs::write(run.console_log(), "x").unwrap();
            run.close(succeeded).unwrap();
            assert_eq!(std::fs::read_dir(logs.path()).unwrap().count(), left);
            assert_eq!(run.console_log().exists(), !succeeded);
        }
    }

    #[test]
    fn old_failures_make_room_for_new_ones() {
        let logs = tempfile::tempdir().unwrap();
        for _ in 0..KEPT + 5 {
            RunDirectory::create(logs.path(), "run").unwrap();
        }
        assert_eq!(std::fs::read_dir(logs.path()).unwrap().count(), KEPT + 1);
    }
}
