//! The process that writes the journal, in two cases: stopped, as by a disk that does not answer, and killed.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    net::{SocketAddr, UdpSocket},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use fabricbios_client::{Identity, Node};
use fabricbios_wire::*;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fabricbiosd");

/// A node with memory whose leases outlive the daemon, in its own directory.
struct Scene {
    directory: tempfile::TempDir,
    ports: [SocketAddr; 2],
}

/// A daemon that ends with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A stopped process; a drop continues it.
struct Stopped(Pid);

impl Stopped {
    fn stop(process: Pid) -> Self {
        kill(process, Signal::SIGSTOP).unwrap();
        Self(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, Signal::SIGCONT).unwrap();
    }
}

impl Scene {
    fn new() -> Self {
        let free = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.local_addr().unwrap()
        };
        Self {
            directory: tempfile::tempdir().unwrap(),
            ports: [free(), free()],
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.at("log")).unwrap()
    }

    fn spawn(&self) -> Daemon {
        let child = Command::new(PROGRAM)
            .args([
                "control-server",
                "--mem-bytes",
                "1MiB",
                "--rdma-device",
                "none",
            ])
            .args(["--listen", &self.ports[0].to_string()])
            .args(["--fbmu-listen", &self.ports[1].to_string()])
            .arg("--mem-file")
            .arg(self.at("memory"))
            .arg("--state-dir")
            .arg(self.at("state"))
            .stdout(Stdio::piped())
            .stderr(File::create(self.at("log")).unwrap())
            .spawn();
        Daemon(child.unwrap())
    }

    /// Starts a daemon and waits until it serves.
    fn start(&self) -> Daemon {
        let mut daemon = self.spawn();
        let mut line = String::new();
        let output = daemon.0.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert!(line.starts_with("READY"), "{line:?}: {}", self.log());
        daemon
    }

    async fn operator(&self) -> Node {
        let identity = Identity::load(self.at("state/admin.identity")).unwrap();
        let address = self.ports[0].to_string();
        Node::connect_async(&address, &identity).await.unwrap()
    }

    fn are_ports_free(&self) -> bool {
        self.ports.iter().all(|port| UdpSocket::bind(port).is_ok())
    }

    /// Checks that a start fails with an error that names this process.
    fn refused_because_of(&self, holder: Pid) {
        let status = self.spawn().0.wait().unwrap();
        let log = self.log();
        assert_eq!(status.code(), Some(1), "{log}");
        let journal = self.at("state/journal.redb").display().to_string();
        for said in [
            &*journal,
            &format!("process {holder}"),
            "fsfreeze --unfreeze",
        ] {
            assert!(log.contains(said), "{said}: {log}");
        }
    }
}

/// The journal's writer of this daemon, whichever thread has started it.
fn scribe(daemon: &Daemon) -> Pid {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.0.id())).unwrap();
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
    let request = LeaseAllocRequest::new(ResourceType::Mem, 4096, 600);
    node.alloc_async(request).await.unwrap().lease_id
}

async fn phase(node: &Node, id: LeaseId) -> LeasePhase {
    node.lease_async(Request::LeaseQuery(id))
        .await
        .unwrap()
        .phase
}

fn signal(daemon: &Daemon, signal: Signal) {
    kill(Pid::from_raw(daemon.0.id().try_into().unwrap()), signal).unwrap();
}

/// Sends this signal to a daemon that has granted a lease and whose journal does not answer. Returns its exit status
/// and the lease.
async fn ended_by(scene: &Scene, told: Signal) -> (ExitStatus, LeaseId) {
    let mut daemon = scene.start();
    let node = scene.operator().await;
    let lease = alloc(&node).await;
    let Stopped(holder) = &Stopped::stop(scribe(&daemon));
    // The node must not answer a grant that is not on the disk.
    let waits = tokio::spawn({
        let node = node.clone();
        async move {
            node.alloc_async(LeaseAllocRequest::new(ResourceType::Mem, 4096, 600))
                .await
        }
    });
    node.call_async(Request::Ping(1)).await.unwrap();
    signal(&daemon, told);
    let status = daemon.0.wait().unwrap();
    assert!(
        scene.are_ports_free(),
        "while the process that it left is there"
    );
    waits.await.unwrap().unwrap_err();
    if told == Signal::SIGTERM {
        let log = scene.log();
        let held = format!("process {holder} has not written and closed");
        assert!(log.contains(&held) && log.contains("journal.redb"), "{log}");
    }
    scene.refused_because_of(*holder);
    (status, lease)
}

#[tokio::test]
async fn sigterm_ends_a_daemon_whose_state_disk_does_not_answer() {
    let scene = Scene::new();
    let (status, lease) = ended_by(&scene, Signal::SIGTERM).await;
    assert_eq!(status.code(), Some(1));
    let _daemon = scene.start();
    // The lease is not forgotten. Its revocation may or may not have reached the journal's process; no client received
    // an answer.
    let phase = phase(&scene.operator().await, lease).await;
    let known = [LeasePhase::Active, LeasePhase::Revoked];
    assert!(known.contains(&phase), "{phase:?}");
}

#[tokio::test]
async fn sigkill_ends_a_daemon_whose_state_disk_does_not_answer() {
    let scene = Scene::new();
    let (status, lease) = ended_by(&scene, Signal::SIGKILL).await;
    assert_eq!(status.signal(), Some(9));
    let _daemon = scene.start();
    let phase = phase(&scene.operator().await, lease).await;
    assert_eq!(phase, LeasePhase::Active);
}

#[tokio::test]
async fn one_that_is_killed_is_replaced_and_nothing_is_lost() {
    let scene = Scene::new();
    let mut daemon = scene.start();
    let node = scene.operator().await;
    let before = alloc(&node).await;
    let first = scribe(&daemon);
    kill(first, Signal::SIGKILL).unwrap();
    // Until the next process runs, the node refuses grants, as with a full disk.
    let after = loop {
        let request = LeaseAllocRequest::new(ResourceType::Mem, 4096, 600);
        match node.alloc_async(request).await {
            Ok(lease) => break lease.lease_id,
            Err(error) => assert!(error.to_string().contains("journal"), "{error}"),
        }
    };
    assert_ne!(scribe(&daemon), first);
    daemon.0.kill().unwrap();
    daemon.0.wait().unwrap();
    let daemon = scene.start();
    let node = scene.operator().await;
    for lease in [before, after] {
        assert_eq!(phase(&node, lease).await, LeasePhase::Active);
    }
    drop(daemon);
}

#[tokio::test]
async fn it_has_its_own_descriptors_only_and_what_stops_a_daemon_does_not_stop_it() {
    let scene = Scene::new();
    let mut daemon = scene.start();
    let node = scene.operator().await;
    kill(scribe(&daemon), Signal::SIGKILL).unwrap();
    while node
        .alloc_async(LeaseAllocRequest::new(ResourceType::Mem, 4096, 600))
        .await
        .is_err()
    {}
    let scribe = scribe(&daemon);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        kill(scribe, signal).unwrap();
    }
    alloc(&node).await;
    let state = scene.at("state").canonicalize().unwrap();
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
    let of_daemon = sockets(Pid::from_raw(daemon.0.id().try_into().unwrap()));
    assert!(
        sockets(scribe)
            .iter()
            .all(|socket| !of_daemon.contains(socket))
    );
    signal(&daemon, Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert!(
        !Path::new(&format!("/proc/{scribe}")).exists(),
        "it ends with the daemon"
    );
}
