//! The inventory for people: a block of lines for each resource.

use super::{ClassesJson, InventoryJson, ResourceJson};
use crate::{
    kinds,
    output::{one_line, table},
};

/// Lists are broken at this width; with their label they fit 80 columns.
const LIST_WIDTH: usize = 66;

pub(super) fn inventory(inventory: &InventoryJson<'_>) -> String {
    let InventoryJson {
        node_id,
        epoch,
        health,
        health_reason,
        resources,
    } = inventory;
    let why = health_reason.as_deref().map(one_line);
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let head = format!("node {node_id}\nstart {epoch}, health {health}{why}\n");
    let blocks = resources.iter().map(block);
    std::iter::once(head)
        .chain(blocks)
        .collect::<Vec<_>>()
        .join("\n")
}

fn block(resource: &ResourceJson<'_>) -> String {
    let amount = |units| found(resource, units);
    let mut lines = vec![heading(resource)];
    let mut row = |label: &str, value: &str| lines.push(format!("  {label:<10}  {value}"));
    row("id", &resource.resource_id);
    if let Some(why) = &resource.health_reason {
        row("why", &one_line(why));
    }
    row("capacity", &capacity(resource));
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
        row("fenced", &amount(part));
    }
    for (label, value) in kinds::face(resource.of.kind).lines(resource.of) {
        row(label, &value);
    }
    if !resource.transports.is_empty() {
        row("transports", &resource.transports.join(", "));
    }
    let flags = resource.flags.iter().filter(|flag| !is_state(flag));
    for (index, line) in wrapped(flags).iter().enumerate() {
        row(if index == 0 { "flags" } else { "" }, line);
    }
    lines.join("\n") + "\n"
}

/// Kind, name, and state. The state is the flags of a problem, or else the health, if the node reports it.
fn heading(resource: &ResourceJson<'_>) -> String {
    let name = resource.name.as_deref().map(one_line);
    let flagged: Vec<&str> = resource
        .flags
        .iter()
        .map(String::as_str)
        .filter(|flag| is_state(flag))
        .collect();
    let state = match (&flagged[..], &resource.health) {
        ([], Some(health)) => Some(health.clone()),
        // The node reports no health, as for a GPU that `--advertise-vendor` states.
        ([], None) => Some("health unknown".to_owned()),
        (flagged, _) => Some(flagged.join(", ")),
    };
    let kind = Some(resource.resource_type.clone());
    let parts: Vec<String> = [kind, name, state].into_iter().flatten().collect();
    parts.join("  ")
}

fn is_state(flag: &str) -> bool {
    matches!(flag, "fenced" | "degraded")
}

fn capacity(resource: &ResourceJson<'_>) -> String {
    let mut parts = vec![found(resource, resource.capacity)];
    parts.extend(kinds::face(resource.of.kind).capacity(resource.of));
    parts.join(", ")
}

/// An amount of a resource.
fn found(resource: &ResourceJson<'_>, units: u64) -> String {
    let kind = resource.of.kind;
    match kinds::face(kind).is_unknown(resource.of) {
        true => "unknown".to_owned(),
        false => kind.amount(units),
    }
}

/// The largest amount that one more lease could get.
fn most(resource: &ResourceJson<'_>) -> String {
    let amount = found(resource, resource.available);
    let is_in_stretches = kinds::face(resource.of.kind).is_in_stretches();
    match is_in_stretches && resource.available < resource.capacity {
        true => format!("{amount} at most for one lease"),
        false => amount,
    }
}

/// A line for each class: the amount that a lease of it could get, its name, and whether the node enforces it.
fn by_class(resource: &ResourceJson<'_>, classes: &ClassesJson) -> String {
    let line = |class: &String| {
        let is_default = classes.default.as_ref() == Some(class);
        let units = classes.available.get(class).copied();
        let units = units.or(is_default.then_some(resource.available));
        let notes = [
            classes
                .enforcement
                .get(class)
                .map(|it| it.replace('_', " ")),
            is_default.then(|| match classes.supported.contains(class) {
                true => "default".to_owned(),
                false => "default, not named".to_owned(),
            }),
        ];
        let notes: Vec<String> = notes.into_iter().flatten().collect();
        vec![
            units.map_or_else(|| "-".to_owned(), |units| found(resource, units)),
            class.clone(),
            notes.join(", "),
        ]
    };
    // A request cannot name this default class; a request without a class gets it.
    let unnamed = classes.default.iter();
    let unnamed = unnamed.filter(|it| {
        !classes.supported.contains(it) && classes.available.contains_key(it.as_str())
    });
    let all = unnamed.chain(&classes.supported);
    table(&all.map(line).collect::<Vec<_>>())
}

/// The words with commas between them, in lines of at most [`LIST_WIDTH`] characters unless one word is longer.
fn wrapped<'a>(words: impl Iterator<Item = &'a String>) -> Vec<String> {
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
