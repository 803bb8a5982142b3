//! The real program against a node that answers by script: JSON, exit statuses, errors, files.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail as loudly as tests"
)]

#[path = "../../client/tests/common/mod.rs"]
mod common;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Command, Output, Stdio},
    time::SystemTime,
};

use common::{FakeNode, LEASE, RESOURCE, honest, lease, rdma, refuse};
use fabricbios_wire::{
    Answer, Binding, CpuIsolationClass, DpKey, Effective, Endpoint, Epoch, Fence, FlatEntry,
    Generation, GpuExclusivityClass, InventoryExtension, InventoryForm, KvCacheIntent, KvCacheTier,
    LeaseAllocRequest, LeaseError, LeaseId, LeaseInfo, LeasePage, LeasePhase, LeaseStatus, Limits,
    MemArena, NodeId, NodeIdentity, PreviousKey, RdmaBinding, Refusal, RefusalClass, Reply,
    Request, ResourceInventory, ResourceType, RevokeOutcome, Role, Transport,
};
use serde_json::{Value, json};

const LEASE_TEXT: &str = "0123456789abcdef0123456789abcdef";
const RESOURCE_TEXT: &str = "0000000000000000000000000000feed";

fn command(node: &FakeNode, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricctl"));
    command
        .env_clear()
        .env("FABRICBIOS_NODE", node.addr())
        .env("FABRICBIOS_IDENTITY", node.admin())
        .args(line.split_whitespace());
    command
}

fn run(node: &FakeNode, line: &str) -> Output {
    command(node, line).output().unwrap()
}

