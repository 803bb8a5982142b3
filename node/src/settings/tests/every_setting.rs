//! Tests every setting with values at its bounds, values beyond them, text in place of numbers, and a second
//! occurrence.

use clap::ArgAction;

use super::*;
use crate::kinds::{
    KINDS,
    settings::tests::{Examples, Values},
};

/// For the settings of the daemon itself: name, accepted values, refused values, and an example that the refusal names.
const VALUES: &[Values] = &[
    (
        "advertise",
        &["192.0.2.10", "2001:db8::1"],
        &["0", "0.0.0.0", "::", "host", ""],
        "192.0.2.10",
    ),
    (
        "metrics-listen",
        &["127.0.0.1:5780", "[::]:5780"],
        &["5780", "localhost:5780", ""],
        "127.0.0.1:5780",
    ),
    (
        "metrics-identity",
        &["/etc/fabricbios/pages.identity", "port.pem"],
        &[""],
        "metrics-identity",
    ),
    (
        "scheduler",
        &[
            "192.0.2.10:5704",
            "scheduler.example:1",
            "[2001:db8::1]:65535",
        ],
        &["192.0.2.10", ":5702", "host:0", "host:65536", "host:", ""],
        "192.0.2.10:5704",
    ),
    (
        "discover",
        &["eth0", "enp1s0f0np0"],
        &["", "a/b", "two words", "sixteen-bytes-is"],
        "eth0",
    ),
    (
        "announce",
        &["eth0", "enp1s0f0np0"],
        &["", "a/b", "two words", "sixteen-bytes-is"],
        "eth0",
    ),
    ("fabric-dir", &["/etc/fabric", "fabric"], &[""], "fabric"),
    (
        "connections-max",
        &["1", "4294967295"],
        &["0", "4294967296", "many"],
        "4096",
    ),
    (
        "connections-per-source-max",
        &["1", "4294967295"],
        &["0", "4294967296", "many"],
        "512",
    ),
    (
        "connections-per-tenant-max",
        &["1", "4294967295"],
        &["0", "4294967296", "many"],
        "1024",
    ),
    (
        "lease-secs-max",
        &["1", "4294967295"],
        &["0", "4294967296", "-1", "long"],
        "3600",
    ),
    (
        "grace-secs-max",
        &["0", "4294967295"],
        &["4294967296", "-1", "long"],
        "3600",
    ),
    (
        "leases-per-tenant-max",
        &["1", "4294967295"],
        &["0", "4294967296", "many"],
        "16384",
    ),
    (
        "queue-pairs-per-tenant-max",
        &["1", "4294967295"],
        &["0", "4294967296", "many"],
        "16384",
    ),
    (
        "requests-per-tenant-max",
        &["0", "4294967295"],
        &["4294967296", "-1", "many"],
        "20000",
    ),
    ("log-format", &["text", "json"], &["xml", "0", ""], "json"),
    (
        "log-level",
        &["off", "warn", "info,fabricbios_node::journal=debug"],
        &["", "loud", "7,", "debug,x=loud", "info,,debug", "a=[=info"],
        "journal=debug",
    ),
    ("on-stop", &["end", "keep"], &["0", "stay", ""], "keep"),
    (
        "cut-within-ms",
        &["10", "60000"],
        &["0", "1", "9", "60001", "99999999", "-1", "soon"],
        "1000",
    ),
];

/// What is known of the settings of the kinds.
pub(super) fn examples() -> impl Iterator<Item = &'static Examples> {
    let kinds = KINDS.iter().map(|kind| kind.examples);
    kinds.chain([&crate::kinds::settings::tests::EXAMPLES])
}

fn values(name: &str) -> Values {
    let all = examples().flat_map(|it| it.values).chain(VALUES);
    let mut all = all.filter(|it| it.0 == name);
    *all.next()
        .unwrap_or_else(|| panic!("{name} has no values in this test"))
}

