//! `debug-bundle`: what is in the file, what is not, and what is said of it.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Command, Output},
    thread,
};

use fabricbios_wire::{
    Answer, Binding, DpKey, LeaseError, LeaseInfo, LeasePage, RefusalClass, Reply, Request,
};
use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    LEASE_TEXT, command,
    common::{FakeNode, lease, refuse},
    inventory::inventory,
};

const KEY: DpKey = DpKey([0xab; 32]);

/// A node of which one answer has a key that it should not have.
fn node() -> FakeNode {
    FakeNode::start(|request: &Request| -> Answer {
        match request {
            Request::Ping(number) => Ok(Reply::Pong(*number)),
            Request::GetInventory(_) => inventory(request),
            Request::LeaseList { .. } => Ok(Reply::Leases(LeasePage {
                leases: vec![LeaseInfo {
                    binding: Binding {
                        dp_key: Some(KEY),
                        ..lease(60_000).binding
                    },
                    ..lease(60_000)
                }],
                ..LeasePage::default()
            })),
            Request::FenceList => Ok(Reply::Fences(Vec::new())),
            _ => refuse(LeaseError::NotFound, RefusalClass::Permanent, "none"),
        }
    })
}

/// A machine: programs that stand in for the daemon and the journal, and a state directory with keys.
fn machine() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    let program = |name: &str, script: &str| {
        let path = place.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    program(
        "fabricbiosd",
        r#"echo "fabricbiosd $*"; echo "lacks: something"; exit 1"#,
    );
    program("journalctl", r#"echo "journalctl $*""#);
    let state = place.path().join("state");
    fs::create_dir(&state).unwrap();
    fs::write(
        state.join("ca-key.pem"),
        "-----BEGIN PRIVATE KEY-----\nMC4CAQ\n",
    )
    .unwrap();
    fs::write(state.join("watchdog.log"), "a line of the watchdog\n").unwrap();
    let config = format!(
        "# my password is hunter2\nstate-dir = {:?}\nmem-bytes = \"1GiB\"\nsome-token = \"hunter3\"\n",
        state.display()
    );
    fs::write(place.path().join("node.toml"), config).unwrap();
    place
}

fn bundle(node: &FakeNode, place: &Path, line: &str) -> Command {
    let mut command = command(node, line);
    // The program finds others in PATH, and beside itself: it is alone in this directory.
    let own = place.join("fabricctl");
    if !own.exists() {
        fs::hard_link(env!("CARGO_BIN_EXE_fabricctl"), &own)
            .or_else(|_other_device| fs::copy(env!("CARGO_BIN_EXE_fabricctl"), &own).map(|_| ()))
            .unwrap();
    }
    let mut alone = Command::new(own);
    for (name, value) in command.get_envs() {
        alone.env(name, value.unwrap());
    }
    alone.args(command.get_args()).env("PATH", place);
    alone.current_dir(place);
    command = alone;
    command
}

/// The parts of a bundle by their names.
fn parts(tar: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(fs::File::open(tar).unwrap());
    let parts = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        (
            path.file_name().unwrap().to_str().unwrap().to_owned(),
            bytes,
        )
    });
    parts.collect()
}

fn said(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn a_bundle_has_what_a_report_needs_and_says_first_what_it_has() {
    let (node, place) = (node(), machine());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(&stream).lines().map(Result::unwrap);
        let asked: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        stream
            .write_all(b"HTTP/1.0 200 OK\r\n\r\nfabricbios_up 1\n")
            .unwrap();
        asked
    });
    let line = format!("debug-bundle --out b.tar --config node.toml --metrics {metrics}");
    let output = bundle(&node, place.path(), &line).output().unwrap();
    let said = said(&output);
    assert_eq!(server.join().unwrap()[0], "GET /metrics HTTP/1.0");

    let tar = place.path().join("b.tar");
    assert_eq!(
        fs::metadata(&tar).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let parts = parts(&tar);
    let text = |name: &str| String::from_utf8(parts[name].clone()).unwrap();
    assert!(said.starts_with(&text("list.txt")), "{said}");
    for name in parts.keys().filter(|it| *it != "list.txt") {
        assert!(said.contains(name.as_str()), "{name}: {said}");
    }
    assert!(!said.contains("left out"), "{said}");
    assert!(text("leases.json").contains(LEASE_TEXT));
    assert!(text("inventory.json").contains("\"resources\""));
    assert_eq!(text("fences.json").trim(), "{\n  \"fences\": []\n}");
    assert_eq!(text("metrics.txt"), "fabricbios_up 1\n");
    assert!(text("check.txt").starts_with("fabricbiosd check --config node.toml\nlacks: "));
    assert!(text("log.txt").starts_with("journalctl -u fabricbios-node -n 5000 "));
    assert!(text("settings.toml").contains("mem-bytes = \"1GiB\""));
    assert!(text("state-dir.txt").contains(" ca-key.pem\n"));
    assert_eq!(text("watchdog.log"), "a line of the watchdog\n");
    assert!(text("kernel.txt").contains("== /proc/meminfo\n"));
}

