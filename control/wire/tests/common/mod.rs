//! Any request and any answer of the protocol, within its limits.

use fabricbios_wire::*;
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
    sample::select,
};

pub(crate) fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        any::<u64>().prop_map(Request::Ping),
        Just(Request::GetIdentity),
        select(InventoryForm::ALL).prop_map(Request::GetInventory),
        alloc().prop_map(Request::LeaseAlloc),
        (lease_id(), any::<u32>()).prop_map(|(lease_id, lease_secs)| Request::LeaseRenew {
            lease_id,
            lease_secs
        }),
        lease_id().prop_map(Request::LeaseQuery),
        lease_id().prop_map(Request::LeaseFree),
        (any::<u128>(), any::<bool>()).prop_map(|(after, ended)| Request::LeaseList {
            after: LeaseId(after),
            ended
        }),
        (lease_id(), vec(peer(), 1..=RDMA_PEERS_MAX))
            .prop_map(|(lease_id, peers)| Request::LeaseBind { lease_id, peers }),
        (lease_id(), 0..=ROTATE_OVERLAP_MS_MAX).prop_map(|(lease_id, overlap_ms)| {
            Request::LeaseRotate {
                lease_id,
                overlap_ms,
            }
        }),
        lease_id().prop_map(Request::LeaseRevoke),
        Just(Request::FenceList),
        resource_id().prop_map(Request::FenceClear),
        issue().prop_map(Request::IdentityIssue),
    ]
}

pub(crate) fn answer() -> impl Strategy<Value = (MessageType, Answer)> {
    use MessageType as M;
    let lease_messages = [
        M::LeaseAlloc,
        M::LeaseRenew,
        M::LeaseQuery,
        M::LeaseFree,
        M::LeaseBind,
        M::LeaseRotate,
    ];
    prop_oneof![
        any::<u64>().prop_map(|n| (M::Ping, Ok(Reply::Pong(n)))),
        identity().prop_map(|it| (M::GetIdentity, Ok(Reply::Identity(it)))),
        vec(flat(), 0..9).prop_map(|it| (M::GetInventory, Ok(Reply::FlatInventory(it)))),
        inventory().prop_map(|it| (M::GetInventory, Ok(Reply::Inventory(it)))),
        (select(lease_messages.to_vec()), lease())
            .prop_map(|(message, it)| (message, Ok(Reply::Lease(it)))),
        (vec(lease(), 0..4), option::of(lease_id())).prop_map(|(leases, next)| (
            M::LeaseList,
            Ok(Reply::Leases(LeasePage { leases, next }))
        )),
        select(RevokeOutcome::ALL).prop_map(|it| (M::LeaseRevoke, Ok(Reply::Revoked(it)))),
        vec(fence(), 0..4).prop_map(|it| (M::FenceList, Ok(Reply::Fences(it)))),
        Just((M::FenceClear, Ok(Reply::FenceCleared))),
        (text(200), text(200)).prop_map(|(certificate_pem, ca_pem)| {
            (
                M::IdentityIssue,
                Ok(Reply::Issued {
                    certificate_pem,
                    ca_pem,
                }),
            )
        }),
        (select(M::ALL), refusal()).prop_map(|(message, it)| (message, Err(it))),
    ]
}

fn lease_id() -> impl Strategy<Value = LeaseId> {
    (1..=u128::MAX).prop_map(LeaseId)
}

fn resource_id() -> impl Strategy<Value = ResourceId> {
    (1..=u128::MAX).prop_map(ResourceId)
}

fn resource_type() -> impl Strategy<Value = ResourceType> {
    any::<u16>().prop_map(ResourceType::from_code)
}

fn text(max: usize) -> impl Strategy<Value = String> {
    vec(select(vec!['a', 'é', '→', '𝄞', ' ']), 0..=max / 4).prop_map(String::from_iter)
}

fn path_mtu() -> impl Strategy<Value = u16> {
    select(vec![0, 256, 512, 1024, 2048, 4096])
}

