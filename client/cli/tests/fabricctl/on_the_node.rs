//! Leases that are used on the node: CPU cores and network functions.

use fabricbios_wire::{Enforcement, LeaseError, LeasePhase, RefusalClass, Reply, Request};
use serde_json::json;

use crate::{
    LEASE_TEXT,
    common::{FakeNode, granted, lease, refuse},
    fails, granting, json_of, line_of, saying, text_of,
};

#[test]
fn the_json_of_cores_is_the_contract() {
    let node = FakeNode::start(granting());
    let line = "lease alloc cpu --cores 2 --secs 60";
    let json = json_of(
        &node,
        &format!(
            "{line} --isolation whole_core --execution-mode shared_memory --execution-width 2 --partition isolated"
        ),
    );
    let binding = json!({ "cpu": {
        "cpus": "2-3,6",
        "cgroup": "/sys/fs/cgroup/fabricbios.slice/lease-1",
        "partition": "isolated",
        "memory_nodes": "0",
    } });
    assert_eq!(json["binding"], binding);
    let effective = json!({
        "cpu_isolation": "whole_core",
        "rotate_on_renew": false,
        "cpu_execution_mode": "shared_memory",
        "cpu_execution_width": 2,
        "cpu_partition": "isolated",
    });
    assert_eq!(json["effective"], effective);
    let shared = json_of(&node, &format!("{line} --isolation best_effort"));
    let text = text_of(&node, &format!("{line} --isolation best_effort"));
    assert!(text.contains("at most the time of 1.00 CPUs"), "{text}");
    let cpu = &shared["binding"]["cpu"];
    assert_eq!(cpu["partition"], "member");
    let quota = json!({ "quota_us": 100_000, "period_us": 100_000 });
    assert_eq!(cpu["quota"], quota);
}

#[test]
fn the_json_of_a_network_function_is_the_contract() {
    let node = FakeNode::start(granting());
    let line = "lease alloc net --mbps 100 --secs 60";
    let json = json_of(&node, &format!("{line} --vlan 7 --mac 02:00:00:00:00:07"));
    let binding = json!({ "net": {
        "pci_bdf": "0000:01:10.1",
        "ifname": "fb0",
        "mac": "02:00:00:00:00:07",
        "vlan": 7,
        "max_tx_mbps": 100,
        "hand_over": "interface",
    } });
    assert_eq!(json["binding"], binding);
    assert_eq!(json["effective"]["net_rate"], "enforced");
    let json = json_of(&node, &format!("{line} --hand-over vfio"));
    let binding = json!({ "net": {
        "pci_bdf": "0000:01:10.1",
        "mac": "02:00:00:00:00:01",
        "max_tx_mbps": 100,
        "hand_over": "vfio",
        "vfio_group": 12,
        "cdi_device": "fabricbios.dev/net=lease-1",
    } });
    assert_eq!(json["binding"], binding);
}

#[test]
fn intents_are_told_beside_what_is_enforced() {
    let node = FakeNode::start(granting());
    let line = "lease alloc mem --bytes 4KiB --secs 60 --intent-kv-cache hot,block=64KiB \
                --affinity near:rack=r12 --affinity avoid:resource=0000000000000000000000000000feed";
    let json = json_of(&node, line);
    let intent = json!({
        "kv_cache": { "tier": "hot", "block_bytes": 65_536 },
        "affinities": [
            { "strength": "preferred", "category": "rack", "target": "r12" },
            { "strength": "avoid", "category": "resource", "target": "0000000000000000000000000000feed" },
        ],
    });
    assert_eq!(json["intent"], intent);
    assert_eq!(
        json["effective"],
        json!({ "transport": "auto", "rotate_on_renew": false })
    );
    let text = text_of(&node, line);
    let row = "\nintent     KV cache hot, blocks of 64 KiB, preferred:rack=r12, avoid:resource=";
    assert!(text.contains(row), "{text}");
    let plain = json_of(&node, "lease alloc mem --bytes 4KiB --secs 60");
    assert!(plain.get("intent").is_none(), "{plain}");
}

