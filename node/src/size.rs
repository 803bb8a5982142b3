//! Sizes on a command line or in a configuration file: `B`, `KiB`, `MiB`, `GiB`, `TiB` or plain
//! bytes.

use std::{fmt, str::FromStr};

/// A number of bytes, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// Text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSize(String);

impl fmt::Display for BadSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a size; write bytes or a whole number of B, KiB, MiB, GiB or TiB, at least 1",
            self.0
        )
    }
}

impl std::error::Error for BadSize {}

impl FromStr for Size {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let digits_end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (digits, unit) = text.split_at(digits_end);
        let shift = match unit.trim_start() {
            "" | "B" => 0,
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            "TiB" => 40,
            _ => return Err(BadSize(text.into())),
        };
        let bytes = digits
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(1 << shift));
        bytes
            .filter(|&n| n > 0)
            .map(Self)
            .ok_or_else(|| BadSize(text.into()))
    }
}

impl<'de> serde::Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(n) => n.to_string().parse(),
            Form::Text(text) => text.parse(),
        }
        .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_of_known_units() {
        for (text, bytes) in [
            ("1", 1),
            ("4096B", 4096),
            ("2 MiB", 2 << 20),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn nothing_else() {
        for text in [
            "",
            "0",
            "0KiB",
            "-1",
            "1.5GiB",
            "1MB",
            "16777216TiB",
            "KiB",
            "99999999999999999999",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
