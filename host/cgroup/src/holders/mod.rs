//! Finds the processes that have a file open: reads the table of open files of every process, each table once.
//!
//! Any user can make this search long, with many processes, threads and open files. So a helper process searches, with
//! a time limit, and no end of access waits for a search of all users' files. Tables with few files come first: a user with a large table
//! delays only the look at that table.

mod carried;

use std::{
    cmp::Ordering,
    fs,
    path::{Path, PathBuf},
};

use nix::libc;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

use crate::{
    devices::DeviceNumber,
    process::{parent_of, state_of},
};

/// `KCMP_FILES` of include/uapi/linux/kcmp.h.
const FILES: libc::c_int = 2;

/// A table of open files. Threads of a process share one table, unless a thread has left it (unshare(2),
/// `CLONE_FILES`).
///
/// Tables are ordered by number of files, smallest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Table {
    /// Number of open files; before Linux 6.2, the size of the table.
    files: u64,
    /// The process.
    pub pid: i32,
    thread: i32,
}

/// An open file of a process.
#[derive(Clone, Debug)]
pub struct OpenFile {
    /// Its link in /proc.
    at: PathBuf,
    /// The target of the link: a path as the process sees it, or `socket:[…]`, `anon_inode:…`.
    pub name: PathBuf,
}

/// All tables of all processes, smallest first.
#[must_use]
pub fn tables() -> Vec<Table> {
    let mut tables: Vec<Table> = pids().flat_map(tables_of).collect();
    tables.sort_unstable();
    tables
}

/// The numbers of all processes.
pub fn pids() -> impl Iterator<Item = i32> {
    numbers("/proc".into())
}

/// The numbers of a process's threads.
pub fn threads(pid: i32) -> impl Iterator<Item = i32> {
    numbers(format!("/proc/{pid}/task").into())
}

fn numbers(directory: PathBuf) -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The tables of one process; none if the process has ended. Other threads may outlive its first thread.
#[must_use]
pub fn tables_of(pid: i32) -> Vec<Table> {
    // Sorted in the kernel's order of tables, since each of many threads may have its own table.
    let mut tables: Vec<Table> = Vec::new();
    for thread in threads(pid) {
        let Err(place) = tables.binary_search_by(|it| compare_tables(it.thread, thread)) else {
            continue;
        };
        let task = format!("/proc/{pid}/task/{thread}");
        if let Ok(found) = fs::metadata(format!("{task}/fd")) {
            let files = match found.len() {
                0 => room(&task),
                files => files,
            };
            let table = Table { pid, thread, files };
            tables.insert(place, table);
        }
    }
    tables
}

/// Compares the tables of two threads in the kernel's order. On a kernel without kcmp(2) each thread counts as a table.
fn compare_tables(one: i32, other: i32) -> Ordering {
    // SAFETY: kcmp(2) takes five integers.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, FILES, 0, 0) } {
        0 => Ordering::Equal,
        2 => Ordering::Greater,
        _ => Ordering::Less,
    }
}

/// Number of files for which a thread's table has room.
fn room(task: &str) -> u64 {
    let status = fs::read_to_string(format!("{task}/status")).unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    size.and_then(|it| it.trim().parse().ok()).unwrap_or(0)
}

impl Table {
    /// Whether the table has more files than this number.
    #[must_use]
    pub fn has_more_than(self, files: u64) -> bool {
        self.files > files
    }

    /// The files that are open in the table now.
    pub fn files(self) -> impl Iterator<Item = OpenFile> {
        links(format!("/proc/{}/task/{}/fd", self.pid, self.thread))
    }

    /// Files that its process has mapped. A mapping stays when the descriptor is closed.
    pub fn mapped(self) -> impl Iterator<Item = OpenFile> {
        links(format!("/proc/{}/map_files", self.pid))
    }
}

/// Whether the first thread of a process has ended and another thread lives: then /proc shows no mappings.
#[must_use]
pub fn has_lost_first_thread(pid: i32) -> bool {
    state_of(pid) == Some('Z') && threads(pid).nth(1).is_some()
}

fn links(directory: String) -> impl Iterator<Item = OpenFile> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| {
        let at = entry.ok()?.path();
        let name = fs::read_link(&at).ok()?;
        Some(OpenFile { at, name })
    })
}

/// The identity of a file, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// A character device.
    Device(DeviceNumber),
    /// Another file: the device that its file system is on, and its inode.
    File(DeviceNumber, u64),
}

