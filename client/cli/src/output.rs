//! Standard output: one JSON object, or lines for people.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use serde::Serialize;
use zeroize::Zeroizing;

use crate::failure::Failure;

/// The form of the output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
}

impl Output {
    /// Prints the JSON or the text, and flushes.
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

/// A text of the node without control characters, which could write anywhere on the terminal.
pub(crate) fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// [`table`] under headings.
pub(crate) fn headed_table<const N: usize>(
    headings: [&str; N],
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    let headings = headings.map(str::to_owned).to_vec();
    table(&std::iter::once(headings).chain(rows).collect::<Vec<_>>())
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
