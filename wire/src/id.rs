//! One type per noun: the identifiers that every other crate uses.

use core::{fmt, str::FromStr};

/// A 128-bit identifier printed as 32 hexadecimal digits.
macro_rules! id128 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub u128);

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
                if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(ParseIdError { expected_digits: 32, got: text.len() });
                }
                u128::from_str_radix(text, 16)
                    .map(Self)
                    .map_err(|_| ParseIdError { expected_digits: 32, got: text.len() })
            }
        }
    };
}

id128! {
    /// A lease. Random, so that knowing one says nothing about another; never zero.
    LeaseId
}
id128! {
    /// A resource of a node. Stable across restarts of the node.
    ResourceId
}

/// Text that is not an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseIdError {
    /// Hexadecimal digits that were expected.
    pub expected_digits: usize,
    /// Bytes that were given.
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

/// A node: SHA-256 of its public key (SubjectPublicKeyInfo, DER).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeId(pub [u8; 32]);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for NodeId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let wrong = ParseIdError {
            expected_digits: 64,
            got: text.len(),
        };
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong);
        }
        let half = |digits: &str| u128::from_str_radix(digits, 16).map_err(|_checked| wrong);
        let mut id = [0; 32];
        id[..16].copy_from_slice(&half(&text[..32])?.to_be_bytes());
        id[16..].copy_from_slice(&half(&text[32..])?.to_be_bytes());
        Ok(Self(id))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

/// Counts the starts of a node's daemon; bindings of an older epoch may have died with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Epoch(pub u64);

/// Counts the bindings that a lease has had; it moves on with every new one.
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
