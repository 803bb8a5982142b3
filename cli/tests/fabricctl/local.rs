//! `run` and `lease enter`, over the local socket of a node that knows one lease.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    process::Command,
    sync::{Arc, Mutex},
};

use fabricbios_contract::{Caller, Entered, Given, LocalAccess, LocalRefusal};
use fabricbios_local::{LocalServer, Tenants};
use fabricbios_wire::LeaseId;
use tempfile::TempDir;

use crate::{LEASE_TEXT, failure};

/// The processes that entered the lease.
#[derive(Default)]
struct Lease(Mutex<Vec<i32>>);

impl LocalAccess for Lease {
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
        self.0.lock().unwrap().push(caller.pid);
        let place = given.to_string();
        Ok(Entered { place })
    }
}

struct World {
    directory: TempDir,
    lease: Arc<Lease>,
    _server: LocalServer,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        let lease = Arc::new(Lease::default());
        let path = directory.path().join("local.sock");
        let tenants = Tenants::from([(nix::unistd::geteuid().as_raw(), Vec::new())]);
        let server = LocalServer::open(&path, tenants, vec![lease.clone()]).unwrap();
        Self {
            directory,
            lease,
            _server: server,
        }
    }

    /// Without a node and an identity: neither is needed.
    fn command(&self, words: &[&str]) -> Command {
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
    let shell = r#"echo "$$ $GREETING $0"; exit 7"#;
    let mut command = world.command(&["run", "--lease", LEASE_TEXT, "--", "/bin/sh", "-c", shell]);
    let output = command
        .arg("its own")
        .env("GREETING", "hello")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let pids = world.lease.0.lock().unwrap();
    let expected = format!("{} hello its own\n", pids[0]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn a_namespace_is_handed_over() {
    let world = World::new();
    let words = ["lease", "enter", LEASE_TEXT, "--netns", "/proc/self/ns/net"];
    let output = world.command(&words).arg("--json").output().unwrap();
    if !nix::unistd::geteuid().is_root() {
        // It is of root, unless this is a container of a user.
        return assert!(output.status.code().is_some());
    }
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
    let run = ["--json", "run", "--lease", LEASE_TEXT, "--", "/nonexistent"];
    let (status, object) = failure(&world.command(&run).output().unwrap());
    assert_eq!((status, &object["error"]), (2, &"usage".into()));
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
    let run = [
        "--json",
        "run",
        "--lease",
        LEASE_TEXT,
        "--local-socket",
        "/nonexistent/socket",
    ];
    let output = world.command(&run).args(["--", "echo"]).output().unwrap();
    let (status, object) = failure(&output);
    assert_eq!((status, &object["error"]), (6, &"unreachable".into()));
    let message = object["message"].as_str().unwrap();
    assert!(message.contains("on the node itself only"), "{message}");
}
