//! Calls to a file system of cgroups.

use std::{
    fmt, fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use fabricbios_kernfs::{Error, Mount, Tree, mounts};
use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::programs::carry_over;

/// The calls to a file system of cgroups; a test implements them on its own kernel. Paths are relative to the mount.
pub trait Cgroupfs: fmt::Debug + Send + Sync + 'static {
    /// The mount point.
    fn mount(&self) -> &Path;

    /// Reads a file.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    fn read(&self, path: &str) -> Result<String, Error>;

    /// Writes a value to a file.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    fn write(&self, path: &str, value: &str) -> Result<(), Error>;

    /// Whether a file or a cgroup exists at the path.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    fn exists(&self, path: &str) -> Result<bool, Error>;

    /// The names of the files and cgroups in a cgroup.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    fn list(&self, path: &str) -> Result<Vec<String>, Error>;

    /// Makes a cgroup.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    fn mkdir(&self, path: &str) -> Result<(), Error>;

    /// Removes an empty cgroup.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    fn rmdir(&self, path: &str) -> Result<(), Error>;

    /// Attaches to the cgroup `to` every program that limits the processes of the cgroup `from`: which devices they may
    /// open, which addresses they may use.
    ///
    /// # Errors
    /// A program cannot be listed, opened or attached.
    fn carry_over(&self, from: &str, to: &str) -> io::Result<()>;
}

impl Cgroupfs for Tree {
    fn mount(&self) -> &Path {
        self.root()
    }

    fn read(&self, path: &str) -> Result<String, Error> {
        Self::read(self, path)
    }

    fn write(&self, path: &str, value: &str) -> Result<(), Error> {
        Self::write(self, path, value)
    }

    fn exists(&self, path: &str) -> Result<bool, Error> {
        Self::exists(self, path)
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Error> {
        Self::list(self, path)
    }

    fn mkdir(&self, path: &str) -> Result<(), Error> {
        Self::mkdir(self, path)
    }

    fn rmdir(&self, path: &str) -> Result<(), Error> {
        Self::rmdir(self, path)
    }

    fn carry_over(&self, from: &str, to: &str) -> io::Result<()> {
        carry_over(&self.root().join(from), &self.root().join(to))
    }
}

/// Why a path in the settings can have no cgroups of leases.
#[derive(Debug, thiserror::Error)]
pub enum NoRoot {
    /// The host was booted with cgroup v1.
    #[error(
        "{}: this host has cgroup v1, and these leases need cgroup v2: boot it with systemd.unified_cgroup_hierarchy=1",
        .0.display()
    )]
    V1(PathBuf),
    /// No cgroup v2 is there.
    #[error("{}: no file system of cgroup v2 is mounted there: mount one, or name a path in it", .0.display())]
    NotMounted(PathBuf),
    /// The path is this mount itself.
    #[error("{}: name a cgroup below the mount {}", .0.display(), .1.display())]
    IsMount(PathBuf, PathBuf),
}

/// The cgroup below which a node makes the cgroups of its leases.
#[derive(Clone, Debug)]
pub struct Root {
    fs: Arc<dyn Cgroupfs>,
    /// Path of the cgroup, relative to the mount.
    at: String,
    /// The steps of the kind, for the test hook.
    steps: &'static [&'static str],
}

impl Root {
    /// The cgroup at an absolute path such as `/sys/fs/cgroup/fabricbios-1a2b3c4d`, which need not exist.
    ///
    /// # Errors
    /// The path is in no file system of cgroup v2.
    pub fn at(path: &Path) -> Result<Self, NoRoot> {
        let (mount, at) = mount_of(path, &mounts())?;
        Ok(Self::of(Arc::new(Tree::new(mount)), at))
    }

    /// The cgroup `at` (relative to the mount) of a file system.
    #[must_use]
    pub fn of(fs: Arc<dyn Cgroupfs>, at: impl Into<String>) -> Self {
        Self {
            fs,
            at: at.into(),
            steps: &[],
        }
    }