/// Accepted values of a setting.
pub(super) fn taken(name: &str) -> &'static [&'static str] {
    values(name).1
}

/// Every setting that has a value and may be in the file.
fn names() -> Vec<(String, bool)> {
    let command = Settings::arguments();
    let settings = command
        .get_arguments()
        .filter(|it| it.get_action().takes_values());
    let named = settings.map(|it| {
        let is_list = matches!(it.get_action(), ArgAction::Append);
        (it.get_long().unwrap().to_owned(), is_list)
    });
    let may_be_in_the_file = |name: &str| !file::FLAGS_ONLY.contains(&name);
    named.filter(|(name, _)| may_be_in_the_file(name)).collect()
}

/// Settings without which others have no effect.
pub(super) fn base(name: &str) -> Vec<&'static str> {
    let others = examples().map(|it| it.base);
    let others = others.filter(|it| it[0] != format!("--{name}"));
    let port = (name == "metrics-identity").then_some("--metrics-listen=127.0.0.1:5780");
    others.flatten().chain(port).collect()
}

/// An entry of a file: text in quotes, and numbers without if `as_number`.
fn entry(name: &str, value: &str, is_list: bool, as_number: bool) -> String {
    let is_number = value
        .trim_start_matches('-')
        .bytes()
        .all(|it| it.is_ascii_digit());
    let value = match as_number && is_number && !value.is_empty() {
        true => value.to_owned(),
        false => format!("{value:?}"),
    };
    match is_list {
        true => format!("{name} = [{value}]"),
        false => format!("{name} = {value}"),
    }
}

#[test]
fn every_setting_has_the_same_values_and_the_same_words_as_a_flag_and_in_the_file() {
    for (name, is_list) in names() {
        let (_, taken, not_taken, example) = values(&name);
        let base = base(&name);
        for value in taken {
            let flag = format!("--{name}={value}");
            read(&[&base[..], &[&flag]].concat()).unwrap();
            from_file(&entry(&name, value, is_list, false), &base).unwrap();
        }
        for value in not_taken {
            let flag = format!("--{name}={value}");
            let by_flag = refused(&[&base[..], &[&flag]].concat());
            assert!(by_flag.contains(&format!("--{name}")), "{by_flag}");
            assert!(by_flag.contains(example), "{by_flag}");
            for as_number in [false, true] {
                let text = format!("# a comment\n{}", entry(&name, value, is_list, as_number));
                let by_file = from_file(&text, &base).map(drop).unwrap_err();
                for word in ["node.toml: line 2: ", &format!("{name} = "), value, example] {
                    assert!(by_file.contains(word), "{word}: {by_file}");
                }
                // The reason of a refused text is that of the flag.
                let (_, why) = by_file
                    .split_once(&format!("{name} = {value:?}: "))
                    .unwrap_or_default();
                let is_own = why.starts_with("one of") || why.starts_with("a value");
                assert!(is_own || by_flag.contains(why), "{by_flag} / {by_file}");
            }
        }
    }
}

#[test]
fn a_setting_is_given_once() {
    for (name, is_list) in names() {
        let value = taken(&name)[0];
        let line = entry(&name, value, is_list, false);
        let twice = from_file(&format!("{line}\n{line}"), &base(&name))
            .map(drop)
            .unwrap_err();
        assert!(twice.contains("line 2") && twice.contains(&name), "{twice}");
        if !is_list {
            let flag = format!("--{name}={value}");
            let twice = refused(&[&flag, &flag]);
            assert!(
                twice.contains(&format!("--{name}")) && twice.contains("multiple"),
                "{twice}"
            );
        }
    }
}

#[test]
fn a_setting_without_effect_is_refused_with_what_it_needs() {
    for Examples { base, idle, .. } in examples() {
        for name in *idle {
            let why = refused(&[&format!("--{name}={}", taken(name)[0])]);
            let begins = why.starts_with(&format!("--{name} without "));
            assert!(begins && why.contains(base[0]), "{why}");
        }
    }
}
