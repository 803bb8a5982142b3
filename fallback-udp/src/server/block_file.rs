//! Opens and checks the file or device with the blocks of a lease.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
};

use fabricbios_contract::Volume;

use super::buffer::Buffer;

/// Opens a volume, with O_DIRECT if the file system supports it. `Err`: the defect of the volume.
pub(super) fn open(file: &Volume) -> Result<File, String> {
    check_sizes(file)?;
    check_kind(&fs::symlink_metadata(&file.path).map_err(text_of)?)?;
    let mut opened = match open_with(file, libc::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let path = file.path.display();
            tracing::warn!(%path, "no O_DIRECT there: its blocks go through the page cache");
            open_with(file, 0)
        }
        opened => opened,
    }
    .map_err(text_of)?;
    check_kind(&opened.metadata().map_err(text_of)?)?;
    let there = opened.seek(SeekFrom::End(0)).map_err(text_of)?;
    if there < file.bytes {
        return Err(format!("{there} bytes are there, not {}", file.bytes));
    }
    read_last(&opened, file)?;
    Ok(opened)
}

fn check_sizes(file: &Volume) -> Result<(), String> {
    let (bytes, block) = (file.bytes, file.block_bytes);
    if !block.is_power_of_two() || !(512..=4096).contains(&block) {
        return Err(format!(
            "blocks of {block} bytes; a power of two from 512 to 4096 can be served"
        ));
    }
    if bytes == 0 || !bytes.is_multiple_of(block.into()) {
        return Err(format!("{bytes} bytes are not whole blocks of {block}"));
    }
    Ok(())
}

fn check_kind(metadata: &Metadata) -> Result<(), String> {
    let kind = metadata.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    Err("neither a regular file nor a block device".into())
}

fn open_with(file: &Volume, flags: i32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(!file.read_only)
        .custom_flags(flags | libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(&file.path)
}

/// Reads the last block. The kernel refuses (EINVAL, open(2)) I/O that is not aligned to the blocks of the storage.
fn read_last(opened: &File, file: &Volume) -> Result<(), String> {
    let block = file.block_bytes as usize;
    let last = file.bytes - u64::from(file.block_bytes);
    let read = opened.read_exact_at(&mut Buffer::new().payload()[..block], last);
    read.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => format!("the blocks of the storage are larger than {block} bytes"),
        _ => format!("its last block cannot be read: {error}"),
    })
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn text_of(error: io::Error) -> String {
    error.to_string()
}