    /// The same cgroup for a kind with these steps: a test lets the daemon die after each step.
    #[must_use]
    pub fn with_steps(self, steps: &'static [&'static str]) -> Self {
        Self { steps, ..self }
    }

    /// Test hook: the step is done.
    pub fn passed(&self, step: &'static str) {
        fabricbios_kernfs::step_passed(self.steps, step);
    }

    /// The absolute path of a cgroup below the root, for people.
    #[must_use]
    pub fn path(&self, below: &str) -> PathBuf {
        let path = self.fs.mount().join(&self.at);
        if below.is_empty() {
            path
        } else {
            path.join(below)
        }
    }

    /// The file system. Its paths are relative to the mount, see [`Root::name`].
    #[must_use]
    pub fn fs(&self) -> &dyn Cgroupfs {
        &*self.fs
    }

    /// The path of a cgroup below the root, relative to the mount.
    #[must_use]
    pub fn name(&self, below: &str) -> String {
        match below {
            "" => self.at.clone(),
            below => join(&self.at, below),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    pub fn read(&self, step: &'static str, file: &str) -> Result<String, StepError> {
        let read = self.fs.read(&self.name(file));
        read.map_err(|error| failed(step, &error))
    }

    /// Writes a value to a file. This is a step of the kind.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    pub fn write(&self, step: &'static str, file: &str, value: &str) -> Result<(), StepError> {
        let written = self.fs.write(&self.name(file), value);
        written.map_err(|error| failed(step, &error))?;
        self.passed(step);
        Ok(())
    }

    /// Whether a file or a cgroup exists at the path.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    pub fn exists(&self, step: &'static str, below: &str) -> Result<bool, StepError> {
        let found = self.fs.exists(&self.name(below));
        found.map_err(|error| failed(step, &error))
    }

    /// Makes a cgroup. This is a step of the kind.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    pub fn mkdir(&self, step: &'static str, below: &str) -> Result<(), StepError> {
        let made = self.fs.mkdir(&self.name(below));
        made.map_err(|error| failed(step, &error))?;
        self.passed(step);
        Ok(())
    }

    /// Removes a cgroup and the cgroups in it; the root user of a lease may have made some.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    pub fn remove(&self, step: &'static str, below: &str) -> Result<(), StepError> {
        for child in self.children(step, below)? {
            self.remove(step, &child)?;
        }
        let gone = self.fs.rmdir(&self.name(below));
        gone.map_err(|error| failed(step, &error))?;
        self.passed(step);
        Ok(())
    }

    /// The cgroups directly in a cgroup.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    pub fn children(&self, step: &'static str, below: &str) -> Result<Vec<String>, StepError> {
        let names = self.fs.list(&self.name(below));
        let names = names.map_err(|error| failed(step, &error))?;
        let mut children = Vec::new();
        for name in names {
            let child = join(below, &name);
            if self.exists(step, &format!("{child}/cgroup.procs"))? {
                children.push(child);
            }
        }
        Ok(children)
    }

    /// The processes of a cgroup and of the cgroups in it.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    pub fn members(&self, step: &'static str, below: &str) -> Result<Vec<i32>, StepError> {
        let own = self.read(step, &format!("{below}/cgroup.procs"))?;
        let mut members: Vec<i32> = own.lines().filter_map(|line| line.parse().ok()).collect();
        for child in self.children(step, below)? {
            members.extend(self.members(step, &child)?);
        }
        Ok(members)
    }

    /// Whether the cgroup or a cgroup in it has a process.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    pub fn is_populated(&self, step: &'static str, below: &str) -> Result<bool, StepError> {
        let events = self.read(step, &format!("{below}/cgroup.events"))?;
        match events
            .lines()
            .find_map(|line| line.strip_prefix("populated "))
        {
            Some("0") => Ok(false),
            Some("1") => Ok(true),
            _ => {
                let at = self.path(below);
                let why = format_args!(
                    "{}/cgroup.events: no `populated` in `{events}`",
                    at.display()
                );
                Err(StepError::new(step, why))
            }
        }
    }

    /// Waits, at most `longest`, for a change between having processes and having none. May return early.
    ///
    /// # Errors
    /// `cgroup.events` cannot be read or polled.
    pub fn wait(
        &self,
        step: &'static str,
        below: &str,
        longest: Duration,
    ) -> Result<(), StepError> {
        let at = self.path(below).join("cgroup.events");
        let error =
            |why: &dyn fmt::Display| StepError::new(step, format_args!("{}: {why}", at.display()));
        let events = fs::File::open(&at).map_err(|why| error(&why))?;
        // Only a change after this read wakes the poll. The caller has checked the state before.
        let _now = std::io::read_to_string(&events).map_err(|why| error(&why))?;
        let timeout = PollTimeout::try_from(longest).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
        poll(&mut fds, timeout).map_err(|why| error(&why))?;
        Ok(())
    }

    /// The leases that have a cgroup with this prefix, each with its cgroup.
    ///
    /// # Errors
    /// The call fails; the error names the path and the errno.
    pub fn of_leases(
        &self,
        step: &'static str,
        parent: &str,
        prefix: &str,
    ) -> Result<Vec<(LeaseId, String)>, StepError> {
        if !self.exists(step, parent)? {
            return Ok(Vec::new());
        }
        let names = self.fs.list(&self.name(parent));
        let names = names.map_err(|error| failed(step, &error))?;
        let lease = |name: &String| {
            let id = name.strip_prefix(prefix)?.parse().ok()?;
            Some((id, join(parent, name)))
        };
        Ok(names.iter().filter_map(lease).collect())
    }
}

