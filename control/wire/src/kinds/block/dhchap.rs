//! Secrets of DH-HMAC-CHAP, by which hosts and controllers authenticate each other.

use alloc::{borrow::ToOwned, string::String};
use core::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::DHCHAP_SECRET_BYTES_MAX;

/// A DH-HMAC-CHAP secret in its text form, `DHHC-1:HH:BASE64:` with HH from 00 to 03 (base
/// specification 2.0, section 8.13.5.8). Never printed, wiped when dropped.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String"))]
pub struct DhchapSecret(String);

impl DhchapSecret {
    /// A secret from its text; `None` if the text does not have the form.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        has_form(text).then(|| Self(text.to_owned()))
    }

    /// The secret text, for the kernel or for the command line of its owner.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DhchapSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DhchapSecret(..)")
    }
}

impl TryFrom<String> for DhchapSecret {
    type Error = NotASecret;

    fn try_from(mut text: String) -> Result<Self, NotASecret> {
        if has_form(&text) {
            return Ok(Self(text));
        }
        text.zeroize();
        Err(NotASecret)
    }
}

/// The error of a text without the form of a secret. It does not repeat the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotASecret;

impl fmt::Display for NotASecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a secret of the form DHHC-1:HH:BASE64:")
    }
}

impl core::error::Error for NotASecret {}

fn has_form(text: &str) -> bool {
    let parts = text
        .strip_prefix("DHHC-1:")
        .and_then(|rest| rest.strip_suffix(':'))
        .and_then(|rest| rest.split_once(':'));
    let Some((hash, key)) = parts else {
        return false;
    };
    let base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    matches!(hash, "00" | "01" | "02" | "03")
        && !key.is_empty()
        && key.bytes().all(base64)
        && text.len() <= DHCHAP_SECRET_BYTES_MAX
}
