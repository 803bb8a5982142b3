//! NVMe Qualified Names, the names of hosts and subsystems.

use alloc::{borrow::ToOwned, string::String};
use core::{fmt, str::FromStr};

use crate::{HostId, NQN_BYTES_MAX};

/// An NVMe Qualified Name (base specification 2.0, section 4.5): `nqn.yyyy-mm.reverse.domain:text`, at most 223 bytes.
/// Here it has only letters, digits and `- . _ : + = @`, so that a name is also a valid directory name, one word of a
/// command line and one value in the kernel's comma-separated options.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct Nqn(String);

/// The prefix of a name made of a UUID (base specification 2.0, section 4.5).
pub const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

impl Nqn {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The UUID of a name `nqn.2014-08.org.nvmexpress:uuid:…`.
    #[must_use]
    pub fn uuid(&self) -> Option<HostId> {
        self.0.strip_prefix(UUID_PREFIX)?.parse().ok()
    }
}

/// The error of a text that is no [`Nqn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnNqn(&'static str);

impl NotAnNqn {
    /// The expected form.
    pub(crate) const EXPECTED: &'static str =
        "nqn.yyyy-mm.reverse.domain:text, at most 223 of a-z A-Z 0-9 - . _ : + = @";

    /// The mistake in the text, in words.
    pub(crate) fn what(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for NotAnNqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; write {}", self.0, Self::EXPECTED)
    }
}

impl core::error::Error for NotAnNqn {}

impl FromStr for Nqn {
    type Err = NotAnNqn;

    fn from_str(text: &str) -> Result<Self, NotAnNqn> {
        check(text.as_bytes())?;
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Nqn {
    type Error = NotAnNqn;

    fn try_from(text: String) -> Result<Self, NotAnNqn> {
        check(text.as_bytes())?;
        Ok(Self(text))
    }
}

impl From<Nqn> for String {
    fn from(name: Nqn) -> Self {
        name.0
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

fn check(text: &[u8]) -> Result<(), NotAnNqn> {
    if text.len() > NQN_BYTES_MAX {
        return Err(NotAnNqn("more than 223 bytes"));
    }
    if !text.iter().copied().all(is_taken) {
        return Err(NotAnNqn("a character that is not taken"));
    }
    let Some(rest) = text.strip_prefix(b"nqn.") else {
        return Err(NotAnNqn("no nqn. at the start"));
    };
    match rest.split_at_checked(7) {
        Some((date, [b'.', domain, ..])) if is_date(date) && domain.is_ascii_alphanumeric() => {
            Ok(())
        }
        _ => Err(NotAnNqn("no date and domain after nqn.")),
    }
}

fn is_taken(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._:+=@".contains(&byte)
}

/// Whether the bytes have the form `yyyy-mm`.
fn is_date(date: &[u8]) -> bool {
    let [year @ .., b'-', tens, ones] = date else {
        return false;
    };
    let month = matches!((tens, ones), (b'0', b'1'..=b'9') | (b'1', b'0'..=b'2'));
    month && year.iter().all(u8::is_ascii_digit)
}
