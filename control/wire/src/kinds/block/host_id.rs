//! Host identifiers of NVMe-oF.

use core::{fmt, str::FromStr};

use uuid::Uuid;

use crate::readable::readable;

/// A host identifier: a UUID other than zero, which stands for no host in NVMe-oF (base specification
/// 2.0, section 5.27.1.25).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub [u8; 16]);

readable!(HostId, [u8; 16], |it| it.0, |it| Some(Self(it)));

impl HostId {
    /// The identifier of these bytes; `None` for zero.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Uuid::from_bytes(self.0))
    }
}

/// The error of a text that is no UUID, or the zero UUID.
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
        // The crate also reads other forms of a UUID, which have other lengths.
        let uuid = Uuid::try_parse(text).ok().filter(|_| text.len() == 36);
        uuid.and_then(|uuid| Self::new(uuid.into_bytes()))
            .ok_or(NotAHostId)
    }
}
