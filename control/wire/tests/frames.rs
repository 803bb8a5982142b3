//! Headers, answers and limits: a frame that is not for this side, or does not fit, is refused or reported.

use std::sync::Arc;

use fabricbios_wire::*;

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
fn an_operation_of_a_session_is_no_message_and_the_refusal_says_where_it_goes() {
    let mut frame = encode_request(1, 2, &Request::Ping(3));
    for code in 0x0600..=0x060E_u16 {
        frame[2..4].copy_from_slice(&code.to_be_bytes());
        let refusal = decode_request(&frame).unwrap_err().refusal();
        assert_eq!(refusal.error, LeaseError::Unsupported, "{code:04x}");
        let is_one = (0x0601..=0x060D).contains(&code);
        assert_eq!(
            refusal.message.contains("GPU_SESSION_OPEN"),
            is_one,
            "{refusal}"
        );
        assert_eq!(GpuMessageType::from_code(code).is_some(), is_one);
    }
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
fn the_largest_answers_fit_a_frame() {
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
        kind: KindBinding::Mem(Some(RdmaBinding {
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
            further: vec![
                RdmaQueuePair {
                    qp_num: 1,
                    psn: 1,
                    rkey: 1,
                };
                RDMA_QUEUE_PAIRS_MAX - 1
            ],
            prepared_rkey: Some(1),
            attach: None,
        })),
    };
    let step = ProofStep {
        step: "s".repeat(PROOF_STEP_BYTES_MAX).into(),
        took_us: 1,
        found: "f".repeat(PROOF_FOUND_BYTES_MAX),
    };
    let lease = LeaseInfo {
        lease_id: LeaseId(1),
        resource_id: ResourceId(1),
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
            read_only: true,
            mutual_auth: true,
            cpu_execution_mode: Some(CpuExecutionMode::SharedMemory),
            cpu_execution_width: Some(1),
            cpu_partition: Some(CpuPartition::Root),
            net_rate: Some(Enforcement::Enforced),
            gpu_execution_mode: Some(GpuExecutionMode::Session),
            gpu_compute_slices: Some(1),
        },
        binding,
        tenant: Some("t".repeat(TENANT_BYTES_MAX)),
        end: Some(Arc::new(LeaseEnd {
            at_unix_ms: 1,
            cause: EndCause::Revoked,
            by: Some("o".repeat(TENANT_BYTES_MAX)),
            proof: vec![step.clone(); PROOF_STEPS_MAX],
            cleaning: vec![step; CLEANING_STEPS_MAX],
        })),
        request_token: Some(RequestToken(1)),
        intent: Some(Box::new(LeaseIntent {
            kv_cache: Some(KvCacheIntent {
                tier: KvCacheTier::Hot,
                block_bytes: 1,
            }),
            affinities: vec![
                Affinity {
                    category: 1,
                    strength: 1,
                    target_type: 4,
                    target: vec![b'x'; AFFINITY_TARGET_BYTES_MAX],
                };
                AFFINITIES_MAX
            ],
        })),
    };
    let every_second = || CpuRange::of((0..CPU_RANGES_MAX).map(|n| 2 * u16::try_from(n).unwrap()));
    let cores = LeaseInfo {
        binding: Binding {
            kind: KindBinding::Cpu(Some(Box::new(CpuBinding {
                cpus: every_second(),
                cgroup: "/".repeat(CPU_CGROUP_BYTES_MAX),
                partition: CpuPartition::Root,
                memory_nodes: every_second(),
                quota: None,
            }))),
            ..Binding::plain(ResourceType::Cpu)
        },
        end: None,
        ..lease.clone()
    };
    // Leases in lists have neither keys nor intents nor proofs.
    let mut listed = LeaseInfo {
        binding: Binding::plain(ResourceType::Mem),
        intent: None,
        ..lease.clone()
    };
    listed.end.iter_mut().map(Arc::make_mut).for_each(|end| {
        end.proof.clear();
        end.cleaning.clear();
    });
    let fence = Fence {
        resource_id: ResourceId(1),
        resource_type: ResourceType::Mem,
        lease_id: LeaseId(1),
        since_unix_ms: 1,
        reason: "r".repeat(FENCE_REASON_BYTES_MAX),
    };
    let page = LeasePage {
        leases: vec![listed; LEASES_PER_PAGE_MAX],
        next: Some(LeaseId(1)),
    };
    let alive = LeaseInfo {
        end: None,
        ..lease.clone()
    };
    let asked = |message: MessageType| Header {
        msg_type: message as u16,
        ..Header::default()
    };
    let short = encode_answer(&asked(MessageType::Ping), &Ok(Reply::Pong(1)));
    let frame = encode_answer(
        &asked(MessageType::LeaseQuery),
        &Ok(Reply::Lease(alive.clone())),
    );
    let grew = "a buffer that grows leaves a copy of the key behind";
    assert_eq!(frame.capacity(), short.capacity(), "{grew}");
    for (message, reply) in [
        (MessageType::LeaseQuery, Reply::Lease(lease)),
        (MessageType::LeaseQuery, Reply::Lease(alive)),
        (MessageType::LeaseQuery, Reply::Lease(cores)),
        (MessageType::LeaseList, Reply::Leases(page)),
        (
            MessageType::FenceList,
            Reply::Fences(vec![fence; FENCES_MAX]),
        ),
    ] {
        let asked = asked(message);
        let frame = encode_answer(&asked, &Ok(reply.clone()));
        assert_eq!(decode_answer(&asked, &frame).unwrap(), Ok(reply));
    }
}
