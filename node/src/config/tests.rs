use clap::ValueEnum;

use super::*;

fn settings(args: &[&str]) -> Settings {
    let cli = Cli::try_parse_from([&["fabricbiosd", "control-server"], args].concat()).unwrap();
    match cli.command {
        Command::ControlServer(settings) => *settings,
        other => panic!("{other:?}"),
    }
}

#[test]
fn flags_win_over_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.toml");
    std::fs::write(
        &path,
        "mem-bytes = \"1GiB\"\nlisten = \"127.0.0.1:1\"\nauto-detect = true",
    )
    .unwrap();
    let path = path.to_str().unwrap();
    let got = settings(&["--config", path, "--mem-bytes", "2MiB"])
        .with_file()
        .unwrap();
    assert_eq!(got.mem_bytes, Some(Size(2 << 20)));
    assert_eq!(got.listen().port(), 1);
    assert!(got.auto_detect);
}

#[test]
fn a_size_in_the_file_is_a_number_or_has_a_unit() {
    let read = |text| toml::from_str::<Settings>(text).map(|settings| settings.mem_bytes);
    assert_eq!(read("mem-bytes = 4096"), Ok(Some(Size(4096))));
    assert_eq!(read("mem-bytes = \"1G\""), Ok(Some(Size(1 << 30))));
    assert_eq!(read(""), Ok(None));
    let error = read("mem-bytes = \"1 gig\"").unwrap_err().to_string();
    assert!(error.contains("GiB"), "{error}");
}

#[test]
fn a_file_with_a_misspelt_name_is_refused_with_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.toml");
    std::fs::write(&path, "auto-detect = true\nmem-byte = 1").unwrap();
    let error = settings(&["--config", path.to_str().unwrap()])
        .with_file()
        .unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("node.toml: line 2: unknown field `mem-byte`"),
        "{error}"
    );
}

