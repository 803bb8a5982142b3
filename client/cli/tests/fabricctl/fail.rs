//! Failures: exit statuses, error objects, one line each.

use std::{fs, process::Stdio};

use fabricbios_control::Limits;
use fabricbios_wire::{LeaseError, Refusal, RefusalClass, Reply, Request};
use serde_json::json;

use crate::{
    LEASE_TEXT, command,
    common::{FakeNode, LEASE, lease, refuse},
    fails, granting, line_of, saying,
};

#[test]
fn every_refusal_has_its_exit_status_and_its_object() {
    use LeaseError as E;
    let expected = [
        (E::InvalidIntent, 3),
        (E::InvalidArgs, 3),
        (E::CapacityExceeded, 3),
        (E::ResourceBusy, 3),
        (E::NotPermitted, 3),
        (E::RenewTooEarly, 3),
        (E::Unsupported, 3),
        (E::NotFound, 4),
        (E::Expired, 4),
        (E::Revoked, 4),
        (E::Fenced, 5),
        (E::Unavailable, 6),
        (E::Malformed, 1),
        (E::Internal, 1),
    ];
    assert_eq!(expected.len(), E::ALL.len());
    for (error, exit) in expected {
        let node = saying(refuse(error, RefusalClass::Policy, "because of that"));
        let (status, object) = fails(&node, &format!("lease query {LEASE_TEXT}"));
        assert_eq!(status, exit, "{error}");
        assert_eq!(
            object["reason"],
            json!({ "class": "policy", "code": error.name() })
        );
        assert!(object["error"].is_string());
        let message = object["message"].as_str().unwrap();
        assert!(
            message.contains("because of that") && message.contains(LEASE_TEXT),
            "{message}"
        );
    }
}

#[test]
fn a_renewal_that_comes_early_says_when() {
    let refusal = Refusal {
        renewable_at_unix_ms: Some(1_800_000_048_000),
        ..Refusal::new(
            LeaseError::RenewTooEarly,
            RefusalClass::Transient,
            "too early",
        )
    };
    let node = saying(Err(refusal));
    let (status, object) = fails(&node, &format!("lease renew {LEASE_TEXT}"));
    assert_eq!(status, 3);
    assert_eq!(object["renewable_at_unix_ms"], 1_800_000_048_000_u64);
}

#[test]
fn a_refusal_for_a_moment_says_for_how_long() {
    let refusal = Refusal {
        retry_after_ms: Some(1_250),
        ..Refusal::new(
            LeaseError::ResourceBusy,
            RefusalClass::Transient,
            "resource 1 is being cleaned",
        )
    };
    let node = saying(Err(refusal));
    let (status, object) = fails(
        &node,
        &format!("--patience-secs 0 lease renew {LEASE_TEXT}"),
    );
    assert_eq!((status, &object["retry_after_ms"]), (3, &json!(1_250)));
    assert_eq!(
        object["reason"],
        json!({ "class": "transient", "code": "ResourceBusy" })
    );
}

#[test]
fn a_refusal_is_one_readable_line() {
    let node = saying(refuse(
        LeaseError::CapacityExceeded,
        RefusalClass::Transient,
        "arena is full",
    ));
    let (status, line) = line_of(&node, "lease alloc mem --bytes 1TiB --secs 60");
    assert_eq!(status, 3);
    assert!(
        line.contains("arena is full") && line.contains("[CapacityExceeded, transient]"),
        "{line}"
    );
}

#[test]
fn a_refusal_points_to_where_its_command_would_look() {
    let not_found = || {
        saying(refuse(
            LeaseError::NotFound,
            RefusalClass::Permanent,
            "no fenced resource",
        ))
    };
    let (_, line) = line_of(&not_found(), &format!("fence clear {LEASE_TEXT}"));
    assert!(
        line.contains("`fabricctl fence list`") && !line.contains("lease list"),
        "{line}"
    );
    let (_, line) = line_of(&not_found(), &format!("lease query {LEASE_TEXT}"));
    assert!(line.contains("`fabricctl lease list --all`"), "{line}");
}

