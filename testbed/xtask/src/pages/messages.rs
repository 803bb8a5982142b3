//! The messages in docs/troubleshooting.md are messages of the programs.

use super::{code_spans, files, none_wrong, read};

const PAGE: &str = "docs/troubleshooting.md";
/// Shorter pieces are in some source by chance.
const PIECE_MIN: usize = 5;

/// In a table's first column, in each code span, the pieces between `…` are in a source file.
#[test]
fn every_message_in_the_page_is_in_the_sources() {
    let mut sources = String::new();
    for directory in [
        "client",
        "control",
        "fallback-udp",
        "gpu",
        "host",
        "node",
        "premium",
        "sriov",
    ] {
        for path in files(directory, ".rs") {
            sources.push_str(&joined(&std::fs::read_to_string(path).unwrap()));
        }
    }
    let page = read(PAGE);
    let (mut wrong, mut pieces) = (Vec::new(), 0);
    for (index, line) in page.lines().enumerate() {
        let Some(row) = line.strip_prefix("| ") else {
            continue;
        };
        let seen = row.split(" | ").next().unwrap();
        for (_, message) in code_spans(seen) {
            for piece in message.split('…').map(str::trim) {
                pieces += usize::from(piece.len() >= PIECE_MIN);
                if piece.len() >= PIECE_MIN && !sources.contains(piece) {
                    wrong.push(format!("{PAGE}:{}: no source has `{piece}`", index + 1));
                }
            }
        }
    }
    assert!(pieces > 80, "{pieces} pieces");
    none_wrong(&wrong);
}

/// The source with the lines of each string joined.
fn joined(source: &str) -> String {
    let mut parts = source.split("\\\n");
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        text.push_str(part.trim_start());
    }
    text.replace("\\\"", "\"")
}

#[test]
fn strings_are_joined_over_lines() {
    assert_eq!(joined("a \\\n   b \\\"c\\\""), "a b \"c\"");
}
