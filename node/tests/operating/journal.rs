//! The process that writes the journal, in two cases: stopped, as by a disk that does not answer, and killed.

use std::{
    fs,
    net::UdpSocket,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
};

use fabricbios_client::Node;
use fabricbios_wire::*;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::daemon::{self, Daemon, Place};

/// A stopped process; a drop continues it.
pub(crate) struct Stopped(Pid);

impl Stopped {
    pub(crate) fn stop(process: Pid) -> Self {
        kill(process, Signal::SIGSTOP).unwrap();
        Self(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, Signal::SIGCONT).unwrap();
    }
}

/// A place with addresses that stay the same over restarts.
fn place() -> Place {
    let sockets = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    let addresses = sockets
        .each_ref()
        .map(|it| it.local_addr().unwrap().to_string());
    let mut place = Place::new();
    [place.listen, place.fbmu_listen] = addresses;
    place
}

/// Starts a node with memory whose leases outlive the daemon.
fn start(place: &Place) -> Daemon {
    place.start(&place.memory())
}

async fn operator(place: &Place, daemon: &Daemon) -> Node {
    daemon.client(&place.admin()).await
}

/// Checks that a start fails with an error that names this process.
fn refused_because_of(place: &Place, holder: Pid) {
    let log = place.start_in_vain(&place.memory());
    let journal = place.text("state/journal.redb");
    let holder = format!("process {holder}");
    for said in [&*journal, &holder, "fsfreeze --unfreeze"] {
        assert!(log.contains(said), "{said}: {log}");
    }
}

/// The journal's writer of this daemon, whichever thread has started it.
pub(crate) fn scribe(daemon: &Daemon) -> Pid {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let children = tasks.flat_map(|task| {
        let children = fs::read_to_string(task.unwrap().path().join("children")).unwrap();
        let pids = children.split_whitespace().map(str::to_owned);
        pids.collect::<Vec<_>>()
    });
    let writes = |pid: &String| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        words.split(|byte| *byte == 0).nth(1) == Some(b"journal")
    };
    let pid = children.into_iter().find(writes).unwrap();
    Pid::from_raw(pid.parse().unwrap())
}

fn descriptors(process: Pid) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let targets = entries.map(|entry| fs::read_link(entry.unwrap().path()).unwrap());
    targets.collect()
}

async fn alloc(node: &Node) -> LeaseId {
    daemon::alloc(node, ResourceType::Mem).await.lease_id
}

async fn phase(node: &Node, id: LeaseId) -> LeasePhase {
    node.lease_async(Request::LeaseQuery(id))
        .await
        .unwrap()
        .phase
}

/// Sends this signal to a daemon that has granted a lease and whose journal does not answer. Returns its exit status
/// and the lease.
async fn ended_by(place: &Place, told: Signal) -> (ExitStatus, LeaseId) {
    let daemon = start(place);
    let node = operator(place, &daemon).await;
    let lease = alloc(&node).await;
    let Stopped(holder) = &Stopped::stop(scribe(&daemon));
    // The node must not answer a grant that is not on the disk.
    let waits = tokio::spawn({
        let node = node.clone();
        async move { node.alloc_async(daemon::request(ResourceType::Mem)).await }
    });
    node.call_async(Request::Ping(1)).await.unwrap();
    let status = daemon.end(told);
    let ports = [&place.listen, &place.fbmu_listen];
    assert!(
        ports.iter().all(|port| UdpSocket::bind(port).is_ok()),
        "while the process that it left is there"
    );
    waits.await.unwrap().unwrap_err();
    if told == Signal::SIGTERM {
        let log = place.log();
        let held = format!("process {holder} has not written and closed");
        assert!(log.contains(&held) && log.contains("journal.redb"), "{log}");
    }
    refused_because_of(place, *holder);
    (status, lease)
}

#[tokio::test]
async fn sigterm_ends_a_daemon_whose_state_disk_does_not_answer() {
    let place = place();
    let (status, lease) = ended_by(&place, Signal::SIGTERM).await;
    assert_eq!(status.code(), Some(1));
    let daemon = start(&place);
    // The lease is not forgotten. Its revocation may or may not have reached the journal's process; no client received
    // an answer.
    let phase = phase(&operator(&place, &daemon).await, lease).await;
    let known = [LeasePhase::Active, LeasePhase::Revoked];
    assert!(known.contains(&phase), "{phase:?}");
}

