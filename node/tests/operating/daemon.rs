//! The program with a state directory, and a client of it.

use std::{
    fs::{self, DirBuilder, File},
    io::{BufRead, BufReader},
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output, Stdio},
};

use fabricbios_client::{Identity, Node};
use fabricbios_fallback_udp::{ClientOptions, Coordinates, MemoryClient};
use fabricbios_wire::{
    LeaseAllocRequest, LeaseId, LeaseInfo, LeasePhase, Request, ResourceType, Transport,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The directory with a daemon's files.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    /// Makes a place with an empty pool.
    pub(crate) fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("a directory"));
        let pool = DirBuilder::new().mode(0o700).create(place.at("pool"));
        pool.expect("a pool");
        place
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The path of `at` as text.
    pub(crate) fn text(&self, name: &str) -> String {
        self.at(name).to_str().expect("a path of text").to_owned()
    }

    /// Runs a subcommand to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        let output = Command::new(env!("CARGO_BIN_EXE_fabricbiosd"))
            .args(words)
            .current_dir(self.0.path())
            .output();
        output.expect("a program")
    }

    /// Settings for memory in a file, over UDP.
    pub(crate) fn memory(&self) -> Vec<String> {
        let words = [
            "--mem-bytes=1MiB",
            "--rdma-device=none",
            "--fbmu-listen=127.0.0.1:0",
        ];
        let file = format!("--mem-file={}", self.text("arena"));
        words.map(str::to_owned).into_iter().chain([file]).collect()
    }

    /// Settings for the pool, over UDP.
    pub(crate) fn pool(&self) -> Vec<String> {
        vec![
            format!("--block-pool={}", self.text("pool")),
            "--fbbu-listen=127.0.0.1:0".into(),
        ]
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabricbiosd"));
        command.args(["control-server", "--listen=127.0.0.1:0", "--state-dir"]);
        command.arg(self.at("state")).args(words);
        command.stderr(File::create(self.at("log")).expect("a log"));
        command
    }

    /// The log of the last run.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.at("log")).expect("a log")
    }

    pub(crate) fn start(&self, words: &[String]) -> Daemon {
        let mut child = self
            .command(words)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a daemon");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        let read = BufReader::new(output).read_line(&mut line);
        read.expect("a line of output");
        let words = line.trim().strip_prefix("READY node=");
        let words = words.and_then(|it| it.split_once(" listen="));
        let Some((node, address)) = words else {
            child.wait().expect("gone");
            panic!("{line:?}: {}", self.log());
        };
        Daemon {
            node: node.to_owned(),
            address: address.to_owned(),
            child,
        }
    }

    /// Starts a daemon that must fail. Returns the log.
    pub(crate) fn start_in_vain(&self, words: &[String]) -> String {
        let status = self.command(words).stdout(Stdio::null()).status();
        let log = self.log();
        assert_eq!(status.expect("a program").code(), Some(1), "{log}");
        log
    }

    pub(crate) fn admin(&self) -> Identity {
        Identity::load(self.at("state/admin.identity")).expect("an identity")
    }
}

/// A daemon that is killed at the end of the test.
pub(crate) struct Daemon {
    /// The node's id.
    pub(crate) node: String,
    pub(crate) address: String,
    child: Child,
}

impl Daemon {
    /// Sends a signal, and waits for the end of the process.
    pub(crate) fn end(mut self, signal: Signal) -> ExitStatus {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a process"));
        kill(pid, signal).expect("signalled");
        self.child.wait().expect("gone")
    }

    pub(crate) async fn client(&self, identity: &Identity) -> Node {
        let connected = Node::connect_async(&self.address, identity).await;
        connected.expect("a connection")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process may have ended already.
        self.child.kill().ok();
        self.child.wait().expect("gone");
    }
}

pub(crate) async fn alloc(node: &Node, kind: ResourceType) -> LeaseInfo {
    let request = LeaseAllocRequest {
        transport: Transport::Udp,
        ..LeaseAllocRequest::new(kind, 4096, 600)
    };
    node.alloc_async(request).await.expect("granted")
}

/// The lease, when it is bound or over.
pub(crate) async fn settled(node: &Node, id: LeaseId) -> LeaseInfo {
    loop {
        let info = node
            .lease_async(Request::LeaseQuery(id))
            .await
            .expect("an answer");
        if info.phase != LeasePhase::Active || info.binding.dp_key.is_some() {
            return info;
        }
        tokio::task::yield_now().await;
    }
}

/// Runs `work` with a client of a lease's memory.
pub(crate) async fn with_memory<T: Send + 'static>(
    info: &LeaseInfo,
    work: impl FnOnce(&mut MemoryClient) -> T + Send + 'static,
) -> T {
    let coordinates = Coordinates {
        lease_id: info.lease_id,
        dp_key: info.binding.dp_key.clone().expect("a key"),
        endpoint: info.binding.udp_endpoint.expect("an endpoint").into(),
    };
    let working = tokio::task::spawn_blocking(move || {
        let client = MemoryClient::connect(coordinates, ClientOptions::default(), None);
        work(&mut client.expect("a session"))
    });
    working.await.expect("no panic")
}

pub(crate) async fn write(info: &LeaseInfo, bytes: &'static [u8]) {
    with_memory(info, |client| client.write(0, bytes, &mut |_| ()))
        .await
        .expect("written");
}

pub(crate) async fn first(info: &LeaseInfo) -> [u8; 5] {
    with_memory(info, |client| {
        let mut bytes = [0; 5];
        client.read(0, &mut bytes, &mut |_| ()).expect("read");
        bytes
    })
    .await
}
