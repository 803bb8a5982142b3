//! The piece of an operation that one request carries, and its largest size.

use core::ops::Range;

use fabricbios_wire::{DataOp, Part};

/// The piece of an operation that one request carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Id of the operation.
    pub(super) operation: u64,
    pub(super) op: DataOp,
    /// The bytes of the operation; 0..1 for PING and FLUSH, which move no bytes.
    pub(super) range: Range<usize>,
    /// The part of a block; `None`: whole units.
    pub(super) part: Option<Part>,
}

/// The largest sizes of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Size of a unit in bytes.
    pub(super) unit: usize,
    /// Longest payloads, by the path and by the server.
    pub(super) max_read: usize,
    pub(super) max_write: usize,
}

impl Sizes {
    /// For requests without payload.
    pub(super) const NONE: Self = Self {
        unit: 1,
        max_read: 1,
        max_write: 1,
    };

    /// Number of requests for one unit.
    pub(super) fn parts(&self, op: DataOp) -> u16 {
        let most = match op {
            DataOp::Read => self.max_read,
            DataOp::Write => self.max_write,
            _ => return 1,
        };
        let mut count = 1;
        while count < Part::COUNT_MAX && self.unit / usize::from(count) > most {
            count *= 2;
        }
        count
    }

    /// Most bytes of one request: whole units, or one unit if it has to be sent in parts.
    pub(super) fn most(&self, op: DataOp) -> usize {
        let most = match op {
            DataOp::Write => self.max_write,
            _ => self.max_read,
        };
        (most - most % self.unit).max(self.unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_where_they_fit_and_in_as_few_parts_as_do_where_not() {
        let sizes = |path| Sizes {
            unit: 4096,
            max_read: path,
            max_write: path,
        };
        let at = |path| {
            let sizes = sizes(path);
            (sizes.parts(DataOp::Write), sizes.most(DataOp::Write))
        };
        assert_eq!(at(8884), (1, 8192));
        assert_eq!(at(4096), (1, 4096));
        assert_eq!(at(1384), (4, 4096));
        assert_eq!(at(64), (64, 4096));
        assert_eq!(sizes(64).parts(DataOp::Flush), 1);
    }
}