/// What a command that worked printed as JSON.
fn json_of(node: &FakeNode, line: &str) -> Value {
    let output = run(node, &format!("--json {line}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{line}: {stderr}");
    assert!(stderr.is_empty(), "{line}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text_of(node: &FakeNode, line: &str) -> String {
    let output = run(node, line);
    assert_eq!(output.status.code(), Some(0), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Exit status and error object of a command that did not work.
fn failure(output: &Output) -> (i32, Value) {
    assert!(output.stdout.is_empty(), "{output:?}");
    (
        output.status.code().unwrap(),
        serde_json::from_slice(&output.stderr).unwrap(),
    )
}

fn fails(node: &FakeNode, line: &str) -> (i32, Value) {
    failure(&run(node, &format!("--json {line}")))
}

/// The one line of a command that did not work.
fn line_of(node: &FakeNode, line: &str) -> (i32, String) {
    let output = run(node, line);
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    (output.status.code().unwrap(), text)
}

fn granting() -> impl FnMut(&Request) -> Answer + Send + 'static {
    |request| match request {
        Request::LeaseAlloc(alloc) => Ok(Reply::Lease(LeaseInfo {
            resource_type: alloc.resource_type,
            capacity: alloc.capacity,
            effective: honest(alloc),
            ..lease(60_000)
        })),
        _ => Ok(Reply::Lease(lease(60_000))),
    }
}

fn saying(answer: Answer) -> FakeNode {
    FakeNode::start(move |_: &Request| answer.clone())
}

#[test]
fn the_json_of_a_lease_is_the_contract() {
    let previous = Some(PreviousKey {
        rkey: 0x99,
        remaining_ms: 1_500,
    });
    let info = LeaseInfo {
        grace_ends_unix_ms: 1_800_000_070_000,
        effective: Effective {
            cpu_isolation: Some(CpuIsolationClass::WholeCore),
            gpu_exclusivity: Some(GpuExclusivityClass::SessionExclusive),
            transport: Some(Transport::Rdma),
            rotate_on_renew: true,
        },
        binding: Binding {
            dp_key: Some(DpKey([0xab; 32])),
            udp_endpoint: Some(Endpoint {
                addr: rdma().gid,
                port: 5_702,
            }),
            limits: Some(Limits {
                offset: 4_096,
                length: 1 << 20,
            }),
            rdma: Some(RdmaBinding { previous, ..rdma() }),
        },
        ..lease(60_000)
    };
    let node = saying(Ok(Reply::Lease(info)));
    let expected = json!({
        "lease_id": LEASE_TEXT,
        "resource_id": RESOURCE_TEXT,
        "resource_type": "mem",
        "state": "active",
        "status": "ACTIVE",
        "generation": 1,
        "capacity": 1_048_576,
        "granted_at_unix_ms": 1_800_000_000_000_u64,
        "expires_at_unix_ms": 1_800_000_060_000_u64,
        "renewable_at_unix_ms": 1_800_000_048_000_u64,
        "grace_ends_unix_ms": 1_800_000_070_000_u64,
        "remaining_ms": 60_000,
        "effective": {
            "cpu_isolation": "whole_core",
            "gpu_exclusivity": "session",
            "transport": "rdma",
            "rotate_on_renew": true,
        },
        "binding": {
            "dp_key": "ab".repeat(32),
            "udp_endpoint": "10.0.0.1:5702",
            "limits": { "offset": 4_096, "length": 1_048_576 },
            "rdma": {
                "rkey": 0x1234,
                "remote_addr": 0x7f00_0000_1000_u64,
                "qp_num": 17,
                "gid": "::ffff:10.0.0.1",
                "port": 1,
                "psn": 99,
                "path_mtu": 1_024,
                "strategy": "window",
                "max_rd_atomic": 16,
                "atomics": true,
                "previous": { "rkey": 0x99, "remaining_ms": 1_500 },
            },
        },
    });
    assert_eq!(
        json_of(&node, &format!("lease query {LEASE_TEXT}")),
        expected
    );
}

#[test]
fn absent_parts_are_left_out() {
    let rdma = RdmaBinding {
        rkey: None,
        ..rdma()
    };
    let info = LeaseInfo {
        renewable_at_unix_ms: 0,
        binding: Binding {
            rdma: Some(rdma),
            ..Binding::default()
        },
        ..lease(60_000)
    };
    let node = saying(Ok(Reply::Lease(info)));
    let json = json_of(&node, &format!("lease query {LEASE_TEXT}"));
    for absent in ["renewable_at_unix_ms", "grace_ends_unix_ms"] {
        assert!(json.get(absent).is_none(), "{absent}");
    }
    assert_eq!(json["effective"], json!({ "rotate_on_renew": false }));
    assert_eq!(
        json["binding"]
            .as_object()
            .unwrap()
            .keys()
            .collect::<Vec<_>>(),
        ["rdma"]
    );
    assert!(json["binding"]["rdma"].get("rkey").is_none());
}

#[test]
fn people_get_lines_with_full_ids_and_no_keys() {
    let info = LeaseInfo {
        binding: Binding {
            dp_key: Some(DpKey([0xab; 32])),
            udp_endpoint: Some(Endpoint {
                addr: rdma().gid,
                port: 5_702,
            }),
            ..lease(0).binding
        },
        ..lease(59_500)
    };
    let node = saying(Ok(Reply::Lease(info)));
    let text = text_of(&node, &format!("lease query {LEASE_TEXT}"));
    for part in [
        LEASE_TEXT,
        RESOURCE_TEXT,
        "in 59 s (2027-01-15T08:00:59Z)",
        "0x00001234",
        "1 MiB",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!text.contains("abab"), "{text}");
}

#[test]
fn every_alloc_asks_for_what_its_flags_say() {
    let node = FakeNode::start(granting());
    let lines = [
        "mem --bytes 1MiB --secs 60 --grace-secs 5 --transport rdma --rotate-on-renew \
         --resource 0000000000000000000000000000feed --intent-kv-cache hot,block=64KiB \
         --rdma-peer qpn=0x11,gid=10.0.0.1,psn=7,mtu=1024",
        "block --bytes 1GiB --secs 10 --transport nvme-tcp",
        "net --mbps 100 --secs 10",
        "cpu --cores 4 --secs 10 --isolation WholeCore",
        "gpu --vram 8GiB --secs 10 --exclusivity device",
    ];
    for line in lines {
        json_of(&node, &format!("lease alloc {line}"));
    }
    let asked: Vec<LeaseAllocRequest> = node
        .asked()
        .into_iter()
        .map(|request| match request {
            Request::LeaseAlloc(alloc) => alloc,
            other => panic!("{other:?}"),
        })
        .collect();
    let [mem, block, net, cpu, gpu] = asked.try_into().unwrap();
    assert_eq!(
        (mem.resource_type, mem.capacity, mem.lease_secs),
        (ResourceType::Mem, 1 << 20, 60)
    );
    assert_eq!((mem.grace_secs, mem.resource_id), (5, Some(RESOURCE)));
    assert_eq!(
        (mem.transport, mem.rotate_on_renew),
        (Transport::Rdma, true)
    );
    let intent = KvCacheIntent {
        tier: KvCacheTier::Hot,
        block_bytes: 65_536,
    };
    assert_eq!(mem.kv_cache_intent, Some(intent));
    let peer = mem.rdma_peer.unwrap();
    assert_eq!(
        (peer.qpn, peer.gid, peer.psn, peer.path_mtu),
        (17, rdma().gid, 7, 1_024)
    );
    assert_eq!(
        (block.resource_type, block.transport),
        (ResourceType::Block, Transport::NvmeTcp)
    );
    assert_eq!(
        (net.resource_type, net.capacity),
        (ResourceType::Net, 100_000_000)
    );
    assert_eq!(
        (cpu.capacity, cpu.cpu_isolation),
        (4, Some(CpuIsolationClass::WholeCore))
    );
    assert_eq!(
        gpu.gpu_exclusivity,
        Some(GpuExclusivityClass::DeviceExclusive)
    );
}

#[test]
fn the_other_lease_commands_ask_what_they_say() {
    let node = FakeNode::start(granting());
    for line in [
        "bind 0123456789abcdef0123456789abcdef --rdma-peer qpn=1,gid=::1,psn=2",
        "renew 0123456789abcdef0123456789abcdef --secs 30",
        "renew 0123456789abcdef0123456789abcdef",
        "rotate 0123456789abcdef0123456789abcdef --overlap-ms 250",
        "query 0123456789abcdef0123456789abcdef",
        "free 0123456789abcdef0123456789abcdef",
    ] {
        assert_eq!(
            json_of(&node, &format!("lease {line}"))["lease_id"],
            LEASE_TEXT
        );
    }
    let asked = node.asked();
    assert!(matches!(
        asked[0],
        Request::LeaseBind {
            lease_id: LEASE,
            ..
        }
    ));
    assert_eq!(
        asked[1],
        Request::LeaseRenew {
            lease_id: LEASE,
            lease_secs: 30
        }
    );
    assert_eq!(
        asked[2],
        Request::LeaseRenew {
            lease_id: LEASE,
            lease_secs: 0
        }
    );
    assert_eq!(
        asked[3],
        Request::LeaseRotate {
            lease_id: LEASE,
            overlap_ms: 250
        }
    );
    assert_eq!(asked[4], Request::LeaseQuery(LEASE));
    assert_eq!(asked[5], Request::LeaseFree(LEASE));
}

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
        ("lease query 123", "32"),
        ("lease query", "ID"),
        (
            "lease rotate 0123456789abcdef0123456789abcdef --overlap-ms 60001",
            "60000",
        ),
        ("identity issue --tenant UPPER --out x", "a-z"),
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
    assert!(node.asked().is_empty());
}

#[test]
fn help_is_help_and_later_commands_are_not_promised() {
    let node = FakeNode::start(granting());
    let help = text_of(&node, "--help");
    assert!(
        help.contains("inventory") && help.contains("Exit status"),
        "{help}"
    );
    assert!(!help.contains("mem ") && !help.contains("attach"), "{help}");
    assert!(text_of(&node, "--version").starts_with("fabricctl "));
    assert_eq!(run(&node, "lease").status.code(), Some(2));
}

#[test]
fn identities_that_do_not_do() {
    let node = FakeNode::start(granting());
    let other = FakeNode::start(granting());
    let with = |identity: &str| {
        let mut command = command(&node, "--json fence list");
        failure(
            &command
                .env("FABRICBIOS_IDENTITY", identity)
                .output()
                .unwrap(),
        )
    };
    let code = |(status, object): (i32, Value)| {
        (
            status,
            object["reason"]["code"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(code(with("/no/such/file")), (2, "Identity".into()));
    assert_eq!(code(with("")), (2, "Usage".into()));
    let (_, object) = failure(
        &command(&node, "--json ping")
            .env_remove("FABRICBIOS_IDENTITY")
            .output()
            .unwrap(),
    );
    assert!(
        object["message"]
            .as_str()
            .unwrap()
            .contains("admin.identity")
    );
    assert_eq!(
        code(with(node.expired_identity().to_str().unwrap())),
        (3, "IdentityRefused".into())
    );
    assert_eq!(
        code(with(other.admin().to_str().unwrap())),
        (1, "UntrustedNode".into())
    );
    assert!(node.asked().is_empty());
}

#[test]
fn a_node_that_is_not_there_is_told_as_such() {
    let mut node = FakeNode::start(granting());
    node.crash();
    let (status, object) = fails(&node, "ping");
    assert_eq!((status, &object["error"]), (6, &json!("unreachable")));
    assert!(object["message"].as_str().unwrap().contains(&node.addr()));
    let (status, _) = fails(&node, "--node no-such-host.invalid ping");
    assert_eq!(status, 6);
}

fn inventory(request: &Request) -> Answer {
    let entry = FlatEntry {
        resource_id: RESOURCE,
        resource_type: ResourceType::Mem,
        flags: 0b101,
        capacity: 1 << 30,
        available: 1 << 20,
    };
    let odd = FlatEntry {
        resource_type: ResourceType::Unknown(0x77),
        flags: 0,
        ..entry
    };
    match request {
        Request::GetInventory(InventoryForm::Flat) => Ok(Reply::FlatInventory(vec![
            entry,
            FlatEntry {
                resource_id: fabricbios_wire::ResourceId(1),
                ..odd
            },
        ])),
        Request::GetInventory(InventoryForm::Structured) => {
            Ok(Reply::Inventory(ResourceInventory {
                node_id: NodeId([0xee; 32]),
                epoch: Epoch(3),
                health: 1,
                mem_arenas: vec![MemArena {
                    resource_id: RESOURCE,
                    base: 0,
                    len: 1 << 30,
                    align: 4_096,
                    max_read: 1 << 20,
                    max_write: 1 << 20,
                    health: 0,
                }],
                block_devs: vec![],
                cpu_caps: vec![],
                nics: vec![],
                gpus: vec![],
                extensions: vec![
                    InventoryExtension::Name(RESOURCE, "rxe0".into()),
                    InventoryExtension::Transports(RESOURCE, vec![Transport::Rdma]),
                ],
            }))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_inventory_joins_both_forms() {
    let node = FakeNode::start(inventory);
    let expected = json!({
        "node_id": "ee".repeat(32),
        "epoch": 3,
        "health": "degraded",
        "resources": [
            {
                "resource_id": RESOURCE_TEXT,
                "resource_type": "mem",
                "name": "rxe0",
                "health": "ok",
                "flags": ["fenced", "unknown(0x0004)"],
                "capacity": 1_073_741_824,
                "available": 1_048_576,
                "transports": ["rdma"],
            },
            {
                "resource_id": "00000000000000000000000000000001",
                "resource_type": "unknown(0x0077)",
                "flags": [],
                "capacity": 1_073_741_824,
                "available": 1_048_576,
            },
        ],
    });
    assert_eq!(json_of(&node, "inventory"), expected);
    let text = text_of(&node, "inventory");
    assert!(
        text.contains(RESOURCE_TEXT) && text.contains("1 GiB") && text.contains("rxe0"),
        "{text}"
    );
}

#[test]
fn a_list_is_followed_to_its_end() {
    let node = FakeNode::start(|request: &Request| {
        let Request::LeaseList { after, ended } = request else {
            panic!("{request:?}")
        };
        assert!(ended);
        let id = LeaseId(after.0 + 1);
        let leases = vec![LeaseInfo {
            lease_id: id,
            binding: Binding::default(),
            ..lease(5_000)
        }];
        Ok(Reply::Leases(LeasePage {
            leases,
            next: (id.0 < 3).then_some(id),
        }))
    });
    let json = json_of(&node, "lease list --all");
    let ids: Vec<_> = json["leases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|l| l["lease_id"].clone())
        .collect();
    assert_eq!(
        ids,
        (1..=3_u128)
            .map(|id| json!(LeaseId(id).to_string()))
            .collect::<Vec<_>>()
    );
    assert_eq!(text_of(&node, "lease list --all").lines().count(), 4);
}

#[test]
fn revocations_and_fences() {
    for (outcome, exit) in [
        (RevokeOutcome::TornDown, 0),
        (RevokeOutcome::Fenced, 5),
        (RevokeOutcome::NotFound, 4),
    ] {
        let node = saying(Ok(Reply::Revoked(outcome)));
        let output = run(&node, &format!("lease revoke {LEASE_TEXT}"));
        assert_eq!(output.status.code(), Some(exit), "{outcome}");
    }
    let fence = Fence {
        resource_id: RESOURCE,
        resource_type: ResourceType::Mem,
        lease_id: LEASE,
        since_unix_ms: 1_800_000_000_000,
        reason: "dealloc_mw: EBUSY".into(),
    };
    let node = saying(Ok(Reply::Fences(vec![fence])));
    let expected = json!({ "fences": [{
        "resource_id": RESOURCE_TEXT,
        "resource_type": "mem",
        "lease_id": LEASE_TEXT,
        "since_unix_ms": 1_800_000_000_000_u64,
        "reason": "dealloc_mw: EBUSY",
    }] });
    assert_eq!(json_of(&node, "fence list"), expected);
    assert!(text_of(&node, "fence list").contains("dealloc_mw: EBUSY"));
    let node = saying(Ok(Reply::FenceCleared));
    assert_eq!(
        json_of(&node, &format!("fence clear {RESOURCE_TEXT}"))["cleared"],
        true
    );
    assert_eq!(node.asked(), [Request::FenceClear(RESOURCE)]);
}

#[test]
fn a_free_that_left_something_behind_is_told() {
    let fenced = LeaseInfo {
        phase: LeasePhase::Fenced,
        ..lease(0)
    };
    let node = saying(Ok(Reply::Lease(fenced)));
    let output = run(&node, &format!("lease free {LEASE_TEXT}"));
    assert_eq!(output.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&output.stderr).contains("fence list"));
}

#[test]
fn an_issued_identity_is_private_works_and_overwrites_nothing() {
    let issuer = std::sync::Arc::new(std::sync::Mutex::new(
        None::<std::sync::Arc<fabricbios_control::Ca>>,
    ));
    let signing = std::sync::Arc::clone(&issuer);
    let node = FakeNode::start(move |request: &Request| match request {
        Request::IdentityIssue(request) => signing
            .lock()
            .unwrap()
            .as_ref()
            .unwrap()
            .issue(request, SystemTime::now()),
        Request::GetIdentity => Ok(Reply::Identity(NodeIdentity {
            node_id: NodeId([1; 32]),
            epoch: Epoch(1),
            endpoint: Endpoint {
                addr: rdma().gid,
                port: 5_701,
            },
            tenant: "blue".into(),
            role: Role::Tenant,
            version: "0.1.0".into(),
        })),
        other => panic!("{other:?}"),
    });
    *issuer.lock().unwrap() = Some(node.issuer());
    let out = node.dir().join("blue.identity");
    let issue = format!(
        "identity issue --tenant blue --days 3 --out {}",
        out.display()
    );
    let issued = json_of(&node, &issue);
    assert_eq!(
        (&issued["tenant"], &issued["role"]),
        (&json!("blue"), &json!("tenant"))
    );
    assert_eq!(
        fs::metadata(&out).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let whole = fs::read(&out).unwrap();
    let Request::IdentityIssue(asked) = node.asked().remove(0) else {
        panic!()
    };
    assert_eq!((asked.role, asked.valid_secs), (Role::Tenant, 3 * 86_400));
    let (status, _) = fails(&node, &issue);
    assert_eq!(status, 2);
    assert_eq!(fs::read(&out).unwrap(), whole);
    let mut show = command(&node, "--json identity show");
    let output = show.env("FABRICBIOS_IDENTITY", &out).output().unwrap();
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&shown["tenant"], &shown["role"]),
        (&json!("blue"), &json!("tenant"))
    );
}

#[test]
fn an_identity_that_was_refused_leaves_no_file() {
    let node = saying(refuse(
        LeaseError::NotPermitted,
        RefusalClass::Policy,
        "tenants may not",
    ));
    let out = node.dir().join("blue.identity");
    let (status, _) = fails(
        &node,
        &format!("identity issue --tenant blue --out {}", out.display()),
    );
    assert_eq!(status, 3);
    assert!(!out.exists());
}

#[test]
fn a_watch_prints_each_change_and_ends_with_the_lease() {
    let mut count = 0;
    let node = FakeNode::start(move |_: &Request| {
        count += 1;
        let (generation, phase, status) = match count {
            1..=3 => (1, LeasePhase::Active, LeaseStatus::Active),
            4..=5 => (2, LeasePhase::Active, LeaseStatus::Active),
            6 => (2, LeasePhase::Grace, LeaseStatus::Expired),
            _ => (2, LeasePhase::Expired, LeaseStatus::Expired),
        };
        let generation = Generation(generation);
        Ok(Reply::Lease(LeaseInfo {
            generation,
            phase,
            status,
            remaining_ms: 100 - count,
            ..lease(9)
        }))
    });
    let output = run(
        &node,
        &format!("--json lease watch {LEASE_TEXT} --poll-ms 10"),
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let states: Vec<(u64, String)> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .map(|j: Value| {
            (
                j["generation"].as_u64().unwrap(),
                j["state"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    let expected = [(1, "active"), (2, "active"), (2, "grace"), (2, "expired")];
    assert_eq!(
        states,
        expected.map(|(generation, state)| (generation, state.to_owned()))
    );
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
    let mut ping = command(&node, "ping");
    let output = ping.stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("standard output"),
        "{output:?}"
    );
}
