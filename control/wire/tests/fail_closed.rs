//! Reserved, unknown, repeated, too long and meaningless values are refused with the status that the specification
//! names.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

use fabricbios_wire::*;

/// Reads a LEASE_ALLOC with these params as a node does.
fn alloc(params: &[u8]) -> Result<LeaseAllocRequest, Refusal> {
    let mut frame = encode_request(1, 2, &Request::LeaseAlloc(plain()));
    let length_at = frame.len() - 4;
    frame[length_at..].copy_from_slice(&u32::try_from(params.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(params);
    let payload = u32::try_from(frame.len() - HEADER_LEN).unwrap();
    frame[16..20].copy_from_slice(&payload.to_be_bytes());
    match decode_request(&frame) {
        Ok((_, Request::LeaseAlloc(request))) => Ok(request),
        Ok(other) => panic!("{other:?}"),
        Err(rejected) => Err(rejected.refusal()),
    }
}

fn alloc_error(params: &[u8]) -> Option<Refusal> {
    alloc(params).err()
}

fn plain() -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Mem, 4096, 60)
}

fn tlv(tag: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap();
    [&tag.to_be_bytes()[..], &length.to_be_bytes(), value].concat()
}

fn assert_intent(params: &[u8]) {
    let refusal = alloc_error(params).unwrap_or_else(|| panic!("{params:02x?} was taken"));
    assert_eq!(
        refusal.error,
        LeaseError::InvalidIntent,
        "{params:02x?}: {refusal}"
    );
    assert_eq!(refusal.class, RefusalClass::Permanent);
}

#[test]
fn every_reserved_byte_of_a_one_byte_tag_is_an_invalid_intent() {
    let tags = [
        (tag::LEASE_CPU_ISOLATION, 0..=2),
        (tag::LEASE_GPU_EXCLUSIVITY, 0..=3),
        (tag::LEASE_TRANSPORT, 0..=5),
        (tag::LEASE_ROTATE_ON_RENEW, 0..=1),
        (tag::LEASE_READ_ONLY, 0..=1),
        (tag::LEASE_MUTUAL_AUTH, 0..=1),
        (tag::LEASE_REDIRECT, 0..=1),
        (tag::LEASE_CPU_EXECUTION_MODE, 0..=1),
        (tag::LEASE_CPU_PARTITION, 1..=2),
        (tag::LEASE_GPU_EXECUTION_MODE, 0..=1),
        (tag::NET_HAND_OVER_ASKED, 0..=2),
    ];
    for (tag, defined) in tags {
        for byte in 0..=0xFF {
            let params = tlv(tag, &[byte]);
            match defined.contains(&byte) {
                true => assert_eq!(alloc_error(&params), None, "{tag:04x} {byte:02x}"),
                false => assert_intent(&params),
            }
        }
    }
}

#[test]
fn every_wrong_length_of_a_known_tag_is_an_invalid_intent() {
    let tags = [
        (tag::LEASE_CPU_ISOLATION, 1),
        (tag::LEASE_GPU_EXCLUSIVITY, 1),
        (tag::LEASE_TRANSPORT, 1),
        (tag::LEASE_ROTATE_ON_RENEW, 1),
        (tag::LEASE_READ_ONLY, 1),
        (tag::LEASE_MUTUAL_AUTH, 1),
        (tag::LEASE_REDIRECT, 1),
        (tag::LEASE_CPU_EXECUTION_MODE, 1),
        (tag::LEASE_CPU_EXECUTION_WIDTH, 2),
        (tag::LEASE_CPU_PARTITION, 1),
        (tag::LEASE_GPU_EXECUTION_MODE, 1),
        (tag::LEASE_GPU_COMPUTE_SLICES, 2),
        (tag::NET_MAC_ASKED, 6),
        (tag::NET_VLAN_ASKED, 2),
        (tag::NET_HAND_OVER_ASKED, 1),
        (tag::NVMEOF_HOST_IDENTIFIER, 16),
        (tag::LEASE_INTENT_KV_CACHE, 8),
        (tag::LEASE_REQUEST_TOKEN, 16),
        (tag::RDMA_PEER, 28),
    ];
    for (tag, right) in tags {
        for wrong in (0..300).filter(|length| *length != right) {
            assert_intent(&tlv(tag, &vec![1; wrong]));
        }
        // A length that is longer than the rest of the params.
        assert_intent(&tlv(tag, &vec![1; right])[..right + 3]);
    }
}

