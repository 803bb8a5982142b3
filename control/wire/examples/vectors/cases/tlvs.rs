//! The params of a LEASE_ALLOC: every tag and every value.

use fabricbios_wire::*;

use super::*;
use crate::samples;

#[rustfmt::skip] // One case a line.
fn params(c: &mut Vec<Case>, name: &str, about: &str, alloc: &LeaseAllocRequest) {
    let frame = encode_request(0, 0, &Request::LeaseAlloc(alloc.clone()));
    // 20 bytes of the header, 38 bytes of the fixed part.
    let bytes = frame[HEADER_LEN + 38..].to_vec();
    good(c, &format!("tlv_{name}"), Kind::Tlv, about, bytes, json(&smallest_with(alloc)));
}

/// The smallest request for memory with the params of `alloc`.
fn smallest_with(alloc: &LeaseAllocRequest) -> LeaseAllocRequest {
    LeaseAllocRequest {
        resource_id: None,
        capacity: 1,
        lease_secs: 1,
        grace_secs: 0,
        ..alloc.clone()
    }
}

#[rustfmt::skip] // One case a line.
pub(crate) fn tlvs(c: &mut Vec<Case>) {
    let plain = samples::alloc(ResourceType::Mem);
    params(c, "none", "no TLVs: every default", &plain);
    params(c, "all", "every tag, in ascending order", &samples::full_alloc());
    for class in CpuIsolationClass::ALL {
        let alloc = plain.clone().with_terms(samples::cpu(*class));
        params(c, &format!("cpu_isolation_{class}"), "002 §2.1", &alloc);
    }
    for class in GpuExclusivityClass::ALL {
        let alloc = plain.clone().with_terms(samples::gpu(*class));
        params(c, &format!("gpu_exclusivity_{class}"), "003 §2.1", &alloc);
    }
    let alloc = plain.clone().with_terms(samples::full_gpu());
    params(c, "gpu_full", "everything that can be asked of a GPU", &alloc);
    for mode in GpuExecutionMode::ALL {
        let terms = GpuTerms {
            execution_mode: Some(*mode),
            ..GpuTerms::default()
        };
        let alloc = plain.clone().with_terms(terms);
        params(c, &format!("gpu_execution_mode_{mode}"), "001 §5.2", &alloc);
    }
    for tier in KvCacheTier::ALL {
        let intent = KvCacheIntent {
            tier: *tier,
            block_bytes: 0x0001_0203,
        };
        let alloc = LeaseAllocRequest {
            intent: LeaseIntent {
                kv_cache: Some(intent),
                ..LeaseIntent::default()
            },
            ..plain.clone()
        };
        params(c, &format!("kv_cache_{tier}"), "KV cache intent", &alloc);
    }
    for transport in Transport::ALL.iter().filter(|it| **it != Transport::Auto) {
        let alloc = LeaseAllocRequest {
            transport: *transport,
            ..plain.clone()
        };
        params(c, &format!("transport_{transport}"), "transport", &alloc);
    }
    let alloc = LeaseAllocRequest {
        intent: LeaseIntent {
            affinities: samples::affinities(),
            ..LeaseIntent::default()
        },
        ..plain.clone()
    };
    params(c, "affinities", "every category, strength and target type, in order", &alloc);
    let alloc = plain.clone().with_terms(samples::memory_of(vec![samples::peer()]));
    params(c, "rdma_peer", "a client's queue pair", &alloc);
    let alloc = plain.clone().with_terms(samples::memory_of(samples::peers(RDMA_PEERS_MAX)));
    params(c, "rdma_peers_8", "as many queue pairs as a lease can have", &alloc);
    let alloc = LeaseAllocRequest {
        rotate_on_renew: true,
        ..plain.clone()
    };
    params(c, "rotate_on_renew_01", "the client follows key changes", &alloc);
    block(c, &plain);
    cpu(c, &plain);
    net(c, &plain);
    accepted(c, &plain);
}

#[rustfmt::skip] // One case a line.
fn cpu(c: &mut Vec<Case>, plain: &LeaseAllocRequest) {
    let none = CpuTerms::default;
    let mut add = |name: &str, about: &str, terms: CpuTerms| {
        params(c, &format!("cpu_{name}"), about, &plain.clone().with_terms(terms));
    };
    add("all", "all that is asked of CPU cores", samples::cpu_terms());
    for mode in CpuExecutionMode::ALL {
        let terms = CpuTerms { execution_mode: Some(*mode), ..none() };
        add(&format!("execution_mode_{mode}"), "001, execution mode", terms);
    }
    for width in [1, 0x0102, u16::MAX] {
        let terms = CpuTerms { execution_width: Some(width), ..none() };
        add(&format!("execution_width_{width}"), "threads that run at once", terms);
    }
    for partition in [CpuPartition::Root, CpuPartition::Isolated] {
        let terms = CpuTerms { partition: Some(partition), ..none() };
        add(&format!("partition_{partition}"), "a partition of cgroup v2", terms);
    }
}

