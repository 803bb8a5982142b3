//! The names of the tests of each package, read from its source files.

use super::{read, repository};
use crate::packages::Packages;
use fabricbios_testbed::Layout;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A package: for each test target (the library and the programs are ``), the names of its tests as nextest shows them.
pub(super) type Targets = BTreeMap<String, Vec<String>>;

/// Every package of the checkout by its name.
pub(super) fn packages() -> BTreeMap<String, Targets> {
    let packages = Packages::read(&Layout::new(repository())).unwrap().0;
    let packages = packages.into_iter();
    let packages = packages.map(|it| (it.name, targets(&repository().join(it.folder))));
    packages.collect()
}

fn targets(package: &Path) -> Targets {
    let mut targets = Targets::new();
    for root in ["src/lib.rs", "src/main.rs"] {
        add(&mut targets, "", &package.join(root));
    }
    for entry in std::fs::read_dir(package.join("tests"))
        .into_iter()
        .flatten()
    {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        add(&mut targets, name, &path);
        add(&mut targets, name, &path.join("main.rs"));
    }
    targets
}

fn add(targets: &mut Targets, target: &str, root: &Path) {
    if root.is_file() {
        let directory = root.parent().unwrap();
        let names = targets.entry(target.to_owned()).or_default();
        collect(root, directory, "", names);
    }
}

/// Adds the tests of a file and of its modules, which are in `directory`.
fn collect(file: &Path, directory: &Path, prefix: &str, names: &mut Vec<String>) {
    let text = std::fs::read_to_string(file).unwrap();
    let (mut is_test, mut path) = (false, None);
    // Inline modules with their indentation, which is also that of their closing brace.
    let mut inside: Vec<(usize, &str)> = Vec::new();
    for line in text.lines() {
        let word = line.trim_start();
        let indentation = line.len() - word.len();
        let word = match word.split_once(' ') {
            Some(("pub" | "pub(crate)" | "pub(super)", rest)) => rest,
            _ => word,
        };
        if word == "}" && inside.last().is_some_and(|(at, _)| *at == indentation) {
            inside.pop();
        } else if word.starts_with("#[test]") || word.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(named) = word.strip_prefix("#[path = \"") {
            path = named.split('"').next().map(|it| file.with_file_name(it));
        } else if let Some(module) = word.strip_prefix("mod ") {
            if let Some(name) = module.strip_suffix(" {") {
                inside.push((indentation, name));
            } else if let Some(name) = module.strip_suffix(';') {
                let file = path.take().or_else(|| module_file(directory, name));
                // A module of another platform or feature may be missing.
                if let Some(file) = file.filter(|it| it.is_file()) {
                    let directory = match file.file_name().unwrap().to_str().unwrap() {
                        "mod.rs" => file.parent().unwrap().to_owned(),
                        _ => file.with_extension(""),
                    };
                    collect(&file, &directory, &format!("{prefix}{name}::"), names);
                }
            }
        } else if let Some(suites) = word.strip_prefix("fabricbios_contract::suites!(") {
            let prefix = format!("{prefix}{}", modules(&inside));
            let tests = tests_of_suites(suites);
            names.extend(tests.map(|name| format!("{prefix}{name}")));
        } else if let Some(rest) = function(word).filter(|_| is_test) {
            is_test = false;
            names.push(format!("{prefix}{}{rest}", modules(&inside)));
        }
    }
}

fn modules(inside: &[(usize, &str)]) -> String {
    inside.iter().map(|(_, name)| format!("{name}::")).collect()
}

/// The tests that the macro `suites!` makes: `Machine: life, faults);`.
fn tests_of_suites(call: &str) -> impl Iterator<Item = String> {
    let lists = read("control/contract/src/testing/macros.rs");
    let suites = call.trim_end_matches(");").rsplit(": ").next().unwrap();
    let suites: Vec<String> = suites.split(", ").map(str::to_owned).collect();
    suites.into_iter().flat_map(move |suite| {
        let list = lists.split_once(&format!("(@ {suite}, $attributes, $fixture:"));
        let (_, list) = list.unwrap_or_else(|| panic!("no suite {suite}"));
        let names = list.split(");").next().unwrap().split(',').map(str::trim);
        let names = names.filter(|it| !it.is_empty()).map(str::to_owned);
        names.collect::<Vec<_>>()
    })
}

fn module_file(directory: &Path, name: &str) -> Option<PathBuf> {
    let places = [format!("{name}.rs"), format!("{name}/mod.rs")];
    let mut places = places.iter().map(|place| directory.join(place));
    places.find(|place| place.is_file())
}

fn function(line: &str) -> Option<&str> {
    let line = line.strip_prefix("async ").unwrap_or(line);
    line.strip_prefix("fn ")?.split(['(', '<']).next()
}

#[test]
fn names_are_those_that_nextest_shows() {
    let packages = packages();
    let has = |package: &str, target: &str, name: &str| {
        packages[package][target].iter().any(|it| it == name)
    };
    // An inline module, a file, a module below a test's directory, and a module at another path.
    assert!(has(
        "xtask",
        "",
        "suites::tests::the_longest_suites_are_there"
    ));
    assert!(has(
        "xtask",
        "",
        "pages::tests_of::names_are_those_that_nextest_shows"
    ));
    assert!(has(
        "fabricbios-node",
        "over_udp",
        "bare_metal::a_session_remembers_64_requests"
    ));
    assert!(has(
        "fabricbios-contract",
        "provider",
        "a_lease_is_bound_over_the_paths_it_asked_for"
    ));
    // A suite, in an inline module.
    assert!(has(
        "fabricbios-cpu",
        "kind",
        "shares::late_calls_do_not_touch_the_next_lease"
    ));
    let declared = read("Cargo.toml");
    let members = declared.split("members = [").nth(1).unwrap();
    let members = members.split(']').next().unwrap();
    assert!(
        packages.len() >= members.matches(',').count(),
        "{}",
        repository().display()
    );
}
