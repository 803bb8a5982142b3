//! The params of a LEASE_ALLOC: every tag and every value.

use fabricbios_wire::*;

use super::*;
use crate::samples;

#[rustfmt::skip] // One case a line.
pub(super) fn params(c: &mut Vec<Case>, name: &str, about: &str, alloc: &LeaseAllocRequest) {
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
    let alloc = LeaseAllocRequest {
        rotate_on_renew: true,
        ..plain.clone()
    };
    params(c, "rotate_on_renew_01", "the client follows key changes", &alloc);
    let alloc = LeaseAllocRequest {
        request_token: Some(samples::TOKEN),
        ..plain.clone()
    };
    params(c, "request_token", "a repeat with this token gets the same lease", &alloc);
    let alloc = LeaseAllocRequest {
        follows_redirect: true,
        ..plain.clone()
    };
    params(c, "redirect_01", "the client follows a redirect", &alloc);
    let alloc = LeaseAllocRequest {
        explain: true,
        ..plain.clone()
    };
    params(c, "explain_01", "the scheduler explains its answer", &alloc);
    let alloc = LeaseAllocRequest {
        tried: samples::tried(),
        ..plain.clone()
    };
    params(c, "tried", "who was tried and what they said, in order, one of them twice", &alloc);
    let alloc = LeaseAllocRequest {
        tried: vec![samples::tried()[0]; TRIED_MAX],
        ..plain.clone()
    };
    params(c, "tried_16", "as many as a request can have", &alloc);
    accepted(c, &plain);
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
    add("explain_00", "0 says the same as no TLV", tlv(0x0912, &[0]), plain);
    add("redirect_00", "0 says the same as no TLV", tlv(0x090F, &[0]), plain);
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
    let cpu = kinds::cpu::cpu(CpuIsolationClass::WholeCore);
    let gpu = kinds::gpu::gpu(GpuExclusivityClass::Shared);
    let both = plain.clone().with_terms(cpu).with_terms(gpu);
    let mixed = [
        tlv(0x0903, &[0]),
        tlv(0x0999, b"between"),
        tlv(0x0902, &[1]),
    ]
    .concat();
    add("any_order", "descending tags, an unknown one between", mixed, &both);
}
