//! Checks that docs/operate.md has the daemon's settings, and that the commands in the pages are commands of the daemon.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeSet, fs, path::Path};

use clap::CommandFactory;
use fabricbios_node::settings::{AT_SIGHUP, Cli};
use fabricbios_testbed::pages;

#[test]
fn the_page_has_every_setting_and_no_other() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operate.md");
    let page = fs::read_to_string(page).unwrap();
    let example = page.split("```toml\n").nth(1).unwrap();
    let example = example.split("```").next().unwrap();
    let names = example.lines().filter_map(|line| line.split_once(" = "));
    let names: Vec<&str> = names.map(|(name, _)| name).collect();
    let told: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(names.len(), told.len(), "one is there twice: {names:?}");

    let command = Cli::command();
    let server = command.find_subcommand("control-server").unwrap();
    let flags = server.get_arguments().filter_map(|flag| flag.get_long());
    let flags: BTreeSet<&str> = flags.filter(|it| *it != "help").collect();
    let not_known: Vec<&&str> = told.difference(&flags).collect();
    assert!(not_known.is_empty(), "{not_known:?}");
    // The page describes flags that the file must not contain in its text.
    let not_told: Vec<&&str> = flags.difference(&told).collect();
    assert_eq!(not_told, [&"config", &"force", &"without-pool"]);
    for flag in not_told {
        assert!(page.contains(&format!("`--{flag}")), "--{flag}");
    }
}

#[test]
fn every_command_in_the_pages_is_accepted() {
    pages::assert_accepted("fabricbiosd", 25, |words| {
        Cli::command().try_get_matches_from(words)
    });
}

#[test]
fn the_page_has_every_setting_that_changes_at_sighup_and_no_other() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operate.md");
    let page = fs::read_to_string(page).unwrap();
    let section = page
        .split("### Changes while the node runs\n")
        .nth(1)
        .unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.flat_map(|row| row.split(" | ").next().unwrap().split(", "));
    let mut names: Vec<&str> = names.map(|name| name.trim_matches('`')).collect();
    names.sort_unstable();
    assert_eq!(names, AT_SIGHUP);
}
