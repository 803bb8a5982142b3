//! The containers to which a container engine has given a device of a lease. The engine runs a hook before it starts
//! the container's program; the hook registers the container. The container ends with the lease: its control group is
//! frozen and killed.
//!
//! A lease has a directory with one file for each control group. A further file, [`OPEN`], says that the lease takes
//! containers. The hook writes its file first and then looks for [`OPEN`]; a cut removes [`OPEN`] first and then reads
//! the files. So at least one of the two sees the other, and neither waits for a lock.

mod register;

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use fabricbios_kernfs::{Tree, mounts};
use fabricbios_lease::{Proof, StepError};
use fabricbios_wire::LeaseId;
use rustix::{fs::getxattr, io::Errno};

use crate::{
    devices::allow_only,
    end::{end_killed, freeze_and_kill},
    enter::cgroup_of,
    records::failed,
    root::Root,
};

/// Suffix of the directory of a lease.
const SUFFIX: &str = ".containers";

/// Name of the file that says that the lease takes containers. Its text names the namespaces in which the daemon sees
/// processes and control groups.
const OPEN: &str = "open";

/// Extended attribute of a control group that is or was registered. A process in such a group may not enter a lease of
/// another kind.
const REGISTERED: &str = "trusted.fabricbios";

/// The containers of one lease.
#[derive(Clone, Debug)]
pub struct Containers {
    directory: PathBuf,
    steps: &'static [&'static str],
}

/// A registered control group.
struct Registered {
    /// The inode of its directory. The kernel gives this number to no other control group of this boot.
    id: u64,
    root: Root,
    /// Its name in `root`.
    below: String,
    file: PathBuf,
}

impl Registered {
    /// Whether the control group still exists. The engine removes an empty one.
    fn is_there(&self) -> bool {
        inode(&self.root.path(&self.below)).ok() == Some(self.id)
    }

    /// Its name in the form of /proc: from the mount on.
    fn name(&self) -> String {
        format!("/{}", self.root.name(&self.below))
    }
}