#[test]
fn a_bundle_has_no_key_and_no_token() {
    let (node, place) = (node(), machine());
    let line = "debug-bundle --out b.tar --config node.toml";
    let output = bundle(&node, place.path(), line).output().unwrap();
    said(&output);
    let tar = fs::read(place.path().join("b.tar")).unwrap();
    let has = |text: &str| tar.windows(text.len()).any(|it| it == text.as_bytes());
    assert!(has(LEASE_TEXT));
    let identity = fs::read_to_string(node.admin()).unwrap();
    let key = identity.split("PRIVATE KEY-----").nth(1).unwrap();
    let key = key.lines().find(|it| !it.is_empty()).unwrap();
    let secrets = [
        key,
        "PRIVATE KEY",
        "hunter2",
        "hunter3",
        "MC4CAQ",
        &"ab".repeat(32),
    ];
    for secret in secrets {
        assert!(!has(secret), "{secret}");
    }
}

#[test]
fn what_cannot_be_had_is_a_line_and_the_rest_is_there() {
    let (mut node, place) = (node(), tempfile::tempdir().unwrap());
    node.crash();
    let line = "--json --patience-secs 0 debug-bundle --config none.toml --state-dir none --metrics 127.0.0.1:1";
    let output = bundle(&node, place.path(), line).output().unwrap();
    let told: Value = serde_json::from_str(said(&output)).unwrap();
    let left_out = |name: &str| {
        let parts = told["parts"].as_array().unwrap();
        let part = parts.iter().find(|it| it["name"] == name).unwrap();
        part["left_out"].as_str().unwrap_or_default().to_owned()
    };
    for (name, why) in [
        ("fabricbiosd.txt", "fabricbiosd: No such file"),
        ("settings.toml", "none.toml: No such file"),
        ("check.txt", "none.toml: No such file"),
        ("inventory.json", "Unreachable"),
        ("metrics.txt", "127.0.0.1:1: Connection refused"),
        ("state-dir.txt", "none: No such file"),
        ("log.txt", "journalctl: No such file"),
    ] {
        assert!(left_out(name).contains(why), "{name}: {}", left_out(name));
    }
    let name = told["file"].as_str().unwrap();
    let parts = parts(&place.path().join(name));
    assert_eq!(
        parts.keys().collect::<Vec<_>>(),
        ["fabricctl.txt", "kernel.txt", "list.txt"]
    );
}

#[test]
fn a_link_or_a_fifo_in_place_of_a_log_leads_nowhere() {
    let (node, machine) = (node(), machine());
    let log = machine.path().join("state/watchdog.log");
    let elsewhere = machine.path().join("of-root");
    fs::write(&elsewhere, "nobody else reads this\n").unwrap();
    let link = || symlink(&elsewhere, &log).unwrap();
    let fifo = || mkfifo(&log, Mode::S_IRWXU).unwrap();
    for (plant, why) in [
        (&link as &dyn Fn(), "Too many levels of symbolic links"),
        (&fifo, "no file of the owner of its directory"),
    ] {
        fs::remove_file(&log).unwrap();
        plant();
        let line = "--json debug-bundle --config node.toml --state-dir state --out one.tar";
        let output = bundle(&node, machine.path(), line).output().unwrap();
        assert!(said(&output).contains(why), "{}", said(&output));
        let out = machine.path().join("one.tar");
        assert!(!parts(&out).contains_key("watchdog.log"));
        fs::remove_file(&out).unwrap();
    }
}

#[test]
fn a_file_that_is_there_is_not_written_over() {
    let (node, place) = (node(), machine());
    fs::write(place.path().join("b.tar"), "mine").unwrap();
    let output = bundle(&node, place.path(), "debug-bundle --out b.tar")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("create b.tar: File exists"));
    assert_eq!(
        fs::read_to_string(place.path().join("b.tar")).unwrap(),
        "mine"
    );
}
