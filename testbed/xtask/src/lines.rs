//! `cargo xtask lines`: the lines of code, without comments and blanks, of each top-level folder.

use crate::cargo::{output, program};
use anyhow::{Context, Result};
use fabricbios_testbed::Layout;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;
use std::path::{Component, Path};
use std::process::ExitCode;

/// Folders whose Rust code tests or measures the product and is no part of it. Two of them exist only in commits before
/// the rooms.
const PROVING: [&str; 4] = ["bench", "fuzz", "testbed", "xtask"];

/// Folders and files of the product's crates whose code tests the product.
const OF_TESTS: [&str; 6] = [
    "examples",
    "simulation",
    "simulation.rs",
    "testing",
    "tests",
    "tests.rs",
];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A commit to count instead of the working tree's tracked files
    commit: Option<String>,
}

/// Lines of code.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Lines {
    /// Rust code of the programs and libraries.
    product: usize,
    /// Rust code of tests, examples, the testbed and the benches.
    tests: usize,
    python: usize,
}

impl AddAssign for Lines {
    fn add_assign(&mut self, other: Self) {
        self.product += other.product;
        self.tests += other.tests;
        self.python += other.python;
    }
}

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            product,
            tests,
            python,
        } = self;
        write!(f, "{product:>8} {tests:>8} {python:>8}")
    }
}

/// Prints the table.
pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    let mut folders: BTreeMap<String, Lines> = BTreeMap::new();
    for path in tracked(layout, arguments.commit.as_deref())? {
        let Some((folder, _)) = path.split_once('/') else {
            continue;
        };
        let counted: fn(&str, &str) -> Lines = match Path::new(&path).extension() {
            Some(it) if it == "rs" => rust,
            Some(it) if it == "py" => python,
            _ => continue,
        };
        let text = text(layout, arguments.commit.as_deref(), &path)?;
        *folders.entry(folder.to_owned()).or_default() += counted(&path, &text);
    }
    println!("{:<16} {:>8} {:>8} {:>8}", "", "product", "tests", "Python");
    let mut all = Lines::default();
    for (folder, lines) in &folders {
        println!("{folder:<16} {lines}");
        all += *lines;
    }
    println!("{:<16} {all}", "all");
    Ok(ExitCode::SUCCESS)
}

/// The paths of the files of a commit, or of the working tree.
fn tracked(layout: &Layout, commit: Option<&str>) -> Result<Vec<String>> {
    let list = match commit {
        Some(commit) => program(layout, "git", &["ls-tree", "-rz", "--name-only", commit]),
        None => program(layout, "git", &["ls-files", "-z"]),
    };
    let paths = output(list).with_context(|| match commit {
        Some(commit) => format!("lines {commit}: no such commit; name one"),
        None => "the files of this checkout".into(),
    })?;
    let exists = |it: &&str| commit.is_some() || layout.repository().join(it).is_file();
    let paths = paths.split('\0').filter(|it| !it.is_empty());
    Ok(paths.filter(exists).map(str::to_owned).collect())
}

fn text(layout: &Layout, commit: Option<&str>, path: &str) -> Result<String> {
    match commit {
        Some(commit) => output(program(
            layout,
            "git",
            &["show", &format!("{commit}:{path}")],
        )),
        None => std::fs::read_to_string(layout.repository().join(path))
            .with_context(|| format!("cannot read {path}")),
    }
}

/// Counts a Rust file.
fn rust(path: &str, text: &str) -> Lines {
    let path = Path::new(path);
    let mut folders = path.components().map(Component::as_os_str);
    let is_proof = folders
        .clone()
        .next()
        .is_some_and(|top| PROVING.iter().any(|it| top == *it))
        || folders.any(|it| OF_TESTS.iter().any(|name| it == *name));
    let mut counted = Lines::default();
    // The indentation of an item of tests, until its last line.
    let mut item: Option<Item<'_>> = None;
    for line in text.lines() {
        let code = line.trim();
        if code.is_empty() || code.starts_with("//") {
            continue;
        }
        if code == "#[cfg(test)]" && item.is_none() {
            item = Some(Item::new(line));
        }
        if is_proof || item.is_some() {
            counted.tests += 1;
        } else {
            counted.product += 1;
        }
        if item.as_mut().is_some_and(|it| it.ends_with(line)) {
            item = None;
        }
    }
    counted
}

/// An item that is compiled for tests only, in a file that rustfmt has formatted.
struct Item<'a> {
    indentation: &'a str,
}

impl<'a> Item<'a> {
    fn new(line: &'a str) -> Self {
        let indentation = line.len() - line.trim_start().len();
        Self {
            indentation: &line[..indentation],
        }
    }

    /// Whether the line is the last one of the item.
    fn ends_with(&self, line: &str) -> bool {
        let code = line.strip_prefix(self.indentation);
        code.is_some_and(|it| {
            let is_outermost = !it.starts_with([' ', '#']);
            is_outermost && (it.ends_with(';') || it.ends_with(',') || it.starts_with('}'))
        })
    }
}

/// Counts a Python file. The text of a module, class or function that documents it is a comment.
fn python(_: &str, text: &str) -> Lines {
    const QUOTES: &str = "\"\"\"";
    let mut counted = Lines::default();
    let mut is_in_comment = false;
    for line in text.lines().map(str::trim) {
        let quotes = line.matches(QUOTES).count();
        if is_in_comment {
            is_in_comment = quotes == 0;
        } else if line.starts_with(QUOTES) {
            is_in_comment = quotes == 1;
        } else if !line.is_empty() && !line.starts_with('#') {
            counted.python += 1;
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blanks_and_tests_are_no_product() {
        let text = "//! A page.\n\nfn product() {\n    // Why.\n    call();\n}\n\n#[cfg(test)]\nuse a::b;\n\n\
            #[cfg(test)]\nmod tests {\n    use super::*;\n\n    fn test() {\n        call();\n    }\n}\n\
            impl A {\n    #[cfg(test)]\n    fn only() {\n        call();\n    }\n\n    fn also() {}\n}\n";
        let lines = rust("host/pool/src/lib.rs", text);
        assert_eq!((lines.product, lines.tests), (6, 13));
        for proof in [
            "testbed/lab/src/a.rs",
            "host/pool/tests/a.rs",
            "host/pool/src/a/tests.rs",
        ] {
            assert_eq!(rust(proof, text).product, 0, "{proof}");
        }
    }

    #[test]
    fn the_documentation_of_a_function_is_a_comment() {
        let text = "#!/usr/bin/env python3\n\"\"\"A suite.\n\nMore.\n\"\"\"\nimport os\n\n\ndef one():\n    \"\"\"One line.\"\"\"\n    \
            text = \"\"\"a\n    b\"\"\"\n    # Why.\n    return text\n";
        assert_eq!(python("a.py", text).python, 5);
    }
}