impl Containers {
    /// The containers of `lease`, in the directory of the records of its kind. `steps` are the steps of the kind; they
    /// include "take containers", "take no containers", "freeze", "kill" and "end containers".
    #[must_use]
    pub fn of(records: &Path, lease: LeaseId, steps: &'static [&'static str]) -> Self {
        Self {
            directory: records.join(format!("{lease}{SUFFIX}")),
            steps,
        }
    }

    fn passed(&self, step: &'static str) {
        fabricbios_kernfs::step_passed(self.steps, step);
    }

    /// Lets containers register from now on.
    ///
    /// # Errors
    /// The directory or the file cannot be made.
    pub fn open(&self) -> Result<(), StepError> {
        const STEP: &str = "take containers";
        let mut make = fs::DirBuilder::new();
        let made = make.recursive(true).mode(0o700).create(&self.directory);
        made.map_err(|error| failed(STEP, &self.directory, &error))?;
        let new = self.directory.join("open.new");
        let written = namespaces().and_then(|text| {
            fs::write(&new, text)?;
            fs::rename(&new, self.directory.join(OPEN))
        });
        written.map_err(|error| failed(STEP, &new, &error))?;
        self.passed(STEP);
        Ok(())
    }

    /// All files: inode and name of each control group, and the path of the file.
    fn files(&self) -> io::Result<Vec<(u64, String, PathBuf)>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let file = entry?.path();
            let id = file.file_name().and_then(|it| it.to_str()?.parse().ok());
            let Some(id) = id else { continue };
            match fs::read_to_string(&file) {
                Ok(name) => files.push((id, name, file)),
                // A hook has removed the file meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files)
    }

    /// The registered control groups that still exist.
    fn registered(&self) -> io::Result<Vec<Registered>> {
        let files = self.files()?;
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let mount = mount().map_err(io::Error::other)?;
        let mut all = Vec::new();
        for (id, name, file) in files {
            let (above, below) = name.rsplit_once('/').unwrap_or(("", &name));
            match inode(&mount.join(name.trim_start_matches('/'))) {
                Ok(found) if found == id => {}
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                // The container has ended; another container may have its name now.
                _ => continue,
            }
            let tree = Arc::new(Tree::new(&mount));
            all.push(Registered {
                id,
                root: Root::of(tree, above.trim_start_matches('/')).with_steps(self.steps),
                below: below.to_owned(),
                file,
            });
        }
        Ok(all)
    }

    /// Stops taking containers. Returns the registered ones.
    fn close(&self) -> Result<Vec<Registered>, StepError> {
        let on_directory = |error: io::Error| failed("take no containers", &self.directory, &error);
        match fs::remove_file(self.directory.join(OPEN)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(on_directory(error));
            }
            _ => {}
        }
        self.passed("take no containers");
        self.registered().map_err(on_directory)
    }

    /// Stops taking containers; freezes and kills the registered ones, and does not wait for their end. Returns whether
    /// there are any.
    ///
    /// # Errors
    /// A process of a container may run on.
    pub fn kill(&self) -> Result<bool, StepError> {
        let all = self.close()?;
        let mut outcome = Ok(!all.is_empty());
        // A failure in one control group must not delay the others.
        for it in &all {
            if let Err(error) = freeze_and_kill(&it.root, &it.below)
                && it.is_there()
            {
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    /// Stops taking containers, and ends the registered ones: freezes and kills all of them, then waits for their end,
    /// at most `patience` in all. A process that starts in their control groups later can open no device.
    ///
    /// # Errors
    /// A process of a container may run on.
    pub fn end(&self, proc: &Tree, patience: Duration) -> Result<Proof, StepError> {
        const STEP: &str = "end containers";
        let began = Instant::now();
        let all = self.close()?;
        if all.is_empty() {
            return Ok(Proof::default());
        }
        // A failure in one control group must not delay the others.
        let frozen: Vec<_> = all
            .iter()
            .map(|it| freeze_and_kill(&it.root, &it.below))
            .collect();
        let mut proof = Proof::default();
        let mut found = Vec::new();
        let mut outcome = Ok(());
        for (container, frozen) in all.iter().zip(frozen) {
            let at = container.root.path(&container.below);
            // The container's own device controller let it open the device.
            let denied = allow_only("deny devices", &at, &[]);
            let left = patience.saturating_sub(began.elapsed());
            let ended = frozen
                .and_then(|_| end_killed(&container.root, proc, &container.below, None, left));
            if let Err(error) = ended
                && container.is_there()
            {
                outcome = outcome.and(Err(error));
                continue;
            }
            found.push(match denied {
                Ok(()) => at.display().to_string(),
                Err(error) => format!(
                    "{} (its permission was not withdrawn: {error})",
                    at.display()
                ),
            });
            fs::remove_file(&container.file).ok();
        }
        outcome?;
        self.passed(STEP);
        proof.add(STEP, began.elapsed(), found.join(", "));
        Ok(proof)
    }

    /// The containers of the other leases of the kind.
    ///
    /// # Errors
    /// The directories cannot be listed.
    pub fn others(&self) -> io::Result<Vec<Self>> {
        let records = self.directory.parent().unwrap_or(&self.directory);
        let mut others = Vec::new();
        for entry in fs::read_dir(records)? {
            let directory = entry?.path();
            let is_lease = directory.to_string_lossy().ends_with(SUFFIX);
            if is_lease && directory != self.directory {
                let steps = self.steps;
                others.push(Self { directory, steps });
            }
        }
        Ok(others)
    }

    /// Whether a process is in a registered container. `false` if that cannot be read.
    #[must_use]
    pub fn has(&self, pid: i32) -> bool {
        let registered = self.registered().unwrap_or_default();
        let is_in = |name: String| registered.iter().any(|it| is_within(&name, &it.name()));
        !registered.is_empty() && cgroup_of(&Tree::new("/proc"), pid).is_ok_and(is_in)
    }

    /// Checks that no container is registered and that none can register any more.
    ///
    /// # Errors
    /// A container is registered, the lease still takes containers, or the files cannot be read.
    pub fn check_ended(&self, step: &'static str) -> Result<(), StepError> {
        let on_directory = |error: io::Error| failed(step, &self.directory, &error);
        let left = self.registered().map_err(on_directory)?;
        if self.directory.join(OPEN).exists() || !left.is_empty() {
            let names = left
                .iter()
                .map(|it| it.root.path(&it.below).display().to_string());
            let names: Vec<String> = names.collect();
            let why = format!(
                "containers of the lease are there or can be started: {}",
                names.join(", ")
            );
            return Err(StepError::new(step, why));
        }
        Ok(())
    }

    /// Removes the lease's directory. Call this after [`Containers::end`].
    ///
    /// # Errors
    /// The directory cannot be removed.
    pub fn remove(&self) -> Result<(), StepError> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("forget containers", &self.directory, &error))
            }
            _ => Ok(()),
        }
    }
}

/// Whether the control group at `at` belongs or belonged to a container that has the device of a lease.
///
/// # Errors
/// The attribute cannot be read.
pub(crate) fn is_registered(at: &Path) -> Result<bool, String> {
    match getxattr(at, REGISTERED, &mut [0_u8; 1]) {
        Ok(_) | Err(Errno::RANGE) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(format!("{}: {REGISTERED}: {error}", at.display())),
    }
}

fn inode(at: &Path) -> io::Result<u64> {
    fs::metadata(at).map(|it| it.ino())
}

/// Whether the control group `name` is `other`, or in it.
fn is_within(name: &str, other: &str) -> bool {
    Path::new(name).starts_with(other)
}

/// Where cgroup v2 is mounted.
fn mount() -> Result<PathBuf, String> {
    let mount = mounts().into_iter().find(|it| it.kind == "cgroup2");
    let mount = mount.map(|it| it.place);
    mount.ok_or_else(|| "no file system of cgroup v2 is mounted".to_owned())
}

/// The namespaces in which this process sees process numbers and names of control groups.
fn namespaces() -> io::Result<String> {
    let [pid, cgroup] = ["pid", "cgroup"].map(|it| fs::read_link(format!("/proc/self/ns/{it}")));
    Ok(format!("{} {}", pid?.display(), cgroup?.display()))
}
