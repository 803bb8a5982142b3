//! The source of the bytes: a file of the operator, or a new file in memory.

use std::{
    fs::{self, File, Metadata, OpenOptions, TryLockError},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    sys::{
        memfd::{MFdFlags, memfd_create},
        statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs},
    },
    unistd::{Whence, geteuid, lseek},
};

use crate::{Arena, Mapping, mark};

/// Size of the huge pages that most machines have.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
const PAGE_BYTES: u64 = 4096;

/// The settings of the source.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// A regular file of the operator, in tmpfs, hugetlbfs or on a file system. The file is made if it does not exist,
    /// grown if it is too short, and locked against other processes. Only this user may have access to the file. A file
    /// that contains other data than an arena is refused. The first page contains the mark, and the arena follows; the
    /// rest of a longer file is not touched. `None`: memory that ends with the process, in huge pages if enough of them
    /// are free and the size is a multiple of them.
    pub file: Option<PathBuf>,
    /// The preferred NUMA node, such as that of the network card. The kernel uses other nodes when this node has no
    /// free memory. Existing pages of a file stay on their node, and file systems on disks ignore the preference.
    pub numa_node: Option<u32>,
}

/// The memory of an opened arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Page size in bytes; more than 4096 for huge pages.
    pub page_bytes: u64,
    /// The preferred NUMA node, if the kernel accepted it.
    pub numa_node: Option<u32>,
    /// Whether the bytes survive this process.
    pub outlives_process: bool,
    /// The bytes are in memory, not in a file on a disk: touching them waits for no disk.
    pub in_memory: bool,
}

impl Source {
    pub(crate) fn open(&self, bytes: u64) -> io::Result<Arena> {
        match &self.file {
            Some(path) => self.in_file(path, bytes),
            None => self.in_memory(bytes),
        }
    }

    fn in_file(&self, path: &Path, bytes: u64) -> io::Result<Arena> {
        let about =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = own(path).map_err(about)?;
        let (page_bytes, in_memory) = pages(&file).map_err(about)?;
        fit(&file, path, bytes, page_bytes).map_err(about)?;
        let map = |offset, bytes| {
            let mapped = Mapping::of(&file, offset, bytes);
            mapped.map_err(|error| about(too_few(error, page_bytes)))
        };
        // Mapping the file reserves all of its huge pages or none.
        if page_bytes > PAGE_BYTES {
            drop(map(0, page_bytes + bytes)?);
        }
        let header = map(0, page_bytes)?;
        let mapping = map(page_bytes, bytes)?;
        let backing = self.placed(&mapping, page_bytes, in_memory);
        if page_bytes == PAGE_BYTES {
            allocate(&file, page_bytes + bytes).map_err(about)?;
        }
        // The magic goes first: if this start fails, a later start still recognises the file.
        mark::write_magic(&header);
        // A power cut without this could lose the magic and keep bytes of tenants.
        file.sync_all().map_err(about)?;
        Ok(Arena {
            _file: file,
            mapping,
            backing,
            header: Some(header),
        })
    }

    fn in_memory(&self, bytes: u64) -> io::Result<Arena> {
        let (file, mapping, page_bytes) = self.memory(bytes)?;
        let backing = self.placed(&mapping, page_bytes, true);
        if page_bytes == PAGE_BYTES {
            allocate(&file, bytes)?;
        }
        Ok(Arena {
            _file: file,
            mapping,
            backing,
            header: None,
        })
    }

    /// A new file in memory, of huge pages if possible.
    fn memory(&self, bytes: u64) -> io::Result<(File, Mapping, u64)> {
        if bytes.is_multiple_of(HUGE_PAGE_BYTES) {
            match memory(MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB, bytes) {
                Ok((file, mapping)) => return Ok((file, mapping, HUGE_PAGE_BYTES)),
                Err(why) => tracing::info!(
                    bytes,
                    %why,
                    "plain pages: there are not enough free huge pages of 2 MiB (see vm.nr_hugepages)"
                ),
            }
        }
        let (file, mapping) = memory(MFdFlags::empty(), bytes)?;
        Ok((file, mapping, PAGE_BYTES))
    }

    /// Sets the NUMA node before the first touch: pages stay on the node of their first touch.
    fn placed(&self, mapping: &Mapping, page_bytes: u64, in_memory: bool) -> Backing {
        let agreed = self.numa_node.filter(|node| {
            let asked = mapping.prefer_node(*node);
            if let Err(error) = &asked {
                tracing::warn!(node, %error, "memory is not taken from that NUMA node alone");
            }
            asked.is_ok()
        });
        Backing {
            page_bytes,
            numa_node: agreed,
            outlives_process: self.file.is_some(),
            in_memory,
        }
    }
}

