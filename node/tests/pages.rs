//! The settings in docs/operator.md are those of the daemon.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeSet, fs, path::Path};

use clap::CommandFactory;
use fabricbios_node::config::{Cli, Settings};

#[test]
fn the_operators_page_has_every_setting_and_no_other() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operator.md");
    let page = fs::read_to_string(page).unwrap();
    let example = page.split("```toml\n").nth(1).unwrap();
    let example = example.split("```").next().unwrap();
    let names = example.lines().filter_map(|line| line.split_once(" = "));
    let names: Vec<&str> = names.map(|(name, _)| name).collect();
    let told: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(names.len(), told.len(), "one is there twice: {names:?}");

    // The refusal of a name that is none lists all that are: "expected one of `profile`, …".
    let refusal = toml::from_str::<Settings>("no-such-setting = 1").unwrap_err();
    let list = refusal.message().split("expected one of").nth(1).unwrap();
    let settings: BTreeSet<&str> = list.split('`').skip(1).step_by(2).collect();
    assert_eq!(told, settings);

    // Flags that the file cannot have are in the text.
    let command = Cli::command();
    let server = command.find_subcommand("control-server").unwrap();
    let flags = server.get_arguments().filter_map(|flag| flag.get_long());
    for flag in flags.filter(|it| *it != "help" && !settings.contains(it)) {
        assert!(page.contains(&format!("`--{flag}")), "--{flag}");
    }
}
