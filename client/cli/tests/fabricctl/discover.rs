//! Schedulers that announce themselves, found on the loopback interface.

use std::{fs, net::SocketAddr, process::Command, sync::Arc, time::SystemTime};

use fabricbios_discovery::Announcing;
use fabricbios_fabric::{Fabric, FabricDirectory};
use fabricbios_wire::{FlatEntry, ResourceId, ResourceType};
use serde_json::{Value, json};

const LISTEN: &str = "127.0.0.1:5704";

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
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let entry = FlatEntry {
        resource_id: ResourceId(7),
        resource_type: ResourceType::Scheduler,
        flags: 0,
        capacity: 0,
        available: 1,
    };
    let listen: SocketAddr = LISTEN.parse().unwrap();
    let announcing = runtime.block_on(async {
        let lo = ["lo".to_owned()];
        Announcing::start(&lo, Arc::new(scheduler), listen, vec![entry]).unwrap()
    });
    let found = until_found(&ours.admin_identity(), &["--json"]);
    let told: Value = serde_json::from_slice(&found.stdout).unwrap();
    let expected = json!({"schedulers": [{"scheduler_id": id, "addresses": [LISTEN]}]});
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
