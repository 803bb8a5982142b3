//! How `run` warns a command that its lease ends, and reports to the user why the lease ended.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, mpsc},
    time::Duration,
};

use fabricbios_wire::{
    Binding, EndCause, LeaseEnd, LeaseInfo, LeasePhase, LeaseStatus, Reply, Request, ResourceType,
};
use nix::{
    sys::{
        signal::{Signal, kill},
        socket::{Backlog, accept, listen},
    },
    unistd::Pid,
};

use crate::{
    LEASE_TEXT,
    common::{FakeNode, lease},
    failure,
    local::{World, bound},
    saying,
};

/// Prints `runs` at its start, and `told` when SIGTERM arrives.
const SHELL: &str =
    "trap 'echo told; exit 9' TERM; echo runs; while :; do read line || exit 0; done";
const WARN: Duration = Duration::from_secs(100);

/// A command that runs in the lease; its standard input keeps it running.
struct Running {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(mut command: Command, end: &[&str]) -> Self {
        command.args(["run", "--lease", LEASE_TEXT]).args(end);
        command.args(["--", "/bin/bash", "-c", SHELL]);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "runs\n");
        Self { child, stdout }
    }

    /// Kills the command, as the cut of its lease does.
    fn kill(&self) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, Signal::SIGKILL).unwrap();
    }

    /// The remaining output, and the lines about the lease.
    fn finish(mut self) -> (Output, String) {
        let mut rest = Vec::new();
        self.stdout.read_to_end(&mut rest).unwrap();
        let mut output = self.child.wait_with_output().unwrap();
        output.stdout = rest;
        let lines = String::from_utf8(output.stderr.clone()).unwrap();
        (output, lines)
    }
}

/// Gives the command an identity, for a node that answers `told` for each lease.
fn with_identity(command: &mut Command, node: &FakeNode) {
    command.env("FABRICBIOS_NODE", node.addr());
    command.env("FABRICBIOS_IDENTITY", node.admin());
}

#[test]
fn a_command_is_told_ahead_of_the_end_and_not_while_its_lease_is_renewed() {
    let world = World::new();
    // At each look the lease was renewed a moment ago.
    *world.lease.left.lock().unwrap() = Some(WARN + Duration::from_millis(20));
    let secs = WARN.as_secs().to_string();
    let running = Running::start(world.command(&[]), &["--warn-secs", &secs]);
    *world.lease.left.lock().unwrap() = Some(WARN - Duration::from_secs(1));
    let (output, lines) = running.finish();
    assert_eq!(output.status.code(), Some(9), "{lines}");
    assert_eq!(output.stdout, b"told\n");
    for part in [LEASE_TEXT, "SIGTERM to process", "unless it is renewed"] {
        assert!(lines.contains(part), "{part} in {lines}");
    }
    assert_eq!(lines.lines().count(), 1, "{lines}");
}

#[test]
fn a_daemon_that_is_not_there_at_first_is_asked_again_and_the_command_is_told() {
    let world = World::new();
    let [socket, aside, silent] =
        ["local.sock", "aside.sock", "silent.sock"].map(|it| world.socket(it));
    let nobody = bound(&silent);
    listen(&nobody, Backlog::new(8).unwrap()).unwrap();
    let (from, to) = (socket.clone(), aside.clone());
    *world.lease.then.lock().unwrap() = Some(Box::new(move || {
        fs::rename(&from, &to).unwrap();
        fs::rename(&silent, &from).unwrap();
    }));
    let secs = WARN.as_secs().to_string();
    let running = Running::start(world.command(&[]), &["--warn-secs", &secs]);
    // The first question gets no answer, and the next ones find no listener.
    let asks = accept(nobody.as_raw_fd()).unwrap();
    // SAFETY: accept(2) has just made the descriptor for this test.
    drop(unsafe { OwnedFd::from_raw_fd(asks) });
    drop(nobody);
    *world.lease.left.lock().unwrap() = Some(WARN - Duration::from_secs(1));
    fs::rename(&aside, &socket).unwrap();
    let (output, lines) = running.finish();
    assert_eq!(output.status.code(), Some(9), "{lines}");
    assert_eq!(output.stdout, b"told\n");
}

#[test]
fn a_command_that_a_cut_kills_has_a_line_that_says_why() {
    for with_node in [false, true] {
        let world = World::new();
        let revoked = LeaseInfo {
            phase: LeasePhase::Revoked,
            status: LeaseStatus::Revoked,
            end: Some(Arc::new(LeaseEnd {
                at_unix_ms: 1,
                cause: EndCause::Revoked,
                by: Some("root-of-all".to_owned()),
                proof: Vec::new(),
                cleaning: Vec::new(),
            })),
            ..lease(0)
        };
        let node = saying(Ok(Reply::Lease(revoked)));
        let mut command = world.command(&[]);
        if with_node {
            with_identity(&mut command, &node);
        }
        let (looks, looked) = mpsc::channel();
        *world.lease.looks.lock().unwrap() = Some(looks);
        let running = Running::start(command, &[]);
        looked.recv().unwrap();
        *world.lease.left.lock().unwrap() = None;
        running.kill();
        let (_, lines) = running.finish();
        let why = match with_node {
            true => "is over: revoked, by operator root-of-all",
            false => "before its term: it was given back or revoked",
        };
        assert!(lines.contains(why) && lines.contains(LEASE_TEXT), "{lines}");
    }
}

