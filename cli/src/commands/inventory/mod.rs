//! `inventory`: joins the flat and the structured inventory of a node by resource.

mod text;
mod words;

use std::collections::BTreeMap;

use fabricbios_client::Node;
use fabricbios_wire::{
    BlockDev, CpuCap, Enforcement, FlatEntry, GpuInfo, InventoryExtension, InventoryForm,
    NIC_LINK_UP, NicInfo, Reply, Request, ResourceId, ResourceInventory, ResourceType,
};
use serde::Serialize;

use crate::{failure::Failure, output::Output};

#[derive(Serialize)]
pub(super) struct InventoryJson {
    node_id: String,
    epoch: u64,
    health: String,
    pub(super) resources: Vec<ResourceJson>,
}

#[derive(Serialize)]
pub(super) struct ResourceJson {
    resource_id: String,
    resource_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<String>,
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
    pub(super) id: ResourceId,
    #[serde(skip)]
    pub(super) kind: ResourceType,
}

/// The classes of a resource; none are supported if leases of its kind have no classes.
#[derive(Serialize)]
struct ClassesJson {
    /// The class of a request without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<String>,
    supported: Vec<String>,
    /// Whether the node enforces each class.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    enforcement: BTreeMap<String, &'static str>,
    /// What a lease of each class could still get.
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
    /// Of each session.
    queue_slots: u16,
}

/// The fields of a resource that only the structured form has.
#[derive(Default)]
struct Details {
    name: Option<String>,
    health: Option<u32>,
    fenced_part: Option<u64>,
    pool: Option<BlockDev>,
    cpu: Option<CpuCap>,
    nic: Option<NicInfo>,
    virtual_functions: Option<VirtualFunctionsJson>,
    gpu: Option<GpuInfo>,
    slots: Option<GpuSlotsJson>,
    transports: Vec<&'static str>,
    classes: Option<(u8, Vec<u8>)>,
    enforcement: Vec<(u8, Enforcement)>,
    class_available: Vec<(u8, u64)>,
}

pub(super) fn show(node: &Node, output: Output) -> Result<(), Failure> {
    let json = ask(node)?;
    output.print(&json, || text::inventory(&json))
}

/// All resources of the node.
pub(super) fn ask(node: &Node) -> Result<InventoryJson, Failure> {
    let entries = match node.call(Request::GetInventory(InventoryForm::Flat))? {
        Reply::FlatInventory(entries) => entries,
        other => return Err(node.unexpected("a flat inventory", &other).into()),
    };
    let structured = match node.call(Request::GetInventory(InventoryForm::Structured))? {
        Reply::Inventory(inventory) => inventory,
        other => return Err(node.unexpected("a structured inventory", &other).into()),
    };
    let mut details = details(&structured);
    let resources = entries.iter().map(|entry| {
        let known = details.0.remove(&entry.resource_id);
        resource(entry, known.unwrap_or_default())
    });
    let resources = resources.collect();
    Ok(InventoryJson {
        node_id: structured.node_id.to_string(),
        epoch: structured.epoch.0,
        health: words::health(structured.health),
        resources,
    })
}

/// The details of each resource.
#[derive(Default)]
struct AllDetails(BTreeMap<ResourceId, Details>);

impl AllDetails {
    fn of(&mut self, id: ResourceId) -> &mut Details {
        self.0.entry(id).or_default()
    }

    fn with_health(&mut self, id: ResourceId, health: u32) -> &mut Details {
        let details = self.of(id);
        details.health = Some(health);
        details
    }
}

fn details(inventory: &ResourceInventory) -> AllDetails {
    let mut all = AllDetails::default();
    for arena in &inventory.mem_arenas {
        all.with_health(arena.resource_id, arena.health);
    }
    for pool in &inventory.block_devs {
        all.with_health(pool.resource_id, pool.health).pool = Some(*pool);
    }
    for cpu in &inventory.cpu_caps {
        all.with_health(cpu.resource_id, cpu.health).cpu = Some(*cpu);
    }
    for nic in &inventory.nics {
        all.with_health(nic.resource_id, nic.health).nic = Some(*nic);
    }
    for gpu in &inventory.gpus {
        all.with_health(gpu.resource_id, gpu.health).gpu = Some(*gpu);
    }
    for extension in &inventory.extensions {
        extend(&mut all, extension);
    }
    all
}

