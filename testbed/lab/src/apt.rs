//! The lab's own apt: its own sources, package lists and cache, under the target directory.
//!
//! It never writes to the user's apt configuration. The sources are derived from the system's own
//! (see [`crate::sources`]); the installed-package database is the system's.

use crate::process::{capture, run_logged};
use crate::system::{self, System};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A private apt configuration.
#[derive(Debug)]
pub(crate) struct Apt {
    configuration: PathBuf,
    log: PathBuf,
}

impl Apt {
    /// The configuration under `directory`, whether or not it is in place.
    pub(crate) fn at(directory: &Path, log: &Path) -> Self {
        Self {
            configuration: directory.join("apt.conf"),
            log: log.to_owned(),
        }
    }

    /// Writes the configuration under `directory` and brings its package lists up to date.
    pub(crate) fn prepare(directory: &Path, log: &Path, system: &System) -> Result<Self> {
        let apt = Self::configure(directory, log, system)?;
        run_logged(&mut apt.update(), log)?;
        Ok(apt)
    }

    fn configure(directory: &Path, log: &Path, system: &System) -> Result<Self> {
        let own = crate::sources::derive(&system::apt_sources()?, &system.codename).with_context(|| {
            format!(
                "no entry under /etc/apt is Debian's own archive for {}: add it to your apt sources",
                system.codename
            )
        })?;
        for part in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(directory.join(part))?;
        }
        std::fs::write(directory.join("lab.sources"), own)?;
        let apt = Self::at(directory, log);
        std::fs::write(&apt.configuration, configuration_text(directory))?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("LC_ALL", "C.UTF-8")
            .arg("-c")
            .arg(&self.configuration);
        command
    }

    /// The command that brings the private package lists up to date.
    pub(crate) fn update(&self) -> Command {
        let mut command = self.command("apt-get");
        command.arg("update");
        command
    }

    /// Names of the packages that match a regular expression.
    pub(crate) fn names(&self, pattern: &str) -> Result<Vec<String>> {
        let mut command = self.command("apt-cache");
        let found = capture(command.args(["search", "--names-only", pattern]))?;
        Ok(found
            .lines()
            .filter_map(|line| line.split(' ').next())
            .map(str::to_owned)
            .collect())
    }

    /// Downloads one package file into `directory` without installing it.
    pub(crate) fn download(&self, package: &str, directory: &Path) -> Result<PathBuf> {
        let mut command = self.command("apt-get");
        run_logged(
            command.args(["download", package]).current_dir(directory),
            &self.log,
        )?;
        let mut entries =
            std::fs::read_dir(directory)?.filter_map(|entry| Some(entry.ok()?.path()));
        let is_package = |path: &PathBuf| path.extension().is_some_and(|end| end == "deb");
        entries.find(is_package).with_context(|| {
            format!(
                "apt-get download {package} left no file in {}",
                directory.display()
            )
        })
    }

    /// The command that installs packages from the release's backports.
    pub(crate) fn install_backported(&self, packages: &[&str], system: &System) -> Command {
        let mut command = self.command("apt-get");
        let suite = format!("{}-backports", system.codename);
        command
            .args(["install", "--yes", "--no-install-recommends", "-t", &suite])
            .args(packages);
        command
    }
}

fn configuration_text(directory: &Path) -> String {
    let at = directory.display();
    // Lists and cache are ours; the database of installed packages is the system's. The
    // unprivileged download user may have no access to the target directory. The system's hooks
    // after an update concern only its own lists.
    format!(
        "Dir::Etc::sourcelist \"{at}/lab.sources\";\n\
         Dir::Etc::sourceparts \"/dev/null\";\n\
         Dir::State::lists \"{at}/lists\";\n\
         Dir::Cache \"{at}/cache\";\n\
         Dir::Cache::archives \"{at}/cache/archives\";\n\
         Dir::Cache::pkgcache \"{at}/cache/pkgcache.bin\";\n\
         Dir::Cache::srcpkgcache \"{at}/cache/srcpkgcache.bin\";\n\
         APT::Sandbox::User \"root\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
         #clear APT::Update::Pre-Invoke;\n\
         #clear APT::Update::Post-Invoke;\n\
         #clear APT::Update::Post-Invoke-Success;\n"
    )
}

/// The command that installs packages with the user's own apt configuration.
pub(crate) fn install(packages: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command
        .args(["install", "--yes", "--no-install-recommends"])
        .args(packages);
    command
}