#[test]
fn the_text_says_how_to_use_the_lease() {
    let node = FakeNode::start(granting());
    let cases = [
        (
            "cpu --cores 2",
            format!("if it has a local socket: `fabricctl run --lease {LEASE_TEXT} -- COMMAND`"),
        ),
        (
            "net --mbps 1 --hand-over netns",
            format!("if it has a local socket: `fabricctl lease enter {LEASE_TEXT} --netns PATH`"),
        ),
        ("net --mbps 1", "interface fb0".to_owned()),
        (
            "net --mbps 1 --hand-over vfio",
            "/dev/vfio/12; in a container, `podman run --device fabricbios.dev/net=lease-1 …`"
                .to_owned(),
        ),
    ];
    for (line, part) in cases {
        let text = text_of(&node, &format!("lease alloc {line} --secs 60"));
        assert!(text.contains(&part), "{part} in\n{text}");
        assert!(text.contains("\nuse "), "{text}");
    }
}

#[test]
fn a_lease_that_is_not_active_cannot_be_used() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::LeaseAlloc(alloc) => {
            let mut info = granted(alloc);
            info.phase = LeasePhase::Binding;
            Ok(Reply::Lease(info))
        }
        _ => Ok(Reply::Lease(lease(0))),
    });
    let text = text_of(&node, "lease alloc cpu --cores 1 --secs 60");
    assert!(
        text.contains("\ncpus ") && !text.contains("\nuse "),
        "{text}"
    );
}

#[test]
fn a_rate_that_is_best_effort_is_told() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::LeaseAlloc(alloc) => {
            let mut info = granted(alloc);
            info.effective.net_rate = Some(Enforcement::BestEffort);
            Ok(Reply::Lease(info))
        }
        _ => Ok(Reply::Lease(lease(0))),
    });
    let line = "lease alloc net --mbps 100 --secs 60";
    let text = text_of(&node, line);
    assert!(text.contains("\nbest effort  transmit rate"), "{text}");
    assert_eq!(json_of(&node, line)["effective"]["net_rate"], "best_effort");
    let honest = text_of(&FakeNode::start(granting()), line);
    assert!(!honest.contains("best effort"), "{honest}");
}

#[test]
fn another_network_function_than_asked_for_is_given_back() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::LeaseAlloc(alloc) => {
            let mut other = alloc.clone();
            other.terms = fabricbios_wire::NetTerms::default().into();
            Ok(Reply::Lease(granted(&other)))
        }
        _ => Ok(Reply::Lease(lease(0))),
    });
    let (status, line) = line_of(&node, "lease alloc net --mbps 100 --secs 60 --vlan 7");
    assert!(status == 3 && line.contains("VLAN 7"), "{line}");
}

/// The refusal in the specification names a tag; this program shows the flag instead.
#[test]
fn a_bare_metal_node_that_refuses_a_width_is_answered_with_flags() {
    let text = "wider CPU lease not accepted: capacity=4 execution_width=1; use TLV_LEASE_CPU_ISOLATION \
                to request isolation explicitly, or reduce capacity to match execution width.";
    let node = saying(refuse(
        LeaseError::InvalidArgs,
        RefusalClass::Permanent,
        text,
    ));
    let (status, object) = fails(&node, "lease alloc cpu --cores 4 --secs 60");
    let message = object["message"].as_str().unwrap();
    assert_eq!(status, 3);
    for part in [
        "match execution width; ask for as many cores as --execution-width",
        "--execution-width",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn leases_without_contents_have_no_grace_time() {
    let node = FakeNode::start(granting());
    for (kind, has) in [
        ("mem", true),
        ("block", true),
        ("cpu", false),
        ("net", false),
        ("gpu", false),
    ] {
        let help = text_of(&node, &format!("lease alloc {kind} --help"));
        assert_eq!(help.contains("--grace-secs"), has, "{help}");
    }
}
