//! Bytes through standard input and output, over a real data plane.

use std::{
    fs::{self, File},
    io::{Read, Write},
    process::{Command, Output, Stdio},
    sync::{Arc, mpsc},
};

use fabricbios_wire::{LeasePhase, Reply, Request};
use serde_json::{Value, json};

use crate::{
    LEASE_TEXT, command,
    common::{FakeNode, memory::Memory},
    fails, failure, line_of, run,
};

const LENGTH: usize = 1 << 20;

/// `fabricctl mem WHAT LEASE FLAGS`.
fn mem(node: &FakeNode, what: &str, flags: &str) -> Command {
    command(node, &format!("--json mem {what} {LEASE_TEXT} {flags}"))
}

/// Runs the command with `input` through a pipe.
pub(crate) fn piped(mut command: Command, input: &[u8]) -> Output {
    command.stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The reader closes the pipe early.
    child.stdin.take().unwrap().write_all(input).ok();
    child.wait_with_output().unwrap()
}

pub(crate) fn pattern(length: usize) -> Vec<u8> {
    let words = (0..length as u64 / 8 + 1).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

#[test]
fn what_is_written_is_read_again() {
    let memory = Memory::start();
    let node = memory.node();
    let input = pattern(LENGTH - 5);
    let written = piped(mem(&node, "write", "--offset 5"), &input);
    assert_eq!(written.status.code(), Some(0), "{written:?}");
    let told: Value = serde_json::from_slice(&written.stdout).unwrap();
    let expected = json!({
        "lease_id": LEASE_TEXT, "offset": 5, "bytes": LENGTH - 5, "transport": "udp",
    });
    assert_eq!(told, expected);
    assert!(memory.bytes(5, LENGTH - 5) == input);
    let rest = mem(&node, "read", "--offset 5").output().unwrap();
    assert!(rest.status.success() && rest.stdout == input && rest.stderr.is_empty());
    let flags = "--offset 4KiB --len 7 --payload-mac --transport udp";
    let part = mem(&node, "read", flags).output().unwrap();
    assert_eq!(part.stdout, &input[4_091..4_098]);
    let none = mem(&node, "read", "--offset 1MiB").output().unwrap();
    assert!(none.status.success() && none.stdout.is_empty());
}

#[test]
fn a_file_that_is_too_long_is_refused_before_anything_is_written() {
    let memory = Memory::start();
    let node = memory.node();
    let path = node.dir().join("input");
    fs::write(&path, pattern(LENGTH)).unwrap();
    let mut write = mem(&node, "write", "--offset 1");
    let output = write.stdin(File::open(&path).unwrap()).output().unwrap();
    let (status, object) = failure(&output);
    assert_eq!(status, 2);
    let message = object["message"].as_str().unwrap();
    for part in ["1048576 bytes", "1048575", "nothing was written"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert!(memory.bytes(0, LENGTH).iter().all(|byte| *byte == 0));
}

#[test]
fn a_stream_that_is_too_long_is_written_as_far_as_it_fits() {
    let memory = Memory::start();
    let node = memory.node();
    let input = pattern(LENGTH);
    let (status, object) = failure(&piped(mem(&node, "write", "--offset 9"), &input));
    assert_eq!(status, 2);
    let message = object["message"].as_str().unwrap();
    assert!(message.contains("1048567 bytes were written"), "{message}");
    assert!(memory.bytes(9, LENGTH - 9) == input[..LENGTH - 9]);
}

#[test]
fn the_end_of_a_lease_has_its_exit_status() {
    let ends = [
        (LeasePhase::Expired, 4),
        (LeasePhase::Revoked, 4),
        (LeasePhase::Fenced, 5),
    ];
    for (phase, expected) in ends {
        let memory = Memory::start();
        let node = memory.node();
        memory.end(phase);
        let (status, object) = fails(&node, &format!("mem read {LEASE_TEXT}"));
        assert_eq!(status, expected, "{object}");
        assert!(object["message"].as_str().unwrap().contains(LEASE_TEXT));
    }
    let memory = Memory::start();
    let node = memory.node();
    memory.end(LeasePhase::Expired);
    let (_, line) = line_of(&node, &format!("mem read {LEASE_TEXT}"));
    assert!(line.contains("ask for a new lease"), "{line}");
}

#[test]
fn ranges_and_values_that_make_no_sense_are_told() {
    let memory = Memory::start();
    let node = memory.node();
    for (flags, word) in [
        ("--offset 1048577", "1048576"),
        ("--offset 1MiB --len 1", "1048576"),
        ("--len 0", "at least one"),
        ("--offset=-1", "whole number"),
        ("--transport fast", "auto, rdma or udp"),
        ("--transport rdma", "rdma"),
    ] {
        let (status, object) = failure(&mem(&node, "read", flags).output().unwrap());
        assert_eq!(status, 2, "{flags}: {object}");
        assert!(
            object["message"].as_str().unwrap().contains(word),
            "{flags}: {object}"
        );
    }
    let output = run(&node, "--json mem read xyz");
    assert_eq!(failure(&output).0, 2);
}

#[test]
fn a_transport_that_the_lease_does_not_have_is_refused_for_nothing_too() {
    let memory = Memory::start();
    let node = memory.node();
    let (status, object) = failure(&piped(mem(&node, "write", "--transport rdma"), b""));
    let message = object["message"].as_str().unwrap();
    assert!(
        status == 2 && message.contains("not reached over rdma"),
        "{object}"
    );
    let written = piped(mem(&node, "write", "--transport udp"), b"");
    assert_eq!(written.status.code(), Some(0), "{written:?}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error_to_speak_of() {
    let memory = Memory::start();
    let node = memory.node();
    let mut read = mem(&node, "read", "");
    let mut child = read
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0xee; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(first, [0; 10]);
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_lease_in_its_grace_time_is_not_given_up_for_good() {
    let memory = Memory::start();
    let node = memory.node();
    memory.end(LeasePhase::Grace);
    let (status, object) = fails(&node, &format!("mem read {LEASE_TEXT}"));
    assert_eq!(
        (status, &object["reason"]),
        (4, &json!({ "class": "transient", "code": "Ended" }))
    );
    let (_, line) = line_of(&node, &format!("mem read {LEASE_TEXT}"));
    let renewal = format!("`fabricctl lease renew {LEASE_TEXT}`");
    assert!(
        line.contains("a renewal opens it again") && line.contains(&renewal),
        "{line}"
    );
    assert!(
        !line.contains("permanent") && !line.contains("a new lease"),
        "{line}"
    );
}

/// Without this limit, the first write would go on for half a minute and then report that there was no answer.
#[test]
fn a_daemon_that_has_ended_fails_a_write_when_the_patience_is_over() {
    for patience in [0, 1] {
        let memory = Memory::start();
        let (told, asked) = mpsc::channel();
        let its = Arc::clone(&memory);
        let mut node = FakeNode::start(move |_: &Request| {
            told.send(()).ok();
            Ok(Reply::Lease(its.info()))
        });
        let mut write = mem(&node, "write", &format!("--patience-secs {patience}"));
        let pipes = write.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.stderr(Stdio::piped()).spawn().unwrap();
        asked.recv().unwrap();
        // More than a pipe holds: when all of it is taken, the lease is open and the command waits for the rest of the
        // first piece.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&[0; 128 << 10]).unwrap();
        node.crash();
        drop(node);
        drop(Arc::try_unwrap(memory).ok().expect("nobody else serves it"));
        drop(stdin);
        let (status, object) = failure(&child.wait_with_output().unwrap());
        assert_eq!((status, &object["error"]), (6, &json!("unreachable")));
        let message = object["message"].as_str().unwrap();
        for part in [
            LEASE_TEXT,
            "nothing listens at the node's UDP port",
            "0 bytes were written",
        ] {
            assert!(message.contains(part), "{part} in {message}");
        }
        assert!(message.len() < 320, "{message}");
    }
}