fn peer() -> impl Strategy<Value = RdmaPeer> {
    (1..=U24_MAX, 0..=U24_MAX, any::<[u8; 16]>(), path_mtu()).prop_map(
        |(qpn, psn, gid, path_mtu)| RdmaPeer {
            qpn,
            psn,
            gid,
            path_mtu,
        },
    )
}

fn affinity() -> impl Strategy<Value = Affinity> {
    let target = prop_oneof![
        (1..=2u8, 1..=u128::MAX).prop_map(|(kind, id)| (kind, id.to_be_bytes().to_vec())),
        any::<[u8; 32]>().prop_map(|id| (3, id.to_vec())),
        text(200).prop_map(|label| (4, format!("x{label}").into_bytes())),
    ];
    (1..=5u8, 1..=3u8, target).prop_map(|(category, strength, (target_type, target))| Affinity {
        category,
        strength,
        target_type,
        target,
    })
}

fn kv_cache() -> impl Strategy<Value = KvCacheIntent> {
    (select(KvCacheTier::ALL), any::<u32>())
        .prop_map(|(tier, block_bytes)| KvCacheIntent { tier, block_bytes })
}

fn intent() -> impl Strategy<Value = LeaseIntent> {
    let affinities = vec(affinity(), 0..=AFFINITIES_MAX);
    (option::of(kv_cache()), affinities).prop_map(|(kv_cache, affinities)| LeaseIntent {
        kv_cache,
        affinities,
    })
}

fn alloc() -> impl Strategy<Value = LeaseAllocRequest> {
    let amounts = (1..=u64::MAX, 1..=u32::MAX, any::<u32>());
    let rest = (
        option::of(resource_id()),
        intent(),
        select(Transport::ALL),
        any::<bool>(),
    );
    // Any other code is a kind that is never leased.
    let kind = prop_oneof![
        (1..=5u16).prop_map(ResourceType::from_code),
        resource_type()
    ];
    let terms = vec(terms(), 0..6);
    (amounts, kind, rest, terms).prop_map(|(amounts, kind, rest, terms)| {
        let plain = LeaseAllocRequest {
            resource_id: rest.0,
            grace_secs: amounts.2,
            intent: rest.1,
            transport: rest.2,
            rotate_on_renew: rest.3,
            ..LeaseAllocRequest::new(kind, amounts.0, amounts.1)
        };
        terms.into_iter().fold(plain, LeaseAllocRequest::with_terms)
    })
}

fn terms() -> impl Strategy<Value = LeaseTerms> {
    prop_oneof![
        cpu_terms().prop_map(LeaseTerms::from),
        net_terms().prop_map(LeaseTerms::from),
        block_terms().prop_map(LeaseTerms::from),
        gpu_terms().prop_map(LeaseTerms::from),
        vec(peer(), 0..=RDMA_PEERS_MAX).prop_map(|rdma_peers| MemTerms { rdma_peers }.into()),
    ]
}

fn cpu_terms() -> impl Strategy<Value = CpuTerms> {
    let class = option::of(select(CpuIsolationClass::ALL));
    (class, execution()).prop_map(
        |(isolation, (execution_mode, execution_width, partition))| CpuTerms {
            isolation,
            execution_mode,
            execution_width,
            partition,
        },
    )
}

/// Terms that a request can state and an answer repeats; the partition is never `member`.
fn execution()
-> impl Strategy<Value = (Option<CpuExecutionMode>, Option<u16>, Option<CpuPartition>)> {
    (
        option::of(select(CpuExecutionMode::ALL)),
        option::of(1..=u16::MAX),
        option::of(select(vec![CpuPartition::Root, CpuPartition::Isolated])),
    )
}

fn net_terms() -> impl Strategy<Value = NetTerms> {
    let hand_over = option::of(select(HandOver::ALL));
    (option::of(mac()), option::of(vlan()), hand_over).prop_map(|(mac, vlan, hand_over)| NetTerms {
        mac,
        vlan,
        hand_over,
    })
}

