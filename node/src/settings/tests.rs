mod every_setting;

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
fn flags_win_over_the_file() {
    let text = "mem-bytes = \"1GiB\"\nlisten = \"127.0.0.1:1\"\nauto-detect = true\nblock-pool = [\"/a\", \"/b\"]";
    let got = from_file(text, &["--mem-bytes", "2MiB", "--block-pool", "/c"]).unwrap();
    assert_eq!(got.kinds.memory.mem_bytes, Some(Size(2 << 20)));
    assert_eq!(got.listen().port(), 1);
    assert!(got.kinds.shared.auto_detect);
    assert_eq!(got.kinds.block.block_pool, [Path::new("/c")]);
    let got = from_file("auto-detect = false\nblock-pool = [\"/a\", \"/b\"]", &[]).unwrap();
    assert!(!got.kinds.shared.auto_detect);
    let one = from_file("sriov-pf = \"eth1=8\"", &[])
        .unwrap()
        .kinds
        .net
        .sriov_pf;
    assert_eq!(one, ["eth1=8".parse().unwrap()]);
    let two = from_file("sriov-pf = [\"eth1=8\", \"eth2\"]", &[]).unwrap();
    let flags = settings(&["--sriov-pf", "eth1=8", "--sriov-pf", "eth2"]);
    assert_eq!(two.kinds.net.sriov_pf, flags.kinds.net.sriov_pf);
    assert_eq!(
        got.kinds.block.block_pool,
        [Path::new("/a"), Path::new("/b")]
    );
}

#[test]
fn a_size_in_the_file_is_a_number_or_has_a_unit() {
    let read = |text| from_file(text, &[]).map(|it| it.kinds.memory.mem_bytes);
    assert_eq!(read("mem-bytes = 4096"), Ok(Some(Size(4096))));
    assert_eq!(read("mem-bytes = 0x10_00"), Ok(Some(Size(4096))));
    assert_eq!(read("mem-bytes = \"1G\""), Ok(Some(Size(1 << 30))));
    let error = read("mem-bytes = \"1 gig\"").unwrap_err();
    assert!(error.contains("GiB"), "{error}");
}

