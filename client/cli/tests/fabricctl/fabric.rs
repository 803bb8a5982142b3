//! The directory of a fabric of many nodes: nobody is asked.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::SystemTime,
};

use fabricbios_client::Identity;
use fabricbios_fabric::Fabric;
use serde_json::Value;

fn run(directory: &Path, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricctl"));
    command.args(line.split(' ')).current_dir(directory);
    command
        .env_remove("FABRICBIOS_IDENTITY")
        .env_remove("FABRICBIOS_NODE");
    command.output().unwrap()
}

fn json(directory: &Path, line: &str) -> Value {
    let output = run(directory, &format!("--json {line}"));
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Fails with this status and with this word in the message. Nothing is written to standard output.
#[track_caller]
fn fails(directory: &Path, line: &str, word: &str) {
    let output = run(directory, line);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{line}: {told}");
    assert!(told.contains(word), "{line}: {told}");
    assert!(output.stdout.is_empty(), "{line}");
}

/// A fabric, and the request of a node.
fn made() -> (tempfile::TempDir, Value) {
    let root = tempfile::tempdir().unwrap();
    let at = root.path();
    let fabric = json(at, "fabric init fabric");
    let state = at.join("state");
    Fabric::open_or_create(&state, SystemTime::now()).unwrap();
    fs::write(at.join("request"), Fabric::request(&state).unwrap()).unwrap();
    (root, fabric)
}

#[test]
fn a_fabric_signs_its_nodes_and_issues_identities_without_a_node() {
    let (root, fabric) = made();
    let at = root.path();
    let signed = run(
        at,
        "fabric sign request --role node --label rack=r7 --dir fabric",
    );
    assert!(signed.status.success(), "{signed:?}");
    let answer = String::from_utf8(signed.stdout).unwrap();
    let accepted = Fabric::accept(&at.join("state"), &answer, SystemTime::now()).unwrap();
    assert_eq!(accepted.fabric.id().to_string(), fabric["fabric"]);
    assert_eq!(accepted.labels, ["rack=r7".parse().unwrap()]);
    let told = String::from_utf8(signed.stderr).unwrap();
    assert!(
        told.contains(&accepted.fabric.node_id().to_string()),
        "{told}"
    );
    let again = json(
        at,
        "fabric sign request --role scheduler --days 3 --dir fabric",
    );
    assert_eq!(again["node_id"], accepted.fabric.node_id().to_string());
    assert!(
        again["answer"]
            .as_str()
            .unwrap()
            .contains("BEGIN CERTIFICATE")
    );

    let issue = "identity issue --tenant blue --fabric-dir fabric --out blue";
    assert_eq!(json(at, issue)["role"], "tenant");
    let identity = Identity::load(at.join("blue")).unwrap();
    assert_eq!(
        identity.fabric().unwrap(),
        fabric["fabric"].as_str().unwrap()
    );
    fails(at, issue, "is not overwritten");
}

#[test]
fn each_scheduler_has_an_identity_of_its_own() {
    let (root, fabric) = made();
    let at = root.path();
    let made = json(at, "fabric add-scheduler second --dir fabric");
    let [first, second] = ["fabric/scheduler.identity", "second"]
        .map(|it| Fabric::open_scheduler(&at.join(it), SystemTime::now()).unwrap());
    assert_eq!(second.id().to_string(), fabric["fabric"]);
    assert_eq!(second.node_id().to_string(), made["scheduler_id"]);
    assert_ne!(first.node_id(), second.node_id());

    let before = fs::read(at.join("second")).unwrap();
    fails(
        at,
        "fabric add-scheduler second --dir fabric",
        "there already",
    );
    assert_eq!(fs::read(at.join("second")).unwrap(), before);
    fails(at, "fabric add-scheduler third --dir none", "fabric init");
    fails(
        at,
        "fabric add-scheduler third --dir state",
        "state directory",
    );
    assert!(!at.join("third").exists());
}

#[test]
fn what_is_wrong_signs_nothing() {
    let (root, _fabric) = made();
    let at = root.path();
    let sign = |more: &str| format!("fabric sign request --dir fabric {more}");
    fails(at, "fabric init fabric", "a fabric already");
    fails(at, "fabric init state", "the state directory of a node");
    fails(
        at,
        "fabric sign fabric/ca.pem --role node --dir fabric",
        "no certificate signing request",
    );
    fails(
        at,
        "fabric sign none --role node --dir fabric",
        "cannot read none",
    );
    fails(
        at,
        "fabric sign request --role node --dir none",
        "fabric init",
    );
    fails(
        at,
        "fabric sign request --role node --dir state",
        "the state directory of a node",
    );
    fails(at, &sign("--role tenant"), "scheduler");
    fails(at, &sign("--role node --label rack"), "KEY=VALUE");
    fails(
        at,
        &sign("--role node --label rack=1 --label rack=2"),
        "twice",
    );
    fails(at, &sign("--role scheduler --label rack=1"), "is for nodes");
    let nine: String = (0..9).map(|it| format!(" --label k{it}=v")).collect();
    fails(at, &sign(&format!("--role node{nine}")), "9 labels; 8");
    let issue = "identity issue --tenant blue --out blue --fabric-dir";
    fails(at, &format!("{issue} none"), "fabric init");
    fails(
        at,
        &format!("{issue} fabric --role node"),
        "fabricctl fabric sign",
    );
    assert!(!at.join("blue").exists());
}