fn mac() -> impl Strategy<Value = MacAddress> {
    any::<[u8; 6]>()
        .prop_map(MacAddress)
        .prop_filter("of one interface", |mac| mac.is_of_one_interface())
}

fn vlan() -> impl Strategy<Value = VlanId> {
    (1..=4_094u16).prop_filter_map("in range", VlanId::new)
}

fn cpu_binding() -> impl Strategy<Value = CpuBinding> {
    let place = (
        vec(any::<u16>(), 1..40).prop_map(CpuRange::of),
        "[!-~]{1,512}",
        select(CpuPartition::ALL),
        // Numbers that are close together, so that some ranges have more than one number.
        vec(0..9u16, 0..9).prop_map(CpuRange::of),
    );
    let quota = (1..=u32::MAX, 1..=u32::MAX).prop_map(|(quota_us, period_us)| CpuQuota {
        quota_us,
        period_us,
    });
    (place, option::of(quota)).prop_map(|(place, quota)| CpuBinding {
        cpus: place.0,
        cgroup: place.1,
        partition: place.2,
        memory_nodes: place.3,
        quota,
    })
}

fn net_binding() -> impl Strategy<Value = NetBinding> {
    let function =
        (any::<(u16, u8)>(), 0..32u8, 0..8u8).prop_map(|((domain, bus), device, function)| {
            PciFunction {
                domain,
                bus,
                device,
                function,
            }
        });
    let place = (
        option::of(function),
        option::of("[a-z][!-.0-9;-~]{0,14}"),
        mac(),
        option::of(vlan()),
    );
    let how = (
        1..=u64::MAX,
        select(HandOver::ALL),
        option::of(any::<u32>()),
        option::of("[!-~]{1,128}"),
    );
    (place, how).prop_map(|(place, how)| NetBinding {
        pci_function: place.0,
        interface: place.1,
        mac: place.2,
        vlan: place.3,
        rate_bps: how.0,
        hand_over: how.1,
        vfio_group: how.2,
        cdi_device: how.3,
    })
}

fn nqn() -> impl Strategy<Value = Nqn> {
    "nqn\\.[0-9]{4}-(0[1-9]|1[0-2])\\.[a-z0-9][a-zA-Z0-9._:+=@-]{0,210}"
        .prop_map(|text| text.parse().expect("the pattern is that of a name"))
}

fn host_id() -> impl Strategy<Value = HostId> {
    (1..=u128::MAX).prop_map(|id| HostId(id.to_be_bytes()))
}

fn secret() -> impl Strategy<Value = DhchapSecret> {
    "DHHC-1:0[0-3]:[A-Za-z0-9+/]{1,110}=?:"
        .prop_map(|text| DhchapSecret::new(&text).expect("the pattern is that of a secret"))
}

fn block_terms() -> impl Strategy<Value = BlockTerms> {
    (
        any::<(bool, bool)>(),
        option::of(nqn()),
        option::of(host_id()),
    )
        .prop_map(|((read_only, mutual_auth), host_nqn, host_id)| BlockTerms {
            read_only,
            host_nqn,
            host_id,
            mutual_auth,
        })
}

fn nvmeof() -> impl Strategy<Value = NvmeofBinding> {
    let address = (select(NvmeofTransport::ALL), endpoint()).prop_map(|(transport, endpoint)| {
        NvmeofAddress {
            transport,
            endpoint,
        }
    });
    let place = (
        vec(address, 1..=NVMEOF_ADDRESSES_MAX),
        nqn(),
        1..u32::MAX,
        (9..=16u32).prop_map(|bits| 1 << bits),
    );
    let host = (nqn(), host_id(), secret(), option::of(secret()));
    let loss = 0..=NVMEOF_CTRL_LOSS_SECS_MAX;
    (place, host, loss).prop_map(|(place, host, ctrl_loss_secs)| NvmeofBinding {
        addresses: place.0,
        subsystem: place.1,
        nsid: place.2,
        host_nqn: host.0,
        host_id: host.1,
        dhchap_secret: host.2,
        dhchap_ctrl_secret: host.3,
        ctrl_loss_secs,
        block_bytes: place.3,
    })
}