#[test]
fn a_misspelt_setting_is_refused_with_place_and_a_tip() {
    for (text, words) in [
        (
            "auto-detect = true\nmem-byte = 1",
            ["line 2", "\"mem-byte\"", "did you mean mem-bytes?"],
        ),
        (
            "mem_bytes = 4096",
            ["line 1", "\"mem_bytes\"", "did you mean mem-bytes?"],
        ),
        (
            "gpu-share-mod = \"exclusive\"",
            ["line 1", "gpu-share-mod", "did you mean gpu-share-mode?"],
        ),
        (
            "[package]\nname = \"x\"",
            ["line 1", "\"package\"", "--help"],
        ),
        ("force = true", ["line 1", "one start", "--force"]),
        (
            "without-pool = [\"/a\"]",
            ["line 1", "one start", "--without-pool"],
        ),
        ("config = \"a\"", ["line 1", "one start", "--config"]),
        ("\"\" = 1", ["line 1", "\"\"", "--help"]),
        ("help = true", ["line 1", "no setting \"help\"", "--help"]),
        (
            "rdma-strategy = \"regoin\"",
            ["line 1", "regoin", "did you mean region?"],
        ),
    ] {
        let error = from_file(text, &[]).map(drop).unwrap_err();
        for word in words.iter().chain(&["node.toml: "]) {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(error.lines().count() == 1 && error.len() < 300, "{error}");
    }
}

#[test]
fn values_of_the_wrong_form_are_refused_with_the_right_one() {
    for (text, word) in [
        ("auto-detect = \"yes\"", "true or false"),
        ("auto-detect = 1", "true or false"),
        ("block-pool = [1]", "text in quotes"),
        ("block-pool = [[\"/a\"]]", "text in quotes"),
        ("state-dir = 5", "text in quotes"),
        ("state-dir = true", "text in quotes"),
        ("listen = 5701", "0.0.0.0:5701"),
        ("listen = [\"[::]:1\"]", "0.0.0.0:5701"),
        ("mem-bytes = 1.5", "mem-bytes = 1.5"),
        ("mem-bytes = { a = 1 }", "mem-bytes = "),
    ] {
        let error = from_file(text, &[]).map(drop).unwrap_err();
        assert!(
            error.contains("line 1: ") && error.contains(word),
            "{error}"
        );
    }
}

#[test]
fn a_file_that_is_none_is_refused_with_its_path_and_no_byte_of_a_secret() {
    let key =
        "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqG==\n-----END PRIVATE KEY-----\n";
    for (text, word) in [
        ("", "no setting in it"),
        ("# all of it is a comment\n", "no setting in it"),
        (key, "line 1"),
        ("mem-bytes = \"1GiB", "mem-bytes"),
        ("{\"mem-bytes\": 4096}", "line 1"),
        ("mem-bytes: 4096", "line 1"),
    ] {
        let error = from_file(text, &[]).map(drop).unwrap_err();
        assert!(
            error.contains("node.toml: ") && error.contains(word),
            "{error}"
        );
        assert!(
            !error.contains("PRIVATE") && !error.contains("MIGH"),
            "{error}"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let binary = directory.path().join("binary");
    std::fs::write(&binary, [0xff, 0xfe, 0]).unwrap();
    let long = directory.path().join("long");
    std::fs::write(&long, "#".repeat((1 << 20) + 1)).unwrap();
    for (path, word) in [
        (&*binary, "no text file"),
        (&*long, "1048576 bytes"),
        (directory.path(), "no regular file"),
        (&directory.path().join("none"), "No such file"),
    ] {
        let error = refused(&["--config", path.to_str().unwrap()]);
        assert!(
            error.contains(path.to_str().unwrap()) && error.contains(word),
            "{error}"
        );
    }
}

#[test]
fn every_bad_line_is_told_at_once() {
    let text = "auto-detect = true\nmem-byte = 1\nlisten = \"[::]:1\"\ncut-within-ms = 0\nmem-bytes = 1GiB\nblock-pool = [1, \"/a\"]\n\
                auto-detect = false\n";
    let broken = file::parse(text).map(drop).unwrap_err();
    let lines = |whys: &[String]| {
        let line = |why: &String| why.split(": ").next().unwrap().to_owned();
        whys.iter().map(line).collect::<Vec<_>>()
    };
    // The name may be part of a secret, in a file that is no TOML.
    assert_eq!(
        lines(&broken),
        ["line 4", "line 5", "line 6", "line 7"],
        "{broken:#?}"
    );
    assert!(
        broken[0].contains(
            "cut-within-ms = 0: a whole number from 10 to 60000 is expected, such as 1000"
        )
    );
    assert!(broken[1].contains("mem-bytes: "), "{}", broken[1]);
    let text = text
        .replace("1GiB", "\"1 gig\"")
        .replace("auto-detect = false\n", "");
    let whole = file::parse(&text).map(drop).unwrap_err();
    assert_eq!(
        lines(&whole),
        ["line 2", "line 4", "line 5", "line 6"],
        "{whole:#?}"
    );
    assert!(whole[0].contains("did you mean mem-bytes?"), "{whole:#?}");
    // A start reports all reasons in one line.
    let start = from_file(&text, &[]).map(drop).unwrap_err();
    assert_eq!(start.lines().count(), 1, "{start}");
    for why in &whole {
        assert!(start.contains(why), "{why}: {start}");
    }
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
fn one_pool_is_named_once() {
    let twice = refused(&["--block-pool", "/a", "--block-pool", "/a"]);
    assert!(
        twice.contains("--block-pool names the same path twice"),
        "{twice}"
    );
    let ports = refused(&["--nvmet", "tcp:10.0.0.1:4420"]);
    assert!(ports.contains("--block-pool"), "{ports}");
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

#[test]
fn a_file_that_is_no_regular_file_is_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [&*fifo, directory.path(), Path::new("/dev/null")] {
        let why = refused(&["--config", path.to_str().unwrap()]);
        assert!(why.contains("no regular file"), "{why}");
    }
}
