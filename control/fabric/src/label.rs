//! Labels of a node, such as `rack=r7`, which the CA signs into its certificate: a node cannot change them.

use std::{fmt, str::FromStr};

use crate::{FileProblem, pem, subject};

/// Most bytes of a key, and of a value.
const PART_BYTES_MAX: usize = 63;

/// A label: key and value, each 1 to 63 of `a-z 0-9 - _ .`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    /// The key, which a certificate has once at most.
    pub key: String,
    /// The value.
    pub value: String,
}

/// A text is no label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no label: KEY=VALUE, such as rack=r7, each 1 to {PART_BYTES_MAX} of a-z 0-9 - _ ."
)]
pub struct BadLabel(pub String);

impl Label {
    /// Most labels of a certificate: it is sent in every handshake.
    pub const MAX: usize = 8;

    /// What stands before the label in a subject alternative name of the URI form.
    pub(crate) const URI_SCHEME: &str = "fabricbios-label:";

    /// The labels in the first certificate of an identity file.
    ///
    /// # Errors
    /// If the certificate cannot be read, or has something else in the place of a label.
    pub fn of_identity(pem: &[u8]) -> Result<Vec<Self>, FileProblem> {
        Ok(subject::labels(&pem::first_certificate(pem)?)?)
    }
}

impl FromStr for Label {
    type Err = BadLabel;

    fn from_str(text: &str) -> Result<Self, BadLabel> {
        let is_byte = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
        let is_part =
            |part: &str| (1..=PART_BYTES_MAX).contains(&part.len()) && part.bytes().all(is_byte);
        match text.split_once('=') {
            Some((key, value)) if is_part(key) && is_part(value) => Ok(Self {
                key: key.to_owned(),
                value: value.to_owned(),
            }),
            _ => Err(BadLabel(text.to_owned())),
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_a_key_and_a_value() {
        let label: Label = "rack=r7".parse().unwrap();
        assert_eq!((&*label.key, &*label.value), ("rack", "r7"));
        assert_eq!(label.to_string(), "rack=r7");
        let long = format!("rack={}", "a".repeat(64));
        for wrong in [
            "", "rack", "=r7", "rack=", "Rack=r7", "rack=r 7", "a=b=c", "a=b,c=d", &long,
        ] {
            assert_eq!(wrong.parse::<Label>(), Err(BadLabel(wrong.to_owned())));
        }
    }
}
