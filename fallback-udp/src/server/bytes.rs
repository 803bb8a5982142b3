//! The memory of one lease: an extent of the arena.

use std::sync::Arc;

use fabricbios_arena::Arena;
use fabricbios_lease::Extent;

use crate::{Space, Store, StoreFailed};

/// The memory of one lease.
#[derive(Debug)]
pub struct Bytes {
    pub(super) arena: Arc<Arena>,
    pub(super) extent: Extent,
}

impl Space for Bytes {
    fn units(&self) -> u64 {
        self.extent.length
    }
}

impl Store for Bytes {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), StoreFailed> {
        let at = self.place(offset, into.len())?;
        self.arena.read(at, into).map_err(|_outside| StoreFailed)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), StoreFailed> {
        let at = self.place(offset, from.len())?;
        self.arena.write(at, from).map_err(|_outside| StoreFailed)
    }
}

impl Bytes {
    /// The offset in the arena. The range is checked here again, since the neighbouring bytes belong to other leases.
    fn place(&self, offset: u64, length: usize) -> Result<u64, StoreFailed> {
        let end = offset.checked_add(length as u64).ok_or(StoreFailed)?;
        if end > self.extent.length {
            return Err(StoreFailed);
        }
        self.extent.offset.checked_add(offset).ok_or(StoreFailed)
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_arena::Source;

    use super::*;

    #[test]
    fn bytes_of_neighbours_are_out_of_reach_whoever_asks() {
        let arena = Arc::new(Arena::open(&Source::default(), 3 * 4096).unwrap());
        let extent = Extent {
            offset: 4096,
            length: 4096,
        };
        let bytes = Bytes { arena, extent };
        assert!(bytes.write(4090, &[1; 6]).is_ok());
        for offset in [4091, 4096, u64::MAX, u64::MAX - 4096] {
            assert!(bytes.write(offset, &[1; 6]).is_err(), "{offset}");
            assert!(bytes.read(offset, &mut [0; 6]).is_err(), "{offset}");
        }
        let mut all = [0; 3 * 4096];
        bytes.arena.read(0, &mut all).unwrap();
        assert_eq!(all.iter().filter(|byte| **byte == 1).count(), 6);
    }
}
