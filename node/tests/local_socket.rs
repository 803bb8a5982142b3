//! The local socket of a daemon, as a process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs::{self, Permissions},
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use fabricbios_local::{AskError, ping, run};
use fabricbios_wire::{LeaseError, LeaseId};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};

fn start(at: &Path) -> Child {
    // A user without a tenant is refused; root is accepted.
    let tenant_uid = format!("blue={}", geteuid().as_raw().max(1000));
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_fabricbiosd"))
        .args(["control-server", "--listen", "127.0.0.1:0", "--state-dir"])
        .arg(at.join("state"))
        .args(["--tenant-uid", &tenant_uid, "--local-socket"])
        .arg(at.join("local.sock"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = daemon.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert!(line.starts_with("READY"), "{line}");
    daemon
}

#[test]
fn it_is_there_while_the_node_serves_and_again_after_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    let socket = directory.path().join("local.sock");
    let mut daemon = start(directory.path());
    ping(&socket).unwrap();
    let Err(AskError::Refused(refusal)) = run(&socket, LeaseId(1)) else {
        panic!("there is no such lease");
    };
    assert_eq!(refusal.error, LeaseError::NotFound);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert!(matches!(ping(&socket), Err(AskError::Unreachable { .. })));

    let mut daemon = start(directory.path());
    ping(&socket).unwrap();
    let pid = Pid::from_raw(daemon.id().try_into().unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    assert!(daemon.wait().unwrap().success());
    assert!(!socket.exists());
}
