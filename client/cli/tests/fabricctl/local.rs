//! `run` and `lease enter`, over the local socket of a node that knows one lease.

use std::{
    fs::{self, Permissions},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    process::{Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use fabricbios_contract::{Caller, Entered, Given, LocalAccess, LocalRefusal};
use fabricbios_local::{LocalServer, Tenants};
use fabricbios_wire::LeaseId;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use serde_json::json;
use tempfile::TempDir;

use crate::{LEASE_TEXT, as_root, failure};

type Happens = Box<dyn FnOnce() + Send>;

/// A lease, and the processes that entered it.
pub(crate) struct Lease {
    entered: Mutex<Vec<i32>>,
    /// The remaining time; `None`: the lease is over.
    pub(crate) left: Mutex<Option<Duration>>,
    /// Receives a message when a client asks for the remaining time.
    pub(crate) looks: Mutex<Option<mpsc::Sender<()>>>,
    /// Runs when the next process has entered, before that process receives its answer.
    pub(crate) then: Mutex<Option<Happens>>,
}

impl LocalAccess for Lease {
    fn remaining(&self, lease: LeaseId, _: &Caller) -> Result<Duration, LocalRefusal> {
        if lease.to_string() != LEASE_TEXT {
            return Err(LocalRefusal::NotFound);
        }
        let left = *self.left.lock().unwrap();
        if let Some(looks) = &*self.looks.lock().unwrap() {
            looks.send(()).ok();
        }
        left.ok_or_else(|| LocalRefusal::NotActive("it was cut".into()))
    }

    fn enter(
        &self,
        lease: LeaseId,
        caller: &Caller,
        given: Given,
    ) -> Result<Entered, LocalRefusal> {
        match lease {
            LeaseId(1) => {
                return Err(LocalRefusal::NotYours {
                    uid: caller.uid,
                    tenant: "red".into(),
                });
            }
            LeaseId(2) => return Err(LocalRefusal::NotActive("it has expired".into())),
            _ if lease.to_string() != LEASE_TEXT => return Err(LocalRefusal::NotFound),
            _ => {}
        }
        self.entered.lock().unwrap().push(caller.pid);
        if let Some(then) = self.then.lock().unwrap().take() {
            then();
        }
        Ok(Entered {
            place: given.to_string(),
            environment: vec![("OF_THE_LEASE".to_owned(), "GPU-1".to_owned())],
        })
    }
}

pub(crate) struct World {
    directory: TempDir,
    pub(crate) lease: Arc<Lease>,
    _server: LocalServer,
}

impl World {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        let lease = Arc::new(Lease {
            entered: Mutex::default(),
            left: Mutex::new(Some(Duration::from_secs(3_600))),
            looks: Mutex::default(),
            then: Mutex::default(),
        });
        let path = directory.path().join("local.sock");
        let tenants = Tenants::from([(nix::unistd::geteuid().as_raw(), Vec::new())]);
        let server = LocalServer::open(&path, tenants, vec![lease.clone()], None).unwrap();
        Self {
            directory,
            lease,
            _server: server,
        }
    }

    /// A path for another socket.
    pub(crate) fn socket(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// The command without a node and an identity: it needs neither.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabricctl"));
        let path = self.directory.path().join("local.sock");
        command.env_clear().env("FABRICBIOS_LOCAL_SOCKET", path);
        command.args(words);
        command
    }
}

#[test]
fn a_command_runs_as_the_process_that_entered_the_lease() {
    let world = World::new();
    let shell = r#"echo "$$ $GREETING $0 $OF_THE_LEASE"; exit 7"#;
    let mut command = world.command(&["run", "--lease", LEASE_TEXT, "--", "/bin/sh", "-c", shell]);
    let output = command
        .arg("its own")
        .env("GREETING", "hello")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let pids = world.lease.entered.lock().unwrap();
    let expected = format!("{} hello its own GPU-1\n", pids[0]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn a_namespace_is_handed_over() {
    let world = World::new();
    let words = ["lease", "enter", LEASE_TEXT, "--netns", "/proc/self/ns/net"];
    let mut command = world.command(&words);
    command.arg("--json");
    // A namespace of another user is refused; this namespace belongs to the process that hands it over.
    let output = as_root(command, &["--net"]);
    let expected = format!("{{\"lease_id\":\"{LEASE_TEXT}\",\"place\":\"network namespace\"}}\n");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn each_failure_has_its_exit_status_and_runs_nothing() {
    let world = World::new();
    let (red, over) = (format!("{:032x}", 1), format!("{:032x}", 2));
    let unknown = format!("{:032x}", 3);
    for (lease, expected, code) in [
        (&red, 3, "NotPermitted"),
        (&over, 4, "Expired"),
        (&unknown, 4, "NotFound"),
    ] {
        let mut command = world.command(&["--json", "run", "--lease", lease, "--", "echo"]);
        let (status, object) = failure(&command.output().unwrap());
        assert_eq!(
            (status, &object["reason"]["code"]),
            (expected, &code.into())
        );
        assert!(object["message"].as_str().unwrap().contains(lease.as_str()));
    }
    // The exit statuses that shells use.
    for (command, expected, code) in [
        ("/nonexistent", 127, "NoCommand"),
        ("no-such-program", 127, "NoCommand"),
        ("/dev/null", 126, "NotExecutable"),
    ] {
        let run = ["--json", "run", "--lease", LEASE_TEXT, "--", command];
        let (status, object) = failure(&world.command(&run).output().unwrap());
        assert_eq!(
            (status, &object["reason"]["code"]),
            (expected, &code.into())
        );
        assert!(object["message"].as_str().unwrap().contains(command));
    }
    let enter = [
        "--json",
        "lease",
        "enter",
        LEASE_TEXT,
        "--netns",
        "/proc/self/status",
    ];
    let (status, object) = failure(&world.command(&enter).output().unwrap());
    assert_eq!(
        (status, &object["reason"]["code"]),
        (3, &"InvalidArgs".into())
    );
}

#[test]
fn without_a_socket_it_says_that_this_works_on_the_node_only() {
    let world = World::new();
    let (run, left) = (run_at("/nonexistent/socket"), world.socket("left.sock"));
    let output = world.command(&run).output().unwrap();
    let (status, object) = failure(&output);
    assert_eq!((status, &object["error"]), (6, &"unreachable".into()));
    assert_eq!(object["reason"]["class"], "permanent", "{object}");
    let message = object["message"].as_str().unwrap();
    for part in [
        "no daemon listens at /nonexistent/socket",
        "on the node itself only",
        "--local-socket PATH",
    ] {
        assert!(message.contains(part), "{message}");
    }
    // A socket that a killed daemon leaves behind.
    drop(bound(&left));
    let output = world.command(&run_at(&left)).output().unwrap();
    let (status, object) = failure(&output);
    assert_eq!((status, &object["error"]), (6, &"unreachable".into()));
    assert_eq!(object["reason"]["class"], "transient", "{object}");
    let message = object["message"].as_str().unwrap();
    assert!(message.contains("start it again"), "{message}");
}

/// The first client waits in the queue of the socket; the second does not get into the queue.
#[test]
fn a_daemon_that_is_stopped_is_told_after_a_while_and_nothing_runs() {
    let world = World::new();
    let path = world.socket("stopped.sock");
    let stopped = bound(&path);
    listen(&stopped, Backlog::new(0).unwrap()).unwrap();
    let begin = || {
        let mut command = world.command(&run_at(&path));
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    for child in [begin(), begin()] {
        let (status, object) = failure(&child.wait_with_output().unwrap());
        assert_eq!(
            (status, &object["reason"]),
            (6, &json!({ "class": "transient", "code": "Unavailable" }))
        );
        let message = object["message"].as_str().unwrap();
        for part in [
            LEASE_TEXT,
            &path,
            "for 10 s",
            "was not run",
            "may have been in",
            "SIGCONT",
        ] {
            assert!(message.contains(part), "{part} in {message}");
        }
    }
}

const ANY_ID: &str = "0707070707070707070707070707070707070707070707070707070707070707";

#[test]
fn what_only_a_remote_node_needs_is_refused_and_not_in_the_help() {
    let world = World::new();
    let enter = ["lease", "enter", LEASE_TEXT, "--netns", "/proc/self/ns/net"];
    let given = [
        ("--node", "192.0.2.1"),
        ("--node-id", ANY_ID),
        ("--identity", "/nonexistent"),
        ("--patience-secs", "3"),
    ];
    for (flag, value) in given {
        let mut before = world.command(&["--json", flag, value]);
        let mut behind = world.command(&["--json"]);
        behind.args(&enter[..2]).args([flag, value]);
        for command in [before.args(enter), behind.args(&enter[2..])] {
            let (status, object) = failure(&command.output().unwrap());
            assert_eq!((status, &object["error"]), (2, &"usage".into()));
            let message = object["message"].as_str().unwrap();
            for part in [flag, "fabricctl lease enter", "on the node only"] {
                assert!(message.contains(part), "{part} in {message}");
            }
        }
    }
    let help = world.command(&["lease", "enter", "--help"]).output();
    let help = String::from_utf8(help.unwrap().stdout).unwrap();
    assert!(help.contains("--local-socket"), "{help}");
    for (flag, _) in given {
        assert!(!help.contains(flag), "{help}");
    }
    // Settings from the environment are allowed for all commands.
    let mut command = world.command(&enter);
    command.env("FABRICBIOS_NODE", "192.0.2.1");
    command.env("FABRICBIOS_NODE_ID", ANY_ID);
    assert!(as_root(command, &["--net"]).status.success());
}

/// `fabricctl run --json`, at the socket of this path.
fn run_at(path: &str) -> [&str; 8] {
    [
        "--json",
        "run",
        "--lease",
        LEASE_TEXT,
        "--local-socket",
        path,
        "--",
        "echo",
    ]
}

/// A socket at this path that accepts no connection.
pub(crate) fn bound(path: &str) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let node = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    bind(node.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    node
}
