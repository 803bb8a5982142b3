//! The JSON of a lease. The names are a contract; absent parts are omitted.

use base16ct::lower::encode_string;
use fabricbios_wire::{
    Binding, CpuExecutionMode, CpuIsolationClass, CpuPartition, Effective, Enforcement,
    GpuExclusivityClass, GpuExecutionMode, LeaseEnd, LeaseInfo, LeaseIntent, LeaseStatus,
    ProofStep, RdmaBinding, Transport,
};
use serde::Serialize;
use zeroize::Zeroizing;

use crate::{
    cpu_json::CpuJson, gid, gpu_json::GpuJson, net_json::NetJson, nvmeof_json::NvmeofJson,
    values::AffinityWords,
};

#[derive(Serialize)]
pub(crate) struct LeaseJson<'a> {
    lease_id: String,
    resource_id: String,
    resource_type: String,
    state: &'static str,
    status: &'static str,
    generation: u32,
    capacity: u64,
    granted_at_unix_ms: u64,
    expires_at_unix_ms: u64,
    #[serde(skip_serializing_if = "is_zero")]
    renewable_at_unix_ms: u64,
    #[serde(skip_serializing_if = "is_zero")]
    grace_ends_unix_ms: u64,
    remaining_ms: u64,
    effective: EffectiveJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    intent: Option<IntentJson>,
    binding: BindingJson<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    #[serde(flatten)]
    end: Option<EndJson<'a>>,
}

#[derive(Debug, Serialize)]
struct EndJson<'a> {
    ended_at_unix_ms: u64,
    end_cause: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    proof: Vec<StepJson<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cleaning: Vec<StepJson<'a>>,
}

#[derive(Debug, Serialize)]
struct StepJson<'a> {
    step: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    found: &'a str,
    took_us: u32,
}

#[derive(Debug, Serialize)]
struct EffectiveJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_isolation: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_exclusivity: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_execution_mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_compute_slices: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<&'static str>,
    rotate_on_renew: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    read_only: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    mutual_auth: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_execution_mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_execution_width: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_partition: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    net_rate: Option<&'static str>,
}

/// The statements of the tenant. The node keeps them and enforces none.
#[derive(Debug, Serialize)]
struct IntentJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_cache: Option<KvCacheJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    affinities: Vec<AffinityWords>,
}

#[derive(Debug, Serialize)]
struct KvCacheJson {
    tier: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_bytes: Option<u32>,
}

#[derive(Serialize)]
struct BindingJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    dp_key: Option<Zeroizing<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    udp_endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<LimitsJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rdma: Option<RdmaJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nvmeof: Option<NvmeofJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<CpuJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    net: Option<NetJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<GpuJson<'a>>,
}

#[derive(Debug, Serialize)]
struct LimitsJson {
    offset: u64,
    length: u64,
}

#[derive(Debug, Serialize)]
struct RdmaJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    rkey: Option<u32>,
    remote_addr: u64,
    qp_num: u32,
    gid: String,
    port: u8,
    psn: u32,
    path_mtu: u16,
    strategy: &'static str,
    max_rd_atomic: u8,
    atomics: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<PreviousJson>,
    /// All queue pairs, if there are several; the fields above are the first one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    qps: Vec<QueuePairJson>,
}

#[derive(Debug, Serialize)]
struct QueuePairJson {
    qp_num: u32,
    psn: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    rkey: Option<u32>,
}

#[derive(Debug, Serialize)]
struct PreviousJson {
    rkey: u32,
    remaining_ms: u32,
}

// serde passes a reference.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The status of LEASE_QUERY in the words of the specification.
pub(crate) fn status(status: LeaseStatus) -> &'static str {
    match status {
        LeaseStatus::Active => "ACTIVE",
        LeaseStatus::Expired => "EXPIRED",
        LeaseStatus::Revoked => "REVOKED",
    }
}

impl<'a> From<&'a LeaseInfo> for LeaseJson<'a> {
    fn from(info: &'a LeaseInfo) -> Self {
        Self {
            lease_id: info.lease_id.to_string(),
            resource_id: info.resource_id.to_string(),
            resource_type: info.resource_type().to_string(),
            state: info.phase.name(),
            status: status(info.status),
            generation: info.generation.0,
            capacity: info.capacity,
            granted_at_unix_ms: info.granted_at_unix_ms,
            expires_at_unix_ms: info.expires_at_unix_ms,
            renewable_at_unix_ms: info.renewable_at_unix_ms,
            grace_ends_unix_ms: info.grace_ends_unix_ms,
            remaining_ms: info.remaining_ms,
            effective: (&info.effective).into(),
            intent: info.intent.as_deref().map(IntentJson::from),
            binding: (&info.binding).into(),
            tenant: info.tenant.as_deref(),
            end: info.end.as_deref().map(EndJson::from),
        }
    }
}

