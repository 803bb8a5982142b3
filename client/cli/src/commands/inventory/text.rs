//! The inventory for people: a block of lines for each resource.

use fabricbios_client::{Classes, Inventory, Resource};

use super::{class, other_flags, states};
use crate::{
    kinds,
    output::{one_line, table},
};

/// Lists are broken at this width; with their label they fit 80 columns.
const LIST_WIDTH: usize = 66;

pub(super) fn inventory(inventory: &Inventory) -> String {
    let why = inventory.health_reason.as_deref().map(one_line);
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let head = format!(
        "node {}\nstart {}, health {}{why}\n",
        inventory.node_id, inventory.epoch.0, inventory.health
    );
    let blocks = inventory.resources.iter().map(block);
    std::iter::once(head)
        .chain(blocks)
        .collect::<Vec<_>>()
        .join("\n")
}

fn block(resource: &Resource) -> String {
    let face = kinds::face(resource.kind);
    let mut lines = vec![heading(resource)];
    let mut row = |label: &str, value: &str| lines.push(format!("  {label:<10}  {value}"));
    row("id", &resource.id.to_string());
    if let Some(why) = &resource.health_reason {
        row("why", &one_line(why));
    }
    let mut capacity = vec![amount(resource, resource.capacity)];
    capacity.extend(face.capacity(resource));
    row("capacity", &capacity.join(", "));
    let available = match &resource.classes {
        Some(classes) if !classes.supported.is_empty() => by_class(resource, classes),
        // Every resource on offer lists its classes, even if only to say that it has none.
        None if resource.available == 0 => "none: listed, not offered for lease".to_owned(),
        _ => most(resource),
    };
    for (index, line) in available.lines().enumerate() {
        row(if index == 0 { "available" } else { "" }, line);
    }
    if let Some(part) = resource.fenced_part {
        row("fenced", &amount(resource, part));
    }
    for (label, value) in face.lines(resource) {
        row(label, &value);
    }
    if !resource.transports.is_empty() {
        let transports: Vec<&str> = { resource.transports.iter() }.map(|it| it.name()).collect();
        row("transports", &transports.join(", "));
    }
    for (index, line) in wrapped(&other_flags(resource)).iter().enumerate() {
        row(if index == 0 { "flags" } else { "" }, line);
    }
    lines.join("\n") + "\n"
}

/// Kind, name, and state. The state is the flags of a problem, or else the health, if the node reports it.
fn heading(resource: &Resource) -> String {
    let state = match (&states(resource)[..], resource.health) {
        ([], Some(health)) => health.to_string(),
        // The node reports no health, as for a GPU that `--advertise-vendor` states.
        ([], None) => "health unknown".to_owned(),
        (states, _) => states.join(", "),
    };
    let name = resource.name.as_deref().map(one_line);
    let parts = [Some(resource.kind.to_string()), name, Some(state)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join("  ")
}

/// An amount of a resource.
fn amount(resource: &Resource, units: u64) -> String {
    match kinds::face(resource.kind).is_unknown(resource) {
        true => "unknown".to_owned(),
        false => resource.kind.amount(units),
    }
}

/// The largest amount that one more lease could get.
fn most(resource: &Resource) -> String {
    let most = amount(resource, resource.available);
    let is_in_stretches = kinds::face(resource.kind).is_in_stretches();
    match is_in_stretches && resource.available < resource.capacity {
        true => format!("{most} at most for one lease"),
        false => most,
    }
}

/// A line for each class: the amount that a lease of it could get, its name, and whether the node enforces it.
fn by_class(resource: &Resource, classes: &Classes) -> String {
    fn of<T: Copy>(entries: &[(u8, T)], byte: u8) -> Option<T> {
        let entry = entries.iter().find(|(class, _)| *class == byte);
        entry.map(|(_, value)| *value)
    }
    let line = |byte: u8| {
        let is_default = classes.default == byte;
        let units = of(&classes.available, byte);
        let units = units.or(is_default.then_some(resource.available));
        let enforcement = of(&classes.enforcement, byte);
        let notes = [
            enforcement.map(|it| it.name().replace('_', " ")),
            is_default.then(|| match classes.supported.contains(&byte) {
                true => "default".to_owned(),
                false => "default, not named".to_owned(),
            }),
        ];
        let notes: Vec<String> = notes.into_iter().flatten().collect();
        vec![
            units.map_or_else(|| "-".to_owned(), |units| amount(resource, units)),
            class(resource, byte),
            notes.join(", "),
        ]
    };
    // A request cannot name this default class; a request without a class gets it.
    let default = classes.default;
    let is_unnamed =
        !classes.supported.contains(&default) && of(&classes.available, default).is_some();
    let unnamed = is_unnamed.then_some(default).into_iter();
    let all = unnamed.chain(classes.supported.iter().copied());
    table(&all.map(line).collect::<Vec<_>>())
}

/// The words with commas between them, in lines of at most [`LIST_WIDTH`] characters unless one word is longer.
fn wrapped(words: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.len() + 2 + word.len() < LIST_WIDTH => {
                line.push_str(", ");
                line.push_str(word);
            }
            Some(line) => {
                line.push(',');
                lines.push(word.clone());
            }
            None => lines.push(word.clone()),
        }
    }
    lines
}
