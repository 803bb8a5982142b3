//! The daemon with a standard error that no process reads for a while.
use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use fabricbios_wire::{EndCause, LeaseId, Request, ResourceType};
use tokio::time::timeout;

use crate::daemon::*;

/// Number of pings whose log lines, some twenty for each at this level, fill the queue of the log.
const PINGS: u64 = 3_000;

#[tokio::test]
async fn lines_that_are_dropped_are_counted_and_the_proof_of_a_cut_is_not_lost_with_its_line() {
    let place = Place::new();
    let mut command = place.command(&place.memory());
    command.env("RUST_LOG", "trace");
    let mut daemon = place.begin(command, Stdio::piped());
    let log = BufReader::new(daemon.child.stderr.take().expect("a pipe"));
    let node = daemon.client(&place.admin()).await;

    let lease = alloc(&node, ResourceType::Mem).await.lease_id;
    for _ in 0..PINGS {
        node.call_async(Request::Ping(0)).await.expect("an answer");
    }
    node.lease_async(Request::LeaseFree(lease))
        .await
        .expect("freed");
    let ended = node
        .lease_async(Request::LeaseQuery(lease))
        .await
        .expect("told");
    let end = ended.end.expect("the end of the lease");
    assert_eq!(end.cause, EndCause::Freed);
    assert!(!end.proof.is_empty());

    let told = tokio::task::spawn_blocking(move || dropped(log, lease));
    let dropped = timeout(PATIENCE, told).await;
    assert!(dropped.expect("told").expect("no panic") > 0);
}

/// The number of dropped lines in the log. A `cut` line of the lease must not come earlier.
fn dropped(log: impl BufRead, lease: LeaseId) -> u64 {
    let lease = lease.to_string();
    for line in log.lines() {
        let line = line.expect("a line");
        let is_cut = line.contains(" cut ") && line.contains(&lease);
        assert!(!is_cut, "the queue was not full: {line}");
        if line.contains("lines of the log were dropped") {
            let (_, count) = line.split_once("dropped=").expect("a number");
            return count.trim().parse().expect("a number");
        }
    }
    panic!("the daemon is gone");
}
