//! The pieces of operations that no request carries yet.

use alloc::{collections::VecDeque, vec::Vec};

use fabricbios_wire::Part;

use super::piece::{Piece, Sizes};

/// The pieces that no request carries. Every byte of an operation is in exactly one place: here, in one outstanding
/// request, or done. So the requests of an operation never overlap.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    fresh: VecDeque<Piece>,
    /// Pieces whose requests were in a session that was given up.
    again: Vec<Piece>,
    /// Blocks that are sent in parts and are not done. The next part always belongs to the last block.
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

impl Unsent {
    pub(super) fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.again.is_empty() && !self.is_cutting()
    }

    /// Adds a piece.
    pub(super) fn add(&mut self, piece: Piece) {
        if !piece.range.is_empty() {
            self.fresh.push_back(piece);
        }
    }

    /// Number of consecutive free counters that are needed after the next one.
    pub(super) fn reserve(&self, sizes: &Sizes) -> u32 {
        let next = self.again.last().or(self.fresh.front());
        let next = next.filter(|_| !self.is_cutting());
        next.map_or(0, |piece| u32::from(sizes.parts(piece.op)) - 1)
    }

    /// The piece that the next request carries.
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

    /// Records that a piece was answered and returns how many bytes of its operation that completes.
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

    /// Takes back pieces whose requests were given up. A block of which some parts were answered is sent again as a
    /// whole, because the server has forgotten them.
    pub(super) fn put_back(&mut self, carried: impl Iterator<Item = Piece>) {
        let blocks = self.gathers.drain(..).map(|gather| gather.block);
        self.again
            .extend(carried.filter(|piece| piece.part.is_none()));
        self.again.extend(blocks);
    }

    /// Drops all pieces of an operation.
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

    fn take(unsent: &mut Unsent, sizes: &Sizes) -> Option<Range<usize>> {
        unsent.take(sizes).map(|piece| piece.range)
    }

    #[test]
    fn every_byte_is_taken_once_and_what_comes_back_is_cut_anew() {
        let mut unsent = Unsent::default();
        unsent.add(write(0..10));
        let four = sizes(1, 4);
        assert_eq!(take(&mut unsent, &four), Some(0..4));
        assert_eq!(take(&mut unsent, &four), Some(4..8));
        unsent.put_back([write(0..4)].into_iter());
        let three = sizes(1, 3);
        assert_eq!(take(&mut unsent, &three), Some(0..3));
        assert_eq!(take(&mut unsent, &three), Some(3..4));
        assert_eq!(take(&mut unsent, &three), Some(8..10));
        assert!(unsent.is_empty());
        assert_eq!(take(&mut unsent, &three), None);
    }

    #[test]
    fn a_block_in_parts_is_done_with_its_last_answer_and_comes_back_whole() {
        let mut unsent = Unsent::default();
        unsent.add(write(0..8192));
        let short = sizes(4096, 2500);
        assert_eq!(unsent.reserve(&short), 1);
        let first = unsent.take(&short).unwrap();
        assert_eq!(first.range, 0..2048);
        assert_eq!(unsent.reserve(&short), 0);
        let second = unsent.take(&short).unwrap();
        assert_eq!(
            (second.range.clone(), unsent.done(&second)),
            (2048..4096, 0)
        );
        // The second part of this block was lost with the session, and half of the next block was never sent.
        assert_eq!(take(&mut unsent, &short), Some(4096..6144));
        unsent.put_back([first].into_iter());
        let pieces: Vec<_> = core::iter::from_fn(|| unsent.take(&short)).collect();
        assert_eq!(pieces.len(), 4);
        assert!(unsent.is_empty());
        let done: Vec<_> = pieces.iter().map(|piece| unsent.done(piece)).collect();
        assert_eq!(done, [0, 4096, 0, 4096]);
    }
}
