//! Whether the kernel's NVMe target can serve the files of a directory.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
};

use nix::errno::Errno;

use crate::error::{At, Error};

/// Checks that nvmet can serve files of this directory. A path that is no directory passes. Changes nothing there, so
/// the check works before the directory is a pool.
///
/// # Errors
/// The reason why nvmet cannot serve them.
pub fn check_for_nvmet(path: &Path) -> Result<(), Error> {
    if !path.is_dir() {
        return Ok(());
    }
    let directory = File::open(path).at(path)?;
    let flaw = flaw(block_size_of(&directory), direct_io(path));
    flaw.map_or(Ok(()), |why| Err(Error::Setting(why)))
}

nix::ioctl_read_bad!(
    /// `FIGETBSZ` of linux/fs.h: the block size of the file's own file system, as in `i_blkbits`. stat(2) on overlayfs
    /// returns the block size of the file system below instead.
    get_block_size,
    2,
    libc::c_int
);

fn block_size_of(file: &File) -> nix::Result<libc::c_int> {
    let mut bytes = 0;
    // SAFETY: the descriptor is open, and the kernel writes one int to the address of one.
    unsafe { get_block_size(file.as_raw_fd(), &raw mut bytes) }?;
    Ok(bytes)
}

/// Opens a nameless file in the same way as nvmet opens volumes (`nvmet_file_ns_enable`).
fn direct_io(directory: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(libc::O_DIRECT | libc::O_TMPFILE);
    options.open(directory).map(drop)
}

/// The reason why nvmet cannot serve a file. nvmet takes the block size from the inode: with blocks of 2^0 bytes, hosts
/// see a namespace of 0 bytes. And nvmet opens the file for direct I/O. An unknown block size counts as good.
fn flaw(block_size: nix::Result<libc::c_int>, direct_io: io::Result<()>) -> Option<String> {
    let is_refused = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    match (block_size, direct_io) {
        (Ok(1..=511) | Err(Errno::EINVAL), _) => Some(
            "its file system has no block size, as overlayfs, so that hosts would see a namespace of 0 bytes".into(),
        ),
        (_, Err(error)) if is_refused(&error) => {
            Some(format!("its files cannot be opened for direct I/O: {error}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvmet_serves_files_with_a_block_size_and_direct_io_only() {
        let failed = |errno: Errno| Err(io::Error::from(errno));
        for (block_size, direct_io, word) in [
            (Ok(4096), Ok(()), None),
            (Ok(1024), Ok(()), None),
            (Ok(1 << 20), Ok(()), None),
            (Err(Errno::EINVAL), Ok(()), Some("no block size")),
            (Ok(1), Ok(()), Some("no block size")),
            (Ok(4096), failed(Errno::EINVAL), Some("direct I/O")),
            // The kernel does not report a block size.
            (Err(Errno::ENOTTY), Ok(()), None),
            (Ok(4096), failed(Errno::EOPNOTSUPP), None),
            (Ok(4096), failed(Errno::ENOSPC), None),
        ] {
            let flaw = flaw(block_size, direct_io);
            let fits = match (&flaw, word) {
                (Some(flaw), Some(word)) => flaw.contains(word),
                (flaw, word) => flaw.is_none() && word.is_none(),
            };
            assert!(fits, "{block_size:?}: {flaw:?}");
        }
    }
}
