//! Sizes and places, in bytes.

const UNITS: [(&str, u32); 5] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("B", 0)];
const HOW_SIZES: &str = "write a whole number of bytes, or one with B, KiB, MiB, GiB or TiB";

/// A size in bytes, not zero.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    match offset(text)? {
        0 => Err("zero bytes; ask for at least one".into()),
        bytes => Ok(bytes),
    }
}

/// A place, as a number of bytes before it.
pub(crate) fn offset(text: &str) -> Result<u64, String> {
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(unit));
    let (digits, shift) = match unit {
        Some((unit, shift)) => (text[..text.len() - unit.len()].trim_end(), *shift),
        None => (text, 0),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(HOW_SIZES.into());
    }
    let bytes = digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| "more than 16 EiB; ask for less".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let good = [
            ("1", 1),
            ("4096B", 4_096),
            ("4KiB", 4_096),
            ("3 MiB", 3 << 20),
            ("2GiB", 2 << 30),
            ("16777215TiB", 16_777_215 << 40),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        let bad = [
            "",
            "0",
            "0GiB",
            "1.5GiB",
            "-1",
            "+1",
            "1KB",
            "1k",
            "GiB",
            "16777216TiB",
            "1e3",
            "99999999999999999999",
            "0x10",
        ];
        for text in bad {
            size(text).unwrap_err();
        }
    }
}