fn gpu_class() -> impl Strategy<Value = GpuExclusivityClass> {
    select(GpuExclusivityClass::ALL)
}

fn issue() -> impl Strategy<Value = IssueRequest> {
    (
        "[a-z0-9._-]{1,64}",
        select(Role::ALL),
        any::<u32>(),
        vec(any::<u8>(), 1..300),
    )
        .prop_map(|(tenant, role, valid_secs, csr_der)| IssueRequest {
            tenant,
            role,
            valid_secs,
            csr_der,
        })
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    (any::<std::net::IpAddr>(), 1..=u16::MAX)
        .prop_map(|(ip, port)| Endpoint::from(std::net::SocketAddr::new(ip, port)))
        .prop_filter("a wildcard is never sent", |endpoint| {
            !endpoint.is_wildcard()
        })
}

fn identity() -> impl Strategy<Value = NodeIdentity> {
    (
        any::<[u8; 32]>(),
        any::<u64>(),
        endpoint(),
        text(64),
        select(Role::ALL),
        text(64),
    )
        .prop_map(
            |(node_id, epoch, endpoint, tenant, role, version)| NodeIdentity {
                node_id: NodeId(node_id),
                epoch: Epoch(epoch),
                endpoint,
                tenant,
                role,
                version,
            },
        )
}

fn flat() -> impl Strategy<Value = FlatEntry> {
    (
        resource_id(),
        resource_type(),
        any::<u16>(),
        any::<u64>(),
        any::<u64>(),
    )
        .prop_map(
            |(resource_id, resource_type, flags, capacity, available)| FlatEntry {
                resource_id,
                resource_type,
                flags,
                capacity,
                available,
            },
        )
}

fn inventory() -> impl Strategy<Value = ResourceInventory> {
    let numbers = || {
        (
            resource_id(),
            any::<(u64, u64)>(),
            any::<(u32, u32, u32, u32)>(),
        )
    };
    let mem = numbers().prop_map(
        |(resource_id, (base, len), (align, max_read, max_write, health))| MemArena {
            resource_id,
            base,
            len,
            align,
            max_read,
            max_write,
            health,
        },
    );
    let block = numbers().prop_map(
        |(resource_id, (capacity, _), (block_size, flags, health, _))| BlockDev {
            resource_id,
            block_size,
            capacity,
            flags,
            health,
        },
    );
    let cpu = (numbers(), any::<(u16, u16)>()).prop_map(
        |((resource_id, _, (max_mhz, flags, health, _)), (cores, threads))| CpuCap {
            resource_id,
            cores,
            threads,
            max_mhz,
            flags,
            health,
        },
    );
    let nic =
        numbers().prop_map(
            |(resource_id, (speed_bps, _), (mtu, flags, health, _))| NicInfo {
                resource_id,
                speed_bps,
                mtu,
                flags,
                health,
            },
        );
    let gpu = numbers().prop_map(
        |(resource_id, (vram_bytes, _), (units, flags, health, _))| GpuInfo {
            resource_id,
            vram_bytes,
            compute_units: units,
            flags,
            health,
        },
    );
    let lists = (
        vec(mem, 0..3),
        vec(block, 0..3),
        vec(cpu, 0..3),
        vec(nic, 0..3),
        vec(gpu, 0..3),
    );
    let node = (any::<[u8; 32]>(), any::<u64>(), any::<u32>());
    (node, lists, vec(extension(), 0..6)).prop_map(|(node, lists, extensions)| ResourceInventory {
        node_id: NodeId(node.0),
        epoch: Epoch(node.1),
        health: node.2,
        mem_arenas: lists.0,
        block_devs: lists.1,
        cpu_caps: lists.2,
        nics: lists.3,
        gpus: lists.4,
        extensions,
    })
}

