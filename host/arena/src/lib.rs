//! The bytes that memory leases are cut from: one file, mapped once, reached over several paths.
//!
//! The arena owns the bytes; an RDMA region, a UDP request and a scrub borrow them. The arena knows no leases: the
//! [`ArenaStore`] knows which bytes belong to which lease, and scrubs them.
//!
//! Remote clients read and write at any time, also through a device. So bytes are copied and never borrowed: each
//! copied byte is the value of some moment.
//!
//! Never here: a decision about who has access.
//!
//! Read first: `store.rs`, which knows which bytes belong to which lease.

mod map;
mod mark;
mod source;
mod store;

use std::{collections::BTreeMap, fs::File, io, sync::Arc};

use fabricbios_lease::{Extent, StepError};
use fabricbios_wire::ResourceId;

pub use map::Mapping;
pub use mark::Mark;
pub use source::{Backing, Source, check_file};
pub use store::ArenaStore;

/// Alignment of the extents of leases, in bytes.
pub const ALIGN: u64 = 4096;

/// Bytes zeroed between two calls of a scrub's `progress`.
const SCRUB_CHUNK_BYTES: u64 = 1 << 20;

/// The mapped bytes.
#[derive(Debug)]
pub struct Arena {
    /// Open as long as the arena is in use: the lock of the file ends with it.
    _file: File,
    mapping: Mapping,
    backing: Backing,
    /// The first page of the file; `None` for memory.
    header: Option<Mapping>,
}

/// The arenas of a node, by their resource.
pub type Arenas = BTreeMap<ResourceId, Arc<Arena>>;

/// A range that is not part of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at {offset} are not within the {arena_bytes} bytes of the arena")]
pub struct OutOfRange {
    /// Offset of the range.
    pub offset: u64,
    /// Length of the range.
    pub length: u64,
    /// Length of the arena.
    pub arena_bytes: u64,
}

impl Arena {
    /// Makes or opens the bytes that `source` describes and maps them. `bytes`: a positive multiple of [`ALIGN`].
    ///
    /// # Errors
    /// The text names the file. `WouldBlock`: another process has locked the file. `InvalidInput`: the file is not
    /// regular, or the size is no multiple of its huge pages. `OutOfMemory`: hugetlbfs has too few free pages.
    pub fn open(source: &Source, bytes: u64) -> io::Result<Self> {
        if bytes == 0 || !bytes.is_multiple_of(ALIGN) {
            let why = format!("{bytes} bytes is no positive multiple of {ALIGN}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        source.open(bytes)
    }

    /// The mark of the last user of the file, as [`Arena::set_mark`] wrote it; none for memory and for a new file.
    #[must_use]
    pub fn mark(&self) -> Option<Mark> {
        self.header.as_ref().and_then(mark::read)
    }

    /// Writes the mark of the user into the file, beside the bytes. Does nothing for memory.
    pub fn set_mark(&self, mark: &Mark) {
        if let Some(header) = &self.header {
            mark::write(header, mark);
        }
    }

    /// The number of the last commit in the journal of the user, as [`Arena::set_commits`] wrote it; 0 for memory and
    /// for a new file.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.header.as_ref().map_or(0, mark::read_commits)
    }

    /// Writes the number into the file, beside the bytes. May wait for the disk of the file.
    pub fn set_commits(&self, number: u64) {
        if let Some(header) = &self.header {
            mark::write_commits(header, number);
        }
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// The kind of memory, for the log and the inventory.
    #[must_use]
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// The mapping, for registering it with a device.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// The range is not inside the arena.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        let at = self.check(offset, into.len() as u64)?;
        self.mapping.copy_out(at, into);
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// The range is not inside the arena.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        let at = self.check(offset, from.len() as u64)?;
        self.mapping.copy_in(at, from);
        Ok(())
    }

    /// Overwrites a range with zeros, in the pages that devices use too. Punching a hole would not work: a device would
    /// keep the old pages. `progress` is called after every MiB.
    ///
    /// # Errors
    /// The range is not inside the arena.
    pub fn scrub(&self, offset: u64, length: u64, progress: &dyn Fn()) -> Result<(), OutOfRange> {
        let start = self.check(offset, length)?;
        let mut left = length;
        while left > 0 {
            let chunk = left.min(SCRUB_CHUNK_BYTES);
            let at = start + usize::try_from(length - left).unwrap_or(usize::MAX);
            self.mapping
                .zero(at, usize::try_from(chunk).unwrap_or(usize::MAX));
            left -= chunk;
            progress();
        }
        Ok(())
    }

    /// Checks that an extent of a lease is whole pages of the arena.
    ///
    /// # Errors
    /// The extent is not inside the arena, or is not whole pages.
    pub fn check_extent(&self, extent: Extent) -> Result<(), StepError> {
        let Extent { offset, length } = extent;
        let whole = offset.is_multiple_of(ALIGN) && length.is_multiple_of(ALIGN);
        if length > 0 && whole && self.check(offset, length).is_ok() {
            return Ok(());
        }
        let arena = self.bytes();
        let detail = format!(
            "{length} bytes at {offset} must be a positive multiple of {ALIGN} within the arena of {arena} bytes"
        );
        Err(StepError::new("check extent", detail))
    }

    /// Returns the start as an index of the mapping, if the whole range is inside the arena.
    fn check(&self, offset: u64, length: u64) -> Result<usize, OutOfRange> {
        let arena_bytes = self.bytes();
        let inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= arena_bytes);
        match (inside, usize::try_from(offset)) {
            (true, Ok(at)) => Ok(at),
            _ => Err(OutOfRange {
                offset,
                length,
                arena_bytes,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(bytes: u64) -> Arena {
        Arena::open(&Source::default(), bytes).unwrap()
    }

    #[test]
    fn what_is_written_is_read_and_scrubbed() {
        let arena = arena(3 << 20);
        arena.write(ALIGN, b"tenant").unwrap();
        let mut got = [0; 6];
        arena.read(ALIGN, &mut got).unwrap();
        assert_eq!(&got, b"tenant");
        let calls = std::cell::Cell::new(0);
        arena
            .scrub(0, 3 << 20, &|| calls.set(calls.get() + 1))
            .unwrap();
        assert_eq!(calls.get(), 3);
        arena.read(ALIGN, &mut got).unwrap();
        assert_eq!(got, [0; 6]);
    }

    #[test]
    fn nothing_outside_is_touched() {
        let arena = arena(ALIGN);
        let mut one = [0];
        for offset in [ALIGN, u64::MAX] {
            assert!(arena.read(offset, &mut one).is_err());
            assert!(arena.write(offset, &one).is_err());
            assert!(arena.scrub(offset, 1, &|| ()).is_err());
        }
        assert!(arena.write(ALIGN - 1, &[1, 2]).is_err());
    }

    #[test]
    fn sizes_that_are_no_pages_are_refused() {
        for bytes in [0, 1, ALIGN + 1] {
            assert!(Arena::open(&Source::default(), bytes).is_err());
        }
    }

    #[test]
    fn an_operators_file_keeps_its_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let source = Source {
            file: Some(directory.path().join("arena")),
            ..Source::default()
        };
        let first = Arena::open(&source, ALIGN).unwrap();
        first.write(7, b"stays").unwrap();
        drop(first);
        let second = Arena::open(&source, ALIGN).unwrap();
        let mut got = [0; 5];
        second.read(7, &mut got).unwrap();
        assert_eq!(&got, b"stays");
        assert!(second.backing().outlives_process);
    }
}
