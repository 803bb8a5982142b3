//! The commands in README.md and docs/, and whether a program's own parser takes them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What stands for any value, and a value that parsers take in its place.
const PLACEHOLDERS: [(&str, &str); 8] = [
    ("LEASE", "0123456789abcdef0123456789abcdef"),
    ("ID", "0123456789abcdef0123456789abcdef"),
    ("HEX", "0123456789abcdef0123456789abcdef"),
    ("NAME", "name"),
    ("KIND", "mem"),
    ("ADDR:PORT", "192.0.2.7:5706"),
    ("spread|binpack|cache-aware", "spread"),
    ("STRENGTH:CATEGORY=TARGET", "avoid:rack=r7"),
];

/// A command of a page.
struct PageCommand {
    /// Page and line.
    place: String,
    /// The program and its arguments, without redirections, pipes and `…`.
    words: Vec<String>,
    /// A line to type, not a code span in a sentence, which may leave arguments out.
    is_whole: bool,
}

/// Has `parse` read each command of `program` in README.md and docs/.
///
/// # Panics
/// There are fewer commands than `at_least`, or `parse` refuses one.
pub fn assert_accepted<T>(
    program: &str,
    at_least: usize,
    parse: impl Fn(&[String]) -> Result<T, clap::Error>,
) {
    let commands = commands(program);
    assert!(
        commands.len() >= at_least,
        "{} commands of {program}",
        commands.len()
    );
    let refused = commands.iter().filter_map(|command| {
        let error = parse(&command.words).err()?;
        let is_fine =
            error.kind() == ErrorKind::DisplayHelp || !command.is_whole && leaves_out(&error);
        let line = command.words.join(" ");
        (!is_fine).then(|| format!("{}: {line}: {error}", command.place))
    });
    let refused: Vec<String> = refused.collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// Whether a command is refused only because something is missing.
fn leaves_out(error: &clap::Error) -> bool {
    let is_empty =
        |value: &ContextValue| matches!(value, ContextValue::String(text) if text.is_empty());
    match error.kind() {
        ErrorKind::InvalidValue => error.get(ContextKind::InvalidValue).is_some_and(is_empty),
        kind => matches!(
            kind,
            ErrorKind::MissingRequiredArgument
                | ErrorKind::MissingSubcommand
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        ),
    }
}

/// The commands of `program`. Decisions are not read: they tell of their time.
fn commands(program: &str) -> Vec<PageCommand> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let root = root.expect("a checkout");
    let mut pages = vec![root.join("README.md")];
    below(&root.join("docs"), &mut pages);
    let mut found = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        let shown = page.strip_prefix(root).unwrap_or(&page).display();
        let commands = in_text(&text, program).into_iter();
        found.extend(commands.map(|(line, words, is_whole)| PageCommand {
            place: format!("{shown}:{line}"),
            words,
            is_whole,
        }));
    }
    found
}

fn below(directory: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true if path.ends_with("decisions") => (),
            true => below(&path, pages),
            false if path.extension().is_some_and(|it| it == "md") => pages.push(path),
            false => (),
        }
    }
}

/// Line, words, and whether it is a line to type.
fn in_text(text: &str, program: &str) -> Vec<(usize, Vec<String>, bool)> {
    let (mut found, mut is_fenced) = (Vec::new(), false);
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
            continue;
        }
        if !is_fenced && !line.starts_with("    ") {
            let spans = line.split('`').skip(1).step_by(2);
            let spans = spans.filter_map(|span| words(span, program));
            found.extend(spans.map(|words| (index + 1, words, false)));
            continue;
        }
        let mut whole = line.to_owned();
        while whole.ends_with('\\') {
            whole.pop();
            whole.push_str(lines.next().map_or("", |(_, more)| more));
        }
        found.extend(words(&whole, program).map(|words| (index + 1, words, true)));
    }
    found
}

/// The words of a command of this program, up to a comment or to what the shell does with it.
fn words(line: &str, program: &str) -> Option<Vec<String>> {
    let line = line.trim_start();
    let line = line
        .strip_prefix("$ ")
        .or(line.strip_prefix("# "))
        .unwrap_or(line);
    let ends = |word: &&str| !["#", "|", "&", "&&", ";", ">", "<"].contains(word);
    let words = line.split_whitespace().take_while(ends);
    let words = words.filter(|word| !matches!(*word, "…" | "..."));
    let mut words = words.map(|word| {
        let word = word.trim_matches(['\'', '"']);
        let known = PLACEHOLDERS.iter().find(|(name, _)| *name == word);
        known.map_or(word, |(_, value)| value).to_owned()
    });
    (words.next()? == program).then(|| {
        let program = program.to_owned();
        std::iter::once(program).chain(words).collect()
    })
}

#[test]
fn commands_are_found_in_lines_and_spans() {
    let text = "Run `prog a …`, not `other`.\n\n    prog b \\\n      LEASE > file  # why\n```sh\n# prog c | d\n```\n";
    let found = in_text(text, "prog");
    let said: Vec<_> = found
        .iter()
        .map(|(at, words, whole)| (*at, words.join(" "), *whole))
        .collect();
    let lease = PLACEHOLDERS[0].1;
    let expected = [
        (1, "prog a".to_owned(), false),
        (3, format!("prog b {lease}"), true),
        (6, "prog c".to_owned(), true),
    ];
    assert_eq!(said, expected);
}
