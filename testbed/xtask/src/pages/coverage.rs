//! The rows of docs/spec/coverage.md.

use super::commands::Known;
use super::{code_spans, none_wrong, read};

const PAGE: &str = "docs/spec/coverage.md";
const COMMANDS: [&str; 4] = ["-p ", "lab:", "cargo ", "python3 "];

#[test]
fn every_sentence_names_a_test_that_exists_a_page_or_that_it_is_missing() {
    let (page, known) = (read(PAGE), Known::read());
    let mut wrong = Vec::new();
    let mut rows = 0;
    for (index, line) in page.lines().enumerate() {
        let Some((_, holds)) = line.trim_end_matches(" |").rsplit_once(" | ") else {
            continue;
        };
        if holds == "where it holds" {
            continue;
        }
        rows += 1;
        let commands: Vec<&str> = code_spans(holds)
            .into_iter()
            .map(|(_, code)| code)
            .collect();
        let is_command = |code: &&str| COMMANDS.iter().any(|it| code.starts_with(it));
        let refused = commands
            .iter()
            .copied()
            .filter(is_command)
            .filter_map(|it| known.refuse(it));
        wrong.extend(refused.map(|why| format!("{PAGE}:{}: {why}", index + 1)));
        if !commands.iter().any(is_command)
            && !holds.contains("](")
            && !holds.contains("**missing**")
        {
            wrong.push(format!(
                "{PAGE}:{}: neither a test nor a page, nor missing",
                index + 1
            ));
        }
    }
    assert!(rows > 100, "{rows} rows");
    none_wrong(&wrong);
}
