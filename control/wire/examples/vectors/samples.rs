//! The values of the vectors. Every field has a different number, so that swapped fields are noticed.

use fabricbios_wire::*;

pub(crate) const LEASE: LeaseId = LeaseId(0x1011_1213_1415_1617_1819_1a1b_1c1d_1e1f);
pub(crate) const ARENA: ResourceId = ResourceId(0x2021_2223_2425_2627_2829_2a2b_2c2d_2e2f);
pub(crate) const NODE: NodeId = NodeId([0x5a; 32]);

pub(crate) fn gid(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last]
}

pub(crate) fn alloc(resource_type: ResourceType) -> LeaseAllocRequest {
    LeaseAllocRequest {
        grace_secs: 5,
        ..LeaseAllocRequest::new(resource_type, 0x0010_0000, 60)
    }
}

pub(crate) fn memory_of(rdma_peers: Vec<RdmaPeer>) -> MemTerms {
    MemTerms { rdma_peers }
}

pub(crate) fn cpu(class: CpuIsolationClass) -> CpuTerms {
    CpuTerms {
        isolation: Some(class),
        ..CpuTerms::default()
    }
}

/// Every term for CPU cores.
pub(crate) fn cpu_terms() -> CpuTerms {
    CpuTerms {
        execution_mode: Some(CpuExecutionMode::SharedMemory),
        execution_width: Some(0x0104),
        partition: Some(CpuPartition::Isolated),
        ..cpu(CpuIsolationClass::WholeCore)
    }
}

/// Every term for a network function.
pub(crate) fn net_terms() -> NetTerms {
    NetTerms {
        mac: Some(MacAddress([0x02, 0x71, 0x72, 0x73, 0x74, 0x75])),
        vlan: VlanId::new(0x0ABC),
        hand_over: Some(HandOver::Vfio),
    }
}

pub(crate) fn gpu(class: GpuExclusivityClass) -> GpuTerms {
    GpuTerms {
        exclusivity: Some(class),
        ..GpuTerms::default()
    }
}

/// Every term for a GPU.
pub(crate) fn full_gpu() -> GpuTerms {
    GpuTerms {
        exclusivity: Some(GpuExclusivityClass::Shared),
        execution_mode: Some(GpuExecutionMode::OneShot),
        compute_slices: Some(0x0304),
    }
}

/// A lease of a GPU: with every part (`full`), or only with the parts that every such lease has.
pub(crate) fn gpu_lease(full: bool) -> LeaseInfo {
    let uuid = "GPU-1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901".to_owned();
    let binding = GpuBinding {
        uuid: if full {
            "MIG-".to_owned() + &uuid
        } else {
            uuid
        },
        vendor: if full {
            GpuVendor::Nvidia
        } else {
            GpuVendor::Amd
        },
        vram_bytes: 0x0002_0304_0506_0708,
        session_endpoint: full.then_some(Endpoint {
            addr: gid(7),
            port: 5701,
        }),
        cdi_device: full.then(|| "fabricbios/gpu=10111213".to_owned()),
        compute_slices: full.then_some(0x0304),
        queue_slots: 16,
    };
    LeaseInfo {
        effective: Effective {
            gpu_exclusivity: Some(GpuExclusivityClass::Shared),
            gpu_execution_mode: full.then_some(GpuExecutionMode::Session),
            gpu_compute_slices: full.then_some(0x0304),
            ..Effective::default()
        },
        ..lease(Binding {
            kind: KindBinding::Gpu(Some(Box::new(binding))),
            ..Binding::plain(ResourceType::Gpu)
        })
    }
}

