//! Which pools the last run offered. One that it did not may hold what leases left that nobody has on
//! record any more: they were given up when their pool was not there.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::Path,
};

use anyhow::Context;

use crate::journal::FILE as JOURNAL;

/// Identities, in hex, a line each.
const FILE: &str = "pools.seen";

/// Whose pools are known.
#[derive(Debug, Default)]
pub(super) struct Seen(Vec<String>);

impl Seen {
    /// Of the last run; none before the first, and none where the journal that knew their leases is gone.
    pub(super) fn read(state_dir: &Path) -> anyhow::Result<Self> {
        if !state_dir.join(JOURNAL).exists() {
            return Ok(Self::default());
        }
        let path = state_dir.join(FILE);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Self(text.lines().map(str::to_owned).collect())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }

    pub(super) fn has(&self, identity: &str) -> bool {
        self.0.iter().any(|seen| seen == identity)
    }

    /// These are what this run offers. Durable when it returns, and whole at any time.
    pub(super) fn write(state_dir: &Path, identities: &[String]) -> anyhow::Result<()> {
        let (path, fresh) = (state_dir.join(FILE), state_dir.join("pools.seen.new"));
        let write = || {
            let mut file = File::create(&fresh)?;
            file.write_all(identities.join("\n").as_bytes())?;
            file.sync_all()?;
            fs::rename(&fresh, &path)?;
            File::open(state_dir)?.sync_all()
        };
        write().with_context(|| format!("write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_was_not_there_the_last_time_is_not_known() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        File::create(at.join(JOURNAL)).unwrap();
        assert!(!Seen::read(at).unwrap().has("a"));
        Seen::write(at, &["a".into(), "b".into()]).unwrap();
        assert!(Seen::read(at).unwrap().has("b"));
        Seen::write(at, &["a".into()]).unwrap();
        let seen = Seen::read(at).unwrap();
        assert!(seen.has("a") && !seen.has("b"));
    }

    #[test]
    fn without_the_journal_no_pool_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        Seen::write(at, &["a".into()]).unwrap();
        assert!(!Seen::read(at).unwrap().has("a"));
    }
}
