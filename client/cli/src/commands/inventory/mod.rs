//! `inventory`: the resources of a node.

mod text;

use std::collections::BTreeMap;

use fabricbios_client::{Node, Resource};
use fabricbios_wire::resource_flags;
use serde::Serialize;

use crate::{
    failure::Failure,
    kinds::{self, OfKind},
    output::Output,
};

#[derive(Serialize)]
struct InventoryJson<'a> {
    node_id: String,
    epoch: u64,
    health: String,
    /// Why the node itself is not well.
    #[serde(skip_serializing_if = "Option::is_none")]
    health_reason: Option<String>,
    resources: Vec<ResourceJson<'a>>,
}

#[derive(Serialize)]
struct ResourceJson<'a> {
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    transports: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    classes: Option<ClassesJson>,
    #[serde(flatten)]
    of_kind: OfKind<'a>,
    #[serde(skip)]
    of: &'a Resource,
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

impl<'a> From<&'a Resource> for ResourceJson<'a> {
    fn from(resource: &'a Resource) -> Self {
        Self {
            resource_id: resource.id.to_string(),
            resource_type: resource.kind.to_string(),
            flags: flags(resource),
            classes: classes(resource),
            name: resource.name.clone(),
            health: resource.health.map(|health| health.to_string()),
            health_reason: resource.health_reason.clone(),
            capacity: resource.capacity,
            available: resource.available,
            fenced_part: resource.fenced_part,
            transports: { resource.transports.iter() }.map(|it| it.name()).collect(),
            of_kind: OfKind::Resource(resource),
            of: resource,
        }
    }
}

/// The names of the flags; unknown ones of the flat form are shown as a number.
fn flags(resource: &Resource) -> Vec<String> {
    let flags = resource.flags;
    let rest = flags & !(resource_flags::FENCED | resource_flags::DEGRADED);
    let of_all = [
        (flags & resource_flags::FENCED != 0).then(|| "fenced".to_owned()),
        (flags & resource_flags::DEGRADED != 0).then(|| "degraded".to_owned()),
        (rest != 0).then(|| format!("unknown(0x{rest:04x})")),
    ];
    let of_kind = kinds::face(resource.kind).flags(resource);
    let of_kind = of_kind.into_iter().map(str::to_owned);
    of_all.into_iter().flatten().chain(of_kind).collect()
}

fn classes(resource: &Resource) -> Option<ClassesJson> {
    let word = |byte: u8| {
        let word = kinds::face(resource.kind).class(byte);
        word.map_or_else(|| format!("unknown(0x{byte:02x})"), str::to_owned)
    };
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
