//! The directory where container engines look for specifications of devices (Container Device Interface).

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use fabricbios_local::{check_absolute, check_directory};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use crate::kinds::settings::SharedSettings;

/// The default directory.
const DIRECTORY: &str = "/run/cdi";

/// The directory of `--cdi-dir`, made if it is missing. A specification names devices of the machine and programs that
/// run as root: it must not outlive a reboot, and no other user may write one.
///
/// # Errors
/// The directory is no tmpfs, or another user owns it or can write to it or above it.
pub(crate) fn directory(settings: &SharedSettings) -> anyhow::Result<PathBuf> {
    let directory = named(settings);
    let made = || {
        check_absolute(&directory)?;
        if !directory.exists() {
            let mut make = DirBuilder::new();
            make.recursive(true).mode(0o755).create(&directory)?;
        }
        suits(&directory)
    };
    made().with_context(|| format!("--cdi-dir {}", directory.display()))?;
    Ok(directory)
}

/// Checks the directory of `--cdi-dir` and does not create it.
///
/// # Errors
/// See [`directory`].
pub(crate) fn check(settings: &SharedSettings) -> anyhow::Result<()> {
    let directory = named(settings);
    let checked = match directory.exists() {
        true => suits(&directory),
        false => check_absolute(&directory)
            .map_err(Into::into)
            .and_then(|()| check_tmpfs(existing(&directory))),
    };
    checked.with_context(|| format!("--cdi-dir {}", directory.display()))
}

pub(crate) fn named(settings: &SharedSettings) -> PathBuf {
    let directory = settings.cdi_dir.clone();
    directory.unwrap_or_else(|| DIRECTORY.into())
}

fn suits(directory: &Path) -> anyhow::Result<()> {
    check_directory(
        directory,
        "give containers any device: choose a tmpfs where only root writes, such as /run/cdi",
    )?;
    check_tmpfs(directory)
}

fn check_tmpfs(directory: &Path) -> anyhow::Result<()> {
    if statfs(directory)?.filesystem_type() != TMPFS_MAGIC {
        bail!("it must be in a tmpfs, which a reboot empties");
    }
    Ok(())
}

/// The directory, or the nearest existing directory above it.
fn existing(directory: &Path) -> &Path {
    let mut all = directory.ancestors();
    all.find(|it| it.exists()).unwrap_or(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_does_not_suit_is_refused_with_the_name_of_the_setting() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (given, why) in [
            (Path::new(""), "the path is not absolute"),
            (Path::new("relative"), "the path is not absolute"),
            (&*file, "is no directory"),
        ] {
            let settings = SharedSettings {
                cdi_dir: Some(given.to_owned()),
                ..SharedSettings::default()
            };
            let error = format!("{:#}", directory(&settings).unwrap_err());
            assert!(
                error.contains("--cdi-dir") && error.contains(why),
                "{error}"
            );
        }
        assert!(!Path::new("relative").exists());
    }

    /// The check examines the directory above and creates nothing.
    #[test]
    fn a_directory_to_be_made_outside_a_tmpfs_is_refused() {
        let settings = SharedSettings {
            cdi_dir: Some("/proc/cdi/below".into()),
            ..SharedSettings::default()
        };
        let error = format!("{:#}", check(&settings).unwrap_err());
        assert!(error.contains("tmpfs"), "{error}");
    }
}