#[tokio::test]
async fn sigkill_ends_a_daemon_whose_state_disk_does_not_answer() {
    let place = place();
    let (status, lease) = ended_by(&place, Signal::SIGKILL).await;
    assert_eq!(status.signal(), Some(9));
    let daemon = start(&place);
    let phase = phase(&operator(&place, &daemon).await, lease).await;
    assert_eq!(phase, LeasePhase::Active);
}

#[tokio::test]
async fn one_that_is_killed_is_replaced_and_nothing_is_lost() {
    let place = place();
    let daemon = start(&place);
    let node = operator(&place, &daemon).await;
    let before = alloc(&node).await;
    let first = scribe(&daemon);
    kill(first, Signal::SIGKILL).unwrap();
    // Until the next process runs, the node refuses grants, as with a full disk.
    let after = loop {
        match node.alloc_async(daemon::request(ResourceType::Mem)).await {
            Ok(lease) => break lease.lease_id,
            Err(error) => assert!(error.to_string().contains("journal"), "{error}"),
        }
    };
    assert_ne!(scribe(&daemon), first);
    daemon.end(Signal::SIGKILL);
    let daemon = start(&place);
    let node = operator(&place, &daemon).await;
    for lease in [before, after] {
        assert_eq!(phase(&node, lease).await, LeasePhase::Active);
    }
}

#[tokio::test]
async fn it_has_its_own_descriptors_only_and_what_stops_a_daemon_does_not_stop_it() {
    let place = place();
    let daemon = start(&place);
    let node = operator(&place, &daemon).await;
    kill(scribe(&daemon), Signal::SIGKILL).unwrap();
    while { node.alloc_async(daemon::request(ResourceType::Mem)).await }.is_err() {}
    let scribe = scribe(&daemon);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        kill(scribe, signal).unwrap();
    }
    alloc(&node).await;
    let state = place.at("state").canonicalize().unwrap();
    let others = descriptors(scribe).into_iter().filter(|target| {
        let is_socket_pair = target.to_string_lossy().starts_with("socket:");
        !is_socket_pair && !target.starts_with(&state) && target != Path::new("/dev/null")
    });
    assert_eq!(others.collect::<Vec<_>>(), Vec::<PathBuf>::new());
    let sockets = |process| {
        let targets = descriptors(process).into_iter();
        targets
            .filter(|it| it.to_string_lossy().starts_with("socket:"))
            .collect::<Vec<_>>()
    };
    let of_daemon = sockets(daemon.pid());
    assert!(
        sockets(scribe)
            .iter()
            .all(|socket| !of_daemon.contains(socket))
    );
    assert!(daemon.end(Signal::SIGTERM).success());
    assert!(
        !Path::new(&format!("/proc/{scribe}")).exists(),
        "it ends with the daemon"
    );
}

/// Under a service manager with a runtime directory, which outlives the daemon and not the boot.
#[tokio::test]
async fn a_grant_that_vanished_from_the_disk_stops_the_next_start_on_the_same_boot() {
    let place = place();
    fs::create_dir(place.at("run")).unwrap();
    let command = || {
        let mut command = place.command(&place.memory());
        command.env("RUNTIME_DIRECTORY", place.at("run"));
        command
    };
    let daemon = place.begin(command(), place.new_log());
    let node = operator(&place, &daemon).await;
    let lease = alloc(&node).await;
    kill(scribe(&daemon), Signal::SIGKILL).unwrap();
    daemon.end(Signal::SIGKILL);
    let at = place.at("state/journal.redb.commits");
    let whole = fs::read(&at).unwrap();
    let mut sectors = whole.chunks(512);
    let last = sectors.rposition(|it| it.iter().any(|byte| *byte != 0));
    let mut damaged = whole.clone();
    damaged[last.unwrap() * 512..][..512].fill(0);
    fs::write(&at, damaged).unwrap();
    let status = command()
        .stdout(Stdio::null())
        .stderr(place.new_log())
        .status();
    let log = place.log();
    assert_eq!(status.unwrap().code(), Some(1), "{log}");
    assert!(log.contains("was reported, and only those up to"), "{log}");
    fs::write(&at, whole).unwrap();
    let daemon = place.begin(command(), place.new_log());
    let node = operator(&place, &daemon).await;
    assert_eq!(phase(&node, lease).await, LeasePhase::Active);
    assert!(daemon.end(Signal::SIGTERM).success());
    assert!(!at.exists(), "a stop leaves one file");
    assert_eq!(fs::read_dir(place.at("run")).unwrap().count(), 0);
}
