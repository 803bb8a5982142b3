//! `inventory`: the resources of a node.

mod text;

use std::collections::BTreeMap;

use fabricbios_client::{Classes, Node, Resource};
use fabricbios_wire::resource_flags;

use crate::{
    failure::Failure,
    json::{Json, Object, field},
    kinds,
    output::Output,
};

pub(super) fn show(node: &Node, output: Output) -> Result<(), Failure> {
    let inventory = &node.inventory()?;
    let resources: Vec<Object<'_>> = inventory.resources.iter().map(json).collect();
    let json = Object::from([
        field("node_id", inventory.node_id.to_string()),
        field("epoch", inventory.epoch.0),
        field("health", inventory.health.to_string()),
        // Why the node itself is not well.
        field("health_reason", inventory.health_reason.as_deref()),
        field("resources", resources),
    ]);
    output.print(&json, || text::inventory(inventory))
}

fn json(resource: &Resource) -> Object<'_> {
    let transports: Vec<&str> = { resource.transports.iter() }.map(|it| it.name()).collect();
    let classes = resource.classes.as_ref();
    let classes = classes.map(|classes| classes_json(resource, classes));
    let of_all = [
        field("resource_id", resource.id.to_string()),
        field("resource_type", resource.kind.to_string()),
        field("name", resource.name.as_deref()),
        field("health", resource.health.map(|it| it.to_string())),
        field("health_reason", resource.health_reason.as_deref()),
        field("flags", flags(resource)),
        field("capacity", resource.capacity),
        field("available", resource.available),
        // Absent unless only a part is fenced.
        field("fenced_part", resource.fenced_part),
        field("transports", Some(transports).filter(|it| !it.is_empty())),
        field("classes", classes),
    ];
    Object::from(of_all).with(kinds::face(resource.kind).resource_json(resource))
}

/// `supported` is empty if leases of the kind have no classes.
fn classes_json(resource: &Resource, classes: &Classes) -> Object<'static> {
    let word = |byte: u8| class(resource, byte);
    // Of a request without a class.
    let default = (!classes.supported.is_empty()).then(|| word(classes.default));
    let supported: Vec<String> = classes.supported.iter().copied().map(word).collect();
    let enforcement = classes.enforcement.iter();
    let enforcement = enforcement.map(|(class, it)| (word(*class), it.name().into()));
    let available = classes.available.iter();
    let available = available.map(|(class, units)| (word(*class), (*units).into()));
    Object::from([
        field("default", default),
        field("supported", supported),
        field("enforcement", by_word(enforcement)),
        field("available", by_word(available)),
    ])
}

/// The entries in the order of their words; `None` without entries.
fn by_word(entries: impl Iterator<Item = (String, Json<'static>)>) -> Option<Object<'static>> {
    let entries: BTreeMap<String, Json<'static>> = entries.collect();
    (!entries.is_empty()).then(|| entries.into_iter().collect())
}

/// The word of a class.
fn class(resource: &Resource, byte: u8) -> String {
    let word = kinds::face(resource.kind).class(byte);
    word.map_or_else(|| format!("unknown(0x{byte:02x})"), str::to_owned)
}

const STATES: [(u16, &str); 2] = [
    (resource_flags::FENCED, "fenced"),
    (resource_flags::DEGRADED, "degraded"),
];

/// The flags of a problem.
fn states(resource: &Resource) -> Vec<&'static str> {
    let set = STATES.iter().filter(|(bit, _)| resource.flags & bit != 0);
    set.map(|(_, name)| *name).collect()
}

/// All other flags; unknown ones of the flat form are shown as a number.
fn other_flags(resource: &Resource) -> Vec<String> {
    let known = STATES.iter().fold(0, |known, (bit, _)| known | bit);
    let rest = Some(resource.flags & !known).filter(|rest| *rest != 0);
    let of_kind = kinds::face(resource.kind).flags(resource);
    let of_kind = of_kind.into_iter().map(str::to_owned);
    let rest = rest.map(|rest| format!("unknown(0x{rest:04x})"));
    rest.into_iter().chain(of_kind).collect()
}

fn flags(resource: &Resource) -> Vec<String> {
    let states = states(resource).into_iter().map(str::to_owned);
    states.chain(other_flags(resource)).collect()
}