impl<'a> From<&'a LeaseEnd> for EndJson<'a> {
    fn from(end: &'a LeaseEnd) -> Self {
        let step = |it: &'a ProofStep| StepJson {
            step: &it.step,
            found: &it.found,
            took_us: it.took_us,
        };
        Self {
            ended_at_unix_ms: end.at_unix_ms,
            end_cause: end.cause.name(),
            ended_by: end.by.as_deref(),
            proof: end.proof.iter().map(step).collect(),
            cleaning: end.cleaning.iter().map(step).collect(),
        }
    }
}

impl From<&Effective> for EffectiveJson {
    fn from(effective: &Effective) -> Self {
        Self {
            cpu_isolation: effective.cpu_isolation.map(CpuIsolationClass::name),
            gpu_exclusivity: effective.gpu_exclusivity.map(GpuExclusivityClass::name),
            gpu_execution_mode: effective.gpu_execution_mode.map(GpuExecutionMode::name),
            gpu_compute_slices: effective.gpu_compute_slices,
            transport: effective.transport.map(Transport::name),
            rotate_on_renew: effective.rotate_on_renew,
            read_only: effective.read_only,
            mutual_auth: effective.mutual_auth,
            cpu_execution_mode: effective.cpu_execution_mode.map(CpuExecutionMode::name),
            cpu_execution_width: effective.cpu_execution_width,
            cpu_partition: effective.cpu_partition.map(CpuPartition::name),
            net_rate: effective.net_rate.map(Enforcement::name),
        }
    }
}

impl From<&LeaseIntent> for IntentJson {
    fn from(intent: &LeaseIntent) -> Self {
        Self {
            kv_cache: intent.kv_cache.map(|it| KvCacheJson {
                tier: it.tier.name(),
                block_bytes: Some(it.block_bytes).filter(|bytes| *bytes != 0),
            }),
            affinities: intent.affinities.iter().map(AffinityWords::from).collect(),
        }
    }
}

impl<'a> From<&'a Binding> for BindingJson<'a> {
    fn from(binding: &'a Binding) -> Self {
        let limits = binding.limits;
        Self {
            dp_key: binding
                .dp_key
                .as_ref()
                .map(|key| Zeroizing::new(encode_string(&key.0))),
            udp_endpoint: binding.udp_endpoint.map(|endpoint| endpoint.to_string()),
            limits: limits.map(|limits| LimitsJson {
                offset: limits.offset,
                length: limits.length,
            }),
            rdma: binding.rdma().map(RdmaJson::from),
            nvmeof: binding.nvmeof().map(NvmeofJson::from),
            cpu: binding.cpu().map(CpuJson::from),
            net: binding.net().map(NetJson::from),
            gpu: binding.gpu().map(GpuJson::from),
        }
    }
}

impl From<&RdmaBinding> for RdmaJson {
    fn from(rdma: &RdmaBinding) -> Self {
        let previous = rdma.previous;
        Self {
            rkey: rdma.rkey,
            remote_addr: rdma.remote_addr,
            qp_num: rdma.qp_num,
            gid: gid::text(rdma.gid),
            port: rdma.port,
            psn: rdma.psn,
            path_mtu: rdma.path_mtu,
            strategy: rdma.strategy.name(),
            max_rd_atomic: rdma.max_rd_atomic,
            atomics: rdma.atomics,
            previous: previous.map(|old| PreviousJson {
                rkey: old.rkey,
                remaining_ms: old.remaining_ms,
            }),
            qps: queue_pairs(rdma),
        }
    }
}

/// All queue pairs; empty if there is only one.
fn queue_pairs(rdma: &RdmaBinding) -> Vec<QueuePairJson> {
    if rdma.further.is_empty() {
        return Vec::new();
    }
    let first = QueuePairJson {
        qp_num: rdma.qp_num,
        psn: rdma.psn,
        rkey: rdma.rkey,
    };
    let further = rdma.further.iter().map(|pair| QueuePairJson {
        qp_num: pair.qp_num,
        psn: pair.psn,
        rkey: Some(pair.rkey),
    });
    std::iter::once(first).chain(further).collect()
}