/// Every operation of a GPU session, with the word for it.
pub(crate) fn gpu_requests() -> Vec<(&'static str, GpuRequest)> {
    let (memory, module) = (0x5152_5354_0000_0001, 0x5152_5354_0000_0002);
    let copy = GpuSharedCopy {
        memory,
        offset: 0x0102_0304_0506_0708,
        shared_offset: 0x1112_1314_1516_1718,
        length: 0x2122_2324_2526_2728,
    };
    let (offset, length) = (copy.offset, GPU_COPY_BYTES_MAX);
    let launch = GpuLaunch {
        module,
        kernel: "vector_add".to_owned(),
        grid: [0x0102_0304, 2, 3],
        block: [256, 0x0506, 7],
        shared_bytes: 0x0001_0000,
        arguments: vec![vec![0x88; 8], vec![1], (0..=255).collect()],
    };
    let plain = GpuLaunch {
        kernel: "é".to_owned(),
        arguments: vec![],
        ..launch.clone()
    };
    vec![
        (
            "open",
            GpuRequest::Open {
                lease_id: LEASE,
                session: 0,
            },
        ),
        (
            "open_again",
            GpuRequest::Open {
                lease_id: LEASE,
                session: 0x5152_5354_5556_5758,
            },
        ),
        ("mem_alloc", GpuRequest::MemAlloc { bytes: u64::MAX }),
        (
            "mem_write",
            GpuRequest::MemWrite {
                memory,
                offset,
                length,
            },
        ),
        (
            "module_load",
            GpuRequest::ModuleLoad {
                length: GPU_MODULE_BYTES_MAX,
            },
        ),
        ("launch", GpuRequest::Launch(launch)),
        ("launch_plain", GpuRequest::Launch(plain)),
        (
            "sync",
            GpuRequest::Sync {
                whole_session: false,
            },
        ),
        (
            "sync_all",
            GpuRequest::Sync {
                whole_session: true,
            },
        ),
        (
            "mem_read",
            GpuRequest::MemRead {
                memory,
                offset,
                length: 1,
            },
        ),
        ("mem_free", GpuRequest::MemFree { memory }),
        ("module_unload", GpuRequest::ModuleUnload { module }),
        ("close", GpuRequest::Close),
        (
            "mem_share",
            GpuRequest::MemShare {
                length: 0x0001_0203_0405_0607,
            },
        ),
        ("mem_write_shared", GpuRequest::MemWriteShared(copy)),
        ("mem_read_shared", GpuRequest::MemReadShared(copy)),
    ]
}

/// An answer to each kind of operation.
pub(crate) fn gpu_answers() -> Vec<(&'static str, GpuMessageType, Result<GpuReply, Refusal>)> {
    use GpuMessageType as M;
    let opened = GpuOpened {
        session: 0x5152_5354_5556_5758,
        vram_bytes: 0x0002_0304_0506_0708,
        vram_used: 0x0001_0000,
        queue_slots: 16,
        device: "Stand-in GPU \u{e9}".to_owned(),
        uuid: "GPU-1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901".to_owned(),
    };
    let memory = GpuReply::Memory {
        memory: 0x5152_5354_0000_0001,
        address: 0x0000_7f12_3456_7800,
    };
    let module = GpuReply::Module {
        module: 0x5152_5354_0000_0002,
    };
    let closed = GpuReply::Closed {
        wiped_bytes: 0x0001_0203_0405_0607,
        free_bytes: 0x0001_0203_0405_0608,
    };
    let mut answers = vec![
        ("open", M::SessionOpen, Ok(GpuReply::Opened(opened))),
        ("mem_alloc", M::MemAlloc, Ok(memory)),
        ("module_load", M::ModuleLoad, Ok(module)),
        (
            "mem_read",
            M::MemRead,
            Ok(GpuReply::Data {
                length: GPU_COPY_BYTES_MAX,
            }),
        ),
        ("close", M::SessionClose, Ok(closed)),
        (
            "refused",
            M::MemAlloc,
            Err(Refusal::new(
                LeaseError::CapacityExceeded,
                RefusalClass::Permanent,
                "the lease has 1048576 bytes",
            )),
        ),
    ];
    for (word, message) in [
        ("mem_write", M::MemWrite),
        ("launch", M::Launch),
        ("sync", M::Sync),
        ("mem_free", M::MemFree),
        ("module_unload", M::ModuleUnload),
        ("mem_share", M::MemShare),
        ("mem_write_shared", M::MemWriteShared),
        ("mem_read_shared", M::MemReadShared),
    ] {
        answers.push((word, message, Ok(GpuReply::Done)));
    }
    answers
}

pub(crate) fn peer() -> RdmaPeer {
    RdmaPeer {
        qpn: 0x0001_0203,
        psn: 0x00a1_b2c3,
        gid: gid(9),
        path_mtu: 1024,
    }
}

/// The first `count` queue pairs of a client; no two are alike.
pub(crate) fn peers(count: usize) -> Vec<RdmaPeer> {
    let one = |n: u32| RdmaPeer {
        qpn: peer().qpn + n,
        psn: peer().psn - n,
        ..peer()
    };
    (0..).map(one).take(count).collect()
}

