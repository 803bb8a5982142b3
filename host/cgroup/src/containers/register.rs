//! The registration of a container, by the hook that its engine runs.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use fabricbios_kernfs::Tree;
use rustix::fs::{XattrFlags, setxattr};

use super::{Containers, OPEN, REGISTERED, SUFFIX, inode, is_within, mount, namespaces};
use crate::{enter::cgroup_of, process::parent_of, root::LEASE};

/// Largest number of processes in a container when its hook runs. A container has one process then; the engine's own
/// helpers may be beside it for a moment.
const MEMBERS_MAX: usize = 64;

impl Containers {
    /// Registers the container of process `pid`. That process is the container's first one, which waits until the
    /// engine continues it. The hook calls this.
    ///
    /// # Errors
    /// The reason, for the engine's user: the engine must not start the container.
    pub fn register(&self, pid: i32) -> Result<(), String> {
        let over = || {
            "the lease is over, or this node has never had it: lease the device again".to_owned()
        };
        let shown = self.directory.display();
        let open = self.directory.join(OPEN);
        let read = fs::read_to_string(&open).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => over(),
            _ => format!("{}: {error}", open.display()),
        })?;
        let own = namespaces().map_err(|error| error.to_string())?;
        if read != own {
            return Err(format!(
                "the container engine runs in other namespaces ({own}) than the daemon ({read}): start the container from the node itself"
            ));
        }
        let tree = Tree::new("/proc");
        let name = cgroup_of(&tree, pid).map_err(|error| error.detail)?;
        let mount = mount()?;
        let at = mount.join(name.trim_start_matches('/'));
        check_place(&name, &at, pid)?;
        let id = inode(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        self.check_others(&name)?;
        self.forget_ended();
        setxattr(&at, REGISTERED, b"1", XattrFlags::empty())
            .map_err(|error| format!("{}: {REGISTERED}: {error}", at.display()))?;
        let new = self.directory.join(format!("{id}.new"));
        let file = self.directory.join(id.to_string());
        let written = fs::write(&new, &name).and_then(|()| fs::rename(&new, &file));
        written.map_err(|error| format!("{shown}: {error}"))?;
        // The container may have been moved meanwhile.
        let moved = cgroup_of(&tree, pid).map_err(|error| error.detail)? != name;
        if moved || !open.exists() {
            fs::remove_file(&file).ok();
            return Err(if moved {
                format!("process {pid} was moved out of {name} meanwhile")
            } else {
                over()
            });
        }
        Ok(())
    }

    /// Refuses a container whose control group is inside or around that of another lease's container: that lease would
    /// end this container too.
    fn check_others(&self, name: &str) -> Result<(), String> {
        let records = self.directory.parent().and_then(Path::parent);
        let kinds = records.into_iter().flat_map(directories);
        for other in kinds.flat_map(|it| directories(&it)) {
            let is_lease = other.to_string_lossy().ends_with(SUFFIX);
            if !is_lease || other == self.directory {
                continue;
            }
            let others = Self {
                directory: other,
                steps: &[],
            };
            for registered in others.registered().map_err(|error| error.to_string())? {
                let its = registered.name();
                if is_within(name, &its) || is_within(&its, name) {
                    return Err(format!(
                        "the container's control group {name} belongs to another lease's container ({its}): give a container the devices of one lease"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Removes the files of containers that have ended: a lease may have had many.
    fn forget_ended(&self) {
        for (id, name, file) in self.files().unwrap_or_default() {
            let at = mount().map(|mount| mount.join(name.trim_start_matches('/')));
            if at.is_ok_and(|at| inode(&at).ok() != Some(id)) {
                fs::remove_file(file).ok();
            }
        }
    }
}

/// Refuses a control group that is not the container's alone.
fn check_place(name: &str, at: &Path, pid: i32) -> Result<(), String> {
    let refuse = |why: String| Err(format!("the container's control group is {name}: {why}"));
    if !name.starts_with('/') || name == "/" || name.split('/').any(|part| part == "..") {
        return refuse(
            "the container has none of its own; start it with control groups (podman --cgroups=enabled)".into(),
        );
    }
    if name.split('/').any(|part| part.starts_with(LEASE)) {
        return refuse("it is in that of a lease; start the container outside of leases".into());
    }
    let mut members = Vec::new();
    members_of(at, &mut members).map_err(|error| format!("{}: {error}", at.display()))?;
    if members.len() > MEMBERS_MAX {
        return refuse(format!("it has {} processes already", members.len()));
    }
    let is_its = |member: &i32| {
        let mut at = Some(*member);
        // Goes up to the container's first process. A process of the node leads to 1 or 0 instead.
        while let Some(it) = at.filter(|it| *it > 1) {
            if it == pid {
                return true;
            }
            at = parent_of(it);
        }
        false
    };
    match members.iter().find(|it| !is_its(it)) {
        Some(other) => refuse(format!(
            "it has process {other} too, which is not the container's; give the container a control group of its own"
        )),
        None => Ok(()),
    }
}

/// Collects the processes of a control group and of the groups in it; stops soon after [`MEMBERS_MAX`].
fn members_of(at: &Path, members: &mut Vec<i32>) -> io::Result<()> {
    let text = fs::read_to_string(at.join("cgroup.procs"))?;
    members.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    for child in directories(at) {
        if members.len() > MEMBERS_MAX {
            return Ok(());
        }
        members_of(&child, members)?;
    }
    Ok(())
}

fn directories(at: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(at).into_iter().flatten().flatten();
    let directories = entries.filter(|it| it.file_type().is_ok_and(|it| it.is_dir()));
    directories.map(|it| it.path())
}
