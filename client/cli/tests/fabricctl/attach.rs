//! Block devices, as far as a machine without NVMe-oF can test them: who may attach, what is refused, which files are
//! left.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    thread,
};

use fabricbios_wire::{
    Binding, KindBinding, LeaseInfo, LeasePhase, LeaseStatus, NvmeofBinding, NvmeofTransport,
    Reply, Request, ResourceType,
};
use serde_json::{Value, json};

use crate::{
    LEASE_TEXT, as_root,
    block::{address, binding, block_lease},
    command,
    common::{FakeNode, lease},
    failure, saying,
};

/// `fabricctl block WHAT LEASE`, which keeps its files in the node's directory.
fn block(node: &FakeNode, what: &str) -> Command {
    let dir = node.dir().join("attach");
    command(
        node,
        &format!(
            "--json block {what} {LEASE_TEXT} --attach-dir {}",
            dir.display()
        ),
    )
}

/// A lease whose node does not listen at the address in the binding.
fn unreachable() -> LeaseInfo {
    let nvmeof = NvmeofBinding {
        addresses: vec![address(NvmeofTransport::Tcp, "127.0.0.1:1")],
        ..binding()
    };
    LeaseInfo {
        binding: Binding {
            kind: KindBinding::Block(Some(Box::new(nvmeof))),
            ..Binding::plain(ResourceType::Block)
        },
        ..block_lease()
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

#[test]
fn nobody_but_root_attaches_or_detaches() {
    let node = saying(Ok(Reply::Lease(block_lease())));
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("fabricctl");
    fs::copy(env!("CARGO_BIN_EXE_fabricctl"), &program).unwrap();
    // As the user nobody (with setpriv of util-linux), if this is root.
    let mut detach = match nix::unistd::geteuid().is_root() {
        true => Command::new("setpriv"),
        false => Command::new("env"),
    };
    if nix::unistd::geteuid().is_root() {
        detach.args(["--reuid=65534", "--clear-groups"]);
    }
    detach.arg(program);
    detach
        .args(["--json", "block", "detach", LEASE_TEXT, "--attach-dir"])
        .arg(node.dir());
    let (status, object) = failure(&detach.output().unwrap());
    assert_eq!((status, &object["reason"]["code"]), (1, &json!("NotRoot")));
    assert!(
        object["message"].as_str().unwrap().contains("sudo"),
        "{object}"
    );
}

#[test]
fn what_is_not_attached_is_not_found_and_no_node_is_asked() {
    let node = saying(Ok(Reply::Lease(block_lease())));
    for _ in 0..2 {
        let mut detach = block(&node, "detach");
        detach.env_remove("FABRICBIOS_IDENTITY");
        let output = as_root(detach, &[]);
        let (status, object) = failure(&output);
        assert_eq!(
            (status, &object["reason"]["code"]),
            (4, &json!("NotAttached"))
        );
        assert!(
            object["message"].as_str().unwrap().contains(LEASE_TEXT),
            "{object}"
        );
    }
    assert_eq!(node.asked(), []);
}

#[test]
fn what_can_be_no_device_is_told_before_anything_is_tried() {
    let ended = |phase| LeaseInfo {
        phase,
        status: LeaseStatus::Expired,
        binding: Binding::plain(ResourceType::Block),
        ..block_lease()
    };
    let no_transport = LeaseInfo {
        binding: Binding::plain(ResourceType::Block),
        ..block_lease()
    };
    let tcp_only = unreachable();
    for (info, flags, expected, word) in [
        (lease(60_000), "", 2, "mem"),
        (ended(LeasePhase::Expired), "", 4, "new lease"),
        (ended(LeasePhase::Revoked), "", 4, "new lease"),
        (ended(LeasePhase::Grace), "", 4, "renew"),
        (ended(LeasePhase::Fenced), "", 5, "fenced"),
        (no_transport, "", 2, "--identity"),
        (tcp_only.clone(), " --transport nvme-rdma", 2, "nvme-rdma"),
        (tcp_only.clone(), " --transport udp", 2, "udp"),
        (tcp_only, " --transport both", 2, "nvme-tcp"),
    ] {
        let node = saying(Ok(Reply::Lease(info)));
        let mut attach = block(&node, "attach");
        attach.args(flags.split_whitespace());
        if flags.ends_with("both") {
            // The command line refuses this for every user.
            assert_eq!(failure(&attach.output().unwrap()).0, 2);
            continue;
        }
        let output = as_root(attach, &[]);
        let (status, object) = failure(&output);
        assert_eq!(status, expected, "{object}");
        assert!(
            object["message"].as_str().unwrap().contains(word),
            "{word}: {object}"
        );
        assert!(!node.dir().join("attach").exists());
    }
}

#[test]
fn a_connection_that_fails_says_why_and_leaves_a_log_without_secrets() {
    let node = saying(Ok(Reply::Lease(unreachable())));
    let output = as_root(block(&node, "attach"), &[]);
    let (status, object) = failure(&output);
    assert_eq!(
        (status, &object["reason"]["code"]),
        (1, &json!("NotConnected")),
        "{object}"
    );
    let dir = node.dir().join("attach");
    let log = fs::read_to_string(dir.join(format!("{LEASE_TEXT}.log"))).unwrap();
    for text in [log, object.to_string()] {
        assert!(!text.contains("DHHC-1"), "{text}");
    }
    let mode = fs::metadata(&dir).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // A device that was never attached: attach can be repeated, and detach says that it is not attached.
    let (status, _) = failure(&as_root(block(&node, "detach"), &[]));
    assert_eq!(status, 4, "{:?}", names(&dir));
}

#[test]
fn the_block_daemon_is_told_which_node_attach_has_asked() {
    let daemons = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&daemons);
    let node = FakeNode::start(move |_: &Request| {
        // The daemon waits for its answer meanwhile.
        seen.lock().unwrap().extend(command_lines("keep"));
        Ok(Reply::Lease(unreachable()))
    });
    as_root(block(&node, "attach"), &[]);
    let dir = node.dir().join("attach").display().to_string();
    let mut daemons = daemons.lock().unwrap().clone();
    daemons.retain(|words| words.contains(&dir));
    let words = daemons.first().expect("the block daemon asks the node");
    for flag in [
        ["--node".into(), node.addr()],
        ["--node-id".into(), node.id().to_string()],
    ] {
        assert!(
            words.windows(2).any(|it| it == flag),
            "{flag:?} in {words:?}"
        );
    }
}

/// The command lines of all processes of this machine with this word.
fn command_lines(word: &str) -> Vec<Vec<String>> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    // A process may end meanwhile.
    let lines = processes.filter_map(|it| fs::read_to_string(it.path().join("cmdline")).ok());
    let lines = lines.map(|line| line.split('\0').map(str::to_owned).collect::<Vec<_>>());
    lines.filter(|it| it.iter().any(|it| it == word)).collect()
}

