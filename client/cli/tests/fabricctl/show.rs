//! The output, as JSON and for people.

use fabricbios_wire::{
    Binding, DpKey, Effective, Endpoint, KindBinding, LeaseId, LeaseInfo, LeasePage, Limits,
    PreviousKey, RdmaBinding, RdmaQueuePair, Reply, Request, ResourceType, Transport,
};
use serde_json::json;

use crate::{
    LEASE_TEXT, RESOURCE_TEXT,
    common::{FakeNode, lease, rdma},
    fails, granting, json_of, run, saying, text_of,
};

#[test]
fn the_json_of_a_lease_is_the_contract() {
    let previous = Some(PreviousKey {
        rkey: 0x99,
        remaining_ms: 1_500,
    });
    let info = LeaseInfo {
        grace_ends_unix_ms: 1_800_000_070_000,
        effective: Effective {
            transport: Some(Transport::Rdma),
            rotate_on_renew: true,
            ..Effective::default()
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
            kind: KindBinding::Mem(Some(RdmaBinding { previous, ..rdma() })),
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
                "gid": "0000:0000:0000:0000:0000:ffff:0a00:0001",
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
fn several_queue_pairs_are_all_told() {
    let further = vec![RdmaQueuePair {
        qp_num: 18,
        psn: 100,
        rkey: 0x5678,
    }];
    let info = LeaseInfo {
        binding: Binding {
            kind: KindBinding::Mem(Some(RdmaBinding { further, ..rdma() })),
            ..Binding::plain(ResourceType::Mem)
        },
        ..lease(60_000)
    };
    let node = saying(Ok(Reply::Lease(info)));
    let query = format!("lease query {LEASE_TEXT}");
    let json = json_of(&node, &query);
    assert_eq!(json["binding"]["rdma"]["qp_num"], 17);
    let expected = json!([
        { "qp_num": 17, "psn": 99, "rkey": 0x1234 },
        { "qp_num": 18, "psn": 100, "rkey": 0x5678 },
    ]);
    assert_eq!(json["binding"]["rdma"]["qps"], expected);
    let text = text_of(&node, &query);
    assert!(text.contains("qp 18 psn 100 rkey 0x00005678"), "{text}");
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
            kind: KindBinding::Mem(Some(rdma)),
            ..Binding::plain(ResourceType::Mem)
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
fn every_time_in_the_help_has_its_unit() {
    let node = FakeNode::start(granting());
    let commands = ["mem", "block", "net", "cpu", "gpu"].map(|kind| format!("lease alloc {kind}"));
    for command in commands.iter().map(String::as_str).chain(["lease renew"]) {
        let help = text_of(&node, &format!("{command} --help"));
        assert!(help.contains("--secs <SECS>"), "{help}");
        assert!(help.contains("in seconds"), "{help}");
    }
    for command in ["lease rotate", "lease watch"] {
        let help = text_of(&node, &format!("{command} --help"));
        assert!(
            help.contains("-ms <MS>") && help.contains("in milliseconds"),
            "{help}"
        );
    }
}

#[test]
fn what_a_rotation_did_stands_in_the_columns_of_the_lease() {
    let node = FakeNode::start(granting());
    let told = text_of(&node, &format!("lease rotate {LEASE_TEXT}"));
    let column = |name: &str| {
        let line = told.lines().find(|line| line.starts_with(name)).unwrap();
        line.len() - line[name.len()..].trim_start().len()
    };
    assert_eq!(column("keys"), column("state"), "{told}");
}

#[test]
fn help_is_help_and_what_is_not_for_people_is_not_in_it() {
    let node = FakeNode::start(granting());
    let help = text_of(&node, "--help");
    assert!(
        help.contains("inventory") && help.contains("Exit status"),
        "{help}"
    );
    let block = text_of(&node, "block --help");
    assert!(
        block.contains("attach") && block.contains("detach") && !block.contains("keep "),
        "{block}"
    );
    let version = text_of(&node, "--version");
    let words: Vec<&str> = version.split_whitespace().collect();
    let [name, _, "(commit", commit] = words[..] else {
        panic!("{version}")
    };
    assert!(name == "fabricctl" && commit.len() > ")".len(), "{version}");
    assert_eq!(run(&node, "lease").status.code(), Some(2));
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
            binding: Binding::plain(ResourceType::Mem),
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
fn a_list_of_leases_that_never_ends_is_not_read_for_ever() {
    let mut pages = 0;
    let node = FakeNode::start(move |request: &Request| match request {
        Request::LeaseList { .. } => {
            pages += 1;
            Ok(Reply::Leases(LeasePage {
                leases: vec![],
                next: Some(LeaseId(pages)),
            }))
        }
        other => panic!("{other:?}"),
    });
    let (_, error) = fails(&node, "lease list");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains(&node.addr()) && message.contains("an empty page before the last one"),
        "{message}"
    );
}
