//! Commands in docs/evidence.md: whether the things that they name exist.

use super::tests_of::{self, Targets};
use super::{files, read, repository};
use crate::suites::Suites;
use clap::CommandFactory;
use fabricbios_testbed::Layout;
use std::collections::BTreeMap;

/// The things that commands can name.
pub(super) struct Known {
    packages: BTreeMap<String, Targets>,
    suites: Vec<String>,
    steps: Vec<String>,
}

impl Known {
    pub(super) fn read() -> Self {
        let suites = Suites::discover(&Layout::new(repository())).unwrap();
        Self {
            packages: tests_of::packages(),
            suites: suites.all().map(|(name, _)| name).collect(),
            steps: crate::test::step_names(&suites),
        }
    }

    /// The reason why this command cannot show a row.
    pub(super) fn refuse(&self, command: &str) -> Option<String> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let missing = words.iter().find(|word| is_missing(word));
        if let Some(path) = missing {
            return Some(format!("{path} does not exist"));
        }
        match words[..] {
            [suite] if suite.starts_with("lab:") => {
                (!self.suites.iter().any(|it| it == suite)).then(|| format!("no suite {suite}"))
            }
            ["-p", package, ref rest @ ..] => self.refuse_tests(package, rest),
            ["cargo", "test", "--doc", "-p", package]
            | ["cargo", "run", "--release", "-p", package, "--", ..]
                if !self.packages.contains_key(package) =>
            {
                Some(format!("no package {package}"))
            }
            ["cargo", "test", "--doc", ..] => None,
            [
                "cargo",
                "run",
                "--release",
                "-p",
                "fabricbios-bench",
                "--",
                bench,
                ..,
            ] => refuse_bench(bench),
            ["cargo", "xtask", task, ref rest @ ..] => self.refuse_task(task, rest),
            ["python3", _] => None,
            _ => Some("not a command that this test knows".to_owned()),
        }
    }

    fn refuse_tests(&self, package: &str, words: &[&str]) -> Option<String> {
        let Some(targets) = self.packages.get(package) else {
            return Some(format!("no package {package}"));
        };
        let (mut chosen, mut filters) = (Vec::new(), Vec::new());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--test" => chosen.push(*words.next()?),
                "--run-ignored" => drop(words.next()),
                flag if flag.starts_with('-') => return Some(format!("{flag} is not known here")),
                filter => filters.push(filter),
            }
        }
        if chosen.is_empty() && filters.is_empty() {
            return Some("names a whole package".to_owned());
        }
        if let Some(target) = chosen
            .iter()
            .find(|it| targets.get(**it).is_none_or(Vec::is_empty))
        {
            return Some(format!("{package} has no tests {target}"));
        }
        let searched = targets
            .iter()
            .filter(|(target, _)| chosen.is_empty() || chosen.contains(&target.as_str()));
        let names: Vec<&String> = searched.flat_map(|(_, names)| names).collect();
        let unmatched = filters
            .iter()
            .find(|filter| !names.iter().any(|name| name.contains(**filter)));
        unmatched.map(|filter| format!("no test matches {filter}"))
    }

    fn refuse_task(&self, task: &str, words: &[&str]) -> Option<String> {
        let arguments = crate::Arguments::command();
        if arguments.find_subcommand(task).is_none() {
            return Some(format!("no task {task}"));
        }
        let names = || words.iter().take_while(|word| !word.starts_with('-'));
        match (task, words) {
            ("fuzz", _) => {
                let targets = read("testbed/fuzz/Cargo.toml");
                let unknown = names().find(|name| !targets.contains(&format!("name = \"{name}\"")));
                unknown.map(|name| format!("no fuzz target {name}"))
            }
            ("test", ["--only", only @ ..]) => {
                let unknown = only
                    .iter()
                    .find(|name| !self.steps.iter().any(|step| step == *name));
                unknown.map(|name| format!("no step {name}"))
            }
            _ => None,
        }
    }

    /// The reason why `section` is not a section of this suite.
    pub(super) fn refuse_section(suite: &str, section: &str) -> Option<String> {
        let name = suite.strip_prefix("lab:")?;
        let text = read(&format!("{}/{name}.py", crate::suites::GUEST_DIRECTORY));
        let mut lines = text.lines().filter(|line| !line.contains("def "));
        let runs = lines.any(|line| words_of(line).any(|it| it == section));
        let defined = files(crate::suites::GUEST_DIRECTORY, ".py")
            .into_iter()
            .any(|path| {
                let text = std::fs::read_to_string(path).unwrap();
                text.contains(&format!("\ndef {section}("))
            });
        (!runs || !defined).then(|| format!("{suite} has no section {section}"))
    }
}

fn words_of(line: &str) -> impl Iterator<Item = &str> {
    line.split(|it: char| !it.is_alphanumeric() && it != '_')
}

/// Whether the word is a path of this checkout that does not exist.
fn is_missing(word: &str) -> bool {
    let ours = word.ends_with(".py") || word.ends_with(".rs") || word.ends_with(".md");
    ours && word.contains('/') && !repository().join(word).exists()
}

fn refuse_bench(bench: &str) -> Option<String> {
    let main = read("bench/src/main.rs");
    let variants = main
        .split("enum Bench")
        .nth(1)?
        .split("\n}")
        .next()?
        .to_owned();
    let variant: String = bench
        .split('-')
        .map(|part| part[..1].to_uppercase() + &part[1..])
        .collect();
    (!variants.contains(&format!("{variant}("))).then(|| format!("no bench {bench}"))
}

#[test]
fn a_command_that_shows_nothing_is_refused() {
    let known = Known::read();
    for (command, why) in [
        ("lab:suite_nothing", "no suite lab:suite_nothing"),
        ("-p fabricbios-lease", "names a whole package"),
        ("-p fabricbios-nothing x", "no package fabricbios-nothing"),
        (
            "-p fabricbios-lease --test nothing",
            "fabricbios-lease has no tests nothing",
        ),
        (
            "-p fabricbios-lease --test model no_such_test",
            "no test matches no_such_test",
        ),
        ("cargo xtask nothing", "no task nothing"),
        (
            "cargo xtask fuzz engine nothing --secs 60",
            "no fuzz target nothing",
        ),
        ("cargo xtask test --only nothing", "no step nothing"),
        (
            "cargo xtask lab -- testbed/guest/nothing.py",
            "testbed/guest/nothing.py does not exist",
        ),
        (
            "cargo run --release -p fabricbios-bench -- nothing",
            "no bench nothing",
        ),
        ("true", "not a command that this test knows"),
    ] {
        assert_eq!(known.refuse(command).as_deref(), Some(why), "{command}");
    }
    assert_eq!(
        known.refuse("-p fabricbios-lease --test model restarts::"),
        None
    );
    assert!(Known::refuse_section("lab:suite_cpu", "nothing").is_some());
    assert_eq!(Known::refuse_section("lab:suite_cpu", "dies"), None);
}
