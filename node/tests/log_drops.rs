//! The daemon with a standard error that no process reads for a while.
#![allow(clippy::expect_used, reason = "a test that cannot go on says why")]

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use fabricbios_client::{Identity, Node};
use fabricbios_wire::{EndCause, LeaseAllocRequest, LeaseId, Request, ResourceType, Transport};
use tokio::time::timeout;

/// Number of pings whose log lines, some twenty for each at this level, fill the queue of the log.
const PINGS: u64 = 3_000;

/// A daemon that ends with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("gone");
    }
}

#[tokio::test]
async fn lines_that_are_dropped_are_counted_and_the_proof_of_a_cut_is_not_lost_with_its_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let state = directory.path().join("state");
    let child = Command::new(env!("CARGO_BIN_EXE_fabricbiosd"))
        .args(["control-server", "--listen", "127.0.0.1:0"])
        .args(["--fbmu-listen", "127.0.0.1:0", "--rdma-device", "none"])
        .args(["--mem-bytes", "1MiB", "--state-dir"])
        .arg(&state)
        .env("RUST_LOG", "trace")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a daemon");
    let mut daemon = Daemon(child);
    let log = BufReader::new(daemon.0.stderr.take().expect("a pipe"));
    let mut ready = String::new();
    let output = daemon.0.stdout.take().expect("a pipe");
    let read = BufReader::new(output).read_line(&mut ready);
    read.expect("a line of output");
    let (_, address) = ready.trim().rsplit_once("listen=").expect("ready");
    let identity = Identity::load(state.join("admin.identity")).expect("an identity");
    let node = Node::connect_async(address, &identity)
        .await
        .expect("a connection");

    let request = LeaseAllocRequest {
        transport: Transport::Udp,
        ..LeaseAllocRequest::new(ResourceType::Mem, 4096, 600)
    };
    let lease = node.alloc_async(request).await.expect("granted").lease_id;
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
    let dropped = timeout(Duration::from_secs(60), told).await;
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
