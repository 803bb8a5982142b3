//! Schedulers and nodes that announce themselves, found on the loopback interface.

use std::{fs, net::SocketAddr, process::Command, sync::Arc, time::SystemTime};

use fabricbios_discovery::Announcing;
use fabricbios_fabric::{Fabric, FabricDirectory};
use fabricbios_wire::{
    FlatEntry, LeaseError, RefusalClass, ResourceId, ResourceType, resource_flags,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::common::{FakeNode, fleet::Fleet, refuse};

const LISTEN: &str = "127.0.0.1:5704";

fn entry(resource_type: ResourceType) -> FlatEntry {
    FlatEntry {
        resource_id: ResourceId(7),
        resource_type,
        flags: 0,
        capacity: 0,
        available: 1,
    }
}

fn announce(
    runtime: &Runtime,
    of: Fabric,
    listen: SocketAddr,
    entries: Vec<FlatEntry>,
) -> Announcing {
    let _guard = runtime.enter();
    Announcing::start(&["lo".to_owned()], Arc::new(of), listen, entries).unwrap()
}

fn discover(identity: &std::path::Path, rest: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricctl"));
    command.env_clear().arg("--identity").arg(identity);
    let line = ["discover", "--interface", "lo", "--wait", "1"];
    command.args(line).args(rest).output().unwrap()
}

/// On a slow machine an answer may take longer than the second.
fn until_found(identity: &std::path::Path, rest: &[&str]) -> std::process::Output {
    let mut asked = std::iter::repeat_with(|| discover(identity, rest));
    asked.find(|it| it.status.success()).unwrap()
}

#[test]
fn only_the_schedulers_of_the_own_fabric_are_found() {
    let root = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let path = root.path().join(name);
        FabricDirectory::init(&path, SystemTime::now()).unwrap()
    };
    let (ours, theirs) = (make("ours"), make("theirs"));
    let identity = ours.scheduler_identity();
    let scheduler = Fabric::open_scheduler(&identity, SystemTime::now()).unwrap();
    let id = scheduler.node_id().to_string();
    let runtime = Runtime::new().unwrap();
    let listen = LISTEN.parse().unwrap();
    let announcing = announce(
        &runtime,
        scheduler,
        listen,
        vec![entry(ResourceType::Scheduler)],
    );
    let found = until_found(&ours.admin_identity(), &["--json"]);
    let told: Value = serde_json::from_slice(&found.stdout).unwrap();
    let expected =
        json!({"schedulers": [{"scheduler_id": id, "addresses": [LISTEN]}], "nodes": []});
    assert_eq!(told, expected);
    let text = until_found(&ours.admin_identity(), &[]).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(LISTEN) && text.contains(&id), "{text}");
    let none = discover(&theirs.admin_identity(), &["--json"]);
    let (status, error) = crate::failure(&none);
    assert_eq!((status, &error["reason"]["code"]), (4, &json!("NotFound")));
    runtime.block_on(announcing.stop());
}

#[test]
fn what_cannot_be_asked_is_a_usage_error_that_names_it() {
    let root = tempfile::tempdir().unwrap();
    let fabric = FabricDirectory::init(&root.path().join("fabric"), SystemTime::now()).unwrap();
    let told = discover(&fabric.admin_identity(), &["--interface", "no-such-link"]);
    let text = String::from_utf8(told.stderr).unwrap();
    assert_eq!(told.status.code(), Some(2), "{text}");
    assert!(text.contains("no-such-link"), "{text}");
    let ca = root.path().join("ca.pem");
    fs::write(&ca, fabric.ca().certificate_pem()).unwrap();
    assert_eq!(discover(&ca, &[]).status.code(), Some(2));
}