/// Opens or makes a regular file that only this user may access and that no other process uses as its arena. A user who
/// can write to the file could read the bytes of tenants, or end the process by truncating the file.
fn own(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.custom_flags(libc::O_NOFOLLOW);
    let file = options.mode(0o600).open(path).or_else(|error| {
        // A sticky directory such as /dev/shm keeps root too from another user's file (fs.protected_regular).
        if let Ok(found) = fs::symlink_metadata(path) {
            refuse_others(&found)?;
        }
        Err(error)
    })?;
    refuse_others(&file.metadata()?)?;
    match file.try_lock() {
        Ok(()) => refuse_data(&file).map(|()| file),
        Err(TryLockError::WouldBlock) => Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "another process has locked it: is another daemon using it?",
        )),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Makes the same checks as opening an arena, without making or locking the file.
///
/// # Errors
/// The path is no regular file that this user alone can access, the file contains other data than an arena, or both the
/// file and its directory are missing.
pub fn check_file(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) => {
            refuse_others(&found)?;
            refuse_data(&File::open(path)?)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
            fs::metadata(directory.unwrap_or(Path::new("."))).map(drop)
        }
        Err(error) => Err(error),
    }
}

fn refuse_others(found: &Metadata) -> io::Result<()> {
    if !found.is_file() {
        return Err(invalid("not a regular file".into()));
    }
    let (owner, mode) = (found.uid(), found.mode() & 0o777);
    if owner != geteuid().as_raw() || mode & 0o077 != 0 {
        return Err(invalid(format!(
            "it has owner {owner} and mode {mode:o}: it must be this user's and nobody else's (chown {} and \
             chmod 600)",
            geteuid()
        )));
    }
    Ok(())
}

/// Refuses a file that contains other data than an arena: opening the arena would overwrite that data.
fn refuse_data(file: &File) -> io::Result<()> {
    if mark::is_arena(file)? || !has_data(file)? {
        return Ok(());
    }
    Err(invalid(
        "it has data that is not leased memory of this program, which would be overwritten: choose another path, or remove the \
         file if nobody needs it"
            .into(),
    ))
}

/// Whether the file may contain data. `false` for an empty file, a hole, or allocated space without writes. hugetlbfs
/// does not report holes: there the first 4096 bytes decide.
fn has_data(file: &File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    if pages(file)?.0 > PAGE_BYTES {
        let mut first = [0; 4096];
        file.read_exact_at(&mut first, 0)?;
        return Ok(first.iter().any(|byte| *byte != 0));
    }
    match lseek(file, 0, Whence::SeekData) {
        Err(Errno::ENXIO) => Ok(false),
        // An error counts as data: the file system does not report holes.
        Ok(_) | Err(_) => Ok(true),
    }
}

/// The size of the file's pages in bytes, and whether they are in memory.
fn pages(file: &File) -> io::Result<(u64, bool)> {
    let found = fstatfs(file)?;
    let kind = found.filesystem_type();
    if kind != HUGETLBFS_MAGIC {
        return Ok((PAGE_BYTES, kind == TMPFS_MAGIC));
    }
    let size = u64::try_from(found.block_size()).ok();
    let size = size.filter(|bytes| *bytes > 0);
    let size = size.ok_or_else(|| invalid("its huge pages have no size".into()))?;
    Ok((size, true))
}

/// Makes the file long enough.
fn fit(file: &File, path: &Path, bytes: u64, page_bytes: u64) -> io::Result<()> {
    if !bytes.is_multiple_of(page_bytes) {
        return Err(invalid(format!(
            "its huge pages have {page_bytes} bytes, and {bytes} bytes are no multiple of that"
        )));
    }
    let length = file.metadata()?.len();
    let bytes = bytes + page_bytes;
    if length > bytes {
        let path = path.display();
        tracing::info!(%path, length, bytes, "of a longer file only the beginning is used");
    }
    // Other file systems grow the file when space is allocated; if that fails, the file is unchanged.
    if length < bytes && page_bytes > PAGE_BYTES {
        file.set_len(bytes)?;
    }
    Ok(())
}

/// Explains a failed mapping: mapping reserves huge pages, so it fails if too few of them are free.
fn too_few(error: io::Error, page_bytes: u64) -> io::Error {
    match error.kind() {
        io::ErrorKind::OutOfMemory if page_bytes > PAGE_BYTES => io::Error::new(
            error.kind(),
            format!("{error}: too few free huge pages of {page_bytes} bytes (see vm.nr_hugepages)"),
        ),
        _ => error,
    }
}

/// Allocates all pages now. If the system had no memory later, the first touch of a page would end the process.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    let length = bytes.try_into().or(Err(Errno::EFBIG))?;
    match fallocate(file, FallocateFlags::empty(), 0, length) {
        Ok(()) => Ok(()),
        // The file system does not support allocation.
        Err(Errno::EOPNOTSUPP) if file.metadata()?.len() < bytes => file.set_len(bytes),
        Err(Errno::EOPNOTSUPP) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn memory(flags: MFdFlags, bytes: u64) -> io::Result<(File, Mapping)> {
    let file = memfd_create(c"fabricbios-arena", flags | MFdFlags::MFD_CLOEXEC)?;
    let file = File::from(file);
    file.set_len(bytes)?;
    let mapping = Mapping::of(&file, 0, bytes)?;
    Ok((file, mapping))
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests;