fn extension() -> impl Strategy<Value = InventoryExtension> {
    prop_oneof![
        (resource_id(), text(255)).prop_map(|(id, name)| InventoryExtension::Name(id, name)),
        (any::<u128>(), text(200))
            .prop_map(|(id, why)| InventoryExtension::HealthReason(ResourceId(id), why)),
        (resource_id(), any::<u64>()).prop_map(|(id, n)| InventoryExtension::Available(id, n)),
        (resource_id(), any::<u64>()).prop_map(|(id, n)| InventoryExtension::FencedPart(id, n)),
        (
            resource_id(),
            any::<u8>(),
            vec(any::<u8>(), 0..=CLASSES_MAX)
        )
            .prop_map(
                |(resource_id, default, supported)| InventoryExtension::Classes {
                    resource_id,
                    default,
                    supported
                }
            ),
        (
            resource_id(),
            vec(select(Transport::ALL), 0..=TRANSPORTS_MAX)
        )
            .prop_map(|(id, transports)| InventoryExtension::Transports(id, transports)),
        (resource_id(), by_class(select(Enforcement::ALL)))
            .prop_map(|(id, classes)| InventoryExtension::ClassEnforcement(id, classes)),
        (resource_id(), by_class(any::<u64>()))
            .prop_map(|(id, classes)| InventoryExtension::ClassAvailable(id, classes)),
        (resource_id(), any::<(u32, u32)>()).prop_map(|(resource_id, (a, b))| {
            InventoryExtension::VirtualFunctions {
                resource_id,
                total: a.max(b),
                free: a.min(b),
            }
        }),
        (resource_id(), any::<[u16; 5]>()).prop_map(|(resource_id, [a, b, c, d, queue_slots])| {
            InventoryExtension::GpuSlots {
                resource_id,
                compute_slices: a.max(b),
                compute_slices_free: a.min(b),
                session_slots: c.max(d),
                session_slots_free: c.min(d),
                queue_slots,
            }
        }),
    ]
}

fn by_class<T: std::fmt::Debug>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Vec<(u8, T)>> {
    btree_map(any::<u8>(), value, 0..=CLASSES_MAX).prop_map(|map| map.into_iter().collect())
}

fn queue_pair() -> impl Strategy<Value = RdmaQueuePair> {
    (0..=U24_MAX, 0..=U24_MAX, any::<u32>()).prop_map(|(qp_num, psn, rkey)| RdmaQueuePair {
        qp_num,
        psn,
        rkey,
    })
}

fn rdma() -> impl Strategy<Value = RdmaBinding> {
    let keys = (option::of(any::<u32>()), option::of(any::<(u32, u32)>()));
    let path = (any::<[u8; 16]>(), any::<u8>(), path_mtu());
    let queue = (any::<u64>(), 0..=U24_MAX, 0..=U24_MAX, any::<u8>());
    let further = vec(queue_pair(), 0..RDMA_PEERS_MAX);
    let how = (select(RdmaStrategy::ALL), any::<bool>(), further);
    (keys, path, queue, how).prop_map(|(keys, path, queue, (strategy, atomics, further))| {
        RdmaBinding {
            rkey: keys.0,
            remote_addr: queue.0,
            qp_num: queue.1,
            gid: path.0,
            port: path.1,
            psn: queue.2,
            path_mtu: path.2,
            strategy,
            previous: keys
                .1
                .map(|(rkey, remaining_ms)| PreviousKey { rkey, remaining_ms }),
            max_rd_atomic: queue.3,
            atomics,
            further,
        }
    })
}

fn binding() -> impl Strategy<Value = Binding> {
    let limits = (any::<u64>(), any::<u64>()).prop_map(|(a, b)| Limits {
        offset: a.min(b),
        length: a.max(b) - a.min(b),
    });
    let key = any::<[u8; 32]>().prop_map(DpKey);
    (
        option::of(key),
        option::of(endpoint()),
        option::of(limits),
        kind_binding(),
    )
        .prop_map(|(dp_key, udp_endpoint, limits, kind)| Binding {
            dp_key,
            udp_endpoint,
            limits,
            kind,
        })
}