/// Prefix of the cgroups of leases.
pub const LEASE: &str = "lease-";

/// The path of `name` in the cgroup `at`; an empty `at` is the mount.
#[must_use]
pub fn join(at: &str, name: &str) -> String {
    match at {
        "" => name.to_owned(),
        at => format!("{at}/{name}"),
    }
}

/// Converts the error of a call to the error of a step.
#[must_use]
pub fn failed(step: &'static str, error: &Error) -> StepError {
    StepError::new(step, error).with_errno(error.errno())
}

/// The cgroup v2 mount that contains the path, and the path relative to that mount.
fn mount_of(path: &Path, mounts: &[Mount]) -> Result<(PathBuf, String), NoRoot> {
    let of_cgroups = |mount: &&Mount| mount.kind == "cgroup2" && path.starts_with(&mount.place);
    let longest = |mount: &&Mount| mount.place.as_os_str().len();
    let Some(mount) = mounts.iter().filter(of_cgroups).max_by_key(longest) else {
        return Err(match mounts.iter().any(|mount| mount.kind == "cgroup") {
            true => NoRoot::V1(path.into()),
            false => NoRoot::NotMounted(path.into()),
        });
    };
    let below = path.strip_prefix(&mount.place).ok().and_then(Path::to_str);
    match below {
        Some(below) if !below.is_empty() => Ok((mount.place.clone(), below.to_owned())),
        _ => Err(NoRoot::IsMount(path.into(), mount.place.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(text: &str) -> Vec<Mount> {
        fabricbios_kernfs::parse_mounts(text.as_bytes())
    }

    #[test]
    fn a_host_without_cgroup_v2_gets_a_clear_answer() {
        let path = Path::new("/sys/fs/cgroup/fabricbios-1");
        let v1 = mounts("1 2 0:1 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n");
        let why = mount_of(path, &v1).unwrap_err().to_string();
        assert!(
            why.contains("cgroup v1") && why.contains("unified_cgroup_hierarchy"),
            "{why}"
        );
        let why = mount_of(path, &[]).unwrap_err().to_string();
        assert!(why.contains("no file system of cgroup v2"), "{why}");
        let v2 = mounts("1 2 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        let (mount, at) = mount_of(path, &v2).unwrap();
        assert_eq!(
            (mount.to_str(), &*at),
            (Some("/sys/fs/cgroup"), "fabricbios-1")
        );
        let why = mount_of(Path::new("/sys/fs/cgroup"), &v2)
            .unwrap_err()
            .to_string();
        assert!(why.contains("below the mount"), "{why}");
    }
}
