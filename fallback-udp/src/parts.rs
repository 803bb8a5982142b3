//! Writes in parts: what came of blocks that are not whole yet.
//!
//! The window bounds it: each part used a counter, and what is behind the window is dropped.

use alloc::{boxed::Box, vec::Vec};

use fabricbios_wire::{DataStatus, Part};

use crate::{
    replay::Window,
    space::{Job, Writing},
};

/// Of one session.
#[derive(Debug, Default)]
pub(crate) struct Parts(Vec<Gathered>);

/// The parts of one write that came.
#[derive(Debug)]
struct Gathered {
    /// Counter of the part with index 0: what the write is told by.
    first: u32,
    offset: u64,
    count: u16,
    pieces: Vec<(u16, Box<[u8]>)>,
}

/// What a new part makes of its write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// Others are missing.
    Waits,
    /// The block.
    Whole(Vec<u8>),
    /// The parts before it are of another block or count.
    Disagrees,
}

impl Parts {
    /// Takes a part whose counter was not used before.
    pub(crate) fn add(&mut self, first: u32, offset: u64, part: Part, bytes: &[u8]) -> Added {
        let at = self.0.iter().position(|write| write.first == first);
        let at = at.unwrap_or_else(|| self.begin(first, offset, part.count()));
        let write = &mut self.0[at];
        if (write.offset, write.count) != (offset, part.count()) {
            return Added::Disagrees;
        }
        write.pieces.push((part.index(), bytes.into()));
        if write.pieces.len() < usize::from(write.count) {
            return Added::Waits;
        }
        Added::Whole(self.0.swap_remove(at).whole())
    }

    /// The job, or the write that it is the last missing part of; none: others are missing.
    pub(crate) fn gather<'a>(&mut self, job: Job<'a>) -> Result<Option<Job<'a>>, DataStatus> {
        let Job::Write(Writing {
            offset,
            bytes,
            part: Some((part, first)),
        }) = job
        else {
            return Ok(Some(job));
        };
        match self.add(first, offset, part, &bytes) {
            Added::Disagrees => Err(DataStatus::Invalid),
            Added::Waits => Ok(None),
            Added::Whole(block) => Ok(Some(Job::Write(Writing {
                offset,
                bytes: block.into(),
                part: None,
            }))),
        }
    }

    /// Drops the writes that cannot be completed any more.
    pub(crate) fn keep_within(&mut self, window: &Window) {
        self.0.retain(|write| !window.is_behind(write.first));
    }

    fn begin(&mut self, first: u32, offset: u64, count: u16) -> usize {
        self.0.push(Gathered {
            first,
            offset,
            count,
            pieces: Vec::new(),
        });
        self.0.len() - 1
    }
}

impl Gathered {
    fn whole(mut self) -> Vec<u8> {
        self.pieces.sort_unstable_by_key(|(index, _)| *index);
        let pieces = self.pieces.iter();
        pieces.flat_map(|(_, bytes)| bytes).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(index: u16, count: u16) -> Part {
        Part::new(index, count).unwrap()
    }

    #[test]
    fn parts_in_any_order_make_the_block_in_its_order() {
        let mut parts = Parts::default();
        for (index, bytes) in [(2, b"cc"), (0, b"aa"), (3, b"dd")] {
            assert_eq!(parts.add(9, 5, part(index, 4), bytes), Added::Waits);
        }
        let other = parts.add(13, 5, part(0, 4), b"xx");
        assert_eq!(other, Added::Waits, "another write");
        let whole = parts.add(9, 5, part(1, 4), b"bb");
        assert_eq!(whole, Added::Whole(b"aabbccdd".to_vec()));
    }

    #[test]
    fn parts_of_one_write_agree() {
        let mut parts = Parts::default();
        assert_eq!(parts.add(1, 5, part(0, 2), b"a"), Added::Waits);
        assert_eq!(parts.add(1, 6, part(1, 2), b"b"), Added::Disagrees);
        assert_eq!(parts.add(1, 5, part(1, 4), b"b"), Added::Disagrees);
        assert_eq!(
            parts.add(1, 5, part(1, 2), b"b"),
            Added::Whole(b"ab".to_vec())
        );
    }

    #[test]
    fn what_falls_behind_the_window_is_dropped() {
        let (mut parts, mut window) = (Parts::default(), Window::default());
        assert_eq!(parts.add(1, 5, part(0, 2), b"a"), Added::Waits);
        window.commit(128, [0; 8], Some(DataStatus::Ok));
        parts.keep_within(&window);
        assert_eq!(parts.0.len(), 1);
        window.commit(129, [0; 8], Some(DataStatus::Ok));
        parts.keep_within(&window);
        assert!(parts.0.is_empty());
    }
}