#[test]
fn another_node_at_the_address_is_not_asked_how_the_lease_ended() {
    let world = World::new();
    let mut node = saying(Ok(Reply::Lease(lease(3_600_000))));
    let mut command = world.command(&[]);
    with_identity(&mut command, &node);
    command.env("FABRICBIOS_PATIENCE_SECS", "0");
    let (looks, looked) = mpsc::channel();
    *world.lease.looks.lock().unwrap() = Some(looks);
    let running = Running::start(command, &["--renew"]);
    looked.recv().unwrap();
    let asked = node.asked().len();
    node.crash();
    node.serve_as_another();
    *world.lease.left.lock().unwrap() = None;
    running.kill();
    let (_, lines) = running.finish();
    assert!(
        lines.contains("before its term: it was given back or revoked"),
        "{lines}"
    );
    assert_eq!(node.asked().len(), asked);
}

#[test]
fn a_command_that_ends_by_itself_has_no_line() {
    let world = World::new();
    let mut running = Running::start(world.command(&[]), &[]);
    drop(running.child.stdin.take());
    let (output, lines) = running.finish();
    assert_eq!((output.status.code(), lines.as_str()), (Some(0), ""));
}

#[test]
fn a_lease_is_renewed_while_its_command_runs() {
    let world = World::new();
    let (told, renewed) = mpsc::channel();
    let mut terms = 0;
    let node = FakeNode::start(move |request: &Request| {
        let mut info = lease(170_000);
        // The renewal is due at once, three times.
        info.renewable_at_unix_ms = info.expires_at_unix_ms - 200_000;
        if matches!(request, Request::LeaseRenew { .. }) {
            terms += 1;
            told.send(()).ok();
        }
        info.expires_at_unix_ms += terms;
        if terms >= 3 {
            info = lease(3_600_000);
        }
        Ok(Reply::Lease(info))
    });
    let mut command = world.command(&[]);
    with_identity(&mut command, &node);
    let mut running = Running::start(command, &["--renew"]);
    for _ in 0..3 {
        renewed.recv().unwrap();
    }
    drop(running.child.stdin.take());
    let (output, lines) = running.finish();
    assert_eq!((output.status.code(), lines.as_str()), (Some(0), ""));
}

#[test]
fn a_warning_that_is_longer_than_a_renewal_takes_is_shortened() {
    let world = World::new();
    *world.lease.left.lock().unwrap() = Some(Duration::from_secs(1));
    let (looks, looked) = mpsc::channel();
    *world.lease.looks.lock().unwrap() = Some(looks);
    let node = saying(Ok(Reply::Lease(lease(3_600_000))));
    let mut command = world.command(&[]);
    with_identity(&mut command, &node);
    let mut running = Running::start(command, &["--renew", "--warn-secs", "100"]);
    // Each renewal finds the lease renewed already.
    for _ in 0..3 {
        looked.recv().unwrap();
    }
    drop(running.child.stdin.take());
    let (output, lines) = running.finish();
    assert_eq!((output.status.code(), lines.as_str()), (Some(0), ""));
}

#[test]
fn who_cannot_renew_is_told_before_the_command_runs() {
    let world = World::new();
    let nobody = saying(Err(fabricbios_wire::Refusal::new(
        fabricbios_wire::LeaseError::NotFound,
        fabricbios_wire::RefusalClass::Permanent,
        "no lease of yours",
    )));
    let run = [
        "--json", "run", "--lease", LEASE_TEXT, "--renew", "--", "echo",
    ];
    let (status, object) = failure(&world.command(&run).output().unwrap());
    let message = object["message"].as_str().unwrap();
    assert!(status == 2 && message.contains("--identity"), "{object}");
    let mut command = world.command(&run);
    with_identity(&mut command, &nobody);
    let (status, object) = failure(&command.output().unwrap());
    let message = object["message"].as_str().unwrap();
    assert!(
        status == 4 && message.contains("no lease of yours"),
        "{object}"
    );
}

#[test]
fn a_lease_of_another_kind_is_named_with_what_uses_it() {
    let world = World::new();
    let other = format!("{:032x}", 3);
    let run = ["--json", "run", "--lease", &other, "--", "echo"];
    let (status, object) = failure(&world.command(&run).output().unwrap());
    let message = object["message"].as_str().unwrap();
    assert!(
        status == 4 && message.contains("leases of cpu and gpu"),
        "{object}"
    );
    for (kind, how) in [
        (ResourceType::Mem, "fabricctl mem"),
        (ResourceType::Block, "fabricctl block"),
        (ResourceType::Net, "fabricctl lease enter"),
    ] {
        let info = LeaseInfo {
            binding: Binding::plain(kind),
            ..lease(60_000)
        };
        let node = saying(Ok(Reply::Lease(info)));
        let mut command = world.command(&run);
        with_identity(&mut command, &node);
        let (status, object) = failure(&command.output().unwrap());
        let message = object["message"].as_str().unwrap();
        let is = format!("lease {other} is one of {kind}");
        assert_eq!(status, 4, "{object}");
        for part in [&*is, "needs one of cpu or gpu", how] {
            assert!(message.contains(part), "{part} in {message}");
        }
    }
}
