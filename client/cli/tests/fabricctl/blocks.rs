//! Blocks through standard input and output, over a real data plane.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
};

use fabricbios_contract::{DataPath as _, Volume};
use fabricbios_fallback_udp::{FbbuConfig, FbbuPath};
use fabricbios_lease::{BindingId, BootTime};
use fabricbios_wire::{
    Binding, Effective, Generation, LeaseInfo, LeasePhase, LeaseStatus, Reply, Request,
    ResourceType, Transport,
};
use serde_json::{Value, json};

use crate::{
    LEASE_TEXT,
    block::block_lease,
    command,
    common::{FakeNode, LEASE, RESOURCE, lease},
    fails, failure,
    mem::{pattern, piped},
    saying,
};

const LENGTH: usize = 1 << 20;
const BLOCK: usize = 4_096;

/// A lease whose blocks are in a file; a real server serves them over UDP.
struct Blocks {
    dir: tempfile::TempDir,
    info: LeaseInfo,
    _backend: FbbuPath,
}

impl Blocks {
    fn start(read_only: bool) -> Arc<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        fs::write(&path, vec![0; LENGTH]).unwrap();
        let backend = FbbuPath::open(&FbbuConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            workers: Some(1),
            ops_per_second: 1 << 20,
            half_sent_max: FbbuConfig::HALF_SENT_MAX,
            write_verifier: 1,
        })
        .unwrap();
        let binding_id = BindingId {
            lease_id: LEASE,
            generation: Generation(1),
            resource_id: RESOURCE,
        };
        let file = Volume {
            path,
            bytes: LENGTH as u64,
            block_bytes: u32::try_from(BLOCK).unwrap(),
            read_only,
        };
        let binding = backend.serve(binding_id, "ann", &file).unwrap();
        backend.extend(binding_id, BootTime(u64::MAX)).unwrap();
        let info = LeaseInfo {
            effective: Effective {
                transport: Some(Transport::Udp),
                read_only,
                ..Effective::default()
            },
            binding,
            ..lease(60_000)
        };
        Arc::new(Self {
            dir,
            info,
            _backend: backend,
        })
    }

    fn node(&self) -> FakeNode {
        saying(Ok(Reply::Lease(self.info.clone())))
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("blocks")
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }
}

fn block(node: &FakeNode, what: &str, flags: &str) -> Command {
    command(node, &format!("--json block {what} {LEASE_TEXT} {flags}"))
}

#[test]
fn what_is_written_is_read_again() {
    let blocks = Blocks::start(false);
    let node = blocks.node();
    let input = pattern(LENGTH - BLOCK);
    let written = piped(block(&node, "write", "--offset 4KiB"), &input);
    assert_eq!(written.status.code(), Some(0), "{written:?}");
    let told: Value = serde_json::from_slice(&written.stdout).unwrap();
    let expected = json!({
        "lease_id": LEASE_TEXT, "offset": BLOCK, "bytes": LENGTH - BLOCK, "transport": "udp",
    });
    assert_eq!(told, expected);
    assert!(blocks.bytes()[BLOCK..] == input);
    let rest = block(&node, "read", "--offset 4096").output().unwrap();
    assert!(rest.status.success() && rest.stdout == input && rest.stderr.is_empty());
    let flags = "--offset 8KiB --len 4KiB --payload-mac";
    let part = block(&node, "read", flags).output().unwrap();
    assert!(part.stdout == input[BLOCK..2 * BLOCK], "{:?}", part.stderr);
}

#[test]
fn what_is_no_whole_block_or_outside_is_refused_with_the_size_that_counts() {
    let blocks = Blocks::start(false);
    let node = blocks.node();
    for (flags, words) in [
        ("--offset 1", ["--offset 1", "4096 bytes"]),
        ("--offset 512 --len 4KiB", ["--offset 512", "4096 bytes"]),
        ("--len 5000", ["--len 5000", "4096 bytes"]),
        ("--offset 1MiB --len 4KiB", ["outside", "1048576"]),
        ("--len 2MiB", ["outside", "1048576"]),
    ] {
        let (status, object) = failure(&block(&node, "read", flags).output().unwrap());
        assert_eq!(status, 2, "{flags}: {object}");
        let message = object["message"].as_str().unwrap();
        assert!(
            words.iter().all(|word| message.contains(word)),
            "{flags}: {message}"
        );
    }
    let input = blocks.dir.path().join("input");
    fs::write(&input, pattern(BLOCK + 1)).unwrap();
    let mut write = block(&node, "write", "");
    let output = write
        .stdin(fs::File::open(&input).unwrap())
        .output()
        .unwrap();
    let (status, object) = failure(&output);
    let message = object["message"].as_str().unwrap();
    assert_eq!(status, 2);
    assert!(
        message.contains("4097 bytes") && message.contains("nothing was written"),
        "{message}"
    );
    assert!(blocks.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn a_stream_that_ends_within_a_block_says_how_much_is_written() {
    let blocks = Blocks::start(false);
    let node = blocks.node();
    let input = pattern(3 * BLOCK + 7);
    let (status, object) = failure(&piped(block(&node, "write", ""), &input));
    let message = object["message"].as_str().unwrap();
    assert_eq!(status, 2);
    for part in [
        "7 bytes into a block",
        "4096 bytes",
        "12288 bytes were written",
    ] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert!(!message.contains("not flushed"), "{message}");
    assert!(blocks.bytes()[..3 * BLOCK] == input[..3 * BLOCK]);
}

#[test]
fn a_read_only_lease_is_read_and_not_written() {
    let blocks = Blocks::start(true);
    let node = blocks.node();
    let read = block(&node, "read", "--len 4KiB").output().unwrap();
    assert_eq!(read.stdout, [0; BLOCK]);
    let (status, object) = failure(&piped(block(&node, "write", ""), &pattern(BLOCK)));
    assert_ne!(status, 0);
    assert!(
        object["message"].as_str().unwrap().contains("read-only"),
        "{object}"
    );
}

#[test]
fn a_lease_without_that_transport_keeps_its_keys() {
    let node = saying(Ok(Reply::Lease(block_lease())));
    let (status, object) = fails(&node, &format!("block read {LEASE_TEXT}"));
    assert_eq!(status, 2);
    assert!(
        object["message"].as_str().unwrap().contains("block attach"),
        "{object}"
    );
    let changes = |request: &Request| !matches!(request, Request::LeaseQuery(_));
    assert!(!node.asked().iter().any(changes), "{:?}", node.asked());
}

#[test]
fn leases_that_are_over_or_of_something_else_are_told_apart() {
    let ended = LeaseInfo {
        phase: LeasePhase::Expired,
        status: LeaseStatus::Expired,
        binding: Binding::plain(ResourceType::Block),
        ..block_lease()
    };
    for (info, expected) in [(ended, 4), (lease(60_000), 2)] {
        let node = saying(Ok(Reply::Lease(info)));
        let output = block(&node, "read", "")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let (status, object) = failure(&output);
        assert_eq!(status, expected, "{object}");
        assert!(object["message"].as_str().unwrap().contains(LEASE_TEXT));
    }
}
