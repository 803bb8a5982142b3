//! The values of the vectors. Every field has a different number, so that swapped fields are noticed.

use std::sync::Arc;

use fabricbios_wire::*;

use crate::cases::kinds::{block, cpu, gpu, mem, net};

pub(crate) const LEASE: LeaseId = LeaseId(0x1011_1213_1415_1617_1819_1a1b_1c1d_1e1f);
pub(crate) const ARENA: ResourceId = ResourceId(0x2021_2223_2425_2627_2829_2a2b_2c2d_2e2f);
pub(crate) const NODE: NodeId = NodeId([0x5a; 32]);

pub(crate) const TOKEN: RequestToken = RequestToken(0x3031_3233_3435_3637_3839_3a3b_3c3d_3e3f);

pub(crate) fn gid(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last]
}

pub(crate) fn alloc(resource_type: ResourceType) -> LeaseAllocRequest {
    LeaseAllocRequest {
        grace_secs: 5,
        ..LeaseAllocRequest::new(resource_type, 0x0010_0000, 60)
    }
}

pub(crate) fn full_alloc() -> LeaseAllocRequest {
    LeaseAllocRequest {
        resource_id: Some(ARENA),
        intent: intent(),
        transport: Transport::Rdma,
        rotate_on_renew: true,
        request_token: Some(TOKEN),
        follows_redirect: true,
        tried: tried(),
        explain: true,
        ..alloc(ResourceType::Mem)
    }
    .with_terms(mem::memory_of(vec![mem::peer()]))
    .with_terms(block::block_terms())
    .with_terms(net::net_terms())
    .with_terms(cpu::cpu_terms())
    .with_terms(gpu::gpu(GpuExclusivityClass::SessionExclusive))
}

pub(crate) fn intent() -> LeaseIntent {
    LeaseIntent {
        kv_cache: Some(KvCacheIntent {
            tier: KvCacheTier::Warm,
            block_bytes: 65_536,
        }),
        affinities: affinities(),
    }
}

pub(crate) fn affinities() -> Vec<Affinity> {
    let near = |category, strength, target_type, target: &[u8]| Affinity {
        category,
        strength,
        target_type,
        target: target.to_vec(),
    };
    vec![
        near(1, 1, 1, &ARENA.0.to_be_bytes()),
        near(4, 3, 2, &LEASE.0.to_be_bytes()),
        near(2, 2, 3, &NODE.0),
        near(3, 2, 4, "rack-é".as_bytes()),
        near(5, 2, 4, b"model-7"),
    ]
}

pub(crate) fn tried() -> Vec<Tried> {
    let refused = |last: u8, error, class| Tried {
        node_id: NodeId([last; 32]),
        refused: error,
        class,
    };
    vec![
        refused(9, Some(LeaseError::ResourceBusy), RefusalClass::Transient),
        refused(3, Some(LeaseError::Unavailable), RefusalClass::Permanent),
        refused(9, None, RefusalClass::Transient),
        refused(4, None, RefusalClass::Policy),
    ]
}

pub(crate) fn lease(binding: Binding) -> LeaseInfo {
    LeaseInfo {
        lease_id: LEASE,
        resource_id: ARENA,
        status: LeaseStatus::Active,
        phase: LeasePhase::Active,
        generation: Generation(3),
        capacity: 0x0010_0000,
        granted_at_unix_ms: 1_800_000_000_001,
        expires_at_unix_ms: 1_800_000_060_002,
        renewable_at_unix_ms: 1_800_000_048_003,
        grace_ends_unix_ms: 1_800_000_065_004,
        remaining_ms: 59_005,
        effective: Effective {
            transport: Some(Transport::Rdma),
            ..Effective::default()
        },
        binding,
        tenant: None,
        end: None,
        intent: None,
        request_token: None,
    }
}

pub(crate) fn rdma_lease() -> LeaseInfo {
    let limits = Some(Limits {
        offset: 0,
        length: 0x0010_0000,
    });
    lease(Binding {
        limits,
        kind: KindBinding::Mem(Some(mem::rdma())),
        ..Binding::plain(ResourceType::Mem)
    })
}

pub(crate) fn full_lease() -> LeaseInfo {
    let previous = Some(PreviousKey {
        rkey: 0x1234_5678,
        remaining_ms: 1_500,
    });
    let effective = Effective {
        cpu_isolation: Some(CpuIsolationClass::StrictIsolated),
        gpu_exclusivity: Some(GpuExclusivityClass::DeviceExclusive),
        transport: Some(Transport::Both),
        rotate_on_renew: true,
        read_only: false,
        mutual_auth: false,
        ..Effective::default()
    };
    let binding = Binding {
        dp_key: Some(DpKey(core::array::from_fn(|n| {
            0xe0 ^ u8::try_from(n).unwrap_or(0)
        }))),
        udp_endpoint: Some(Endpoint {
            addr: gid(7),
            port: 5702,
        }),
        limits: Some(Limits {
            offset: 4096,
            length: 0x0010_0000,
        }),
        kind: KindBinding::Mem(Some(RdmaBinding {
            previous,
            further: mem::further(1),
            ..mem::rdma()
        })),
    };
    LeaseInfo {
        effective,
        request_token: Some(TOKEN),
        ..lease(binding)
    }
}

