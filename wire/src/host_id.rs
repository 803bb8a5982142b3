//! Host identifiers of NVMe-oF.

use core::{fmt, str::FromStr};

/// A host identifier: a UUID other than zero, which stands for no host in NVMe-oF (base specification
/// 2.0, section 5.27.1.25).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// The identifier of these bytes; zero is none.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Text that is no UUID, or the UUID of nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAHostId;

impl fmt::Display for NotAHostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("write a UUID other than zero, such as 3f0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5b")
    }
}

impl core::error::Error for NotAHostId {}

impl FromStr for HostId {
    type Err = NotAHostId;

    fn from_str(text: &str) -> Result<Self, NotAHostId> {
        let bytes = text.as_bytes();
        let dashed = bytes.len() == 36 && [8, 13, 18, 23].iter().all(|&at| bytes[at] == b'-');
        if !dashed {
            return Err(NotAHostId);
        }
        let mut id = [0; 16];
        let mut digits = text
            .chars()
            .enumerate()
            .filter(|(at, _)| !matches!(at, 8 | 13 | 18 | 23))
            .map(|(_, c)| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()));
        for byte in &mut id {
            let mut digit = || digits.next().flatten().ok_or(NotAHostId);
            *byte = digit()? << 4 | digit()?;
        }
        Self::new(id).ok_or(NotAHostId)
    }
}