#[test]
fn a_tag_given_twice_is_an_invalid_intent_even_when_both_agree() {
    for one in [
        tlv(tag::LEASE_CPU_ISOLATION, &[1]),
        tlv(tag::LEASE_GPU_EXCLUSIVITY, &[1]),
        tlv(tag::LEASE_TRANSPORT, &[1]),
        tlv(tag::LEASE_ROTATE_ON_RENEW, &[1]),
        tlv(tag::LEASE_READ_ONLY, &[1]),
        tlv(tag::LEASE_MUTUAL_AUTH, &[1]),
        tlv(tag::LEASE_REDIRECT, &[1]),
        tlv(tag::LEASE_CPU_EXECUTION_MODE, &[1]),
        tlv(tag::LEASE_CPU_EXECUTION_WIDTH, &[0, 1]),
        tlv(tag::LEASE_CPU_PARTITION, &[1]),
        tlv(tag::LEASE_GPU_EXECUTION_MODE, &[1]),
        tlv(tag::LEASE_GPU_COMPUTE_SLICES, &[0, 1]),
        tlv(tag::NET_MAC_ASKED, &[2, 0, 0, 0, 0, 1]),
        tlv(tag::NET_VLAN_ASKED, &[0, 1]),
        tlv(tag::NET_HAND_OVER_ASKED, &[1]),
        tlv(tag::NVMEOF_HOST, b"nqn.2014-08.org.example:a"),
        tlv(tag::NVMEOF_HOST_IDENTIFIER, &[1; 16]),
        tlv(tag::LEASE_INTENT_KV_CACHE, &[1, 0, 0, 0, 0, 0, 0, 0]),
        tlv(tag::LEASE_REQUEST_TOKEN, &[1; 16]),
    ] {
        assert_eq!(alloc_error(&one), None);
        assert_intent(&[&one[..], &tlv(0x7777, b"between"), &one].concat());
    }
}

#[test]
fn a_message_says_where_which_tag_what_was_expected_and_what_came() {
    let refusal = alloc_error(&tlv(tag::LEASE_CPU_ISOLATION, &[7])).unwrap();
    assert_eq!(
        refusal.message,
        "byte 62, tag 0x0902 (CPU isolation), class: expected 0 to 2, got 7; \
         leave the tag out or give it a defined value once"
    );
}

#[test]
fn queue_pair_coordinates_that_hardware_would_cut_are_refused() {
    let peer = |qpn: u32, psn: u32, mtu: u16| {
        let (qpn, psn) = (qpn.to_be_bytes(), psn.to_be_bytes());
        tlv(
            tag::RDMA_PEER,
            &[&qpn[..], &psn, &[9; 16], &mtu.to_be_bytes(), &[0, 0]].concat(),
        )
    };
    assert_eq!(alloc_error(&peer(U24_MAX, U24_MAX, 4096)), None);
    assert_intent(&peer(0, 0, 1024));
    assert_intent(&peer(U24_MAX + 1, 0, 1024));
    assert_intent(&peer(1, U24_MAX + 1, 1024));
    let accepted: Vec<u16> = (0..=u16::MAX)
        .filter(|mtu| alloc_error(&peer(1, 1, *mtu)).is_none())
        .collect();
    assert_eq!(accepted, [0, 256, 512, 1024, 2048, 4096]);
}

#[test]
fn a_mac_address_is_of_one_interface_and_a_vlan_is_one_that_frames_can_have() {
    let mac = |mac: [u8; 6]| tlv(tag::NET_MAC_ASKED, &mac);
    for first in 0..=0xFF {
        let params = mac([first, 0, 0, 0, 0, 1]);
        match first & 1 {
            0 => assert_eq!(alloc_error(&params), None, "{first:02x}"),
            _ => assert_intent(&params),
        }
    }
    assert_intent(&mac([0; 6]));
    let accepted: Vec<u16> = (0..=u16::MAX)
        .filter(|id| alloc_error(&tlv(tag::NET_VLAN_ASKED, &id.to_be_bytes())).is_none())
        .collect();
    assert_eq!(accepted, (1..=4_094).collect::<Vec<_>>());
}