#[test]
fn nodes_are_found_with_what_they_have_available() {
    let root = tempfile::tempdir().unwrap();
    let node = Fabric::open_or_create(root.path(), SystemTime::now()).unwrap();
    let (id, admin) = (
        node.node_id().to_string(),
        node.admin_identity().unwrap().to_owned(),
    );
    let memory = |id, available| FlatEntry {
        resource_id: ResourceId(id),
        capacity: 3 << 20,
        available,
        ..entry(ResourceType::Mem)
    };
    let cpu = FlatEntry {
        flags: resource_flags::FENCED,
        available: 0,
        ..entry(ResourceType::Cpu)
    };
    let many = (1..=12).map(|id| memory(id, 1 << 20));
    let entries = [many.collect(), vec![cpu]].concat();
    let runtime = Runtime::new().unwrap();
    let announcing = announce(&runtime, node, LISTEN.parse().unwrap(), entries);
    let found = until_found(&admin, &["--json"]);
    let told: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(told["schedulers"], json!([]));
    let told = &told["nodes"][0];
    assert_eq!(
        (&told["node_id"], &told["addresses"]),
        (&json!(id), &json!([LISTEN]))
    );
    assert_eq!(told["has_more"], json!(true));
    let resources = told["resources"].as_array().unwrap();
    assert_eq!(resources.len(), 12);
    let first = json!({
        "resource_id": ResourceId(1).to_string(), "resource_type": "mem",
        "available": 1 << 20, "capacity": 3 << 20,
    });
    assert_eq!(resources[0], first);
    let last = json!({
        "resource_id": ResourceId(7).to_string(), "resource_type": "cpu",
        "available": 0, "capacity": 0, "fenced": true,
    });
    assert_eq!(resources[11], last);
    let text = String::from_utf8(until_found(&admin, &[]).stdout).unwrap();
    for word in [&*id, LISTEN, "mem 11 MiB", "and more"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains("SCHEDULER"), "{text}");
    runtime.block_on(announcing.stop());
}

/// Names a scheduler of this identity by the link.
fn ping_on(link: &str, identity: &std::path::Path) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricctl"));
    command
        .env_clear()
        .env("FABRICBIOS_NODE", format!("discover:{link}"));
    command
        .arg("--identity")
        .arg(identity)
        .args(["--json", "ping"]);
    command.output().unwrap()
}

fn silent(fleet: &Fleet) -> FakeNode {
    fleet.scheduler(|_| {
        refuse(
            LeaseError::Unavailable,
            RefusalClass::Transient,
            "no inventory",
        )
    })
}

#[test]
fn a_scheduler_is_named_by_its_link() {
    let fleet = Fleet::new();
    let scheduler = silent(&fleet);
    let other = Fleet::new();
    let runtime = Runtime::new().unwrap();
    let entries = || vec![entry(ResourceType::Scheduler)];
    let listen = scheduler.addr().parse().unwrap();
    let _announcing = announce(&runtime, fleet.scheduler_identity(), listen, entries());
    // One of another fabric is not dialled.
    let _theirs = announce(&runtime, other.scheduler_identity(), listen, entries());
    let answered = ping_on("lo", &fleet.admin());
    let told: Value = serde_json::from_slice(&answered.stdout).unwrap();
    assert_eq!(told["node"], "discover:lo", "{answered:?}");
}

#[test]
fn who_announces_an_address_where_another_answers_is_not_asked() {
    let fleet = Fleet::new();
    // A node of the fabric answers where the scheduler says that it is.
    let node = fleet.node(|request| panic!("{request:?}"));
    let runtime = Runtime::new().unwrap();
    let listen = node.addr().parse().unwrap();
    let entries = vec![entry(ResourceType::Scheduler)];
    let _announcing = announce(&runtime, fleet.scheduler_identity(), listen, entries);
    let (status, error) = crate::failure(&ping_on("lo", &fleet.admin()));
    assert_eq!(
        (status, &error["reason"]["code"]),
        (1, &json!("UntrustedNode"))
    );
    let why = error["message"].as_str().unwrap();
    for part in [&node.id().to_string(), &node.addr(), "announces itself"] {
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[test]
fn where_nobody_is_found_the_error_says_what_to_do() {
    let fleet = Fleet::new();
    for (link, status, words) in [
        ("", 2, ["names no interface", "discover:eth0"]),
        ("no-such-link", 2, ["no-such-link", "look for it"]),
        ("lo", 6, ["within 6 s", "fabricbios-scheduler --announce"]),
    ] {
        let (found, error) = crate::failure(&ping_on(link, &fleet.admin()));
        assert_eq!(found, status, "{error}");
        let why = error["message"].as_str().unwrap();
        for word in words {
            assert!(why.contains(word), "{word}: {why}");
        }
    }
}

#[test]
fn an_interface_without_an_address_is_told() {
    let fleet = Fleet::new();
    // The loopback interface of a new network namespace is down.
    let mut command = Command::new("unshare");
    command.args([
        "--net",
        env!("CARGO_BIN_EXE_fabricctl"),
        "--json",
        "--identity",
    ]);
    command
        .arg(fleet.admin())
        .args(["--node", "discover:lo", "ping"]);
    let (status, error) = crate::failure(&crate::as_root(command, &[]));
    let why = error["message"].as_str().unwrap();
    assert_eq!(status, 2, "{why}");
    for word in [
        "interface lo",
        "neither an IPv4 address",
        "`ip address` shows them",
    ] {
        assert!(why.contains(word), "{word}: {why}");
    }
}
