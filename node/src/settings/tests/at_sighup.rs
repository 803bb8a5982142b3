//! The list of settings that change at SIGHUP is that of those that are taken over.

use std::collections::BTreeSet;

use super::{
    every_setting::{base, taken},
    *,
};
use crate::process::service::{connection_limits, lease_limits};

/// All that a daemon that runs takes over of these settings.
fn taken_over(settings: &Settings) -> String {
    let kinds = &settings.kinds;
    let limits = (lease_limits(settings), connection_limits(settings));
    let tenants = (&kinds.shared.tenant_uid, &kinds.block.nvme_host);
    let own = (settings.on_stop.unwrap_or_default(), &settings.log_level);
    format!("{limits:?} {tenants:?} {own:?}")
}

#[test]
fn a_setting_changes_at_sighup_if_it_is_in_the_list_and_only_then() {
    let command = Settings::arguments();
    let names = command.get_arguments().filter_map(|it| it.get_long());
    let all: BTreeSet<&str> = names.collect();
    let listed: BTreeSet<&str> = AT_SIGHUP.iter().copied().collect();
    assert_eq!(listed.len(), AT_SIGHUP.len());
    assert!(listed.is_subset(&all), "{listed:?}");
    let with_values = command.get_arguments();
    let with_values = with_values.filter(|it| it.get_action().takes_values());
    for name in with_values.filter_map(|it| it.get_long()) {
        // They are read for one start.
        if file::FLAGS_ONLY.contains(&name) {
            continue;
        }
        let base = base(name);
        let without = settings(&base);
        let others = taken(name).iter().filter(|value| {
            let flag = format!("--{name}={value}");
            taken_over(&settings(&[&base[..], &[&flag]].concat())) != taken_over(&without)
        });
        let changes = others.count() > 0;
        assert_eq!(changes, listed.contains(name), "{name}");
    }
}

#[test]
fn a_first_limit_of_memory_is_all_that_is_different() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.toml");
    let read = |more: &str, flags: &[&str]| {
        std::fs::write(&path, format!("mem-bytes = \"1MiB\"\n{more}")).unwrap();
        settings(&[flags, &["--config", path.to_str().unwrap()]].concat()).given
    };
    let none = read("", &[]);
    let in_file = read("mem-per-tenant-max = \"1MiB\"", &[]);
    let by_flag = read("", &["--mem-per-tenant-max=1MiB"]);
    for given in [in_file, by_flag] {
        let different = none.clone().take_over(&given);
        assert_eq!(different.now, ["mem-per-tenant-max"]);
        assert_eq!(different.later, [""; 0]);
    }
}

#[test]
fn what_is_different_is_said_until_it_holds() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.toml");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        settings(&["--listen=[::1]:5701", "--config", path.to_str().unwrap()])
    };
    let lines = |lease_secs: u32, state: &str, more: &str| {
        format!("lease-secs-max = {lease_secs}\nstate-dir = {state:?}\n{more}")
    };
    let mut given = read(&lines(9, "/a", "auto-detect = true")).given;
    let same = read(&lines(9, "/a", "auto-detect = true\nlisten = \"[::2]:1\""));
    let nothing = Difference {
        now: vec![],
        later: vec![],
    };
    assert_eq!(given.take_over(&same.given), nothing, "the flag holds");
    let other = read(&lines(10, "/b", "tenant-uid = []"));
    let names = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
    let later = names(&["auto-detect", "state-dir"]);
    let now = names(&["lease-secs-max"]);
    let different = Difference {
        now,
        later: later.clone(),
    };
    assert_eq!(given.take_over(&other.given), different);
    // It holds now; the others wait for a start.
    let different = Difference { now: vec![], later };
    assert_eq!(given.take_over(&other.given), different);
    let back = read(&lines(9, "/a", "auto-detect = true"));
    let now = names(&["lease-secs-max"]);
    let different = Difference { now, later: vec![] };
    assert_eq!(given.take_over(&back.given), different);
}
