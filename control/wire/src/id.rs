//! Identifiers, one type for each.

use core::{fmt, str::FromStr};

use base16ct::HexDisplay;

use crate::readable::readable;

/// A 128-bit identifier printed as 32 hexadecimal digits.
macro_rules! id128 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        readable!($name, u128, |it| it.0, |it| Some(Self(it)));

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:032x})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                digits(text).map(|id| Self(u128::from_be_bytes(id)))
            }
        }
    };
}

id128! {
    /// A lease. Random, so that no id can be guessed from another; never zero.
    LeaseId
}
id128! {
    /// A resource of a node. Stable across restarts of the node.
    ResourceId
}
id128! {
    /// One request for a lease (0x090E): random, made by the client, never zero. A repeat with the same token gets the
    /// same lease. No secret: it opens nothing, and counts for its tenant only.
    RequestToken
}

/// The error of a text that is no identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseIdError {
    /// Expected number of hexadecimal digits.
    pub expected_digits: usize,
    /// Received bytes.
    pub got: usize,
}

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "expected {} hexadecimal digits, got {} bytes",
            self.expected_digits, self.got
        )
    }
}

impl core::error::Error for ParseIdError {}

fn digits<const BYTES: usize>(text: &str) -> Result<[u8; BYTES], ParseIdError> {
    let mut id = [0; BYTES];
    match base16ct::mixed::decode(text, &mut id) {
        Ok(whole) if whole.len() == BYTES => Ok(id),
        _ => Err(ParseIdError {
            expected_digits: 2 * BYTES,
            got: text.len(),
        }),
    }
}

/// A node: SHA-256 of its public key (SubjectPublicKeyInfo, DER).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub [u8; 32]);

readable!(NodeId, [u8; 32], |it| it.0, |it| Some(Self(it)));

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", HexDisplay(&self.0))
    }
}

impl FromStr for NodeId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        digits(text).map(Self)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

/// Counts the starts of a node's daemon; bindings of an older epoch may be gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Epoch(pub u64);

/// Counts the bindings of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Generation(pub u32);

impl Generation {
    /// The generation after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}
