//! Any request and any answer of the protocol, within its limits.

use std::sync::Arc;

use fabricbios_wire::*;
use proptest::{
    collection::{btree_map, btree_set, vec},
    option,
    prelude::*,
    sample::select,
};

pub(crate) mod block;
pub(crate) mod cpu;
pub(crate) mod fleet;
pub(crate) mod gpu;
pub(crate) mod mem;
pub(crate) mod net;

macro_rules! of_kinds {
    ($({ $code:literal $variant:ident $word:literal $name:literal, ($module:ident: $terms:ty), $coordinates:tt })*) => {
        fn kind() -> impl Strategy<Value = ResourceType> {
            prop_oneof![$(Just(ResourceType::$variant)),*]
        }

        fn terms() -> impl Strategy<Value = LeaseTerms> {
            prop_oneof![$($module::terms().prop_map(LeaseTerms::from)),*]
        }

        fn kind_binding() -> impl Strategy<Value = KindBinding> {
            let coordinates = prop_oneof![
                $($module::coordinates().prop_map(|it| KindBinding::$variant(Some(it.into())))),*
            ];
            let none = resource_type().prop_map(|kind| Binding::plain(kind).kind);
            prop_oneof![coordinates, kind().prop_map(|kind| Binding::plain(kind).kind), none]
        }
    };
}

fabricbios_wire::kinds!(of_kinds);

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
        (lease_id(), vec(mem::peer(), 1..=RDMA_PEERS_MAX))
            .prop_map(|(lease_id, peers)| Request::LeaseBind { lease_id, peers }),
        (lease_id(), mem::change())
            .prop_map(|(lease_id, change)| Request::LeasePeers { lease_id, change }),
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
        fleet::report().prop_map(Request::NodeReport),
        fleet::node_id().prop_map(Request::NodeList),
        fleet::node_id().prop_map(Request::NodeForget),
        fleet::lease_report().prop_map(Request::NodeLeases),
        (any::<u128>(), fleet::node_id()).prop_map(|(after, after_node)| Request::FleetLeases {
            after: LeaseId(after),
            after_node,
        }),
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
    let redirected = [&lease_messages[..], &[M::LeaseRevoke]].concat();
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
        (select(redirected), fleet::candidates())
            .prop_map(|(message, it)| (message, Ok(Reply::Redirect(it)))),
        (fleet::candidates(), text(200)).prop_map(|(candidates, why)| {
            (M::LeaseAlloc, Ok(Reply::Explained { candidates, why }))
        }),
        select(vec![M::NodeReport, M::NodeLeases]).prop_map(|it| (it, Ok(Reply::Reported))),
        fleet::leases().prop_map(|it| (M::FleetLeases, Ok(Reply::FleetLeases(it)))),
        Just((M::NodeForget, Ok(Reply::Forgotten))),
        fleet::page().prop_map(|it| (M::NodeList, Ok(Reply::Nodes(it)))),
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

fn request_token() -> impl Strategy<Value = Option<RequestToken>> {
    option::of((1..=u128::MAX).prop_map(RequestToken))
}

fn tried() -> impl Strategy<Value = Tried> {
    let said = (
        option::of(select(LeaseError::ALL)),
        select(RefusalClass::ALL),
    );
    (any::<[u8; 32]>(), said).prop_map(|(id, (refused, class))| Tried {
        node_id: NodeId(id),
        refused,
        class,
    })
}

