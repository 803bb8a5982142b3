//! The watchdog as a process. What it does to the kernel is shown in the lab (`suite_block_restart`).

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A lease of whose subsystem there is nothing, until long after the test.
const FAR: &str = "until 0000000000000000000000000000000a 1 9000000000000000000";
const PAST: &str = "until 0000000000000000000000000000000b 1 1";

fn start(directory: &Path) -> (Child, ChildStdin) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fabricbiosd"))
        .arg("watchdog")
        .arg("--lock")
        .arg(directory.join("watchdog.lock"))
        .args(["--node-id", &"ab".repeat(32)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pipe = child.stdin.take().unwrap();
    (child, pipe)
}

fn begun(directory: &Path, words: &[&str]) -> (Child, ChildStdin) {
    let (mut child, mut pipe) = start(directory);
    for word in words.iter().chain([&"begin"]) {
        writeln!(pipe, "{word}").unwrap();
    }
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "watching\n");
    (child, pipe)
}

#[test]
fn the_next_one_takes_the_place_of_one_whose_daemon_died() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, pipe) = begun(directory.path(), &[FAR]);
    drop(pipe);
    assert!(first.try_wait().unwrap().is_none(), "it still has a lease");
    let (mut second, pipe) = begun(directory.path(), &[FAR]);
    assert_eq!(first.wait().unwrap().signal(), Some(9));
    drop(pipe);
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn it_goes_when_its_daemon_is_gone_and_nothing_is_left_to_cut() {
    let directory = tempfile::tempdir().unwrap();
    let over = "over 0000000000000000000000000000000a 1";
    for words in [&[][..], &[PAST], &[FAR, over, PAST]] {
        let (mut child, pipe) = begun(directory.path(), words);
        drop(pipe);
        assert!(child.wait().unwrap().success(), "{words:?}");
    }
}

#[test]
fn before_it_is_told_to_begin_it_takes_nobodys_place() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, first_pipe) = begun(directory.path(), &[FAR]);
    let (mut second, pipe) = start(directory.path());
    drop(pipe);
    assert!(second.wait().unwrap().success());
    assert!(first.try_wait().unwrap().is_none());
    drop(first_pipe);
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn what_stops_a_daemon_does_not_stop_it() {
    let directory = tempfile::tempdir().unwrap();
    let (mut child, pipe) = begun(directory.path(), &[]);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        kill(pid, signal).unwrap();
    }
    drop(pipe);
    assert!(
        child.wait().unwrap().success(),
        "its own end, not a signal's"
    );
}