/// Every term for block storage.
pub(crate) fn block_terms() -> BlockTerms {
    BlockTerms {
        read_only: true,
        host_nqn: nqn("nqn.2014-08.org.nvmexpress:uuid:31323334-3536-3738-393a-3b3c3d3e3f40"),
        host_id: HostId::new(core::array::from_fn(|n| {
            0x31 + u8::try_from(n).unwrap_or(0)
        })),
        mutual_auth: true,
    }
}

pub(crate) fn nqn(text: &str) -> Option<Nqn> {
    text.parse().ok()
}

/// A lease of block storage over NVMe-oF; `None` never happens.
pub(crate) fn nvmeof() -> Option<NvmeofBinding> {
    Some(NvmeofBinding {
        addresses: vec![nvmeof_address(NvmeofTransport::Tcp, gid(7), 4_420)],
        subsystem: nqn("nqn.2025-01.io.fabricbios:lease:101112131415161718191a1b1c1d1e1f")?,
        nsid: 1,
        host_nqn: nqn("nqn.2014-08.org.nvmexpress:uuid:41424344-4546-4748-494a-4b4c4d4e4f50")?,
        host_id: HostId::new(core::array::from_fn(|n| {
            0x41 + u8::try_from(n).unwrap_or(0)
        }))?,
        dhchap_secret: DhchapSecret::new(
            "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+RJTBq:",
        )?,
        dhchap_ctrl_secret: None,
        ctrl_loss_secs: 10,
        block_bytes: 512,
    })
}

/// The same with every part: several addresses, mutual authentication, blocks of 4,096 bytes.
pub(crate) fn full_nvmeof() -> Option<NvmeofBinding> {
    let v6 = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    Some(NvmeofBinding {
        addresses: vec![
            nvmeof_address(NvmeofTransport::Rdma, gid(7), 4_421),
            nvmeof_address(NvmeofTransport::Tcp, gid(7), 4_420),
            nvmeof_address(NvmeofTransport::Tcp, v6, 4_422),
        ],
        dhchap_ctrl_secret: DhchapSecret::new(
            "DHHC-1:00:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/nABIc:",
        ),
        ctrl_loss_secs: NVMEOF_CTRL_LOSS_SECS_MAX,
        block_bytes: 4_096,
        ..nvmeof()?
    })
}

fn nvmeof_address(transport: NvmeofTransport, addr: [u8; 16], port: u16) -> NvmeofAddress {
    let endpoint = Endpoint { addr, port };
    NvmeofAddress {
        transport,
        endpoint,
    }
}

/// A lease of `blocks` of storage over this transport.
pub(crate) fn block_lease(transport: Transport, nvmeof: Option<NvmeofBinding>) -> LeaseInfo {
    let length = nvmeof
        .as_ref()
        .map_or(0, |it| 0x0010_0000 / u64::from(it.block_bytes));
    let effective = Effective {
        transport: Some(transport),
        ..Effective::default()
    };
    LeaseInfo {
        effective,
        ..lease(Binding {
            limits: Some(Limits { offset: 0, length }),
            kind: KindBinding::Block(nvmeof.map(Box::new)),
            ..Binding::plain(ResourceType::Block)
        })
    }
}

/// A lease of block storage with every part, on two transports.
pub(crate) fn full_block_lease() -> LeaseInfo {
    let mut lease = block_lease(Transport::Both, full_nvmeof());
    lease.effective.read_only = true;
    lease.effective.mutual_auth = true;
    let full = full_lease().binding;
    lease.binding.dp_key = full.dp_key;
    lease.binding.udp_endpoint = full.udp_endpoint;
    lease
}

/// Further queue pairs of the node, beside the first.
pub(crate) fn further(count: usize) -> Vec<RdmaQueuePair> {
    let one = |n: u32| RdmaQueuePair {
        qp_num: 0x0021_2223 + n,
        psn: 0x00d1_d2d3 - n,
        rkey: 0xe1e2_e3e4 - n,
    };
    (0..).map(one).take(count).collect()
}

