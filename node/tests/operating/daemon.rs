//! The program with a state directory, and a client of it.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File},
    io::{BufRead, BufReader},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use fabricbios_client::{Identity, Node};
use fabricbios_fallback_udp::{ClientOptions, Coordinates, MemoryClient};
use fabricbios_helper::Program;
use fabricbios_wire::{
    LeaseAllocRequest, LeaseId, LeaseInfo, LeasePhase, Request, ResourceType, Transport,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_fabricbiosd");

/// How long something may take that takes a moment.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The program that the daemon runs in its processes.
pub(crate) fn program() -> Program {
    Program::copy_of(Path::new(PROGRAM)).expect("memory")
}

/// Waits until `it` returns a value; fails after one minute, with the name `what`.
pub(crate) fn wait_for<T>(what: &str, mut it: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = it() {
            return found;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        thread::yield_now();
    }
}

/// The directory with a daemon's files, and its addresses.
pub(crate) struct Place {
    directory: tempfile::TempDir,
    pub(crate) listen: String,
    pub(crate) fbmu_listen: String,
}

impl Place {
    /// Makes a place with an empty pool.
    pub(crate) fn new() -> Self {
        let anywhere = || "127.0.0.1:0".to_owned();
        let place = Self {
            directory: tempfile::tempdir().expect("a directory"),
            listen: anywhere(),
            fbmu_listen: anywhere(),
        };
        let pool = DirBuilder::new().mode(0o700).create(place.at("pool"));
        pool.expect("a pool");
        place
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The path of `at` as text.
    pub(crate) fn text(&self, name: &str) -> String {
        self.at(name).to_str().expect("a path of text").to_owned()
    }

    /// Runs a subcommand to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        let output = Command::new(PROGRAM)
            .args(words)
            .current_dir(self.directory.path())
            .output();
        output.expect("a program")
    }

    /// Settings for memory in a file, over UDP.
    pub(crate) fn memory(&self) -> Vec<String> {
        vec![
            "--mem-bytes=1MiB".into(),
            "--rdma-device=none".into(),
            format!("--fbmu-listen={}", self.fbmu_listen),
            format!("--mem-file={}", self.text("arena")),
        ]
    }

    /// Settings for the pool, over UDP.
    pub(crate) fn pool(&self) -> Vec<String> {
        vec![
            format!("--block-pool={}", self.text("pool")),
            "--fbbu-listen=127.0.0.1:0".into(),
        ]
    }

    /// A daemon with these settings.
    pub(crate) fn command(&self, words: &[String]) -> Command {
        self.command_of(PROGRAM, words)
    }

    /// A daemon of this program.
    pub(crate) fn command_of(&self, program: impl AsRef<OsStr>, words: &[String]) -> Command {
        let mut command = Command::new(program);
        command.args(["control-server", "--listen", &self.listen, "--state-dir"]);
        command.arg(self.at("state")).args(words);
        command
    }

    /// An empty log.
    pub(crate) fn new_log(&self) -> File {
        File::create(self.at("log")).expect("a log")
    }

    /// The log of the last run.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.at("log")).expect("a log")
    }

    pub(crate) fn start(&self, words: &[String]) -> Daemon {
        self.begin(self.command(words), self.new_log())
    }

    /// Starts this command, and waits until the daemon serves.
    pub(crate) fn begin(&self, mut command: Command, log: impl Into<Stdio>) -> Daemon {
        let command = command.stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("a daemon");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        let read = BufReader::new(output).read_line(&mut line);
        read.expect("a line of output");
        let words = line.trim().strip_prefix("READY node=");
        let words = words.and_then(|it| it.split_once(" listen="));
        let Some((node, rest)) = words else {
            child.wait().expect("gone");
            panic!("{line:?}: {}", self.log());
        };
        let (address, metrics) = match rest.split_once(" metrics=http") {
            Some((address, url)) => {
                let metrics = url.split_once("://").map(|(_, it)| it);
                (address, metrics.and_then(|it| it.strip_suffix("/metrics")))
            }
            None => (rest, None),
        };
        Daemon {
            node: node.to_owned(),
            address: address.to_owned(),
            metrics: metrics.map(str::to_owned),
            child,
        }
    }

    /// Starts a daemon that must fail. Returns the log.
    pub(crate) fn start_in_vain(&self, words: &[String]) -> String {
        let mut command = self.command(words);
        let status = command
            .stdout(Stdio::null())
            .stderr(self.new_log())
            .status();
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
    /// Where it serves its pages, if it does.
    pub(crate) metrics: Option<String>,
    pub(crate) child: Child,
}

impl Daemon {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().expect("a process"))
    }

    /// Sends a signal, and waits for the end of the process.
    pub(crate) fn end(mut self, signal: Signal) -> ExitStatus {
        kill(self.pid(), signal).expect("signalled");
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

pub(crate) fn request(kind: ResourceType) -> LeaseAllocRequest {
    LeaseAllocRequest {
        transport: Transport::Udp,
        ..LeaseAllocRequest::new(kind, 4096, 600)
    }
}

pub(crate) async fn alloc(node: &Node, kind: ResourceType) -> LeaseInfo {
    node.alloc_async(request(kind)).await.expect("granted")
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