#[test]
fn a_lease_that_is_attached_already_is_no_error() {
    let node = saying(Ok(Reply::Lease(block_lease())));
    let dir = node.dir().join("attach");
    fs::create_dir(&dir).unwrap();
    // The test acts as the process that keeps the device.
    let daemon = UnixListener::bind(dir.join(format!("{LEASE_TEXT}.sock"))).unwrap();
    let answering = thread::spawn(move || {
        ["ok /dev/nvme7n1", "failed it is mounted", "ok /dev/nvme7n1"].map(|answer| {
            let (stream, _) = daemon.accept().unwrap();
            let mut word = String::new();
            BufReader::new(&stream).read_line(&mut word).unwrap();
            writeln!(&stream, "{answer}").unwrap();
            word
        })
    });
    let attached = as_root(block(&node, "attach"), &[]);
    let told: Value = serde_json::from_slice(&attached.stdout).unwrap();
    assert_eq!(
        (&told["device"], &told["already"]),
        (&json!("/dev/nvme7n1"), &json!(true))
    );
    assert_eq!(node.asked(), []);
    let (status, object) = failure(&as_root(block(&node, "detach"), &[]));
    assert_eq!(status, 1);
    assert!(
        object["message"].as_str().unwrap().contains("mounted"),
        "{object}"
    );
    let detached = as_root(block(&node, "detach"), &[]);
    let told: Value = serde_json::from_slice(&detached.stdout).unwrap();
    assert_eq!(told["device"], "/dev/nvme7n1");
    assert_eq!(
        answering.join().unwrap(),
        ["device\n", "detach\n", "detach\n"]
    );
}

