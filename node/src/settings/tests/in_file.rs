//! The configuration file.

use super::*;

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

/// What is told of a file with this text, line by line.
fn told(text: &str) -> Vec<String> {
    let faults = file::parse(text).map(drop).unwrap_err();
    faults.iter().map(ToString::to_string).collect()
}

/// The numbers of the lines.
fn lines(told: &[String]) -> Vec<usize> {
    let line = |it: &String| it.strip_prefix("line ")?.split_once(": ")?.0.parse().ok();
    told.iter().filter_map(line).collect()
}

#[test]
fn every_bad_line_is_told_at_once() {
    let text = "auto-detect = true\nmem-byte = 1\nlisten = \"[::]:1\"\ncut-within-ms = 0\nmem-bytes = 1GiB\nblock-pool = [1, \"/a\"]\n\
                auto-detect = false\n";
    let broken = told(text);
    // The name may be part of a secret, in a file that is no TOML.
    assert_eq!(lines(&broken), [4, 5, 6, 7], "{broken:#?}");
    let expected = "cut-within-ms = 0: a whole number from 10 to 60000 is expected, such as 1000";
    assert!(broken[0].contains(expected), "{}", broken[0]);
    assert!(broken[1].contains("mem-bytes: "), "{}", broken[1]);
    let text = text
        .replace("1GiB", "\"1 gig\"")
        .replace("auto-detect = false\n", "");
    let whole = told(&text);
    assert_eq!(lines(&whole), [2, 4, 5, 6], "{whole:#?}");
    assert!(whole[0].contains("did you mean mem-bytes?"), "{whole:#?}");
    // A start reports all reasons in one line.
    let start = from_file(&text, &[]).map(drop).unwrap_err();
    assert_eq!(start.lines().count(), 1, "{start}");
    for why in &whole {
        assert!(start.contains(why), "{why}: {start}");
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

#[test]
fn the_packaged_settings_take_each_example_and_each_has_a_drop_in() {
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/node");
    let inside = std::fs::read_dir(packaged.join("examples")).unwrap();
    let mut files: Vec<PathBuf> = inside.map(|it| it.unwrap().path()).collect();
    files.retain(|it| it.extension().is_some_and(|it| it == "toml"));
    assert!(files.iter().all(|it| it.with_extension("conf").is_file()));
    assert!(files.len() > 1, "{files:?}");
    let installed = std::fs::read_to_string(packaged.join("node.toml")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("node.toml");
    for path in files {
        let example = std::fs::read_to_string(&path).unwrap();
        let replaces = |line: &&str| {
            let name = line.split(" = ").next().unwrap();
            !line.starts_with('#') && example.contains(&format!("\n{name} = "))
        };
        let replaced: Vec<&str> = installed.lines().filter(replaces).collect();
        let is_said = replaced.is_empty() || example.contains("replaces the line");
        assert!(is_said, "{path:?}: {replaced:?}");
        let kept = installed.lines().filter(|it| !replaced.contains(it));
        let both = kept.chain(example.lines()).collect::<Vec<_>>().join("\n");
        std::fs::write(&at, both).unwrap();
        settings(&["--config", at.to_str().unwrap()]);
    }
    settings(&["--config", packaged.join("node.toml").to_str().unwrap()]);
}
