//! Tests every setting with values at its bounds, values beyond them, text in place of numbers, and a second
//! occurrence.

use clap::ArgAction;

use super::*;

/// Settings without which others have no effect.
const BASE: [[&str; 2]; 6] = [
    ["--mem-bytes", "1GiB"],
    ["--block-pool", "/pool"],
    ["--cpus", "all"],
    ["--gpus", "all"],
    ["--sriov-pf", "eth0"],
    ["--local-socket", "/run/local.sock"],
];

/// For each setting: its name, accepted values, refused values, and an example that the refusal names.
const VALUES: &[(&str, &[&str], &[&str], &str)] = &[
    ("profile", &["linux"], &["0", "windows", ""], "bare-metal"),
    ("state-dir", &["/var/lib/x"], &[""], "value"),
    (
        "listen",
        &["0.0.0.0:5701", "[::]:0"],
        &["0", "0.0.0.0", "host:5701", "1.2.3.4:65536", ""],
        "0.0.0.0:5701",
    ),
    (
        "advertise",
        &["192.0.2.10", "2001:db8::1"],
        &["0", "0.0.0.0", "::", "host", ""],
        "192.0.2.10",
    ),
    (
        "mem-bytes",
        &["4096", "1024TiB"],
        &[
            "0",
            "4095",
            "4097",
            "1025TiB",
            "99999999999999999999",
            "much",
            "-1",
            "1.5",
        ],
        "256MiB",
    ),
    ("mem-file", &["/dev/shm/a"], &[""], "value"),
    (
        "mem-arena",
        &["a=4096", "near=64MiB,file=/dev/shm/a,numa-node=1"],
        &[
            "",
            "0",
            "a",
            "=4096",
            "a=",
            "a=0",
            "a=4097",
            "a=much",
            "a=1025TiB",
            "a=4096,file=",
            "a=4096,numa-node=-1",
            "a=4096,node=1",
        ],
        "near=64GiB,file=/dev/shm/near,numa-node=1",
    ),
    ("block-pool", &["/a"], &[""], "value"),
    (
        "advertise-vendor",
        &["fpga0=0", "fpga0=4"],
        &["0", "fpga0", "fpga0=x", ""],
        "fpga0=4",
    ),
    (
        "nvmet",
        &["tcp:10.0.0.1:4420"],
        &["0", "tcp:10.0.0.1:0", "udp:10.0.0.1:1", ""],
        "tcp:10.0.0.1:4420",
    ),
    (
        "nvme-host",
        &["nqn.2014-08.org.example:host1=blue"],
        &["0", "blue", ""],
        "nqn.2014-08.org.example:host1=blue",
    ),
    (
        "fbbu-listen",
        &["none", "[::]:5703"],
        &["0", "[::]", "off", ""],
        "192.0.2.10:5702",
    ),
    (
        "fbmu-listen",
        &["none", "[::]:5702"],
        &["0", "[::]", "off", ""],
        "192.0.2.10:5702",
    ),
    (
        "fbmu-ops-max",
        &["1", "4294967295"],
        &["0", "4294967296", "-1", "many", "1.5"],
        "1000000",
    ),
    (
        "fbbu-half-sent-max",
        &["524288", "512KiB", "1024TiB"],
        &["0", "524287", "1025TiB", "much"],
        "64MiB",
    ),
    ("rdma-device", &["auto", "mlx5_0"], &[""], "mlx5_0"),
    (
        "rdma-strategy",
        &["auto", "window", "region"],
        &["0", "regoin", ""],
        "region",
    ),
    (
        "gpus",
        &["all", "GPU-1,GPU-2"],
        &["", "GPU-1,,GPU-2"],
        "GPU-",
    ),
    (
        "gpu-share-mode",
        &["exclusive", "fractional"],
        &["0", "shared", ""],
        "fractional",
    ),
    (
        "gpu-worker-memory-max",
        &["64MiB", "1024TiB"],
        &["0", "67108863", "1025TiB", "much"],
        "4GiB",
    ),
    (
        "cpus",
        &["all", "2-3,6"],
        &["some", "3-1", "-1", ""],
        "2-7,10",
    ),
    ("cpu-reserve", &["0", "1"], &["all", "3-1", ""], "2-7,10"),
    ("cpu-cgroup", &["/sys/fs/cgroup/a"], &[""], "value"),
    (
        "cpu-memory-max",
        &["1048576", "1MiB", "1024TiB"],
        &["0", "4KiB", "1048575", "1025TiB", "much"],
        "4GiB",
    ),
    (
        "cpu-pids-max",
        &["1", "4194304"],
        &["0", "4194305", "-1", "many"],
        "1024",
    ),
    (
        "macvlan-parent",
        &["eth0", "eth0=1000"],
        &["", "eth0=x", "a/b"],
        "eth0=1000",
    ),
    (
        "sriov-pf",
        &["eth0", "eth0=8"],
        &["", "eth0=x", "a/b"],
        "eth0=4",
    ),
    (
        "net-vlan",
        &["blue=0,100-199"],
        &["0", "blue=7-3", "blue=4095", ""],
        "blue=0,100-199",
    ),
    (
        "net-mac",
        &["blue=02:00:00:00:00:01"],
        &["0", "blue=02", ""],
        "blue=02:00:00:00:00:01",
    ),
    ("cdi-dir", &["/run/cdi"], &[""], "value"),
    (
        "cpu-isolation-policy",
        &[
            "best_effort",
            "BestEffort",
            "whole_core",
            "WholeCore",
            "strict_isolated",
            "strict",
            "StrictIsolated",
        ],
        &["0", "whole", ""],
        "whole_core",
    ),
    ("local-socket", &["/run/a.sock"], &[""], "value"),
    (
        "tenant-uid",
        &["blue=0", "blue=1000"],
        &["0", "blue=4294967295", "blue=anna", ""],
        "blue=1000",
    ),
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
        "mem-per-tenant-max",
        &["0", "64GiB", "18446744073709551615"],
        &["18446744073709551616", "-1", "much"],
        "64GiB",
    ),
    (
        "block-per-tenant-max",
        &["0", "1TiB"],
        &["18446744073709551616", "much"],
        "1TiB",
    ),
    (
        "cpu-per-tenant-max",
        &["0", "4294967295"],
        &["4294967296", "-1", "many"],
        "16",
    ),
    (
        "net-per-tenant-max",
        &["0", "4294967295"],
        &["4294967296", "-1", "many"],
        "10000",
    ),
    (
        "gpu-per-tenant-max",
        &["0", "80GiB"],
        &["18446744073709551616", "much"],
        "80GiB",
    ),
    (
        "requests-per-tenant-max",
        &["0", "4294967295"],
        &["4294967296", "-1", "many"],
        "20000",
    ),
    ("on-stop", &["end", "keep"], &["0", "stay", ""], "keep"),
    (
        "cut-within-ms",
        &["10", "60000"],
        &["0", "1", "9", "60001", "99999999", "-1", "soon"],
        "1000",
    ),
];

/// Accepted values of a setting.
pub(super) fn taken(name: &str) -> &'static [&'static str] {
    let row = VALUES.iter().find(|it| it.0 == name);
    row.unwrap_or_else(|| panic!("{name} has no values in this test"))
        .1
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

fn base(name: &str) -> Vec<&'static str> {
    let others = BASE.iter().filter(|it| it[0] != format!("--{name}"));
    others.flatten().copied().collect()
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
        let row = VALUES.iter().find(|it| it.0 == name);
        let (_, taken, not_taken, example) =
            *row.unwrap_or_else(|| panic!("{name} has no values in this test"));
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
