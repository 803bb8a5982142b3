//! `inventory`: joins the flat and the structured inventory of a node by resource.

use std::collections::BTreeMap;

use fabricbios_client::Node;
use fabricbios_wire::{
    BLOCK_REMOVABLE, BLOCK_RO, CpuIsolationClass, FlatEntry, GpuExclusivityClass,
    InventoryExtension, InventoryForm, Reply, Request, ResourceId, ResourceInventory, ResourceType,
    health, resource_flags,
};
use serde::Serialize;

use crate::{
    failure::Failure,
    output::{Output, headed_table, one_line},
};

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
    #[serde(skip)]
    pub(super) id: ResourceId,
    #[serde(skip)]
    pub(super) kind: ResourceType,
}

#[derive(Serialize)]
struct ClassesJson {
    default: String,
    supported: Vec<String>,
}

/// The fields of a resource that only the structured form has.
#[derive(Default)]
struct Details {
    name: Option<String>,
    health: Option<u32>,
    fenced_part: Option<u64>,
    /// Flags and block size of a pool.
    block: Option<(u32, u32)>,
    transports: Vec<&'static str>,
    classes: Option<(u8, Vec<u8>)>,
}

pub(super) fn show(node: &Node, output: Output) -> Result<(), Failure> {
    let json = ask(node)?;
    output.print(&json, || text(&json))
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
        InventoryExtension::ClassEnforcement(..)
        | InventoryExtension::ClassAvailable(..)
        | InventoryExtension::VirtualFunctions { .. } => {}
    }
}

fn resource(entry: &FlatEntry, details: Details) -> ResourceJson {
    let kind = entry.resource_type;
    let class = |byte: u8| class_word(kind, byte);
    ResourceJson {
        resource_id: entry.resource_id.to_string(),
        resource_type: kind.to_string(),
        flags: flags(entry, &details),
        name: details.name,
        health: details.health.map(health_word),
        capacity: entry.capacity,
        available: entry.available,
        fenced_part: details.fenced_part,
        block_bytes: details.block.map(|(_, block_bytes)| block_bytes),
        transports: details.transports,
        classes: details.classes.map(|(default, supported)| ClassesJson {
            default: class(default),
            supported: supported.into_iter().map(class).collect(),
        }),
        id: entry.resource_id,
        kind,
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

fn flags(entry: &FlatEntry, details: &Details) -> Vec<String> {
    let mut words = flag_words(entry.flags);
    let (block_flags, _) = details.block.unwrap_or_default();
    for (bit, word) in [(BLOCK_RO, "read-only"), (BLOCK_REMOVABLE, "removable")] {
        words.extend((block_flags & bit != 0).then(|| word.to_owned()));
    }
    words
}

/// The names of the flags; unknown bits are shown as a number.
fn flag_words(flags: u16) -> Vec<String> {
    let known = [
        (resource_flags::FENCED, "fenced"),
        (resource_flags::DEGRADED, "degraded"),
    ];
    let mut words: Vec<String> = known
        .iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|(_, word)| (*word).to_owned())
        .collect();
    let rest = known.iter().fold(flags, |rest, (bit, _)| rest & !bit);
    if rest != 0 {
        words.push(format!("unknown(0x{rest:04x})"));
    }
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

fn text(inventory: &InventoryJson) -> String {
    let InventoryJson {
        node_id,
        epoch,
        health,
        resources,
    } = inventory;
    let headings = [
        "RESOURCE",
        "TYPE",
        "NAME",
        "CAPACITY",
        "AVAILABLE",
        "TRANSPORTS",
        "NOTES",
    ];
    let table = headed_table(headings, resources.iter().map(columns));
    format!("node {node_id}, start {epoch}, health {health}\n{table}")
}

/// An amount of a resource; the speed of a port whose link is down is unknown.
fn found(resource: &ResourceJson, amount: u64) -> String {
    match resource.kind {
        ResourceType::Net if resource.capacity == 0 => "unknown".to_owned(),
        kind => kind.amount(amount),
    }
}

fn columns(resource: &ResourceJson) -> Vec<String> {
    let dash = |text: String| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text
        }
    };
    let mut notes = resource.flags.clone();
    let part = resource.fenced_part;
    notes.extend(part.map(|part| format!("{} fenced", resource.kind.amount(part))));
    notes.extend(
        resource
            .block_bytes
            .map(|bytes| format!("blocks of {bytes} B")),
    );
    notes.extend(
        resource
            .classes
            .as_ref()
            .map(|classes| classes.supported.join("/")),
    );
    let name = resource.name.clone().unwrap_or_default();
    vec![
        resource.resource_id.clone(),
        resource.resource_type.clone(),
        dash(one_line(&name)),
        found(resource, resource.capacity),
        found(resource, resource.available),
        dash(resource.transports.join(",")),
        dash(notes.join(", ")),
    ]
}
