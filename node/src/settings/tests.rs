mod at_sighup;
mod every_setting;
mod in_file;

use clap::{CommandFactory, ValueEnum};
use fabricbios_cpu::{CpuList, Wanted};
use fabricbios_wire::Size;

use super::*;
use crate::kinds::{cpu::CpuIsolationPolicy, settings::Profile};

/// The settings of a command line, or the error that the operator sees.
fn read(args: &[&str]) -> Result<Settings, String> {
    let words = [&["fabricbiosd", "control-server"], args].concat();
    let matches = Cli::command().try_get_matches_from(words);
    let matches = matches.map_err(|error| error.to_string())?;
    let (_, flags) = matches.subcommand().unwrap();
    Settings::read(flags).map_err(|error| error.to_string())
}

fn settings(args: &[&str]) -> Settings {
    read(args).unwrap()
}

fn refused(args: &[&str]) -> String {
    read(args).map(drop).unwrap_err()
}

/// The settings of a file with this text, and of flags beside it.
fn from_file(text: &str, args: &[&str]) -> Result<Settings, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.toml");
    std::fs::write(&path, text).unwrap();
    read(&[args, &["--config", path.to_str().unwrap()]].concat())
}

#[test]
fn a_setting_without_effect_is_named_as_it_was_given() {
    let by_flag = refused(&["--gpu-share-mode", "fractional"]);
    assert!(
        by_flag.starts_with("--gpu-share-mode without --gpus"),
        "{by_flag}"
    );
    let text = "# GPUs\ngpu-share-mode = \"fractional\"";
    let by_file = from_file(text, &[]).map(drop).unwrap_err();
    assert!(
        by_file.starts_with("gpu-share-mode (")
            && by_file.contains("node.toml: line 2) without --gpus"),
        "{by_file}"
    );
    // The flag replaces the line.
    let both = from_file(text, &["--gpu-share-mode", "exclusive"])
        .map(drop)
        .unwrap_err();
    assert!(
        both.starts_with("--gpu-share-mode without --gpus"),
        "{both}"
    );
}