pub(crate) fn full_alloc() -> LeaseAllocRequest {
    LeaseAllocRequest {
        resource_id: Some(ARENA),
        intent: intent(),
        transport: Transport::Rdma,
        rotate_on_renew: true,
        ..alloc(ResourceType::Mem)
    }
    .with_terms(memory_of(vec![peer()]))
    .with_terms(block_terms())
    .with_terms(net_terms())
    .with_terms(cpu_terms())
    .with_terms(gpu(GpuExclusivityClass::SessionExclusive))
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

pub(crate) fn rdma() -> RdmaBinding {
    RdmaBinding {
        rkey: Some(0x8765_4321),
        remote_addr: 0x7f00_1234_5000,
        qp_num: 0x0011_1213,
        gid: gid(7),
        port: 1,
        psn: 0x00c1_c2c3,
        path_mtu: 4096,
        strategy: RdmaStrategy::Window,
        previous: None,
        max_rd_atomic: 16,
        atomics: true,
        further: vec![],
    }
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
    }
}

pub(crate) fn rdma_lease() -> LeaseInfo {
    let limits = Some(Limits {
        offset: 0,
        length: 0x0010_0000,
    });
    lease(Binding {
        limits,
        kind: KindBinding::Mem(Some(rdma())),
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
            further: further(1),
            ..rdma()
        })),
    };
    LeaseInfo {
        effective,
        ..lease(binding)
    }
}

/// Cores that no other lease has.
pub(crate) fn cpu_binding() -> CpuBinding {
    CpuBinding {
        cpus: CpuRange::of([2, 3]),
        cgroup: "/fabricbios.slice/leases/10111213-1".to_owned(),
        partition: CpuPartition::Root,
        memory_nodes: vec![],
        quota: None,
    }
}

/// The same with every part. The kernel has given siblings numbers that are not neighbours.
pub(crate) fn full_cpu_binding() -> CpuBinding {
    CpuBinding {
        cpus: CpuRange::of([2, 3, 66, 67, 0x0101]),
        partition: CpuPartition::Isolated,
        memory_nodes: CpuRange::of([0, 2]),
        quota: Some(CpuQuota {
            quota_us: 350_000,
            period_us: 100_000,
        }),
        ..cpu_binding()
    }
}

pub(crate) fn cpu_lease(binding: CpuBinding) -> LeaseInfo {
    LeaseInfo {
        capacity: 2,
        effective: Effective {
            cpu_isolation: Some(CpuIsolationClass::WholeCore),
            cpu_execution_mode: Some(CpuExecutionMode::SharedMemory),
            cpu_execution_width: Some(2),
            cpu_partition: Some(CpuPartition::Root),
            ..Effective::default()
        },
        ..lease(Binding {
            kind: KindBinding::Cpu(Some(Box::new(binding))),
            ..Binding::plain(ResourceType::Cpu)
        })
    }
}

/// An interface on the node.
pub(crate) fn net_binding() -> NetBinding {
    NetBinding {
        pci_function: None,
        interface: Some("fb10111213n0".to_owned()),
        mac: MacAddress([0x02, 0x71, 0x72, 0x73, 0x74, 0x75]),
        vlan: None,
        rate_bps: 0x0102_0304_0506,
        hand_over: HandOver::Interface,
        vfio_group: None,
        cdi_device: None,
    }
}

/// A virtual function with every part.
pub(crate) fn full_net_binding() -> NetBinding {
    NetBinding {
        pci_function: PciFunction::parse("0102:03:11.5"),
        vlan: VlanId::new(0x0ABC),
        hand_over: HandOver::Vfio,
        vfio_group: Some(0x0001_0203),
        cdi_device: Some("fabricbios.io/net=101112131415161718191a1b1c1d1e1f".to_owned()),
        ..net_binding()
    }
}

pub(crate) fn net_lease(binding: NetBinding, rate: Enforcement) -> LeaseInfo {
    LeaseInfo {
        capacity: binding.rate_bps,
        effective: Effective {
            net_rate: Some(rate),
            ..Effective::default()
        },
        ..lease(Binding {
            kind: KindBinding::Net(Some(Box::new(binding))),
            ..Binding::plain(ResourceType::Net)
        })
    }
}

/// A lease that an operator took back, as operators see it.
pub(crate) fn revoked_lease() -> LeaseInfo {
    let step = |step: &str, took_us, found: &str| ProofStep {
        step: step.to_owned(),
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
        end: Some(Box::new(LeaseEnd {
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
        ],
    }
}
