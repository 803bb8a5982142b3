//! Opens and checks the file or device with the blocks of a lease.

use std::{
    fmt::Display,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
};

use fabricbios_contract::Volume;
use fabricbios_lease::StepError;

use super::buffer::Buffer;

/// Opens a volume, with O_DIRECT if the file system supports it. `Err`: the defect of the volume.
pub(super) fn open(file: &Volume) -> Result<File, StepError> {
    let failed = |error: io::Error| defect(file, &error).with_errno(error.raw_os_error());
    check_sizes(file)?;
    check_kind(file, &fs::symlink_metadata(&file.path).map_err(failed)?)?;
    let mut opened = match open_with(file, libc::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let path = file.path.display();
            tracing::warn!(%path, "no O_DIRECT there: its blocks go through the page cache");
            open_with(file, 0)
        }
        opened => opened,
    }
    .map_err(failed)?;
    check_kind(file, &opened.metadata().map_err(failed)?)?;
    let there = opened.seek(SeekFrom::End(0)).map_err(failed)?;
    if there < file.bytes {
        let why = format_args!("{there} bytes are there, not {}", file.bytes);
        return Err(defect(file, why));
    }
    read_last(&opened, file)?;
    Ok(opened)
}

fn check_sizes(file: &Volume) -> Result<(), StepError> {
    let (bytes, block) = (file.bytes, file.block_bytes);
    if !block.is_power_of_two() || !(512..=4096).contains(&block) {
        let why = "a power of two from 512 to 4096 can be served";
        return Err(defect(file, format_args!("blocks of {block} bytes; {why}")));
    }
    if bytes == 0 || !bytes.is_multiple_of(block.into()) {
        let why = format_args!("{bytes} bytes are not whole blocks of {block}");
        return Err(defect(file, why));
    }
    Ok(())
}

fn check_kind(file: &Volume, metadata: &Metadata) -> Result<(), StepError> {
    let kind = metadata.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    Err(defect(file, "neither a regular file nor a block device"))
}

fn open_with(file: &Volume, flags: i32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(!file.read_only)
        .custom_flags(flags | libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(&file.path)
}

/// Reads the last block. The kernel refuses (EINVAL, open(2)) I/O that is not aligned to the blocks of the storage.
fn read_last(opened: &File, file: &Volume) -> Result<(), StepError> {
    let block = file.block_bytes as usize;
    let last = file.bytes - u64::from(file.block_bytes);
    let read = opened.read_exact_at(&mut Buffer::new().payload()[..block], last);
    read.map_err(|error| {
        let why = match error.raw_os_error() {
            Some(libc::EINVAL) => {
                format!("the blocks of the storage are larger than {block} bytes")
            }
            _ => format!("its last block cannot be read: {error}"),
        };
        defect(file, why).with_errno(error.raw_os_error())
    })
}

fn defect(file: &Volume, why: impl Display) -> StepError {
    let path = file.path.display();
    StepError::new("open blocks", format_args!("{path}: {why}"))
}