#[test]
fn a_node_that_says_what_to_do_has_the_last_word() {
    let (error, message) = (LeaseError::NotPermitted, "that takes an operator identity");
    let node = saying(refuse(error, RefusalClass::Policy, message));
    let (_, line) = line_of(&node, &format!("lease renew {LEASE_TEXT}"));
    let end = format!("{message} [NotPermitted, policy]");
    assert!(line.trim_end().ends_with(&end), "{line}");
}

#[test]
fn a_class_that_is_not_echoed_is_no_grant() {
    let node = saying(Ok(Reply::Lease(lease(60_000))));
    let (status, object) = fails(
        &node,
        "lease alloc mem --bytes 4KiB --secs 60 --transport rdma",
    );
    assert_eq!(
        (status, &object["reason"]["code"]),
        (3, &json!("FailedClosed"))
    );
    assert_eq!(node.asked().last(), Some(&Request::LeaseFree(LEASE)));
}

#[test]
fn wrong_arguments_are_told_in_one_line_and_nobody_is_asked() {
    let node = FakeNode::start(granting());
    let lines = [
        ("lease alloc mem --bytes 0 --secs 60", "zero"),
        ("lease alloc mem --bytes 1.5GiB --secs 60", "whole number"),
        ("lease alloc mem --bytes 99999999TiB --secs 60", "16 EiB"),
        ("lease alloc mem --bytes 1MiB --secs 0", "1 second"),
        (
            "lease alloc mem --bytes 1MiB --secs 4294967296",
            "4294967295",
        ),
        ("lease alloc mem --bytes 1MiB", "--secs"),
        (
            "lease alloc mem --bytes 1MiB --secs 1 --transport pigeon",
            "rdma",
        ),
        (
            "lease alloc mem --bytes 1MiB --secs 1 --rdma-peer qpn=1",
            "gid",
        ),
        ("lease alloc cpu --cores 0 --secs 1", "--cores"),
        (
            "lease alloc cpu --cores 1 --secs 1 --isolation total",
            "whole_core",
        ),
        ("lease alloc cpu --cores 65536 --secs 1", "65535"),
        (
            "lease alloc cpu --cores 1 --secs 1 --execution-mode parallel",
            "single_threaded shared_memory",
        ),
        (
            "lease alloc cpu --cores 1 --secs 1 --execution-width 0",
            "from 1 to 65535",
        ),
        (
            "lease alloc cpu --cores 1 --secs 1 --partition member",
            "root or isolated",
        ),
        (
            "lease alloc cpu --cores 1 --secs 1 --grace-secs 1",
            "keeps no contents",
        ),
        ("lease alloc net --mbps 0 --secs 1", "from 1"),
        ("lease alloc net --mbps 1 --secs 1 --vlan 0", "1 to 4094"),
        ("lease alloc net --mbps 1 --secs 1 --vlan 4095", "1 to 4094"),
        (
            "lease alloc net --mbps 1 --secs 1 --mac 01:00:5e:00:00:01",
            "not multicast",
        ),
        (
            "lease alloc net --mbps 1 --secs 1 --hand-over usb",
            "interface netns vfio",
        ),
        (
            "lease alloc net --mbps 1 --secs 1 --grace-secs 1",
            "keeps no contents",
        ),
        (
            "lease alloc net --mbps 1 --secs 1 --affinity rack=r1",
            "STRENGTH:CATEGORY=TARGET",
        ),
        (
            "lease alloc net --mbps 1 --secs 1 --avoid-node 1a1a",
            "node list",
        ),
        ("lease query 123", "32"),
        (
            "lease query 00000000000000000000000000000000",
            "no lease has",
        ),
        ("lease query", "LEASE"),
        (
            "lease rotate 0123456789abcdef0123456789abcdef --overlap-ms 60001",
            "60000",
        ),
        ("identity issue --tenant UPPER --out x", "a-z"),
        (
            "lease rotate 0123456789abcdef0123456789abcdef --overlap-ms x",
            "from 0 to 60000",
        ),
        (
            "lease alloc mem --bytes 1MiB --secs 1 --grace-secs 99999999999",
            "from 0 to 4294967295",
        ),
        (
            "lease alloc mem --bytes 1.5GiB",
            "fabricctl lease alloc mem --help",
        ),
        ("fetch", "fetch"),
        ("--node a:b:c ping", "HOST:PORT"),
    ];
    for (line, hint) in lines {
        let (status, text) = line_of(&node, line);
        assert_eq!(status, 2, "{line}: {text}");
        assert!(text.contains(hint), "{line}: {text}");
        let (status, object) = fails(&node, line);
        assert_eq!((status, &object["error"]), (2, &json!("usage")), "{line}");
    }
    let many = " --affinity avoid:rack=r1".repeat(17);
    let (status, text) = line_of(
        &node,
        &format!("lease alloc mem --bytes 1MiB --secs 1{many}"),
    );
    assert!(status == 2 && text.contains("at most 16"), "{text}");
    let many = format!(" --avoid-node {}", "1a".repeat(32)).repeat(17);
    let (status, text) = line_of(
        &node,
        &format!("lease alloc mem --bytes 1MiB --secs 1{many}"),
    );
    assert!(status == 2 && text.contains("at most 16"), "{text}");
    assert!(node.asked().is_empty());
}

