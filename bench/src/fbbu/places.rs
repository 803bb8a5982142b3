//! Random block numbers, the same in every run.

/// Marsaglia's xorshift with 64 bits ("Xorshift RNGs", 2003): random enough for block numbers.
#[derive(Clone, Debug)]
pub(super) struct Places {
    state: u64,
    blocks: u64,
}

impl Places {
    /// Numbers below this count of blocks.
    pub(super) fn new(blocks: u64) -> Self {
        Self {
            state: 0x9E37_79B9_7F4A_7C15,
            blocks,
        }
    }

    /// The next numbers.
    pub(super) fn next(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.one()).collect()
    }

    fn one(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_within_the_file_spread_over_it_and_the_same_for_both() {
        let (mut one, mut other) = (Places::new(100), Places::new(100));
        let places = one.next(10_000);
        assert_eq!(places, other.next(10_000));
        assert!((0..100).all(|block| places.contains(&block)));
        assert!(places.iter().all(|block| *block < 100));
    }
}
