//! What operations have that no request carries yet.

use alloc::{collections::VecDeque, vec::Vec};

use fabricbios_wire::Part;

use super::piece::{Piece, Sizes};

/// Every byte is in one place only: here, in one outstanding request, or done; so the requests of an
/// operation never overlap.
#[derive(Debug, Default)]
pub(super) struct Left {
    fresh: VecDeque<Piece>,
    /// Carried before, in a session that was given up.
    again: Vec<Piece>,
    /// Blocks in parts that are not done. What of one goes into the next request is always of the last.
    gathers: Vec<Gather>,
}

/// A block in parts.
#[derive(Debug)]
struct Gather {
    block: Piece,
    count: u16,
    /// The next part that no request carries.
    next: u16,
    /// A bit for each part.
    answered: u64,
}

impl Left {
    pub(super) fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.again.is_empty() && !self.is_cutting()
    }

    /// More to do.
    pub(super) fn add(&mut self, piece: Piece) {
        if !piece.range.is_empty() {
            self.fresh.push_back(piece);
        }
    }

    /// Counters that have to be free one after the other behind the next one.
    pub(super) fn reserve(&self, sizes: &Sizes) -> u32 {
        let next = self.again.last().or(self.fresh.front());
        let next = next.filter(|_| !self.is_cutting());
        next.map_or(0, |piece| u32::from(sizes.parts(piece.op)) - 1)
    }

    /// What the next request carries.
    pub(super) fn take(&mut self, sizes: &Sizes) -> Option<Piece> {
        if !self.is_cutting() {
            let whole = self.take_whole(sizes)?;
            let count = sizes.parts(whole.op);
            if count == 1 {
                return Some(whole);
            }
            self.gathers.push(Gather::new(whole, count));
        }
        self.gathers.last_mut()?.take()
    }

    fn take_whole(&mut self, sizes: &Sizes) -> Option<Piece> {
        let again = !self.again.is_empty();
        let from = self.again.last_mut().or(self.fresh.front_mut())?;
        let most = sizes.most(from.op);
        let end = from.range.start.saturating_add(most).min(from.range.end);
        let range = from.range.start..end;
        from.range.start = end;
        let taken = Piece {
            range,
            ..from.clone()
        };
        match (from.range.is_empty(), again) {
            (true, true) => drop(self.again.pop()),
            (true, false) => drop(self.fresh.pop_front()),
            (false, _) => {}
        }
        Some(taken)
    }

    /// It was answered: how many bytes of its operation that makes done.
    pub(super) fn done(&mut self, piece: &Piece) -> usize {
        let Some(part) = piece.part else {
            return piece.range.len();
        };
        let at = self.gathers.iter().position(|gather| gather.has(piece));
        let Some(at) = at else {
            return 0;
        };
        self.gathers[at].answered |= 1 << part.index();
        if !self.gathers[at].is_whole() {
            return 0;
        }
        self.gathers.remove(at).block.range.len()
    }

    /// Carried by nothing any more, and nothing is known of it. A block of which some parts were
    /// answered is asked again as a whole: the server has forgotten those.
    pub(super) fn put_back(&mut self, carried: impl Iterator<Item = Piece>) {
        let blocks = self.gathers.drain(..).map(|gather| gather.block);
        self.again
            .extend(carried.filter(|piece| piece.part.is_none()));
        self.again.extend(blocks);
    }

    /// Nothing more of this operation.
    pub(super) fn forget(&mut self, operation: u64) {
        self.fresh.retain(|piece| piece.operation != operation);
        self.again.retain(|piece| piece.operation != operation);
        self.gathers
            .retain(|gather| gather.block.operation != operation);
    }

    fn is_cutting(&self) -> bool {
        self.gathers
            .last()
            .is_some_and(|gather| gather.next < gather.count)
    }
}

impl Gather {
    fn new(block: Piece, count: u16) -> Self {
        Self {
            block,
            count,
            next: 0,
            answered: 0,
        }
    }

    fn take(&mut self) -> Option<Piece> {
        let part = Part::new(self.next, self.count)?;
        let bytes = self.block.range.len() / usize::from(self.count);
        let start = self.block.range.start + bytes * usize::from(self.next);
        self.next += 1;
        Some(Piece {
            range: start..start + bytes,
            part: Some(part),
            ..self.block.clone()
        })
    }

    fn has(&self, piece: &Piece) -> bool {
        self.block.operation == piece.operation && self.block.range.contains(&piece.range.start)
    }

    fn is_whole(&self) -> bool {
        self.answered.count_ones() == u32::from(self.count)
    }
}

#[cfg(test)]
mod tests {
    use core::ops::Range;

    use fabricbios_wire::DataOp;

    use super::*;

    fn write(range: Range<usize>) -> Piece {
        Piece {
            operation: 3,
            op: DataOp::Write,
            range,
            part: None,
        }
    }

    fn sizes(unit: usize, most: usize) -> Sizes {
        Sizes {
            unit,
            max_read: most,
            max_write: most,
        }
    }

    fn take(left: &mut Left, sizes: &Sizes) -> Option<Range<usize>> {
        left.take(sizes).map(|piece| piece.range)
    }

    #[test]
    fn every_byte_is_taken_once_and_what_comes_back_is_cut_anew() {
        let mut left = Left::default();
        left.add(write(0..10));
        let four = sizes(1, 4);
        assert_eq!(take(&mut left, &four), Some(0..4));
        assert_eq!(take(&mut left, &four), Some(4..8));
        left.put_back([write(0..4)].into_iter());
        let three = sizes(1, 3);
        assert_eq!(take(&mut left, &three), Some(0..3));
        assert_eq!(take(&mut left, &three), Some(3..4));
        assert_eq!(take(&mut left, &three), Some(8..10));
        assert!(left.is_empty());
        assert_eq!(take(&mut left, &three), None);
    }

    #[test]
    fn a_block_in_parts_is_done_with_its_last_answer_and_comes_back_whole() {
        let mut left = Left::default();
        left.add(write(0..8192));
        let short = sizes(4096, 2500);
        assert_eq!(left.reserve(&short), 1);
        let first = left.take(&short).unwrap();
        assert_eq!(first.range, 0..2048);
        assert_eq!(left.reserve(&short), 0);
        let second = left.take(&short).unwrap();
        assert_eq!((second.range.clone(), left.done(&second)), (2048..4096, 0));
        // The other was lost with the session, and half of the next block never went out.
        assert_eq!(take(&mut left, &short), Some(4096..6144));
        left.put_back([first].into_iter());
        let pieces: Vec<_> = core::iter::from_fn(|| left.take(&short)).collect();
        assert_eq!(pieces.len(), 4);
        assert!(left.is_empty());
        let done: Vec<_> = pieces.iter().map(|piece| left.done(piece)).collect();
        assert_eq!(done, [0, 4096, 0, 4096]);
    }
}