#[test]
fn a_node_that_is_not_there_is_told_as_such() {
    let mut node = FakeNode::start(granting());
    node.crash();
    let (status, object) = fails(&node, "ping --patience-secs 0");
    assert_eq!((status, &object["error"]), (6, &json!("unreachable")));
    assert!(object["message"].as_str().unwrap().contains(&node.addr()));
    let (status, _) = fails(&node, "--node no-such-host.invalid ping");
    assert_eq!(status, 6);
}

#[test]
fn a_connection_that_a_quota_refuses_is_no_outage() {
    let full = Limits {
        connections_per_tenant_max: 0,
        ..Limits::default()
    };
    let node = FakeNode::limited(full, granting());
    let (status, object) = fails(&node, "ping --patience-secs 0");
    assert_eq!(
        (status, &object["reason"]),
        (3, &json!({ "class": "transient", "code": "ResourceBusy" })),
        "{object}"
    );
    let message = object["message"].as_str().unwrap();
    assert!(
        message.contains("too many connections") && !message.contains("cannot reach"),
        "{message}"
    );
    let full = Limits {
        connections_max: 0,
        ..Limits::default()
    };
    let node = FakeNode::limited(full, granting());
    let (status, object) = fails(&node, "ping --patience-secs 0");
    assert_eq!(
        (status, &object["reason"]["code"]),
        (6, &json!("Unavailable")),
        "{object}"
    );
    let message = object["message"].as_str().unwrap();
    assert!(message.contains("is there and refused"), "{message}");
}

#[test]
fn a_reader_that_leaves_is_no_panic_and_no_lost_lease() {
    let node = FakeNode::start(granting());
    let mut alloc = command(&node, "lease alloc mem --bytes 4KiB --secs 60");
    let mut child = alloc
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("given back"),
        "{output:?}"
    );
    assert_eq!(node.asked().last(), Some(&Request::LeaseFree(LEASE)));

    let mut query = command(&node, &format!("lease query {LEASE_TEXT}"));
    let mut child = query
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_full_disk_behind_standard_output_is_told() {
    let node = FakeNode::start(granting());
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut query = command(&node, &format!("lease query {LEASE_TEXT}"));
    let output = query.stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("standard output"),
        "{output:?}"
    );
}
