//! `inventory`: joins the flat and the structured inventory of a node by resource.

mod text;

use std::collections::BTreeMap;

use fabricbios_client::Node;
use fabricbios_wire::{
    BLOCK_REMOVABLE, BLOCK_RO, CpuCap, CpuIsolationClass, Enforcement, FlatEntry,
    GpuExclusivityClass, InventoryExtension, InventoryForm, NIC_LINK_UP, NIC_SRIOV, NicInfo, Reply,
    Request, ResourceId, ResourceInventory, ResourceType, cpu_flags, health, resource_flags,
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

/// The fields of a resource that only the structured form has.
#[derive(Default)]
struct Details {
    name: Option<String>,
    health: Option<u32>,
    fenced_part: Option<u64>,
    /// Flags and block size of a pool.
    block: Option<(u32, u32)>,
    cpu: Option<CpuCap>,
    nic: Option<NicInfo>,
    virtual_functions: Option<VirtualFunctionsJson>,
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
    let entries = match node.call_blocking(Request::GetInventory(InventoryForm::Flat))? {
        Reply::FlatInventory(entries) => entries,
        other => return Err(node.unexpected("a flat inventory", &other).into()),
    };
    let structured = match node.call_blocking(Request::GetInventory(InventoryForm::Structured))? {
        Reply::Inventory(inventory) => inventory,
        other => return Err(node.unexpected("a structured inventory", &other).into()),
    };
    let mut details = details(&structured);
    let resources = entries
        .iter()
        .map(|entry| {
            resource(
                entry,
                details.remove(&entry.resource_id).unwrap_or_default(),
            )
        })
        .collect();
    Ok(InventoryJson {
        node_id: structured.node_id.to_string(),
        epoch: structured.epoch.0,
        health: health_word(structured.health),
        resources,
    })
}

fn details(inventory: &ResourceInventory) -> BTreeMap<ResourceId, Details> {
    let mut details: BTreeMap<ResourceId, Details> = BTreeMap::new();
    let healths = (inventory
        .mem_arenas
        .iter()
        .map(|r| (r.resource_id, r.health)))
    .chain(
        inventory
            .block_devs
            .iter()
            .map(|r| (r.resource_id, r.health)),
    )
    .chain(inventory.cpu_caps.iter().map(|r| (r.resource_id, r.health)))
    .chain(inventory.nics.iter().map(|r| (r.resource_id, r.health)))
    .chain(inventory.gpus.iter().map(|r| (r.resource_id, r.health)));
    for pool in &inventory.block_devs {
        details.entry(pool.resource_id).or_default().block = Some((pool.flags, pool.block_size));
    }
    for cpu in &inventory.cpu_caps {
        details.entry(cpu.resource_id).or_default().cpu = Some(*cpu);
    }
    for nic in &inventory.nics {
        details.entry(nic.resource_id).or_default().nic = Some(*nic);
    }
    for (resource_id, health) in healths {
        details.entry(resource_id).or_default().health = Some(health);
    }
    for extension in &inventory.extensions {
        extend(&mut details, extension);
    }
    details
}

fn extend(details: &mut BTreeMap<ResourceId, Details>, extension: &InventoryExtension) {
    match extension {
        InventoryExtension::Name(id, name) => {
            details.entry(*id).or_default().name = Some(name.clone());
        }
        InventoryExtension::Transports(id, transports) => {
            details.entry(*id).or_default().transports =
                transports.iter().map(|r| r.name()).collect();
        }
        InventoryExtension::Classes {
            resource_id,
            default,
            supported,
        } => {
            details.entry(*resource_id).or_default().classes = Some((*default, supported.clone()));
        }
        InventoryExtension::FencedPart(id, units) => {
            details.entry(*id).or_default().fenced_part = Some(*units);
        }
        // The flat form has it too.
        InventoryExtension::Available(..) => {}
        InventoryExtension::ClassEnforcement(id, classes) => {
            details.entry(*id).or_default().enforcement = classes.clone();
        }
        InventoryExtension::ClassAvailable(id, classes) => {
            details.entry(*id).or_default().class_available = classes.clone();
        }
        InventoryExtension::VirtualFunctions {
            resource_id,
            total,
            free,
        } => {
            let (total, free) = (*total, *free);
            details.entry(*resource_id).or_default().virtual_functions =
                Some(VirtualFunctionsJson { total, free });
        }
    }
}

fn resource(entry: &FlatEntry, details: Details) -> ResourceJson {
    let kind = entry.resource_type;
    ResourceJson {
        resource_id: entry.resource_id.to_string(),
        resource_type: kind.to_string(),
        flags: flags(entry, &details),
        classes: classes(kind, &details),
        name: details.name,
        health: details.health.map(health_word),
        capacity: entry.capacity,
        available: entry.available,
        fenced_part: details.fenced_part,
        block_bytes: details.block.map(|(_, block_bytes)| block_bytes),
        transports: details.transports,
        cpu: details.cpu.map(|cpu| CpuJson {
            threads: cpu.threads,
            max_mhz: Some(cpu.max_mhz).filter(|mhz| *mhz != 0),
            arch: arch(cpu.flags),
        }),
        nic: details.nic.map(|nic| NicJson {
            mtu: nic.mtu,
            link_up: nic.flags & NIC_LINK_UP != 0,
        }),
        virtual_functions: details.virtual_functions,
        id: entry.resource_id,
        kind,
    }
}

fn classes(kind: ResourceType, details: &Details) -> Option<ClassesJson> {
    let word = |byte: u8| class_word(kind, byte);
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

fn arch(flags: u32) -> Option<&'static str> {
    match flags >> cpu_flags::ARCH_SHIFT & 0xff {
        cpu_flags::ARCH_AARCH64 => Some("aarch64"),
        cpu_flags::ARCH_X86_64 => Some("x86_64"),
        _ => None,
    }
}

fn class_word(kind: ResourceType, byte: u8) -> String {
    let word = match kind {
        ResourceType::Cpu => CpuIsolationClass::from_byte(byte).map(CpuIsolationClass::name),
        ResourceType::Gpu => GpuExclusivityClass::from_byte(byte).map(GpuExclusivityClass::name),
        _ => None,
    };
    word.map_or_else(|| format!("unknown(0x{byte:02x})"), str::to_owned)
}

const RESOURCE_FLAGS: [(u32, &str); 2] = [
    (resource_flags::FENCED as u32, "fenced"),
    (resource_flags::DEGRADED as u32, "degraded"),
];

const BLOCK_FLAGS: [(u32, &str); 2] = [(BLOCK_RO, "read-only"), (BLOCK_REMOVABLE, "removable")];

const CPU_FLAGS: [(u32, &str); 6] = [
    (cpu_flags::TASKLET_HOST, "tasklet-host"),
    (cpu_flags::NEON, "neon"),
    (cpu_flags::CRC32, "crc32"),
    (cpu_flags::TOPOLOGY_COMPLETE, "topology-complete"),
    (cpu_flags::TOPOLOGY_AWARE_LEASING, "topology-aware-leasing"),
    (
        cpu_flags::REJECTS_WIDE_SINGLE_THREADED,
        "rejects-wide-single-threaded",
    ),
];

const NIC_FLAGS: [(u32, &str); 1] = [(NIC_SRIOV, "sr-iov")];

/// The names of the flags; unknown ones of the flat form are shown as a number.
fn flags(entry: &FlatEntry, details: &Details) -> Vec<String> {
    let known = |bits: u32, names: &[(u32, &'static str)]| -> Vec<String> {
        let set = names.iter().filter(|(bit, _)| bits & bit != 0);
        set.map(|(_, name)| (*name).to_owned()).collect()
    };
    let mut words = known(entry.flags.into(), &RESOURCE_FLAGS);
    let rest = entry.flags & !(resource_flags::FENCED | resource_flags::DEGRADED);
    if rest != 0 {
        words.push(format!("unknown(0x{rest:04x})"));
    }
    words.extend(known(details.block.unwrap_or_default().0, &BLOCK_FLAGS));
    words.extend(known(details.cpu.map_or(0, |cpu| cpu.flags), &CPU_FLAGS));
    words.extend(known(details.nic.map_or(0, |nic| nic.flags), &NIC_FLAGS));
    words
}

fn health_word(health: u32) -> String {
    match health {
        health::OK => "ok".to_owned(),
        health::DEGRADED => "degraded".to_owned(),
        health::FENCED => "fenced".to_owned(),
        other => format!("unknown(0x{other:x})"),
    }
}
