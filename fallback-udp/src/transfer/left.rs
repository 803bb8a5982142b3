//! The bytes of a transfer that no request carries yet.

use alloc::vec::Vec;
use core::ops::Range;

/// Indexes into the transfer. Every byte is in one place only: here, in one outstanding request, or
/// done; so requests never overlap.
#[derive(Debug, Default)]
pub(super) struct Left {
    fresh: Range<usize>,
    /// Carried before, in a session that was given up.
    again: Vec<Range<usize>>,
}

impl Left {
    pub(super) fn all(length: usize) -> Self {
        Self {
            fresh: 0..length,
            again: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.again.is_empty()
    }

    /// What the next request carries: at most `most` bytes.
    pub(super) fn take(&mut self, most: usize) -> Option<Range<usize>> {
        let from = self.again.last_mut().unwrap_or(&mut self.fresh);
        let end = from.start.saturating_add(most).min(from.end);
        let taken = from.start..end;
        from.start = end;
        if self.again.last().is_some_and(Range::is_empty) {
            self.again.pop();
        }
        (!taken.is_empty()).then_some(taken)
    }

    /// Carried by nothing any more.
    pub(super) fn put_back(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.again.push(range);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_taken_once_and_what_comes_back_is_cut_anew() {
        let mut left = Left::all(10);
        assert_eq!(left.take(4), Some(0..4));
        assert_eq!(left.take(4), Some(4..8));
        left.put_back(0..4);
        assert_eq!(left.take(3), Some(0..3));
        assert_eq!(left.take(3), Some(3..4));
        assert_eq!(left.take(3), Some(8..10));
        assert!(left.is_empty());
        assert_eq!(left.take(3), None);
    }
}