fn gpu_terms() -> impl Strategy<Value = GpuTerms> {
    (
        option::of(gpu_class()),
        option::of(select(GpuExecutionMode::ALL)),
        option::of(1..=u16::MAX),
    )
        .prop_map(|(exclusivity, execution_mode, compute_slices)| GpuTerms {
            exclusivity,
            execution_mode,
            compute_slices,
        })
}

fn gpu_binding() -> impl Strategy<Value = GpuBinding> {
    (
        "[!-~]{1,96}",
        select(GpuVendor::ALL),
        any::<u64>(),
        option::of(endpoint()),
        option::of("[!-~]{1,128}"),
        option::of(1..=u16::MAX),
        any::<u16>(),
    )
        .prop_map(
            |(
                uuid,
                vendor,
                vram_bytes,
                session_endpoint,
                cdi_device,
                compute_slices,
                queue_slots,
            )| {
                GpuBinding {
                    uuid,
                    vendor,
                    vram_bytes,
                    session_endpoint,
                    cdi_device,
                    compute_slices,
                    queue_slots,
                }
            },
        )
}

/// Any operation of a GPU session.
pub(crate) fn gpu_request() -> impl Strategy<Value = GpuRequest> {
    let three = || any::<[u32; 3]>();
    let launch = (
        (any::<u64>(), "[^\0]{1,63}", three(), three(), any::<u32>()),
        vec(vec(any::<u8>(), 1..=64), 0..=GPU_ARGUMENTS_MAX),
    );
    let launch = launch.prop_map(|((module, kernel, grid, block, shared_bytes), arguments)| {
        GpuRequest::Launch(GpuLaunch {
            module,
            kernel,
            grid,
            block,
            shared_bytes,
            arguments,
        })
    });
    let copy = || (any::<u64>(), any::<u64>(), 1..=GPU_COPY_BYTES_MAX);
    let shared = || {
        (any::<u64>(), any::<u64>(), any::<u64>(), 1..=u64::MAX).prop_map(
            |(memory, offset, shared_offset, length)| GpuSharedCopy {
                memory,
                offset,
                shared_offset,
                length,
            },
        )
    };
    prop_oneof![
        (lease_id(), any::<u64>())
            .prop_map(|(lease_id, session)| GpuRequest::Open { lease_id, session }),
        (1..=u64::MAX).prop_map(|bytes| GpuRequest::MemAlloc { bytes }),
        copy().prop_map(|(memory, offset, length)| GpuRequest::MemWrite {
            memory,
            offset,
            length
        }),
        (1..=GPU_MODULE_BYTES_MAX).prop_map(|length| GpuRequest::ModuleLoad { length }),
        launch,
        any::<bool>().prop_map(|whole_session| GpuRequest::Sync { whole_session }),
        copy().prop_map(|(memory, offset, length)| GpuRequest::MemRead {
            memory,
            offset,
            length
        }),
        any::<u64>().prop_map(|memory| GpuRequest::MemFree { memory }),
        any::<u64>().prop_map(|module| GpuRequest::ModuleUnload { module }),
        Just(GpuRequest::Close),
        (1..=u64::MAX).prop_map(|length| GpuRequest::MemShare { length }),
        shared().prop_map(GpuRequest::MemWriteShared),
        shared().prop_map(GpuRequest::MemReadShared),
    ]
}

fn kind_binding() -> impl Strategy<Value = KindBinding> {
    prop_oneof![
        option::of(rdma()).prop_map(KindBinding::Mem),
        option::of(nvmeof().prop_map(Box::new)).prop_map(KindBinding::Block),
        option::of(cpu_binding().prop_map(Box::new)).prop_map(KindBinding::Cpu),
        option::of(net_binding().prop_map(Box::new)).prop_map(KindBinding::Net),
        option::of(gpu_binding().prop_map(Box::new)).prop_map(KindBinding::Gpu),
        resource_type().prop_map(|kind| Binding::plain(kind).kind),
    ]
}