#[rustfmt::skip] // One case a line.
fn net(c: &mut Vec<Case>, plain: &LeaseAllocRequest) {
    let none = NetTerms::default;
    let mut add = |name: &str, about: &str, terms: NetTerms| {
        params(c, &format!("net_{name}"), about, &plain.clone().with_terms(terms));
    };
    add("all", "all that is asked of a network function", samples::net_terms());
    add("mac", "a MAC address alone", NetTerms { mac: samples::net_terms().mac, ..none() });
    for vlan in [1, 4_094] {
        let terms = NetTerms { vlan: VlanId::new(vlan), ..none() };
        add(&format!("vlan_{vlan}"), "the first and the last VLAN", terms);
    }
    for hand_over in HandOver::ALL {
        let terms = NetTerms { hand_over: Some(*hand_over), ..none() };
        add(&format!("hand_over_{hand_over}"), "how the tenant gets it", terms);
    }
}

#[rustfmt::skip] // One case a line.
fn block(c: &mut Vec<Case>, plain: &LeaseAllocRequest) {
    let with = |block: BlockTerms| plain.clone().with_terms(block);
    let all = samples::block_terms();
    params(c, "block_all", "all that is asked of block storage", &with(all.clone()));
    let longest = samples::nqn(&format!("nqn.2026-12.org.example:{:a<199}", ""));
    let named = BlockTerms { host_nqn: longest, ..BlockTerms::default() };
    params(c, "host_nqn_223", "the longest NQN", &with(named));
    let host = BlockTerms { host_id: all.host_id, ..BlockTerms::default() };
    params(c, "host_id", "a host identifier alone", &with(host));
    let read_only = BlockTerms { read_only: true, ..BlockTerms::default() };
    params(c, "read_only_01", "nothing can be written", &with(read_only));
    let mutual_auth = BlockTerms { mutual_auth: true, ..BlockTerms::default() };
    params(c, "mutual_auth_01", "the node proves itself too", &with(mutual_auth));
}

/// Params that a decoder accepts and an encoder does not write.
#[rustfmt::skip] // One case a line.
fn accepted(c: &mut Vec<Case>, plain: &LeaseAllocRequest) {
    let mut add = |name: &str, about: &str, bytes: Vec<u8>, alloc: &LeaseAllocRequest| {
        let (name, about) = (format!("tlv_{name}"), about.to_owned());
        let expect = Expect::Accepted(json(&smallest_with(alloc)));
        c.push(Case {
            name,
            kind: Kind::Tlv,
            about,
            bytes,
            expect,
        });
    };
    add("rotate_on_renew_00", "0 says the same as no TLV", tlv(0x0905, &[0]), plain);
    add("read_only_00", "0 says the same as no TLV", tlv(0x0906, &[0]), plain);
    add("mutual_auth_00", "0 says the same as no TLV", tlv(0x0907, &[0]), plain);
    add("transport_auto", "0 says the same as no TLV", tlv(0x0904, &[0]), plain);
    let unknown = [
        tlv(0x0999, b"later"),
        tlv(0x7777, &[]),
        tlv(0x0999, b"again"),
    ]
    .concat();
    add("unknown_skipped", "unknown tags are skipped, also when they repeat", unknown, plain);
    let elsewhere = [
        tlv(0x0102, &[7]),
        tlv(0x0403, &[1; 6]),
        tlv(0x0605, &[]),
        tlv(0x090B, &[9]),
        tlv(0x0A01, &[9]),
        tlv(0x0102, &[]),
    ]
    .concat();
    let about = "tags that are known in other areas are skipped like unknown ones";
    add("known_elsewhere", about, elsewhere, plain);
    let cpu = samples::cpu(CpuIsolationClass::WholeCore);
    let gpu = samples::gpu(GpuExclusivityClass::Shared);
    let both = plain.clone().with_terms(cpu).with_terms(gpu);
    let mixed = [
        tlv(0x0903, &[0]),
        tlv(0x0999, b"between"),
        tlv(0x0902, &[1]),
    ]
    .concat();
    add("any_order", "descending tags, an unknown one between", mixed, &both);
}
