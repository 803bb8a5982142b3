//! The requests that commands send.

use std::mem;

use fabricbios_wire::{
    CpuExecutionMode, CpuIsolationClass, CpuPartition, CpuTerms, Fence, Generation,
    GpuExclusivityClass, GpuExecutionMode, GpuTerms, HandOver, KvCacheIntent, KvCacheTier,
    LeaseAllocRequest, LeaseError, LeaseId, LeaseInfo, LeasePhase, LeaseStatus, NetTerms,
    RefusalClass, Reply, Request, ResourceType, RevokeOutcome, Transport, VlanId,
};
use serde_json::{Value, json};

use crate::{
    LEASE_TEXT, RESOURCE_TEXT,
    common::{FakeNode, LEASE, RESOURCE, lease, rdma, refuse},
    fails, granting, json_of, run, saying, text_of,
};

#[test]
fn every_alloc_asks_for_what_its_flags_say() {
    let node = FakeNode::start(granting());
    let lines = [
        "mem --bytes 1MiB --secs 60 --grace-secs 5 --transport rdma --rotate-on-renew \
         --resource 0000000000000000000000000000feed --intent-kv-cache hot,block=64KiB \
         --rdma-peer qpn=0x11,gid=10.0.0.1,psn=7,mtu=1024",
        "block --bytes 1GiB --secs 10 --transport nvme-tcp",
        "net --mbps 100 --secs 10 --vlan 7 --mac 02:00:00:00:00:07 --hand-over netns",
        "cpu --cores 4 --secs 10 --isolation WholeCore --execution-mode shared_memory \
         --execution-width 4 --partition isolated --affinity near:rack=r12 --affinity avoid:tenant=acme",
        "gpu --vram 8GiB --secs 10 --exclusivity device_exclusive --execution-mode one_shot \
         --compute-slices 3",
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
        (mem.resource_type(), mem.capacity, mem.lease_secs),
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
    assert_eq!(mem.intent.kv_cache, Some(intent));
    let &[peer] = mem.terms.rdma_peers() else {
        panic!("{:?}", mem.terms)
    };
    assert_eq!(
        (peer.qpn, peer.gid, peer.psn, peer.path_mtu),
        (17, rdma().gid, 7, 1_024)
    );
    assert_eq!(
        (block.resource_type(), block.transport),
        (ResourceType::Block, Transport::NvmeTcp)
    );
    let function = NetTerms {
        mac: "02:00:00:00:00:07".parse().ok(),
        vlan: VlanId::new(7),
        hand_over: Some(HandOver::Netns),
    };
    assert_eq!((net.capacity, net.terms), (100_000_000, function.into()));
    let cores = CpuTerms {
        isolation: Some(CpuIsolationClass::WholeCore),
        execution_mode: Some(CpuExecutionMode::SharedMemory),
        execution_width: Some(4),
        partition: Some(CpuPartition::Isolated),
    };
    assert_eq!((cpu.capacity, cpu.terms), (4, cores.into()));
    let affinities: Vec<_> = (cpu.intent.affinities.iter())
        .map(|it| (it.category, it.strength, &it.target[..]))
        .collect();
    assert_eq!(affinities, [(3, 2, &b"r12"[..]), (4, 3, &b"acme"[..])]);
    let device = GpuTerms {
        exclusivity: Some(GpuExclusivityClass::DeviceExclusive),
        execution_mode: Some(GpuExecutionMode::OneShot),
        compute_slices: Some(3),
    };
    assert_eq!((gpu.capacity, gpu.terms), (8 << 30, device.into()));
}

#[test]
fn commands_wait_for_a_node_that_is_busy_and_say_nothing_of_it() {
    let busy_once = || {
        let mut asked = false;
        FakeNode::start(
            move |request: &Request| match mem::replace(&mut asked, true) {
                false => refuse(LeaseError::ResourceBusy, RefusalClass::Transient, "later"),
                true => granting()(request),
            },
        )
    };
    let bind = format!("lease bind {LEASE_TEXT} --rdma-peer qpn=1,gid=::1,psn=2");
    let free = format!("lease free {LEASE_TEXT}");
    for line in ["lease alloc mem --bytes 1MiB --secs 60", &bind, &free] {
        let node = busy_once();
        assert_eq!(json_of(&node, line)["lease_id"], LEASE_TEXT);
        assert_eq!(node.asked().len(), 2, "{line}");
        let (status, object) = fails(&busy_once(), &format!("{line} --patience-secs 0"));
        let code = json!("ResourceBusy");
        assert_eq!((status, &object["reason"]["code"]), (3, &code), "{line}");
    }
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
    let by_itself = Fence {
        lease_id: LeaseId(0),
        reason: "watch health: XID 79".into(),
        ..fence.clone()
    };
    let node = saying(Ok(Reply::Fences(vec![fence, by_itself])));
    let expected = json!({ "fences": [{
        "resource_id": RESOURCE_TEXT,
        "resource_type": "mem",
        "lease_id": LEASE_TEXT,
        "since_unix_ms": 1_800_000_000_000_u64,
        "reason": "dealloc_mw: EBUSY",
    }, {
        "resource_id": RESOURCE_TEXT,
        "resource_type": "mem",
        "lease_id": null,
        "since_unix_ms": 1_800_000_000_000_u64,
        "reason": "watch health: XID 79",
    }] });
    assert_eq!(json_of(&node, "fence list"), expected);
    let text = text_of(&node, "fence list");
    assert!(text.contains("dealloc_mw: EBUSY"), "{text}");
    assert!(text.contains("  none"), "{text}");
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
            // The time is in this century.
            assert!(
                j["seen_at_unix_ms"].as_u64() > Some(1_700_000_000_000),
                "{j}"
            );
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