fn effective() -> impl Strategy<Value = Effective> {
    let cpu = option::of(select(CpuIsolationClass::ALL));
    (
        cpu,
        option::of(select(Transport::ALL)),
        any::<(bool, bool, bool)>(),
        execution(),
        option::of(select(Enforcement::ALL)),
        gpu_terms(),
    )
        .prop_map(
            |(cpu_isolation, transport, flags, execution, net_rate, gpu)| Effective {
                cpu_isolation,
                gpu_exclusivity: gpu.exclusivity,
                gpu_execution_mode: gpu.execution_mode,
                gpu_compute_slices: gpu.compute_slices,
                transport,
                rotate_on_renew: flags.0,
                read_only: flags.1,
                mutual_auth: flags.2,
                cpu_execution_mode: execution.0,
                cpu_execution_width: execution.1,
                cpu_partition: execution.2,
                net_rate,
            },
        )
}

fn lease() -> impl Strategy<Value = LeaseInfo> {
    let what = (lease_id(), resource_id(), any::<u32>(), any::<u64>());
    let life = (select(LeaseStatus::ALL), select(LeasePhase::ALL));
    let times = any::<(u64, u64, u64, u64, u64)>();
    let was = (option::of(text(TENANT_BYTES_MAX)), option::of(lease_end()));
    let intent = intent().prop_map(|it| Some(it).filter(|it| !it.is_empty()).map(Box::new));
    (what, life, times, effective(), binding(), was, intent).prop_map(
        |(what, life, times, effective, binding, (tenant, end), intent)| LeaseInfo {
            lease_id: what.0,
            resource_id: what.1,
            status: life.0,
            phase: life.1,
            generation: Generation(what.2),
            capacity: what.3,
            granted_at_unix_ms: times.0,
            expires_at_unix_ms: times.1,
            renewable_at_unix_ms: times.2,
            grace_ends_unix_ms: times.3,
            remaining_ms: times.4,
            effective,
            binding,
            tenant,
            end: end.map(Box::new),
            intent,
        },
    )
}

fn lease_end() -> impl Strategy<Value = LeaseEnd> {
    let step = (
        text(PROOF_STEP_BYTES_MAX),
        any::<u32>(),
        text(PROOF_FOUND_BYTES_MAX),
    );
    let step = step.prop_map(|(step, took_us, found)| ProofStep {
        step,
        took_us,
        found,
    });
    let by = option::of(text(TENANT_BYTES_MAX).prop_filter("said", |by| !by.is_empty()));
    // The first few steps are those of the proof; the others are of the cleaning.
    let steps = (vec(step, 0..=8), 0..=8usize);
    (any::<u64>(), select(EndCause::ALL), by, steps).prop_map(
        |(at_unix_ms, cause, by, (mut proof, of_proof))| LeaseEnd {
            at_unix_ms,
            cause,
            by,
            cleaning: proof.split_off(of_proof.min(proof.len())),
            proof,
        },
    )
}

fn fence() -> impl Strategy<Value = Fence> {
    (
        resource_id(),
        resource_type(),
        any::<u128>(),
        any::<u64>(),
        text(400),
    )
        .prop_map(
            |(resource_id, resource_type, lease_id, since_unix_ms, reason)| Fence {
                resource_id,
                resource_type,
                lease_id: LeaseId(lease_id),
                since_unix_ms,
                reason,
            },
        )
}

fn refusal() -> impl Strategy<Value = Refusal> {
    let parts = (select(LeaseError::ALL), select(RefusalClass::ALL));
    (
        parts,
        text(REFUSAL_MESSAGE_BYTES_MAX),
        (option::of(any::<u64>()), option::of(any::<u32>())),
    )
        .prop_map(
            |((error, class), message, (renewable_at_unix_ms, retry_after_ms))| Refusal {
                error,
                class,
                message,
                renewable_at_unix_ms,
                retry_after_ms,
            },
        )
}
