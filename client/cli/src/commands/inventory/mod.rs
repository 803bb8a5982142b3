//! `inventory`: the resources of a node.

mod text;
mod words;

use std::collections::BTreeMap;

use fabricbios_client::{GpuSlots, Node, Resource, VirtualFunctions};
use fabricbios_wire::{NIC_LINK_UP, ResourceType};
use serde::Serialize;

use crate::{failure::Failure, output::Output};

#[derive(Serialize)]
struct InventoryJson {
    node_id: String,
    epoch: u64,
    health: String,
    /// Why the node itself is not well.
    #[serde(skip_serializing_if = "Option::is_none")]
    health_reason: Option<String>,
    resources: Vec<ResourceJson>,
}

#[derive(Serialize)]
struct ResourceJson {
    resource_id: String,
    resource_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    health_reason: Option<String>,
    flags: Vec<String>,
    capacity: u64,
    available: u64,
    /// The fenced amount, if only a part is fenced.
    #[serde(skip_serializing_if = "Option::is_none")]
    fenced_part: Option<u64>,
    /// For a pool of block storage: the block size of its leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    block_bytes: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    transports: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    classes: Option<ClassesJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<CpuJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nic: Option<NicJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    virtual_functions: Option<VirtualFunctionsJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<GpuJson>,
    #[serde(skip)]
    kind: ResourceType,
}

/// The classes of a resource; `supported` is empty if leases of its kind have no classes.
#[derive(Serialize)]
struct ClassesJson {
    /// The class of a request without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<String>,
    supported: Vec<String>,
    /// Whether the node enforces each class.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    enforcement: BTreeMap<String, &'static str>,
    /// The amount that a lease of each class could still get.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    available: BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct CpuJson {
    threads: u16,
    /// Absent if the node does not know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arch: Option<&'static str>,
}

#[derive(Serialize)]
struct NicJson {
    mtu: u32,
    link_up: bool,
}

#[derive(Serialize)]
struct VirtualFunctionsJson {
    total: u32,
    free: u32,
}

#[derive(Serialize)]
struct GpuJson {
    /// Absent if the node does not know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    vram_bytes: Option<u64>,
    /// CUDA cores or stream processors; absent if the node does not know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    compute_units: Option<u32>,
    #[serde(flatten)]
    slots: Option<GpuSlotsJson>,
}

#[derive(Serialize)]
struct GpuSlotsJson {
    compute_slices: u16,
    compute_slices_free: u16,
    session_slots: u16,
    session_slots_free: u16,
    /// Queue slots of each session.
    queue_slots: u16,
}

pub(super) fn show(node: &Node, output: Output) -> Result<(), Failure> {
    let inventory = node.inventory()?;
    let json = InventoryJson {
        node_id: inventory.node_id.to_string(),
        epoch: inventory.epoch.0,
        health: inventory.health.to_string(),
        health_reason: inventory.health_reason,
        resources: inventory.resources.iter().map(ResourceJson::from).collect(),
    };
    output.print(&json, || text::inventory(&json))
}

impl From<&Resource> for ResourceJson {
    fn from(resource: &Resource) -> Self {
        Self {
            resource_id: resource.id.to_string(),
            resource_type: resource.kind.to_string(),
            flags: words::flags(resource),
            classes: classes(resource),
            name: resource.name.clone(),
            health: resource.health.map(|health| health.to_string()),
            health_reason: resource.health_reason.clone(),
            capacity: resource.capacity,
            available: resource.available,
            fenced_part: resource.fenced_part,
            block_bytes: resource.blocks.map(|pool| pool.block_size),
            transports: { resource.transports.iter() }.map(|it| it.name()).collect(),
            cpu: resource.cpu.map(|cpu| CpuJson {
                threads: cpu.threads,
                max_mhz: Some(cpu.max_mhz).filter(|mhz| *mhz != 0),
                arch: words::arch(cpu.flags),
            }),
            nic: resource.nic.map(|nic| NicJson {
                mtu: nic.mtu,
                link_up: nic.flags & NIC_LINK_UP != 0,
            }),
            virtual_functions: { resource.virtual_functions }
                .map(|VirtualFunctions { total, free }| VirtualFunctionsJson { total, free }),
            gpu: resource.gpu.map(|gpu| GpuJson {
                vram_bytes: Some(gpu.vram_bytes).filter(|bytes| *bytes != 0),
                compute_units: Some(gpu.compute_units).filter(|units| *units != 0),
                slots: resource.gpu_slots.map(GpuSlotsJson::from),
            }),
            kind: resource.kind,
        }
    }
}

impl From<GpuSlots> for GpuSlotsJson {
    fn from(slots: GpuSlots) -> Self {
        Self {
            compute_slices: slots.compute_slices,
            compute_slices_free: slots.compute_slices_free,
            session_slots: slots.session_slots,
            session_slots_free: slots.session_slots_free,
            queue_slots: slots.queue_slots,
        }
    }
}

fn classes(resource: &Resource) -> Option<ClassesJson> {
    let word = |byte: u8| words::class(resource.kind, byte);
    let classes = resource.classes.as_ref()?;
    let enforcement = classes.enforcement.iter();
    let available = classes.available.iter();
    Some(ClassesJson {
        default: (!classes.supported.is_empty()).then(|| word(classes.default)),
        supported: classes.supported.iter().copied().map(word).collect(),
        enforcement: enforcement
            .map(|(class, it)| (word(*class), it.name()))
            .collect(),
        available: available
            .map(|(class, units)| (word(*class), *units))
            .collect(),
    })
}
