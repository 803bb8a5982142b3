//! Tests of the pages: the things, sections and messages that they name exist, their shell commands can be read, and each row of
//! docs/evidence.md has a command that shows it.

mod commands;
mod coverage;
mod evidence;
mod messages;
mod paths;
mod rooms;
mod shell;
mod steps;
mod tests_of;

use std::path::{Path, PathBuf};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
}

fn read(path: &str) -> String {
    let path = repository().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of the repository below `directory` whose name ends with `ending`, except build outputs.
fn files(directory: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = crate::files::below(&repository().join(directory)).unwrap();
    found.retain(|it| it.to_string_lossy().ends_with(ending));
    found
}

/// The parts of a line between backticks, each with the text before it.
fn code_spans(text: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = text.split('`').collect();
    let pairs = parts.chunks_exact(2);
    pairs.map(|pair| (pair[0], pair[1])).collect()
}

/// Fails with all entries of `wrong`, one per line.
fn none_wrong(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
