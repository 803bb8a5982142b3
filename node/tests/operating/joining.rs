//! A node that joins a fabric of many nodes.

use std::{
    fs,
    process::Output,
    time::{Duration, SystemTime},
};

use fabricbios_client::{Error, Identity, Node};
use fabricbios_fabric::{FabricDirectory, Member};
use fabricbios_wire::{IssueRequest, LeaseError, LeaseId, Reply, Request, ResourceType, Role};
use nix::sys::signal::Signal;

use crate::{both_go_on, daemon::*, keeping, lease_both};

pub(crate) fn fabric(place: &Place) -> FabricDirectory {
    fabric_in(place, "fabric")
}

fn fabric_in(place: &Place, directory: &str) -> FabricDirectory {
    FabricDirectory::init(&place.at(directory), SystemTime::now()).unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

/// Asks for a certificate as the node does, and signs it into this file.
pub(crate) fn signed(place: &Place, fabric: &FabricDirectory, answer: &str) {
    signed_for(place, fabric, answer, None);
}

/// The same, for this time.
pub(crate) fn signed_for(
    place: &Place,
    fabric: &FabricDirectory,
    answer: &str,
    validity: Option<Duration>,
) {
    let request = place.run(&["node-request", "--state-dir=state"]);
    assert!(request.status.success(), "{}", text(&request));
    let request = String::from_utf8(request.stdout).unwrap();
    let member = Member::Node(vec!["rack=r7".parse().unwrap()]);
    let signed = fabric
        .sign(&request, &member, validity, SystemTime::now())
        .unwrap();
    fs::write(place.at(answer), signed.pem).unwrap();
}

pub(crate) fn accept(place: &Place, answer: &str) -> Output {
    accept_as(place, answer, &[])
}

fn accept_as(place: &Place, answer: &str, flags: &[&str]) -> Output {
    let socket = format!("--local-socket={}", place.text("sock"));
    let words = ["node-accept", answer, "--state-dir=state", &socket];
    place.run(&[&words, flags].concat())
}

/// The node has no key of the fabric.
async fn names_who_signs(node: &Node, fabric: &FabricDirectory) {
    let issue = Request::IdentityIssue(IssueRequest {
        tenant: "blue".into(),
        role: Role::Tenant,
        valid_secs: 0,
        csr_der: vec![0],
    });
    let refused = node.call_async(issue).await;
    let Err(Error::Refused(refusal)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refusal.error, LeaseError::NotPermitted);
    let fabric = fabric.id().to_string();
    for part in [&*fabric, "has no key", "identity issue --fabric-dir"] {
        assert!(refusal.message.contains(part), "{part} in {refusal}");
    }
}

#[tokio::test]
async fn a_node_joins_while_it_serves_and_live_leases_stay_also_over_a_kill() {
    let place = Place::new();
    let words = [
        keeping(&place),
        vec![format!("--local-socket={}", place.text("sock"))],
    ]
    .concat();
    let daemon = place.start(&words);
    let former = place.admin();
    let leases = lease_both(&daemon, &former).await;
    let before = daemon.client(&former).await;
    let fabric = fabric(&place);
    signed(&place, &fabric, "answer");
    let accepted = accept(&place, "answer");
    let told = text(&accepted);
    assert!(accepted.status.success(), "{told}");
    for word in [
        &daemon.node,
        &fabric.id().to_string(),
        "rack=r7",
        "keep their live leases",
    ] {
        assert!(told.contains(word), "{told}");
    }
    assert!(!place.at("state/ca-key.pem").exists());
    let operator = Identity::load(fabric.admin_identity()).unwrap();
    let mut daemon = daemon;
    for killed in [false, true] {
        if killed {
            let node = daemon.node.clone();
            daemon.end(Signal::SIGKILL);
            daemon = place.start(&words);
            assert_eq!(daemon.node, node);
        }
        both_go_on(&daemon, &former, &leases).await;
        let after = daemon.client(&former).await;
        let refused = after.alloc_async(request(ResourceType::Mem)).await;
        let Err(Error::Refused(refusal)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(refusal.error, LeaseError::NotPermitted);
        let node = daemon.client(&operator).await;
        names_who_signs(&node, &fabric).await;
        let new = alloc(&node, ResourceType::Mem).await;
        let list = Request::LeaseList {
            after: LeaseId(0),
            ended: false,
        };
        let Reply::Leases(page) = node.call_async(list).await.unwrap() else {
            panic!("a list");
        };
        for lease in &page.leases {
            let tenant = lease.tenant.as_deref().unwrap();
            let is_former = leases.iter().any(|it| it.lease_id == lease.lease_id);
            let expected = match is_former {
                true => "admin".to_owned(),
                false => format!("admin@{}", fabric.id()),
            };
            assert_eq!(tenant, expected);
        }
        let free = Request::LeaseFree(new.lease_id);
        node.call_async(free).await.unwrap();
    }
    // The connection of before the join was good until the kill, and its identity frees its leases.
    before.close_async().await;
    let last = daemon.client(&former).await;
    for lease in leases {
        last.call_async(Request::LeaseFree(lease.lease_id))
            .await
            .unwrap();
    }
}

#[test]
fn a_node_that_is_stopped_joins_and_one_that_cannot_be_told_says_how() {
    let place = Place::new();
    let daemon = place.start(&[]);
    let fabric = fabric(&place);
    signed(&place, &fabric, "answer");
    let untold = accept(&place, "answer");
    let why = text(&untold);
    assert_eq!(untold.status.code(), Some(1), "{why}");
    assert!(
        why.contains("--local-socket") && why.contains("stop it"),
        "{why}"
    );
    assert!(place.at("state/ca-key.pem").exists());
    let node = daemon.node.clone();
    assert!(daemon.end(Signal::SIGTERM).success());
    assert!(accept(&place, "answer").status.success());
    let joined = place.start(&[]);
    assert_eq!(joined.node, node);
    assert!(joined.end(Signal::SIGTERM).success());
    let renewed = place.run(&["renew-ca", "--state-dir=state"]);
    let why = text(&renewed);
    assert_eq!(renewed.status.code(), Some(1), "{why}");
    assert!(why.contains("fabricctl fabric sign"), "{why}");
}

#[tokio::test]
async fn a_node_on_the_machine_of_its_fabric_is_certified_at_its_start() {
    let place = Place::new();
    let fabric = fabric(&place);
    let words = [
        place.memory(),
        vec![format!("--fabric-dir={}", place.text("fabric"))],
    ]
    .concat();
    let checked = place.run(&["check", "--state-dir=state", "--fabric-dir=fabric"]);
    assert!(checked.status.success(), "{}", text(&checked));
    let daemon = place.start(&words);
    let operator = Identity::load(fabric.admin_identity()).unwrap();
    alloc(&daemon.client(&operator).await, ResourceType::Mem).await;
    assert!(!place.at("state/ca-key.pem").exists());
    assert!(daemon.end(Signal::SIGTERM).success());
    for (directory, word) in [
        ("state", "state directory of a node"),
        ("none", "fabric init"),
    ] {
        let wrong = [format!("--fabric-dir={}", place.text(directory))];
        let log = place.start_in_vain(&wrong);
        assert!(log.contains(word), "{log}");
        let flag = &*wrong[0];
        let checked = place.run(&["check", "--state-dir=state", flag]);
        assert!(text(&checked).contains(word), "{}", text(&checked));
    }
}

#[test]
fn a_daemon_with_a_fabric_directory_takes_no_answer_of_another_fabric() {
    let place = Place::new();
    let (held, other) = (fabric(&place), fabric_in(&place, "other"));
    let directory = format!("--fabric-dir={}", place.text("fabric"));
    let socket = format!("--local-socket={}", place.text("sock"));
    let words = [directory, socket];
    let daemon = place.start(&words);
    signed(&place, &other, "theirs");
    signed(&place, &held, "labels");
    let identity = || fs::read(place.at("state/node.identity")).unwrap();
    let before = identity();
    let refused = accept(&place, "theirs");
    let why = text(&refused);
    assert_eq!(refused.status.code(), Some(1), "{why}");
    let ids = [&held, &other].map(|it| it.id().to_string());
    for word in [&ids[0], &ids[1], "--fabric-dir", "Remove fabric-dir"] {
        assert!(why.contains(word), "{why}");
    }
    assert_eq!(identity(), before);
    // The same fabric gives the node other labels.
    let labelled = accept(&place, "labels");
    assert!(labelled.status.success(), "{}", text(&labelled));
    assert_ne!(identity(), before);
    // A node that is stopped does what it is told, and its next start with the setting takes it back.
    assert!(daemon.end(Signal::SIGTERM).success());
    let moved = accept(&place, "theirs");
    assert!(
        moved.status.success() && text(&moved).contains(&ids[1]),
        "{}",
        text(&moved)
    );
    let back = place.start(&words);
    let log = place.log();
    assert!(
        log.contains("--fabric-dir") && log.contains(&ids[0]),
        "{log}"
    );
    assert!(back.end(Signal::SIGTERM).success());
}

#[test]
fn a_node_that_expects_a_fabric_takes_no_answer_of_another_one() {
    let place = Place::new();
    let daemon = place.start(&[]);
    assert!(daemon.end(Signal::SIGTERM).success());
    let (ours, other) = (fabric(&place), fabric_in(&place, "other"));
    signed(&place, &ours, "answer");
    let expecting = |id: &str| accept_as(&place, "answer", &[&format!("--fabric={id}")]);
    let (ours, other) = (ours.id().to_string(), other.id().to_string());
    for (fabric, words) in [
        (&*other, [&*ours, &*other]),
        (&other[1..], ["--fabric", "32 digits"]),
    ] {
        let why = text(&expecting(fabric));
        assert!(words.iter().all(|it| why.contains(it)), "{why}");
        assert!(place.at("state/ca-key.pem").exists());
    }
    let accepted = expecting(&ours);
    assert!(accepted.status.success(), "{}", text(&accepted));
}