#[test]
fn settings_that_make_no_sense_together_are_refused() {
    for (args, word) in [
        (&["--advertise", "::"][..], "wildcard"),
        (&["--mem-bytes", "5000"], "4096"),
        (&["--mem-bytes", "0"], "4096"),
        (&["--profile", "bare-metal", "--mem-bytes", "1MiB"], "65536"),
        (
            &["--profile", "bare-metal", "--mem-file", "/dev/shm/a"],
            "static arena",
        ),
        (
            &["--profile", "bare-metal", "--rdma-device", "mlx5_0"],
            "static arena",
        ),
        (
            &["--advertise-vendor", "a=1", "--advertise-vendor", "a=2"],
            "same resource twice",
        ),
        (&["--rdma-device", "mlx5_0"], "--mem-bytes"),
        (&["--mem-file", "/dev/shm/arena"], "--mem-bytes"),
        (&["--tenant-uid", "blue=1000"], "--local-socket"),
        (
            &["--net-vlan", "blue=0"],
            "--net-vlan without --macvlan-parent",
        ),
        (
            &["--net-mac", "blue=02:00:00:00:00:01"],
            "--net-mac without --macvlan-parent",
        ),
        (
            &[
                "--sriov-pf",
                "eth0",
                "--net-vlan",
                "blue=0",
                "--net-vlan",
                "red=0",
                "--net-vlan",
                "blue=7",
            ],
            "--net-vlan names tenant blue twice",
        ),
        (
            &["--cpu-isolation-policy", "strict"],
            "--cpu-isolation-policy without --cpus",
        ),
        (
            &["--cpu-cgroup", "/sys/fs/cgroup/a"],
            "--cpu-cgroup without --cpus",
        ),
        (
            &["--cpu-memory-max", "1GiB"],
            "--cpu-memory-max without --cpus",
        ),
        (&["--cpu-pids-max", "9"], "--cpu-pids-max without --cpus"),
        (
            &["--cpus", "all", "--cpu-memory-max", "4KiB"],
            "--cpu-memory-max 4096",
        ),
        (
            &["--cpus", "all", "--cpu-pids-max", "0"],
            "--cpu-pids-max 0: a program has at least 1 process",
        ),
        (
            &["--cpus", "all", "--cpu-pids-max", "4194305"],
            "--cpu-pids-max 4194305: a program has at least 1 process, and Linux has at most 4194304",
        ),
        (
            &["--gpu-worker-memory-max", "4GiB"],
            "--gpu-worker-memory-max without --gpus",
        ),
        (&["--fbbu-half-sent-max", "1KiB"], "524288"),
        (
            &[
                "--mem-bytes",
                "1MiB",
                "--rdma-device",
                "none",
                "--fbmu-listen",
                "none",
            ],
            "no transport",
        ),
    ] {
        let error = settings(args).with_file().unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn class_names_in_both_spellings() {
    for (text, class) in [
        ("best_effort", CpuIsolationPolicy::BestEffort),
        ("WholeCore", CpuIsolationPolicy::WholeCore),
        ("strict", CpuIsolationPolicy::Strict),
        ("strict_isolated", CpuIsolationPolicy::Strict),
        ("StrictIsolated", CpuIsolationPolicy::Strict),
    ] {
        let got = settings(&["--cpu-isolation-policy", text]).cpu_isolation_policy;
        assert_eq!(got, Some(class), "{text}");
    }
    for class in CpuIsolationPolicy::value_variants() {
        // The word of requests and of the inventory.
        let word = fabricbios_wire::CpuIsolationClass::from(*class).name();
        assert_eq!(class.to_possible_value().unwrap().get_name(), word);
        let file: Settings = toml::from_str(&format!("cpu-isolation-policy = \"{word}\"")).unwrap();
        assert_eq!(file.cpu_isolation_policy, Some(*class));
    }
    let file: Settings = toml::from_str("cpu-isolation-policy = \"strict\"").unwrap();
    assert_eq!(file.cpu_isolation_policy, Some(CpuIsolationPolicy::Strict));
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
        assert_eq!(settings(args).fbmu_listen(), expected, "{args:?}");
    }
}

#[test]
fn one_pool_is_named_once() {
    let twice = settings(&["--block-pool", "/a", "--block-pool", "/a"]).with_file();
    assert!(twice.unwrap_err().to_string().contains("twice"));
    let ports = settings(&["--nvmet", "tcp:10.0.0.1:4420"]).with_file();
    assert!(ports.unwrap_err().to_string().contains("--block-pool"));
}

#[test]
fn cpus_are_all_or_a_list_as_a_flag_and_in_the_file() {
    let given = settings(&["--cpus", "2-3,6", "--cpu-reserve", "7"]);
    let list = |cpus: &[u32]| CpuList(cpus.to_vec());
    assert_eq!(given.cpus, Some(Wanted::These(list(&[2, 3, 6]))));
    assert_eq!(given.cpu_reserve, Some(list(&[7])));
    let file: Settings = toml::from_str("cpus = \"all\"").unwrap();
    assert_eq!(file.cpus, Some(Wanted::All));
    for text in ["", "some", "3-1", "-1"] {
        let file = format!("cpus = \"{text}\"");
        let refused = toml::from_str::<Settings>(&file).unwrap_err();
        assert!(refused.message().contains("no ascending list"), "{refused}");
    }
    let alone = settings(&["--cpu-reserve", "7"]).with_file();
    assert!(alone.unwrap_err().to_string().contains("--cpus"));
}

#[test]
fn profile_and_bounds_of_a_tenant_are_read_from_flags_and_file() {
    let default = settings(&["--auto-detect"]);
    assert_eq!(default.profile, None);
    let flags = ["--profile", "bare-metal", "--cpu-per-tenant-max", "4"];
    assert_eq!(settings(&flags).profile, Some(Profile::BareMetal));
    assert_eq!(settings(&flags).cpu_per_tenant_max, Some(4));
    let text = "profile = \"bare-metal\"\nnet-per-tenant-max = 10000";
    let file: Settings = toml::from_str(text).unwrap();
    let merged = settings(&["--cpu-per-tenant-max", "4"]).over(file);
    assert_eq!(merged.profile, Some(Profile::BareMetal));
    let bounds = (merged.cpu_per_tenant_max, merged.net_per_tenant_max);
    assert_eq!(bounds, (Some(4), Some(10_000)));
}

#[test]
fn vlans_and_addresses_of_tenants_are_read_alike_from_flags_and_file() {
    let (vlans, macs) = (["blue=0,100-199", "red=7"], ["blue=00:1b:21:00:00:01"]);
    let file = format!("net-vlan = {vlans:?}\nnet-mac = {macs:?}");
    let file: Settings = toml::from_str(&file).unwrap();
    let flags = vlans.iter().flat_map(|it| ["--net-vlan", *it]);
    let flags = flags.chain(macs.iter().flat_map(|it| ["--net-mac", *it]));
    let flags = settings(&flags.collect::<Vec<_>>());
    assert_eq!(file.net_vlan, flags.net_vlan);
    assert_eq!(file.net_mac, flags.net_mac);
    let merged = settings(&["--net-vlan", "red=8"]).over(file);
    assert_eq!(merged.net_vlan, ["red=8".parse().unwrap()]);
    assert_eq!(merged.net_mac, flags.net_mac);
}

#[test]
fn a_bad_list_of_vlans_in_the_file_is_refused_with_line_setting_value_and_an_example() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.toml");
    let text = "macvlan-parent = [\"eth0\"]\nnet-vlan = [\"blue=7-3\"]";
    std::fs::write(&path, text).unwrap();
    let error = settings(&["--config", path.to_str().unwrap()]).with_file();
    let error = error.unwrap_err().to_string();
    for word in [
        "line 2",
        "net-vlan",
        "blue=7-3",
        "ends before",
        "such as blue=0,100-199",
    ] {
        assert!(error.contains(word), "{error}");
    }
}