/// A lease that an operator took back, as operators see it.
pub(crate) fn revoked_lease() -> LeaseInfo {
    let step = |step: &str, took_us, found: &str| ProofStep {
        step: step.to_owned().into(),
        took_us,
        found: found.to_owned(),
    };
    LeaseInfo {
        status: LeaseStatus::Revoked,
        phase: LeasePhase::Revoked,
        renewable_at_unix_ms: 0,
        grace_ends_unix_ms: 0,
        remaining_ms: 0,
        tenant: Some("team-a".to_owned()),
        end: Some(Arc::new(LeaseEnd {
            at_unix_ms: 1_800_000_031_006,
            cause: EndCause::Revoked,
            by: Some("anna".to_owned()),
            proof: vec![
                step("dealloc_mw", 312, ""),
                step("destroy_qp", 4_097, "EBUSY, é: asked again"),
                step("restrack", 0x0001_0203, ""),
                step("FBMU PING under its key", 0, "NO_LEASE"),
            ],
            cleaning: vec![
                step("zero memory", 0x0003_0201, "1048576 bytes overwritten, é"),
                step("give back", 7, ""),
            ],
        })),
        ..lease(Binding::plain(ResourceType::Mem))
    }
}

pub(crate) fn entry(resource_type: ResourceType, flags: u16) -> FlatEntry {
    let low = u128::from(resource_type.code());
    FlatEntry {
        resource_id: ResourceId(ARENA.0 ^ low),
        resource_type,
        flags,
        capacity: 0x4000_0000,
        available: 0x3000_0000,
    }
}

pub(crate) fn inventory() -> ResourceInventory {
    let id = |n: u128| ResourceId(ARENA.0 + n);
    ResourceInventory {
        node_id: NODE,
        epoch: Epoch(42),
        health: health::DEGRADED,
        mem_arenas: vec![MemArena {
            resource_id: id(1),
            base: 0x1000,
            len: 0x4000_0000,
            align: 4096,
            max_read: 0x0010_0000,
            max_write: 0x0008_0000,
            health: health::OK,
        }],
        block_devs: vec![BlockDev {
            resource_id: id(2),
            block_size: 512,
            capacity: 0x0100_0000_0000,
            flags: BLOCK_RO | BLOCK_REMOVABLE,
            health: health::DEGRADED,
        }],
        cpu_caps: vec![CpuCap {
            resource_id: id(3),
            cores: 8,
            threads: 16,
            max_mhz: 3_500,
            flags: cpu_flags::CRC32
                | cpu_flags::ARCH_X86_64 << cpu_flags::ARCH_SHIFT
                | 2 << cpu_flags::ISOLATION_SHIFT
                | cpu_flags::TOPOLOGY_COMPLETE
                | cpu_flags::REJECTS_WIDE_SINGLE_THREADED,
            health: health::OK,
        }],
        nics: vec![
            NicInfo {
                resource_id: id(4),
                speed_bps: 100_000_000_000,
                mtu: 9_000,
                flags: NIC_SRIOV | NIC_LINK_UP,
                health: health::OK,
            },
            NicInfo {
                resource_id: id(5),
                speed_bps: 0,
                mtu: 1_500,
                flags: 0,
                health: health::FENCED,
            },
        ],
        gpus: vec![GpuInfo {
            resource_id: id(6),
            vram_bytes: 0x6_0000_0000,
            compute_units: 16_384,
            flags: GPU_CUDA | GPU_MIG,
            health: health::OK,
        }],
        extensions: vec![
            InventoryExtension::Name(id(4), "eth0".into()),
            InventoryExtension::Available(id(1), 0x3000_0000),
            InventoryExtension::Classes {
                resource_id: id(3),
                default: 1,
                supported: vec![0, 1],
            },
            InventoryExtension::Transports(id(1), vec![Transport::Rdma, Transport::Udp]),
            InventoryExtension::FencedPart(id(2), 0x0070_0000),
            InventoryExtension::ClassEnforcement(
                id(3),
                vec![(0, Enforcement::BestEffort), (1, Enforcement::Enforced)],
            ),
            InventoryExtension::ClassAvailable(id(3), vec![(0, 0x0C), (1, 0x0102_0304)]),
            InventoryExtension::Classes {
                resource_id: id(4),
                default: 0,
                supported: vec![],
            },
            InventoryExtension::VirtualFunctions {
                resource_id: id(4),
                total: 0x0001_0207,
                free: 0x0106,
            },
            InventoryExtension::GpuSlots {
                resource_id: id(5),
                compute_slices: 0x0107,
                compute_slices_free: 0x0103,
                session_slots: 8,
                session_slots_free: 5,
                queue_slots: 16,
            },
            InventoryExtension::HealthReason(id(4), "the link's rate is not kept".into()),
            InventoryExtension::HealthReason(ResourceId(0), "the state disk is full".into()),
            InventoryExtension::Limits {
                lease_secs_max: 0x0102_0E10,
                grace_secs_max: 0x0103_003C,
                bare_metal: true,
            },
            InventoryExtension::Admission {
                resource_id: id(5),
                flags: admission_flags::DEVICE | admission_flags::HELD_ALONE,
                forbidden: vec![2, 3],
                most: vec![
                    (admission_most::ALONE, 0, 0x0105_0607),
                    (admission_most::SHARED, 0x0104, 0x0105_0608),
                    (admission_most::SLICES, 3, 7),
                ],
            },
        ],
    }
}
