//! Numbers of bytes as people write and read them. For programs they are plain numbers.

use core::{fmt, str::FromStr};

/// A number of bytes.
///
/// Read as a whole number, plain or with a unit in capitals or small letters: K, M, G, T and KiB, MiB,
/// GiB, TiB are 1024 each, KB, MB, GB, TB are 1000 each, B is one. Shown in the largest unit of 1024
/// that gives at least 1; with one decimal, rounded down, if the number is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// The error of a text that is no size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseSizeError {
    /// Not a whole number, or an unknown unit.
    NotASize,
    /// The number does not fit in 64 bits.
    TooLarge,
}

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotASize => {
                "write a whole number of bytes, or one with K, M, G or T (KiB, MiB, GiB, TiB: 1024 each) or \
                 with KB, MB, GB or TB (1000 each)"
            }
            Self::TooLarge => "more than 16 EiB; ask for less",
        })
    }
}

impl core::error::Error for ParseSizeError {}

impl FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let end = text.find(|c: char| !c.is_ascii_digit());
        let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
        let unit = bytes_of(unit.trim_start()).filter(|_| !digits.is_empty());
        let unit = unit.ok_or(ParseSizeError::NotASize)?;
        let number: Option<u64> = digits.parse().ok();
        let bytes = number.and_then(|number| number.checked_mul(unit));
        bytes.map(Self).ok_or(ParseSizeError::TooLarge)
    }
}

fn bytes_of(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    })
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let Some((shift, unit)) = units.iter().find(|(shift, _)| bytes >> shift != 0) else {
            return write!(f, "{bytes} B");
        };
        let whole = bytes >> shift;
        match bytes - (whole << shift) {
            0 => write!(f, "{whole} {unit}"),
            // At most 2^40 times ten, which fits.
            rest => write!(f, "{whole}.{} {unit}", (rest * 10) >> shift),
        }
    }
}