#[test]
fn settings_that_make_no_sense_together_are_refused() {
    for (args, word) in every_setting::examples().flat_map(|it| it.contradictions) {
        let error = refused(args);
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn every_contradiction_is_told_at_once() {
    let why = refused(&[
        "--gpu-share-mode=exclusive",
        "--cpu-pids-max=9",
        "--cpu-reserve=1",
        "--mem-bytes=1MiB",
        "--listen=[::]:9",
        "--fbmu-listen=[::]:9",
    ]);
    let told: Vec<&str> = why.split("; give that too, or leave this out; ").collect();
    let begin = |it: &&str| it.split_whitespace().next().unwrap().to_owned();
    assert_eq!(
        told.iter().map(begin).collect::<Vec<_>>(),
        [
            "--cpu-reserve",
            "--cpu-pids-max",
            "--gpu-share-mode",
            "--listen"
        ],
        "{why}"
    );
    assert_eq!(why.lines().count(), 1, "{why}");
}

#[test]
fn classes_in_every_spelling_are_read_as_by_requests() {
    for text in every_setting::taken("cpu-isolation-policy") {
        let class: fabricbios_wire::CpuIsolationClass = text.parse().unwrap();
        let flags = settings(&["--cpus", "all", "--cpu-isolation-policy", text]);
        let file = from_file(
            &format!("cpus = \"all\"\ncpu-isolation-policy = \"{text}\""),
            &[],
        )
        .unwrap();
        for got in [flags, file] {
            assert_eq!(
                got.kinds.cpu.cpu_isolation_policy.map(Into::into),
                Some(class),
                "{text}"
            );
        }
    }
    for policy in CpuIsolationPolicy::value_variants() {
        // The same word as in requests and in the inventory.
        let word = fabricbios_wire::CpuIsolationClass::from(*policy).name();
        assert_eq!(policy.to_possible_value().unwrap().get_name(), word);
    }
}

#[test]
fn the_data_plane_over_udp_listens_where_the_control_plane_does_unless_told() {
    for (args, expected) in [
        (&[][..], Some("[::]:5702")),
        (&["--listen", "10.0.0.1:9"], Some("10.0.0.1:5702")),
        (&["--fbmu-listen", "10.0.0.2:8"], Some("10.0.0.2:8")),
        (&["--fbmu-listen", "none"], None),
    ] {
        let expected = expected.map(|text| text.parse().unwrap());
        assert_eq!(
            {
                let KindSettings { shared, memory, .. } = settings(args).kinds;
                memory.fbmu_listen(&shared)
            },
            expected,
            "{args:?}"
        );
    }
}

#[test]
fn cpus_are_all_or_a_list_as_a_flag_and_in_the_file() {
    let given = settings(&["--cpus", "2-3,6", "--cpu-reserve", "7"]);
    let list = |cpus: &[u32]| CpuList(cpus.to_vec());
    assert_eq!(given.kinds.cpu.cpus, Some(Wanted::These(list(&[2, 3, 6]))));
    assert_eq!(given.kinds.cpu.cpu_reserve, Some(list(&[7])));
    let file = from_file("cpus = \"all\"", &[]).unwrap();
    assert_eq!(file.kinds.cpu.cpus, Some(Wanted::All));
}

#[test]
fn profile_and_bounds_of_a_tenant_are_read_from_flags_and_file() {
    let default = settings(&["--auto-detect"]);
    assert_eq!(default.kinds.shared.profile, None);
    let flags = [
        "--profile",
        "bare-metal",
        "--cpus",
        "all",
        "--cpu-per-tenant-max",
        "4",
    ];
    assert_eq!(
        settings(&flags).kinds.shared.profile,
        Some(Profile::BareMetal)
    );
    assert_eq!(settings(&flags).kinds.cpu.cpu_per_tenant_max, Some(4));
    let text = "profile = \"bare-metal\"\nsriov-pf = \"eth0\"\nnet-per-tenant-max = 10000";
    let merged = from_file(text, &["--cpus", "all", "--cpu-per-tenant-max", "4"]).unwrap();
    assert_eq!(merged.kinds.shared.profile, Some(Profile::BareMetal));
    let bounds = (
        merged.kinds.cpu.cpu_per_tenant_max,
        merged.kinds.net.net_per_tenant_max,
    );
    assert_eq!(bounds, (Some(4), Some(10_000)));
}

#[test]
fn vlans_and_addresses_of_tenants_are_read_alike_from_flags_and_file() {
    let (vlans, macs) = (["blue=0,100-199", "red=7"], ["blue=00:1b:21:00:00:01"]);
    let file = format!("sriov-pf = \"eth0\"\nnet-vlan = {vlans:?}\nnet-mac = {macs:?}");
    let flags = vlans.iter().flat_map(|it| ["--net-vlan", *it]);
    let flags = flags.chain(macs.iter().flat_map(|it| ["--net-mac", *it]));
    let flags = settings(&flags.chain(["--sriov-pf", "eth0"]).collect::<Vec<_>>());
    let read = from_file(&file, &[]).unwrap();
    assert_eq!(read.kinds.net.net_vlan, flags.kinds.net.net_vlan);
    assert_eq!(read.kinds.net.net_mac, flags.kinds.net.net_mac);
    let merged = from_file(&file, &["--net-vlan", "red=8"]).unwrap();
    assert_eq!(merged.kinds.net.net_vlan, ["red=8".parse().unwrap()]);
    assert_eq!(merged.kinds.net.net_mac, flags.kinds.net.net_mac);
}

#[test]
fn several_arenas_are_read_alike_from_flags_and_file_and_need_no_mem_bytes() {
    let both = ["near=1MiB,file=/dev/shm/near,numa-node=1", "far=2MiB"];
    let others = [
        "--mem-per-tenant-max=1MiB",
        "--rdma-strategy=region",
        "--fbmu-ops-max=9",
    ];
    let flags = both.iter().flat_map(|it| ["--mem-arena", *it]);
    let flags = settings(&flags.chain(others).collect::<Vec<_>>());
    let file = from_file(&format!("mem-arena = {both:?}"), &others).unwrap();
    let arenas = |of: &Settings| of.kinds.memory.arenas(&of.kinds.shared);
    assert_eq!(arenas(&file), arenas(&flags));
    let names = |of: &Settings| {
        let names = arenas(of).into_iter().map(|it| it.name);
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&file), ["near", "far"]);
    let three = from_file(&format!("mem-bytes = 4096\nmem-arena = {both:?}"), &[]).unwrap();
    assert_eq!(names(&three), ["mem0", "near", "far"]);
}

#[test]
fn two_sockets_with_the_same_address_are_refused_and_both_are_named() {
    let with = |args: &[&str]| read(&[&["--mem-bytes=1MiB"], args].concat()).map(drop);
    for (args, both) in [
        (
            &["--listen=127.0.0.1:9", "--fbmu-listen=127.0.0.1:9"][..],
            "--listen 127.0.0.1:9 and --fbmu-listen 127.0.0.1:9",
        ),
        (
            &["--listen=0.0.0.0:9", "--fbmu-listen=127.0.0.1:9"],
            "--listen 0.0.0.0:9 and --fbmu-listen",
        ),
        (
            &["--listen=127.0.0.1:9", "--fbmu-listen=[::]:9"],
            "and --fbmu-listen [::]:9",
        ),
        (
            &["--listen=127.0.0.1:5702"],
            "and --fbmu-listen 127.0.0.1:5702",
        ),
        (
            &[
                "--block-pool=/p",
                "--fbmu-listen=[::1]:9",
                "--fbbu-listen=[::1]:9",
            ],
            "--fbmu-listen [::1]:9 and --fbbu-listen [::1]:9",
        ),
    ] {
        let why = with(args).unwrap_err();
        assert!(why.contains(both) && why.contains("another port"), "{why}");
    }
    for args in [
        &["--listen=127.0.0.1:0", "--fbmu-listen=127.0.0.1:0"][..],
        &["--listen=127.0.0.1:9", "--fbmu-listen=127.0.0.2:9"],
        &["--listen=[::1]:9", "--fbmu-listen=0.0.0.0:9"],
        &["--listen=127.0.0.1:9", "--fbmu-listen=none"],
        // Without a pool no socket uses this address.
        &["--listen=127.0.0.1:5703"],
    ] {
        assert_eq!(with(args), Ok(()), "{args:?}");
    }
}
