//! What is reserved, unknown, repeated, too long or meaningless is refused with the word that the
//! specification has for it, and what does not fit a frame never leaves.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

use fabricbios_wire::*;

/// The error of a LEASE_ALLOC whose params are `params`.
fn alloc_error(params: &[u8]) -> Option<Refusal> {
    let mut frame = encode_request(1, 2, &Request::LeaseAlloc(plain()));
    let length_at = frame.len() - 4;
    frame[length_at..].copy_from_slice(&u32::try_from(params.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(params);
    let payload = u32::try_from(frame.len() - HEADER_LEN).unwrap();
    frame[16..20].copy_from_slice(&payload.to_be_bytes());
    decode_request(&frame)
        .err()
        .map(|rejected| rejected.refusal())
}

fn plain() -> LeaseAllocRequest {
    LeaseAllocRequest {
        resource_type: ResourceType::Mem,
        resource_id: None,
        capacity: 4096,
        lease_secs: 60,
        grace_secs: 0,
        kv_cache_intent: None,
        cpu_isolation: None,
        gpu_exclusivity: None,
        affinities: vec![],
        transport: Transport::Auto,
        rotate_on_renew: false,
        rdma_peer: None,
    }
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
        (tag::LEASE_CPU_ISOLATION, 2),
        (tag::LEASE_GPU_EXCLUSIVITY, 3),
        (tag::LEASE_TRANSPORT, 5),
        (tag::LEASE_ROTATE_ON_RENEW, 1),
    ];
    for (tag, last_defined) in tags {
        for byte in 0..=last_defined {
            assert_eq!(
                alloc_error(&tlv(tag, &[byte])),
                None,
                "{tag:04x} {byte:02x}"
            );
        }
        for byte in last_defined + 1..=0xFF {
            assert_intent(&tlv(tag, &[byte]));
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
        (tag::LEASE_INTENT_KV_CACHE, 8),
        (tag::RDMA_PEER, 28),
    ];
    for (tag, right) in tags {
        for wrong in (0..300).filter(|length| *length != right) {
            assert_intent(&tlv(tag, &vec![1; wrong]));
        }
        // A length that runs out of the blob.
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
        tlv(tag::LEASE_INTENT_KV_CACHE, &[1, 0, 0, 0, 0, 0, 0, 0]),
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
fn unknown_tags_are_skipped_and_may_repeat() {
    let unknown = tlv(0x0999, b"from a later version");
    assert_eq!(
        alloc_error(&[&unknown[..], &tlv(0x0902, &[1]), &unknown].concat()),
        None
    );
    let params = [&unknown[..], &tlv(0x0902, &[1])].concat();
    assert_eq!(
        parse_cpu_isolation(&params),
        Ok(Some(CpuIsolationClass::WholeCore))
    );
    assert_eq!(parse_gpu_exclusivity(&params), Ok(None));
}

#[test]
fn an_unknown_tag_that_runs_out_of_the_blob_is_malformed() {
    for params in [
        &[0x09][..],
        &[0x09, 0x99, 0x00],
        &[0x09, 0x99, 0x00, 0x02, 0x01],
    ] {
        assert_eq!(alloc_error(params).unwrap().error, LeaseError::Malformed);
    }
}

#[test]
fn affinities_are_bounded_and_checked() {
    let label =
        |n: usize| tlv(tag::LEASE_AFFINITY, &[&[1, 1, 4, 0, 1][..], b"x"].concat()).repeat(n);
    assert_eq!(
        parse_affinities(&label(AFFINITIES_MAX)).unwrap().len(),
        AFFINITIES_MAX
    );
    assert_intent(&label(AFFINITIES_MAX + 1));
    for value in [
        &[0, 1, 4, 0, 1, b'x'][..],
        &[6, 1, 4, 0, 1, b'x'],
        &[1, 0, 4, 0, 1, b'x'],
        &[1, 4, 4, 0, 1, b'x'],
        &[1, 1, 0, 0, 1, b'x'],
        &[1, 1, 5, 0, 1, b'x'],
        &[1, 1, 4, 0, 2, b'x'],
        &[1, 1, 4, 0, 0],
        &[1, 1, 4, 0, 1, 0xFF],
        &[1, 1, 1, 0, 1, b'x'],
        &[1, 1, 3, 0, 1, b'x'],
        &[1, 1, 4, 0],
    ] {
        assert_intent(&tlv(tag::LEASE_AFFINITY, value));
    }
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
fn versions_flags_and_types_that_are_not_spoken_are_unsupported() {
    let frame = encode_request(1, 2, &Request::Ping(3));
    let unsupported = |at: usize, byte: u8| {
        let mut frame = frame.clone();
        frame[at] = byte;
        let rejected = decode_request(&frame).unwrap_err();
        assert_eq!(
            rejected.refusal().error,
            LeaseError::Unsupported,
            "byte {at} = {byte:02x}"
        );
        let header = rejected.header.expect("a node can answer to it");
        assert_eq!((header.request_id, header.nonce), (1, 2));
    };
    (1..=0xFF).for_each(|version| unsupported(0, version));
    (1..=0xFF).for_each(|flags| unsupported(1, flags));
    let spoken: Vec<u16> = MessageType::ALL.iter().map(|known| *known as u16).collect();
    (0..=0xFF_u8)
        .filter(|low| !spoken.contains(&u16::from(*low)))
        .for_each(|low| unsupported(3, low));
}

#[test]
fn a_length_above_the_limit_is_refused_before_anything_is_read() {
    let mut header = Header {
        msg_type: 1,
        payload_len: 65_536,
        ..Header::default()
    };
    assert!(Header::parse(&header.to_bytes()).is_ok());
    for too_long in [65_537, u32::MAX] {
        header.payload_len = too_long;
        let rejected = Header::parse(&header.to_bytes()).unwrap_err();
        assert_eq!(rejected.refusal().error, LeaseError::Malformed);
    }
}

#[test]
fn fewer_bytes_than_a_header_leave_nobody_to_answer_to() {
    let rejected = decode_request(&[0; HEADER_LEN - 1]).unwrap_err();
    assert_eq!(
        (rejected.header, rejected.refusal().error),
        (None, LeaseError::Malformed)
    );
}

#[test]
fn a_reply_to_something_else_is_not_taken() {
    let asked = Header {
        msg_type: 1,
        request_id: 7,
        nonce: 9,
        ..Header::default()
    };
    let frame = encode_answer(&asked, &Ok(Reply::Pong(1)));
    assert_eq!(decode_answer(&asked, &frame), Ok(Ok(Reply::Pong(1))));
    for other in [
        Header {
            msg_type: 2,
            ..asked
        },
        Header {
            request_id: 8,
            ..asked
        },
        Header { nonce: 8, ..asked },
    ] {
        assert!(decode_answer(&other, &frame).is_err());
    }
    assert!(decode_answer(&asked, &encode_request(7, 9, &Request::Ping(1))).is_err());
}

#[test]
fn an_unknown_message_still_gets_its_refusal() {
    let asked = Header {
        msg_type: 0x7777,
        request_id: 7,
        nonce: 9,
        ..Header::default()
    };
    let rejected = decode_request(&asked.to_bytes()).unwrap_err();
    let reply = encode_answer(&rejected.header.unwrap(), &Err(rejected.refusal()));
    let refusal = decode_answer(&asked, &reply).unwrap().unwrap_err();
    assert_eq!(refusal.error, LeaseError::Unsupported);
}

#[test]
fn an_answer_that_cannot_be_told_becomes_a_refusal() {
    let ask = |message: MessageType| Header {
        msg_type: message as u16,
        ..Header::default()
    };
    let entry = FlatEntry {
        resource_id: ResourceId(1),
        resource_type: ResourceType::Vendor,
        flags: 0,
        capacity: 1,
        available: 0,
    };
    let name = InventoryExtension::Name(ResourceId(1), "n".repeat(255));
    let large = ResourceInventory {
        node_id: NodeId([0; 32]),
        epoch: Epoch(1),
        health: 0,
        mem_arenas: vec![],
        block_devs: vec![],
        cpu_caps: vec![],
        nics: vec![],
        gpus: vec![],
        extensions: vec![name; 300],
    };
    for (message, reply) in [
        (
            MessageType::GetInventory,
            Reply::FlatInventory(vec![entry; FLAT_ENTRIES_MAX + 1]),
        ),
        (
            MessageType::GetInventory,
            Reply::FlatInventory(vec![entry; 70_000]),
        ),
        (MessageType::GetInventory, Reply::Inventory(large)),
        (MessageType::Ping, Reply::FenceCleared),
    ] {
        let frame = encode_answer(&ask(message), &Ok(reply));
        let refusal = decode_answer(&ask(message), &frame).unwrap().unwrap_err();
        assert_eq!(refusal.error, LeaseError::Internal);
    }
    let full = Ok(Reply::FlatInventory(vec![entry; FLAT_ENTRIES_MAX]));
    let frame = encode_answer(&ask(MessageType::GetInventory), &full);
    assert_eq!(
        decode_answer(&ask(MessageType::GetInventory), &frame).unwrap(),
        full
    );
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
        affinities: vec![far],
        ..plain()
    });
    assert!(decode_request(&encode_request(1, 2, &request)).is_err());
    assert!(request.check().is_err());
}

#[test]
fn long_texts_of_a_node_are_cut_at_a_character() {
    let asked = Header {
        msg_type: 1,
        ..Header::default()
    };
    let refusal = Refusal::new(LeaseError::Fenced, RefusalClass::Policy, "é".repeat(1_000));
    let frame = encode_answer(&asked, &Err(refusal));
    let told = decode_answer(&asked, &frame).unwrap().unwrap_err();
    assert_eq!(told.message, "é".repeat(512));
    let odd = Refusal::new(
        LeaseError::Fenced,
        RefusalClass::Policy,
        format!("x{}", "é".repeat(600)),
    );
    let told = decode_answer(&asked, &encode_answer(&asked, &Err(odd)))
        .unwrap()
        .unwrap_err();
    assert_eq!(told.message.len(), 1_023);
}

#[test]
fn the_largest_pages_fit_a_frame() {
    let binding = Binding {
        dp_key: Some(DpKey([1; 32])),
        udp_endpoint: Some(Endpoint {
            addr: [1; 16],
            port: 1,
        }),
        limits: Some(Limits {
            offset: 0,
            length: 1,
        }),
        rdma: Some(RdmaBinding {
            rkey: Some(1),
            remote_addr: 1,
            qp_num: 1,
            gid: [1; 16],
            port: 1,
            psn: 1,
            path_mtu: 4096,
            strategy: RdmaStrategy::Window,
            previous: Some(PreviousKey {
                rkey: 1,
                remaining_ms: 1,
            }),
            max_rd_atomic: 1,
            atomics: true,
        }),
    };
    let lease = LeaseInfo {
        lease_id: LeaseId(1),
        resource_id: ResourceId(1),
        resource_type: ResourceType::Mem,
        status: LeaseStatus::Active,
        phase: LeasePhase::Active,
        generation: Generation(1),
        capacity: 1,
        granted_at_unix_ms: 1,
        expires_at_unix_ms: 1,
        renewable_at_unix_ms: 1,
        grace_ends_unix_ms: 1,
        remaining_ms: 1,
        effective: Effective {
            cpu_isolation: Some(CpuIsolationClass::StrictIsolated),
            gpu_exclusivity: Some(GpuExclusivityClass::Shared),
            transport: Some(Transport::Both),
            rotate_on_renew: true,
        },
        binding,
    };
    let fence = Fence {
        resource_id: ResourceId(1),
        resource_type: ResourceType::Mem,
        lease_id: LeaseId(1),
        since_unix_ms: 1,
        reason: "r".repeat(FENCE_REASON_BYTES_MAX),
    };
    let page = LeasePage {
        leases: vec![lease; LEASES_PER_PAGE_MAX],
        next: Some(LeaseId(1)),
    };
    for (message, reply) in [
        (MessageType::LeaseList, Reply::Leases(page)),
        (
            MessageType::FenceList,
            Reply::Fences(vec![fence; FENCES_MAX]),
        ),
    ] {
        let asked = Header {
            msg_type: message as u16,
            ..Header::default()
        };
        let frame = encode_answer(&asked, &Ok(reply.clone()));
        assert_eq!(decode_answer(&asked, &frame).unwrap(), Ok(reply));
    }
}