#[test]
fn an_execution_width_is_at_least_one() {
    let width = |width: u16| tlv(tag::LEASE_CPU_EXECUTION_WIDTH, &width.to_be_bytes());
    assert_intent(&width(0));
    for threads in [1, 2, u16::MAX] {
        let request = alloc(&width(threads)).unwrap();
        let [LeaseTerms::Cpu(cpu)] = &request.foreign[..] else {
            panic!("{request:?}");
        };
        assert_eq!(cpu.width(), threads);
    }
    assert_eq!(CpuTerms::default().width(), 1);
}

#[test]
fn ids_of_zero_and_amounts_of_zero_are_invalid_arguments() {
    let zero = LeaseId(0);
    for request in [
        Request::LeaseQuery(zero),
        Request::LeaseFree(zero),
        Request::LeaseRevoke(zero),
        Request::LeaseRenew {
            lease_id: zero,
            lease_secs: 1,
        },
        Request::LeaseRotate {
            lease_id: zero,
            overlap_ms: 1,
        },
        Request::LeaseRotate {
            lease_id: LeaseId(1),
            overlap_ms: ROTATE_OVERLAP_MS_MAX + 1,
        },
        Request::FenceClear(ResourceId(0)),
        Request::LeaseAlloc(LeaseAllocRequest {
            capacity: 0,
            ..plain()
        }),
        Request::LeaseAlloc(LeaseAllocRequest {
            lease_secs: 0,
            ..plain()
        }),
    ] {
        let error = request.check().unwrap_err();
        assert_eq!(
            error.lease_error(),
            LeaseError::InvalidArgs,
            "{request:?}: {error}"
        );
    }
}

#[test]
fn a_tenant_name_is_one_that_a_certificate_and_a_shell_can_carry() {
    let issue = |tenant: &str, csr: usize| {
        let csr_der = vec![0x30; csr];
        let (tenant, role) = (tenant.to_string(), Role::Tenant);
        Request::IdentityIssue(IssueRequest {
            tenant,
            role,
            valid_secs: 0,
            csr_der,
        })
        .check()
    };
    assert_eq!(issue("team-a_1.x", CSR_BYTES_MAX), Ok(()));
    for bad in ["", "Team", "a b", "a/b", "é", "a\n", &"a".repeat(65)] {
        assert!(issue(bad, 10).is_err(), "{bad:?}");
    }
    assert!(issue("a", 0).is_err());
    assert!(issue("a", CSR_BYTES_MAX + 1).is_err());
}

#[test]
fn a_request_that_does_not_fit_is_never_a_valid_frame() {
    let target = vec![b'x'; 70_000];
    let far = Affinity {
        category: 1,
        strength: 1,
        target_type: 4,
        target,
    };
    let request = Request::LeaseAlloc(LeaseAllocRequest {
        intent: LeaseIntent {
            affinities: vec![far],
            ..LeaseIntent::default()
        },
        ..plain()
    });
    assert!(decode_request(&encode_request(1, 2, &request)).is_err());
    assert!(request.check().is_err());
}

/// A request has terms of its own kind only. Terms of another kind from a peer are kept apart, so that a node can
/// refuse them by name.
#[test]
fn terms_of_another_kind_are_told_apart() {
    let class = tlv(0x0902, &[1]);
    let payload = |kind: u16| {
        let request = LeaseAllocRequest::new(ResourceType::from_code(kind), 1, 1);
        let mut frame = encode_request(0, 0, &Request::LeaseAlloc(request));
        let at = frame.len() - 4;
        frame[at..].copy_from_slice(&u32::try_from(class.len()).unwrap().to_be_bytes());
        [&frame[HEADER_LEN..], &class].concat()
    };
    let isolation = Some(CpuIsolationClass::WholeCore);
    let own = LeaseAllocRequest::parse(&payload(1)).unwrap();
    assert_eq!(
        own.terms,
        CpuTerms {
            isolation,
            ..CpuTerms::default()
        }
        .into()
    );
    assert_eq!(own.foreign, []);
    let of_memory = LeaseAllocRequest::parse(&payload(2)).unwrap();
    assert!(of_memory.terms.is_plain());
    assert_eq!(of_memory.resource_type(), ResourceType::Mem);
    assert_eq!(
        of_memory.foreign,
        [CpuTerms {
            isolation,
            ..CpuTerms::default()
        }
        .into()]
    );
}

#[test]
fn an_affinity_to_a_node_has_a_whole_node_id() {
    assert_intent(&tlv(tag::LEASE_AFFINITY, &[1, 1, 3, 0, 1, b'x']));
}
