//! The number of the formats of the node's files.

use core::fmt;

/// The format of the files that a later version of the node has to read: the journal with its records, and the data
/// that a pool stores about itself. Each of them carries this number. docs/compatibility.md says when it is raised.
pub const FORMAT: u64 = 9;

/// The oldest format that is read.
const OLDEST: u64 = 8;

/// The format of a file that this version cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherFormat(pub u64);

impl OtherFormat {
    /// Checks the number that was found in a file.
    ///
    /// # Errors
    /// This version does not read the number; the error contains it.
    pub fn refuse(found: u64) -> Result<(), Self> {
        match found {
            OLDEST..=FORMAT => Ok(()),
            other => Err(Self(other)),
        }
    }
}

impl fmt::Display for OtherFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(found) = self;
        write!(
            f,
            "it has format {found}, and this version of the node reads formats {OLDEST} to {FORMAT}: start the version that wrote it"
        )
    }
}

impl core::error::Error for OtherFormat {}
