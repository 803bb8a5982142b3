//! Bytes of the fuzzer, read as a script of actions.

/// The unread bytes.
pub struct Script<'a>(pub &'a [u8]);

impl Script<'_> {
    /// The next byte.
    pub fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// A number, mostly small, sometimes large.
    pub fn small(&mut self) -> u32 {
        match self.byte().unwrap_or(0) {
            255 => u32::MAX - u32::from(self.byte().unwrap_or(0)),
            254 => u32::from(self.byte().unwrap_or(0)) << 8,
            byte => byte.into(),
        }
    }

    /// The same, of 64 bits.
    pub fn number(&mut self) -> u64 {
        match self.small() {
            small if small > u32::MAX - 256 => u64::MAX - u64::from(u32::MAX - small),
            small => small.into(),
        }
    }

    /// Up to `length` bytes.
    pub fn rest(&mut self, length: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
}