impl OpenFile {
    /// The identity; `None` for a socket, a pipe and the like. Asks no file system to refresh the attributes, since one
    /// may not answer.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        let is_path = self.name.is_absolute();
        is_path.then(|| identity(&self.at, AtFlags::STATX_DONT_SYNC))?
    }

    /// Whether the file is one of these devices, under any name.
    #[must_use]
    pub fn is_one_of(&self, devices: &[DeviceNumber]) -> bool {
        matches!(self.identity(), Some(Identity::Device(its)) if devices.contains(&its))
    }

    /// Whether it is a socket.
    #[must_use]
    pub fn is_socket(&self) -> bool {
        self.name
            .as_os_str()
            .as_encoded_bytes()
            .starts_with(b"socket:")
    }

    fn is_ring(&self) -> bool {
        self.name.as_os_str() == "anon_inode:[io_uring]"
    }

    /// The identity of a ring (io_uring); `None`: the file is no ring. Each ring has its own inode since Linux 5.12.
    #[must_use]
    pub fn ring(&self) -> Option<Identity> {
        let is_ring = self.is_ring();
        is_ring.then(|| identity(&self.at, AtFlags::STATX_DONT_SYNC))?
    }
}

/// The identity of the file at a path.
#[must_use]
pub fn identity_at(path: &Path) -> Option<Identity> {
    identity(path, AtFlags::empty())
}

fn identity(at: &Path, flags: AtFlags) -> Option<Identity> {
    let found = statx(CWD, at, flags, StatxFlags::TYPE | StatxFlags::INO).ok()?;
    match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::CharacterDevice => Some(Identity::Device((
            found.stx_rdev_major,
            found.stx_rdev_minor,
        ))),
        _ => Some(Identity::File(
            (found.stx_dev_major, found.stx_dev_minor),
            found.stx_ino,
        )),
    }
}

/// Whether a process is one of `owners` or a descendant of one.
#[must_use]
pub fn is_of(pid: i32, owners: &[i32]) -> bool {
    let mut at = Some(pid);
    // If a process ends meanwhile, its parent may be unknown, or the number may belong to another process by then.
    for _ in 0..PARENTS_MAX {
        match at {
            Some(pid) if owners.contains(&pid) => return true,
            Some(pid) if pid > 1 => at = parent_of(pid),
            _ => return false,
        }
    }
    false
}

/// Largest number of ancestors that [`is_of`] follows. The node's own processes are three deep.
const PARENTS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use std::{fs::File, process::id, sync::mpsc, thread};

    use super::*;

    const FULL: [DeviceNumber; 1] = [(1, 7)];

    fn own() -> i32 {
        i32::try_from(id()).unwrap()
    }

    fn has_full_open() -> bool {
        let mut files = tables_of(own()).into_iter().flat_map(Table::files);
        files.any(|it| it.is_one_of(&FULL))
    }

    #[test]
    fn who_opens_a_device_is_found_and_who_closes_it_is_not() {
        let full = identity_at(Path::new("/dev/full"));
        assert_eq!(full, Some(Identity::Device(FULL[0])));
        let open = File::open("/dev/full").unwrap();
        assert!(has_full_open());
        assert!(tables().iter().any(|it| it.pid == own()));
        drop(open);
        assert!(!has_full_open());
    }

    #[test]
    fn threads_that_share_a_table_are_looked_at_once() {
        let (stay, stays) = mpsc::channel::<()>();
        let stays = std::sync::Mutex::new(stays);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| stays.lock().unwrap().recv().ok());
            }
            assert_eq!(tables_of(own()).len(), 1);
            let (tell, told) = mpsc::channel();
            let (leave, leaves) = mpsc::channel::<()>();
            scope.spawn(move || {
                // SAFETY: the call takes no pointer, and afterwards only this thread uses its own table of descriptors.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
                let open = File::open("/dev/full").unwrap();
                tell.send(()).unwrap();
                leaves.recv().ok();
                drop(open);
            });
            told.recv().unwrap();
            assert_eq!(tables_of(own()).len(), 2);
            assert!(has_full_open());
            drop((leave, stay));
        });
    }

    #[test]
    fn the_processes_of_an_owner_are_its_children_and_theirs() {
        let parent = std::os::unix::process::parent_id();
        let parent = i32::try_from(parent).unwrap();
        assert!(is_of(own(), &[own()]));
        assert!(is_of(own(), &[parent]));
        assert!(!is_of(parent, &[own()]));
        assert!(!is_of(own(), &[]));
    }
}
