//! The lines of the log: how many there are for a lease and for a client that is refused without end, and as JSON.

use std::collections::BTreeMap;

use fabricbios_client::Node;
use fabricbios_wire::{LeaseAllocRequest, LeaseId, LeasePhase, Request, ResourceType};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::daemon::*;

/// Longest line about the life of a lease over UDP, bytes.
const LINE_BYTES_MAX: usize = 480;

fn json() -> [String; 1] {
    ["--log-format=json".to_owned()]
}

/// Lines of JSON.
fn objects(log: &str) -> Vec<BTreeMap<String, Value>> {
    let objects = log.lines().map(serde_json::from_str);
    objects.map(|it| it.expect("an object of JSON")).collect()
}

/// A lease that its tenant frees.
async fn live(node: &Node) -> LeaseId {
    let lease = alloc(node, ResourceType::Mem).await.lease_id;
    let freed = node.lease_async(Request::LeaseFree(lease)).await;
    freed.expect("freed").lease_id
}

#[tokio::test]
async fn a_lease_has_one_line_with_all_of_its_life() {
    let place = Place::new();
    let daemon = place.start(&place.memory());
    let lease = live(&daemon.client(&place.admin()).await).await.to_string();
    assert!(daemon.end(Signal::SIGTERM).success(), "{}", place.log());
    let log = place.log();
    let lines: Vec<&str> = log.lines().filter(|it| it.contains(&lease)).collect();
    let [line] = &*lines else {
        panic!("{lines:#?}")
    };
    assert!(line.contains(" INFO lease: lease ended "), "{line}");
    let fields = [
        "tenant=admin",
        "kind=mem",
        "capacity=4096",
        "term_secs=600",
        "cause=freed",
        "took_us=",
        "proof=\"",
        "cleaned=\"",
    ];
    for field in fields {
        assert!(line.contains(&format!(" {field}")), "{field}: {line}");
    }
    assert!(line.len() <= LINE_BYTES_MAX, "{} bytes: {line}", line.len());
}

#[tokio::test]
async fn the_line_of_a_lease_that_ran_out_says_how_long_after_its_deadline_the_cut_was_proved() {
    let place = Place::new();
    let daemon = place.start(&place.memory());
    let node = daemon.client(&place.admin()).await;
    let short = LeaseAllocRequest {
        lease_secs: 1,
        ..request(ResourceType::Mem)
    };
    let lease = node.alloc_async(short).await.expect("granted").lease_id;
    let query = || node.lease_async(Request::LeaseQuery(lease));
    while query().await.expect("an answer").phase != LeasePhase::Expired {}
    let line = wait_for("the line of the lease", || {
        let log = place.log();
        let mut lines = log.lines();
        lines
            .find(|it| it.contains("lease ended"))
            .map(str::to_owned)
    });
    for field in [" term_secs=1 ", " cause=expired ", " after_deadline_us="] {
        assert!(line.contains(field), "{field}: {line}");
    }
}

#[tokio::test]
async fn each_line_of_a_log_in_json_is_an_object() {
    let place = Place::new();
    let words = [&place.memory()[..], &json()].concat();
    let daemon = place.start(&words);
    let lease = live(&daemon.client(&place.admin()).await).await;
    assert!(daemon.end(Signal::SIGTERM).success(), "{}", place.log());
    let lines = objects(&place.log());
    let ended = lines.iter().filter(|it| it["message"] == "lease ended");
    let [ended] = &*ended.collect::<Vec<_>>() else {
        panic!("{lines:#?}")
    };
    assert_eq!(ended["lease_id"], lease.to_string());
    assert_eq!(
        (&ended["level"], &ended["cause"]),
        (&"INFO".into(), &"freed".into())
    );
    assert_eq!(ended["term_secs"], 600);
    assert!(ended["took_us"].is_u64(), "{ended:#?}");
}

#[test]
fn a_start_that_fails_says_why_in_json() {
    let place = Place::new();
    let conflict = ["--gpu-share-mode=exclusive".to_owned()];
    let log = place.start_in_vain(&[&place.memory()[..], &json(), &conflict].concat());
    let lines = objects(&log);
    let said = lines.last().expect("a line")["message"].to_string();
    assert!(said.contains("--gpu-share-mode"), "{said}");
}

#[tokio::test]
async fn who_is_refused_without_end_fills_no_log_and_is_counted() {
    let place = Place::new();
    let daemon = place.start(&[&place.memory()[..], &json()].concat());
    let node = daemon.client(&place.admin()).await;
    // The daemon leaves nothing out before it tells what it leaves out, some seconds later; a period ends while this asks.
    let counted = loop {
        for id in 0..200 {
            let asked = node.lease_async(Request::LeaseQuery(LeaseId(id))).await;
            asked.expect_err("no such lease");
        }
        let lines = objects(&place.log());
        if let Some(told) = lines.iter().find(|it| it["target"] == "left_out") {
            break told.clone();
        }
    };
    assert_eq!(counted["like"], "refused");
    assert_eq!(counted["tenant"], "admin");
    assert!(counted["left_out"].as_u64() > Some(0), "{counted:#?}");
}
