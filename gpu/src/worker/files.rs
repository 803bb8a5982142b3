//! The files that a worker can open: those that the vendors' libraries read, and the nodes of its device. If the kernel
//! has Landlock, it checks each opening; otherwise the worker gets a root directory that contains only these files.

use std::{
    env, fs,
    fs::File,
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileTypeExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus,
};
use nix::{
    libc,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    unistd::{chdir, pivot_root},
};

use super::start::{NoLandlock, StartError};
use crate::{Libraries, Node};

/// Programs and libraries of the system, and files that the dynamic linker reads.
const LIBRARIES: [&str; 8] = [
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/opt",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/alternatives",
];
/// Files of the kernel that drivers read: the driver's own state, the machine, and the own process.
const KERNEL: [&str; 9] = [
    "/sys",
    "/proc/driver",
    "/proc/sys",
    "/proc/cpuinfo",
    "/proc/devices",
    "/proc/filesystems",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/version",
];
/// CUDA names its threads in files below this directory, and does not start if it cannot. Before a tenant's bytes come, the
/// sandbox makes these files root's.
const THREADS: &str = "task";
/// Device nodes that every program may use.
const PSEUDO: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];
/// AMD's libraries look for nodes in this directory.
const LISTED: &str = "/dev/dri";
/// Where the dynamic linker looks first.
pub(crate) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// Test hook: the directory in which stand-ins for the vendors' libraries keep their devices.
pub(crate) const STAND_INS: &str = "FABRICBIOS_STAND_IN_DIR";

/// The newest Landlock interface whose rights are used: ioctl of device nodes. An older kernel checks the rights that
/// it has.
const RIGHTS: ABI = ABI::V5;

/// The rights of a worker on a file, or on the files below a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    List,
    Use,
    Change,
}

impl Access {
    fn rights(self) -> BitFlags<AccessFs> {
        match self {
            Self::Read => AccessFs::from_read(RIGHTS),
            Self::Write => AccessFs::from_read(RIGHTS) | AccessFs::WriteFile | AccessFs::Truncate,
            Self::List => AccessFs::ReadDir.into(),
            Self::Use => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
            Self::Change => AccessFs::from_all(RIGHTS),
        }
    }
}

/// All files that a worker can open after its start.
#[derive(Clone, Debug)]
pub(super) struct Files(Vec<(PathBuf, Access)>);

impl Files {
    /// The files for these libraries and these nodes.
    pub(super) fn of(libraries: &Libraries, nodes: &[Node]) -> Self {
        let mut all: Vec<(PathBuf, Access)> = Vec::new();
        let mut add = |path: &Path, access| all.push((path.to_owned(), access));
        let own = format!("/proc/{}", std::process::id());
        for path in [LIBRARIES.as_slice(), &KERNEL].concat() {
            add(path.as_ref(), Access::Read);
        }
        for own in ["/proc/self", &own] {
            add(own.as_ref(), Access::Read);
            add(&Path::new(own).join(THREADS), Access::Write);
        }
        let named = [&libraries.nvml, &libraries.cuda, &libraries.hip];
        let named = named.into_iter().flatten().filter_map(|it| it.parent());
        let searched = env::var_os(LIBRARY_PATH).unwrap_or_default();
        for directory in named.map(Path::to_owned).chain(env::split_paths(&searched)) {
            if directory.is_absolute() {
                add(&directory, Access::Read);
            }
        }
        add(LISTED.as_ref(), Access::List);
        for node in PSEUDO
            .map(Path::new)
            .into_iter()
            .chain(nodes.iter().map(|it| &*it.path))
        {
            add(node, Access::Use);
        }
        if let Some(directory) = env::var_os(STAND_INS) {
            add(directory.as_ref(), Access::Change);
        }
        Self(all)
    }

    /// From now on this thread and its new threads can open no other file. Open files stay open.
    ///
    /// # Errors
    /// Neither Landlock nor an own root directory is possible.
    pub(super) fn shut_in(&self) -> Result<(), StartError> {
        let landlock = match self.by_landlock() {
            Ok(true) => return Ok(()),
            Ok(false) => NoLandlock(None),
            Err(error) => NoLandlock(Some(error)),
        };
        self.by_root()
            .map_err(|mount| StartError::Files { landlock, mount })
    }

    /// Uses Landlock. `false`: the kernel has no Landlock.
    pub(super) fn by_landlock(&self) -> Result<bool, RulesetError> {
        let mut rules = Ruleset::default()
            .handle_access(AccessFs::from_all(RIGHTS))?
            .create()?;
        for (path, access, file) in self.opened() {
            let rights = match file.metadata() {
                Ok(found) if found.is_dir() => access.rights(),
                _ => access.rights() & AccessFs::from_file(RIGHTS),
            };
            rules = rules.add_rule(PathBeneath::new(&file, rights))?;
            if path.starts_with("/proc/self") {
                // The rule applies to the directory that exists now. The kernel would make it anew if no process had it
                // open.
                std::mem::forget(file);
            }
        }
        Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
    }

    /// Uses a root directory in memory, into which the files are mounted.
    pub(super) fn by_root(&self) -> io::Result<()> {
        /// The new root is made on top of this directory. No file of a worker is in it.
        const PLACE: &str = "/dev";
        const NONE: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNS)?;
        // From now on mounts are visible in this process only.
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
        let opened = self.opened();
        let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(
            Some("tmpfs"),
            PLACE,
            Some("tmpfs"),
            safe,
            Some("mode=755,size=1m"),
        )?;
        for (path, access, file) in opened {
            let Ok(below) = path.strip_prefix("/") else {
                continue;
            };
            let at = Path::new(PLACE).join(below);
            let found = file.metadata()?;
            if found.is_dir() {
                fs::create_dir_all(&at)?;
            } else {
                fs::create_dir_all(at.parent().unwrap_or(&at))?;
                File::create(&at)?;
            }
            let flags = match access {
                Access::List => continue,
                Access::Read => MsFlags::MS_RDONLY | safe,
                Access::Use if found.file_type().is_char_device() => MsFlags::MS_NOSUID,
                Access::Write | Access::Use | Access::Change => safe,
            };
            let from = format!("/proc/self/fd/{}", file.as_raw_fd());
            let bind = MsFlags::MS_BIND;
            mount(Some(&*from), &at, NONE, bind | MsFlags::MS_REC, NONE)?;
            mount(NONE, &at, NONE, bind | MsFlags::MS_REMOUNT | flags, NONE)?;
        }
        chdir(PLACE)?;
        pivot_root(".", ".")?;
        umount2(".", MntFlags::MNT_DETACH)?;
        chdir("/")?;
        let closed = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | safe;
        mount(NONE, "/", NONE, closed, NONE)?;
        Ok(())
    }

    /// The existing files, by descriptors that only name them (`O_PATH`).
    fn opened(&self) -> Vec<(&Path, Access, File)> {
        let open = |path: &Path| {
            let mut options = File::options();
            options.read(true).custom_flags(libc::O_PATH).open(path)
        };
        let all = self.0.iter();
        all.filter_map(|(path, access)| Some((&**path, *access, open(path).ok()?)))
            .collect()
    }
}

#[cfg(test)]
mod tests;
