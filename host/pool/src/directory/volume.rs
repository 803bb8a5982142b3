//! One volume: a preallocated regular file.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use fabricbios_wire::LeaseId;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FallocateFlags, RenameFlags, fallocate, renameat2};

use crate::error::{At, Error};

const ENDING: &str = ".volume";
const UNFINISHED_ENDING: &str = ".volume.new";
const PROBE: &str = ".fabricbios-probe";
const MODE: u32 = 0o600;
const UNSUITED: &str =
    "this file system cannot allocate files ahead (fallocate): take another, such as ext4 or xfs";
/// Block sizes of a file that nvmet accepts. nvmet takes the block size from the inode, up to 4096 bytes
/// (`nvmet_file_ns_enable`, drivers/nvme/target/io-cmd-file.c).
const BLOCK_BYTES: std::ops::RangeInclusive<u64> = 512..=4096;

pub(super) fn name(lease: LeaseId) -> String {
    format!("{lease}{ENDING}")
}

pub(super) fn unfinished_name(lease: LeaseId) -> String {
    format!("{lease}{UNFINISHED_ENDING}")
}

/// The lease of a volume with this name.
pub(super) fn lease_of(entry: &str) -> Option<LeaseId> {
    let lease = entry.strip_suffix(ENDING)?.parse().ok()?;
    (name(lease) == entry).then_some(lease)
}

pub(super) fn is_unfinished(entry: &str) -> bool {
    let lease = entry.strip_suffix(".new").and_then(lease_of);
    lease.is_some_and(|lease| unfinished_name(lease) == entry)
}

/// Whether the volume exists. An error if the name belongs to anything else.
pub(super) fn is_there(path: &Path, bytes: u64) -> Result<bool, Error> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => match flaw(&metadata, bytes) {
            None => Ok(true),
            Some(flaw) => Err(Error::Changed(format!(
                "{flaw}: this node did not make it; look at the file and remove it"
            )))
            .at(path),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).at(path),
    }
}

fn flaw(metadata: &Metadata, bytes: u64) -> Option<String> {
    if let Some(flaw) = file_flaw(metadata) {
        return Some(flaw);
    }
    (metadata.len() != bytes).then(|| format!("{} bytes and not {bytes}", metadata.len()))
}

/// The reason to distrust a file: another user than this one and root may have made it or can reach it.
pub(super) fn file_flaw(metadata: &Metadata) -> Option<String> {
    let own = nix::unistd::geteuid().as_raw();
    let mode = metadata.mode() & 0o7777;
    if metadata.file_type().is_symlink() {
        Some("a symbolic link".to_owned())
    } else if !metadata.is_file() {
        Some("no regular file".to_owned())
    } else if metadata.nlink() != 1 {
        Some(format!("has {} names", metadata.nlink()))
    } else if metadata.uid() != own {
        Some(format!("belongs to user {}", metadata.uid()))
    } else if mode != MODE {
        Some(format!("has mode {mode:o} and not {MODE:o}"))
    } else {
        None
    }
}

/// Makes the file with allocated zeros, durably. A failure leaves no file.
pub(super) fn make(directory: &Path, lease: LeaseId, bytes: u64) -> Result<(), Error> {
    let unfinished = directory.join(unfinished_name(lease));
    let finished = directory.join(name(lease));
    let made = remove_if_there(&unfinished)
        .and_then(|()| allocate(&unfinished, bytes))
        .and_then(|_file| take_name(&unfinished, &finished));
    let made = match made {
        Ok(()) => make_durable(directory).inspect_err(|_| undo(&finished)),
        Err(error) => {
            undo(&unfinished);
            Err(error)
        }
    };
    let errno = made.as_ref().err().and_then(io::Error::raw_os_error);
    let is_full = matches!(errno, Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG));
    let room = match is_full.then(|| free_bytes(directory)) {
        Some(Ok(free)) => format!(": {bytes} bytes wanted, {free} free; make room there"),
        _ => String::new(),
    };
    made.at(&finished).advise(room)
}

/// Makes a new file with this size.
fn allocate(path: &Path, bytes: u64) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(MODE)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    let length = i64::try_from(bytes).map_err(|_too_long| Errno::EFBIG)?;
    fallocate(&file, FallocateFlags::empty(), 0, length)?;
    file.sync_all()?;
    Ok(file)
}

fn take_name(unfinished: &Path, finished: &Path) -> io::Result<()> {
    let never_over = RenameFlags::RENAME_NOREPLACE;
    Ok(renameat2(
        AT_FDCWD, unfinished, AT_FDCWD, finished, never_over,
    )?)
}

fn make_durable(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn undo(path: &Path) {
    if let Err(error) = remove_if_there(path) {
        tracing::warn!(path = %path.display(), %error, "an unfinished volume cannot be removed");
    }
}

pub(crate) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The bytes that a user other than root could still write.
pub(super) fn free_bytes(directory: &Path) -> io::Result<u64> {
    let about = nix::sys::statvfs::statvfs(directory)?;
    Ok(about
        .blocks_available()
        .saturating_mul(about.fragment_size()))
}

/// Checks that the file system can hold volumes. Returns the block size that nvmet will use, in bytes.
pub(super) fn probe(directory: &Path) -> Result<u32, Error> {
    let path = directory.join(PROBE);
    let file = remove_if_there(&path).and_then(|()| allocate(&path, *BLOCK_BYTES.end()));
    let metadata = match file {
        Ok(file) => file.metadata(),
        // Full is no fault: volumes may take all the space.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
            fs::metadata(directory)
        }
        Err(error) => Err(error),
    };
    remove_if_there(&path).at(directory)?;
    let metadata = metadata.map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => Error::Setting(UNSUITED.into()),
        _ => error.into(),
    });
    let block_bytes = metadata.at(directory)?.blksize();
    let clamped = block_bytes.clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end());
    u32::try_from(clamped)
        .map_err(io::Error::other)
        .at(directory)
}