fn alloc() -> impl Strategy<Value = LeaseAllocRequest> {
    let amounts = (1..=u64::MAX, 1..=u32::MAX, any::<u32>());
    let rest = (
        option::of(resource_id()),
        intent(),
        select(Transport::ALL),
        any::<(bool, bool)>(),
        request_token(),
        vec(tried(), 0..=TRIED_MAX),
        any::<bool>(),
    );
    // Any other code is a kind that is never leased.
    let kind = prop_oneof![kind(), resource_type()];
    let terms = vec(terms(), 0..6);
    (amounts, kind, rest, terms).prop_map(|(amounts, kind, rest, terms)| {
        let plain = LeaseAllocRequest {
            resource_id: rest.0,
            grace_secs: amounts.2,
            intent: rest.1,
            transport: rest.2,
            rotate_on_renew: rest.3.0,
            follows_redirect: rest.3.1,
            request_token: rest.4,
            tried: rest.5,
            explain: rest.6,
            ..LeaseAllocRequest::new(kind, amounts.0, amounts.1)
        };
        terms.into_iter().fold(plain, LeaseAllocRequest::with_terms)
    })
}

fn issue() -> impl Strategy<Value = IssueRequest> {
    (
        "[a-z0-9._-]{1,64}",
        select(&[Role::Tenant, Role::Operator][..]),
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

/// A resource, and numbers for the fields of its entry.
fn numbers() -> impl Strategy<Value = (ResourceId, (u64, u64), (u32, u32, u32, u32))> {
    (
        resource_id(),
        any::<(u64, u64)>(),
        any::<(u32, u32, u32, u32)>(),
    )
}

fn inventory() -> impl Strategy<Value = ResourceInventory> {
    let lists = (
        vec(mem::entry(), 0..3),
        vec(block::entry(), 0..3),
        vec(cpu::entry(), 0..3),
        vec(net::entry(), 0..3),
        vec(gpu::entry(), 0..3),
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
        any::<(u32, u32, bool)>().prop_map(|(lease_secs_max, grace_secs_max, bare_metal)| {
            InventoryExtension::Limits {
                lease_secs_max,
                grace_secs_max,
                bare_metal,
            }
        }),
        (
            (resource_id(), any::<u8>()),
            btree_set(any::<u8>(), 0..=CLASSES_MAX),
            btree_map(any::<u8>(), any::<(u64, u64)>(), 0..=ADMISSION_MOST_MAX),
        )
            .prop_map(|((resource_id, flags), forbidden, most)| {
                let most = most.into_iter();
                InventoryExtension::Admission {
                    resource_id,
                    flags,
                    forbidden: forbidden.into_iter().collect(),
                    most: most.map(|(how, (now, empty))| (how, now, empty)).collect(),
                }
            }),
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

fn effective() -> impl Strategy<Value = Effective> {
    (
        cpu::terms(),
        gpu::terms(),
        option::of(select(Transport::ALL)),
        any::<(bool, bool, bool)>(),
        option::of(select(Enforcement::ALL)),
    )
        .prop_map(|(cpu, gpu, transport, flags, net_rate)| Effective {
            cpu_isolation: cpu.isolation,
            cpu_execution_mode: cpu.execution_mode,
            cpu_execution_width: cpu.execution_width,
            cpu_partition: cpu.partition,
            gpu_exclusivity: gpu.exclusivity,
            gpu_execution_mode: gpu.execution_mode,
            gpu_compute_slices: gpu.compute_slices,
            transport,
            rotate_on_renew: flags.0,
            read_only: flags.1,
            mutual_auth: flags.2,
            net_rate,
        })
}

fn lease() -> impl Strategy<Value = LeaseInfo> {
    let what = (lease_id(), resource_id(), any::<u32>(), any::<u64>());
    let life = (select(LeaseStatus::ALL), select(LeasePhase::ALL));
    let times = any::<(u64, u64, u64, u64, u64)>();
    let was = (option::of(text(TENANT_BYTES_MAX)), option::of(lease_end()));
    let intent = intent().prop_map(|it| Some(it).filter(|it| !it.is_empty()).map(Box::new));
    let stated = (intent, request_token());
    (what, life, times, effective(), binding(), was, stated).prop_map(
        |(what, life, times, effective, binding, (tenant, end), stated)| LeaseInfo {
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
            end: end.map(Arc::new),
            intent: stated.0,
            request_token: stated.1,
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
        step: step.into(),
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