fn extend(all: &mut AllDetails, extension: &InventoryExtension) {
    match extension {
        InventoryExtension::Name(id, name) => all.of(*id).name = Some(name.clone()),
        InventoryExtension::Transports(id, transports) => {
            all.of(*id).transports = transports.iter().map(|it| it.name()).collect();
        }
        InventoryExtension::Classes {
            resource_id,
            default,
            supported,
        } => all.of(*resource_id).classes = Some((*default, supported.clone())),
        InventoryExtension::ClassEnforcement(id, classes) => {
            all.of(*id).enforcement = classes.clone();
        }
        InventoryExtension::ClassAvailable(id, classes) => {
            all.of(*id).class_available = classes.clone();
        }
        InventoryExtension::FencedPart(id, units) => all.of(*id).fenced_part = Some(*units),
        InventoryExtension::VirtualFunctions {
            resource_id,
            total,
            free,
        } => {
            let (total, free) = (*total, *free);
            all.of(*resource_id).virtual_functions = Some(VirtualFunctionsJson { total, free });
        }
        InventoryExtension::GpuSlots {
            resource_id,
            compute_slices,
            compute_slices_free,
            session_slots,
            session_slots_free,
            queue_slots,
        } => {
            all.of(*resource_id).slots = Some(GpuSlotsJson {
                compute_slices: *compute_slices,
                compute_slices_free: *compute_slices_free,
                session_slots: *session_slots,
                session_slots_free: *session_slots_free,
                queue_slots: *queue_slots,
            });
        }
        // The flat form has it too.
        InventoryExtension::Available(..) | InventoryExtension::HealthReason(..) => {}
    }
}

fn resource(entry: &FlatEntry, details: Details) -> ResourceJson {
    let kind = entry.resource_type;
    ResourceJson {
        resource_id: entry.resource_id.to_string(),
        resource_type: kind.to_string(),
        flags: words::flags(entry, &details),
        classes: classes(kind, &details),
        name: details.name,
        health: details.health.map(words::health),
        capacity: entry.capacity,
        available: entry.available,
        fenced_part: details.fenced_part,
        block_bytes: details.pool.map(|pool| pool.block_size),
        transports: details.transports,
        cpu: details.cpu.map(|cpu| CpuJson {
            threads: cpu.threads,
            max_mhz: Some(cpu.max_mhz).filter(|mhz| *mhz != 0),
            arch: words::arch(cpu.flags),
        }),
        nic: details.nic.map(|nic| NicJson {
            mtu: nic.mtu,
            link_up: nic.flags & NIC_LINK_UP != 0,
        }),
        virtual_functions: details.virtual_functions,
        gpu: details.gpu.map(|gpu| GpuJson {
            vram_bytes: Some(gpu.vram_bytes).filter(|bytes| *bytes != 0),
            compute_units: Some(gpu.compute_units).filter(|units| *units != 0),
            slots: details.slots,
        }),
        id: entry.resource_id,
        kind,
    }
}

fn classes(kind: ResourceType, details: &Details) -> Option<ClassesJson> {
    let word = |byte: u8| words::class(kind, byte);
    let (default, supported) = details.classes.as_ref()?;
    let enforcement = details.enforcement.iter();
    let available = details.class_available.iter();
    Some(ClassesJson {
        default: (!supported.is_empty()).then(|| word(*default)),
        supported: supported.iter().copied().map(word).collect(),
        enforcement: enforcement
            .map(|(class, it)| (word(*class), it.name()))
            .collect(),
        available: available
            .map(|(class, units)| (word(*class), *units))
            .collect(),
    })
}
