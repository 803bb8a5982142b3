//! The directory where container engines look for specifications of devices (Container Device Interface).

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use nix::{
    sys::statfs::{TMPFS_MAGIC, statfs},
    unistd::Uid,
};

use crate::config::Settings;

/// Where container engines look if nothing is set.
const DIRECTORY: &str = "/run/cdi";

/// Mode bits for writing by others.
const WRITES: u32 = 0o022;

/// The directory of `--cdi-dir`, made if it is missing. A specification names devices of the machine and programs that run as
/// root: it must not outlive a reboot, and nobody else may write one.
///
/// # Errors
/// It is no tmpfs, or another user owns it or can write to it.
pub(crate) fn directory(settings: &Settings) -> anyhow::Result<PathBuf> {
    let directory = settings.cdi_dir.clone();
    let directory = directory.unwrap_or_else(|| DIRECTORY.into());
    check(&directory).with_context(|| format!("--cdi-dir {}", directory.display()))?;
    Ok(directory)
}

fn check(directory: &Path) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)?;
    check_owner(directory, Uid::effective())?;
    if statfs(directory)?.filesystem_type() != TMPFS_MAGIC {
        bail!("it must be a tmpfs, which a reboot empties");
    }
    Ok(())
}

fn check_owner(directory: &Path, us: Uid) -> anyhow::Result<()> {
    let found = fs::metadata(directory)?;
    if found.uid() != 0 && found.uid() != us.as_raw() {
        bail!(
            "it belongs to user {}, who could give containers any device: chown it to root, or choose another",
            found.uid()
        );
    }
    if found.mode() & WRITES != 0 {
        bail!(
            "its mode is {:o}, so other users could give containers any device: chmod it to 755, or choose another",
            found.mode() & 0o7777
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_that_others_own_or_write_to_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let owner = Uid::from_raw(fs::metadata(&directory).unwrap().uid());
        let set = |mode| fs::set_permissions(&directory, fs::Permissions::from_mode(mode));
        let check = |us| check_owner(directory.path(), us).map_err(|error| error.to_string());
        for mode in [0o755, 0o700] {
            set(mode).unwrap();
            check(owner).unwrap();
        }
        for mode in [0o775, 0o757, 0o1777] {
            set(mode).unwrap();
            let error = check(owner).unwrap_err();
            assert!(error.contains(&format!("{mode:o}")), "{error}");
        }
        set(0o755).unwrap();
        // Nobody can make a directory another user's but root, who may give it away.
        if owner.is_root() {
            std::os::unix::fs::chown(&directory, Some(12345), None).unwrap();
        }
        let stranger = Uid::from_raw(54321);
        let error = check(stranger).unwrap_err();
        assert!(error.contains("belongs to user"), "{error}");
    }
}
