//! Pseudo-random numbers that are the same in every run (xorshift64*).

#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        // The state must never be zero: zero would stay zero.
        self.0 |= u64::from(self.0 == 0) << 40;
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Less than `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }

    pub(crate) fn chance(&mut self, share: f64) -> bool {
        (self.below(1 << 20) as f64) < share * f64::from(1 << 20)
    }
}