#[test]
fn a_lease_that_is_attached_over_another_transport_says_over_which_and_how_to_change_it() {
    let node = saying(Ok(Reply::Lease(block_lease())));
    let dir = node.dir().join("attach");
    fs::create_dir(&dir).unwrap();
    let record = json!({"lease_id": LEASE_TEXT, "device": "/dev/nbd7", "keeper_pid": 1});
    fs::write(dir.join(format!("{LEASE_TEXT}.json")), record.to_string()).unwrap();
    let daemon = UnixListener::bind(dir.join(format!("{LEASE_TEXT}.sock"))).unwrap();
    let answering = thread::spawn(move || {
        for _ in 0..3 {
            let (stream, _) = daemon.accept().unwrap();
            BufReader::new(&stream)
                .read_line(&mut String::new())
                .unwrap();
            writeln!(&stream, "ok /dev/nbd7").unwrap();
        }
    });
    for transport in ["auto", "udp"] {
        let mut same = block(&node, "attach");
        same.args(["--transport", transport]);
        let output = as_root(same, &[]);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&told["already"], &told["transport"]),
            (&json!(true), &json!("udp"))
        );
    }
    let mut other = block(&node, "attach");
    other.args(["--transport", "nvme-tcp"]);
    let (status, object) = failure(&as_root(other, &[]));
    assert_eq!(
        (status, &object["reason"]["code"]),
        (1, &json!("AttachedOtherwise"))
    );
    let message = object["message"].as_str().unwrap();
    for word in ["over udp", "/dev/nbd7", "block detach", LEASE_TEXT] {
        assert!(message.contains(word), "{word}: {message}");
    }
    answering.join().unwrap();
}

#[test]
fn wrong_arguments_say_which_and_what_would_be_right() {
    let node = saying(Ok(Reply::Lease(block_lease())));
    let file = node.dir().join("file");
    fs::write(&file, "").unwrap();
    for (line, words) in [
        (
            format!("block attach {LEASE_TEXT} --attach-dir {}", file.display()),
            ["--attach-dir", "not a directory"],
        ),
        (
            format!(
                "block detach {LEASE_TEXT} --attach-dir {}/x",
                file.display()
            ),
            ["--attach-dir", "name a directory"],
        ),
        (
            format!("block attach {LEASE_TEXT} --attach-dir /proc/nothing"),
            ["--attach-dir", "/proc/nothing"],
        ),
    ] {
        let output = as_root(command(&node, &format!("--json {line}")), &[]);
        let (status, object) = failure(&output);
        assert_eq!(status, 2, "{object}");
        for word in words {
            assert!(
                object["message"].as_str().unwrap().contains(word),
                "{object}"
            );
        }
    }
    for wrong in ["/dev/nvme0n1", "7"] {
        let output = command(&node, &format!("--json block detach {wrong}")).output();
        let (status, object) = failure(&output.unwrap());
        assert_eq!(status, 2, "{object}");
        let message = object["message"].as_str().unwrap();
        assert!(
            message.contains(wrong) && message.contains("lease list"),
            "{message}"
        );
    }
}
