//! Standard output: one JSON object, or lines for people.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use serde::Serialize;
use zeroize::Zeroizing;

use crate::failure::Failure;

/// How to speak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints the one or the other. Whoever reads one line at a time gets it at once.
    pub(crate) fn print(
        self,
        json: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let mut line = Zeroizing::new(if self.json {
            serde_json::to_string(json).map_err(|e| Failure::local("make JSON", &e))?
        } else {
            text()
        });
        if !line.ends_with('\n') {
            line.push('\n');
        }
        let mut stdout = io::stdout().lock();
        stdout
            .write_all(line.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(Failure::output)
    }
}

/// Columns, left-aligned, two spaces between them.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String cannot fail.
            write!(line, "{cell:width$}  ").ok();
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A size in the largest unit that it fills. What is not whole has one decimal, rounded down, so
/// that nobody is shown more than there is.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let Some((shift, unit)) = units.iter().find(|(shift, _)| bytes >> shift != 0) else {
        return format!("{bytes} B");
    };
    let whole = bytes >> shift;
    let rest = bytes - (whole << shift);
    if rest == 0 {
        return format!("{whole} {unit}");
    }
    // At most 2^40 times ten: it fits.
    format!("{whole}.{} {unit}", (rest * 10) >> shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_and_never_too_large() {
        let cases = [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1 << 10, "1 KiB"),
            (1 << 30, "1 GiB"),
            (24_684_096 << 10, "23.5 GiB"),
            ((1 << 30) - 1, "1023.9 MiB"),
            ((1 << 20) + 1, "1.0 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text, "{bytes}");
        }
    }
}
