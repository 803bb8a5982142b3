//! Zeroes a part of a raw device and checks samples of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{FallocateFlags, FcntlArg, fallocate, fcntl};

use super::calls::Progress;
use crate::device::header::{self, Header};
use crate::device::record::put;
use crate::error::{At, Error};

/// The identity of a pool.
pub(crate) type Identity = [u8; 16];

/// Bytes between two reports of progress: a slow disk zeroes them within a second.
const CHUNK_BYTES: u64 = 16 << 20;
/// Length of a sample, at least a block of any supported device.
const SAMPLE_BYTES: usize = 4096;
const SAMPLES_MAX: u64 = 16;

/// Zeroes `length` bytes at `offset` of the device, waits until the zeros are on the device, and reads samples.
///
/// It uses only `FALLOC_FL_ZERO_RANGE`: the kernel then drops cached pages and calls `blkdev_issue_zeroout` with
/// `BLKDEV_ZERO_NOUNMAP` (`blkdev_fallocate`, block/fops.c). So the device writes zeros and keeps the blocks; a device
/// without such a command gets zeros from the kernel. `PUNCH_HOLE` or a discard may unmap the blocks. Then the device
/// alone decides which bytes a read returns, and a thin device can run out of space under a lease.
pub(super) fn zero(
    device: &Path,
    identity: Identity,
    offset: u64,
    length: u64,
    progress: Progress<'_>,
) -> Result<(), Error> {
    let zeroing = format!("{}: zeroing {length} bytes at {offset}", device.display());
    let file = open(device).at(device)?;
    confirm(&file, identity).at(device)?;
    wait_for_others(&file, offset, length).during(&zeroing)?;
    progress()?;
    for (at, bytes) in chunks(offset, length) {
        zero_range(&file, at, bytes).during(&zeroing)?;
        progress()?;
    }
    file.sync_all().during(&zeroing)?;
    for at in samples(offset, length) {
        let bytes = read_sample(&file, at).during(&zeroing)?;
        if let Some(place) = bytes.iter().position(|&byte| byte != 0) {
            let place = at + place as u64;
            let why = format!(
                "byte {place} is not zero after it was zeroed: this device cannot be trusted"
            );
            return Err(io::Error::other(why)).at(device);
        }
        progress()?;
    }
    Ok(())
}

/// Opens the device without the page cache, so that a sample contains the bytes on the device.
fn open(device: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(device)
}

/// Checks the identity of the pool: the name may belong to another device by now.
fn confirm(file: &File, identity: Identity) -> Result<(), Error> {
    let copies = header::PLACES.map(|place| read_sample(file, place));
    let header = copies
        .into_iter()
        .filter_map(|copy| Header::decode(&copy.ok()?).ok())
        .flatten()
        .any(|header| header.identity == identity);
    if header {
        return Ok(());
    }
    let why = "this is not the pool that was to be wiped: nothing was written";
    Err(Error::Changed(why.into()))
}

/// Writes a header to its place, after all other writers of this range have ended.
pub(super) fn write_header(device: &Path, header: &Header) -> Result<(), Error> {
    let file = open(device).at(device)?;
    confirm(&file, header.identity).at(device)?;
    wait_for_others(&file, header.place(), header::BYTES as u64).at(device)?;
    let plain = OpenOptions::new().write(true).open(device);
    plain.and_then(|plain| put(&plain, header)).at(device)
}

/// Waits until no other process zeroes the range: a process that was given up may still do so.
fn wait_for_others(file: &File, offset: u64, length: u64) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLKW(&range(offset, length)?))?;
    Ok(())
}

/// Whether a process of this daemon or of an earlier one still zeroes the range.
pub(crate) fn range_is_busy(file: &File, offset: u64, length: u64) -> io::Result<bool> {
    let mut answer = range(offset, length)?;
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut answer))?;
    Ok(i32::from(answer.l_type) != libc::F_UNLCK)
}

fn range(offset: u64, length: u64) -> io::Result<libc::flock> {
    let number = |value: u64| i64::try_from(value).map_err(io::Error::other);
    let kind = |value: i32| i16::try_from(value).map_err(io::Error::other);
    Ok(libc::flock {
        l_type: kind(libc::F_WRLCK)?,
        l_whence: kind(libc::SEEK_SET)?,
        l_start: number(offset)?,
        l_len: number(length)?,
        l_pid: 0,
    })
}

fn zero_range(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let number = |value: u64| i64::try_from(value).map_err(io::Error::other);
    let flags = FallocateFlags::FALLOC_FL_ZERO_RANGE;
    Ok(fallocate(file, flags, number(offset)?, number(length)?)?)
}

fn chunks(offset: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = (0..length.div_ceil(CHUNK_BYTES)).map(|index| index * CHUNK_BYTES);
    starts.map(move |start| (offset + start, CHUNK_BYTES.min(length - start)))
}

/// The offsets of the samples: the first block, the last block, and some between them.
fn samples(offset: u64, length: u64) -> impl Iterator<Item = u64> {
    let all = length / SAMPLE_BYTES as u64;
    let taken = all.min(SAMPLES_MAX);
    let last = all.saturating_sub(1);
    (0..taken).map(move |index| {
        let place = u128::from(last) * u128::from(index) / u128::from((taken - 1).max(1));
        offset + u64::try_from(place).unwrap_or(last) * SAMPLE_BYTES as u64
    })
}

/// Reads into page-aligned memory, which O_DIRECT needs.
fn read_sample(file: &File, offset: u64) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; SAMPLE_BYTES * 2];
    let start = buffer.as_ptr().align_offset(SAMPLE_BYTES);
    let sample = &mut buffer[start..start + SAMPLE_BYTES];
    file.read_exact_at(sample, offset)?;
    Ok(sample.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_all_of_it_once() {
        let all: Vec<_> = chunks(1 << 20, (32 << 20) + 4096).collect();
        assert_eq!(
            all,
            [
                (1 << 20, CHUNK_BYTES),
                (17 << 20, CHUNK_BYTES),
                (33 << 20, 4096)
            ]
        );
        assert_eq!(chunks(5, 0).count(), 0);
    }

    #[test]
    fn samples_are_the_ends_and_some_between() {
        let all: Vec<_> = samples(1 << 20, 1 << 30).collect();
        assert_eq!(all.len() as u64, SAMPLES_MAX);
        assert_eq!(all[0], 1 << 20);
        assert_eq!(*all.last().unwrap(), (1 << 20) + (1 << 30) - 4096);
        assert!(all.is_sorted() && all.iter().all(|at| at % 4096 == 0));
        assert_eq!(samples(8192, 4096).collect::<Vec<_>>(), [8192]);
        assert_eq!(samples(0, 8192).collect::<Vec<_>>(), [0, 4096]);
    }
}
