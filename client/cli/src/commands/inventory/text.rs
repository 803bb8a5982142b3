//! The inventory for people: a block of lines for each resource.

use fabricbios_wire::ResourceType;

use super::{ClassesJson, InventoryJson, ResourceJson};
use crate::output::{one_line, table};

/// Lists are broken at this width; with their label they fit 80 columns.
const LIST_WIDTH: usize = 66;

pub(super) fn inventory(inventory: &InventoryJson) -> String {
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

fn block(resource: &ResourceJson) -> String {
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
    if let Some(functions) = &resource.virtual_functions {
        let (free, total) = (functions.free, functions.total);
        row(
            "functions",
            &format!("{free} of {total} virtual functions free"),
        );
    }
    if let Some(slots) = resource.gpu.as_ref().and_then(|gpu| gpu.slots.as_ref()) {
        let (free, all) = (slots.compute_slices_free, slots.compute_slices);
        row("slots", &format!("{free} of {all} compute slices free"));
        let (free, all) = (slots.session_slots_free, slots.session_slots);
        let queues = slots.queue_slots;
        row(
            "",
            &format!("{free} of {all} sessions free, {queues} queues in each"),
        );
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
fn heading(resource: &ResourceJson) -> String {
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

fn capacity(resource: &ResourceJson) -> String {
    let mut parts = vec![found(resource, resource.capacity)];
    if let Some(cpu) = &resource.cpu {
        parts.push(format!("{} threads online", cpu.threads));
        parts.extend(cpu.arch.map(str::to_owned));
        parts.extend(cpu.max_mhz.map(|mhz| format!("up to {mhz} MHz")));
    }
    if let Some(nic) = &resource.nic {
        parts.push(format!("link {}", if nic.link_up { "up" } else { "down" }));
        parts.push(format!("MTU {}", nic.mtu));
    }
    if let Some(units) = resource.gpu.as_ref().and_then(|gpu| gpu.compute_units) {
        parts.push(format!("{units} compute units"));
    }
    parts.extend(
        resource
            .block_bytes
            .map(|bytes| format!("blocks of {bytes} B")),
    );
    parts.join(", ")
}

/// An amount of a resource; the speed of a port whose link is down is unknown.
fn found(resource: &ResourceJson, units: u64) -> String {
    match resource.kind {
        ResourceType::Net if resource.capacity == 0 => "unknown".to_owned(),
        kind => kind.amount(units),
    }
}

/// The largest amount that one more lease could get. For memory and storage it is the longest free stretch; more may be
/// free in total.
fn most(resource: &ResourceJson) -> String {
    let amount = found(resource, resource.available);
    match resource.kind {
        ResourceType::Mem | ResourceType::Block if resource.available < resource.capacity => {
            format!("{amount} at most for one lease")
        }
        _ => amount,
    }
}

/// A line for each class: the amount that a lease of it could get, its name, and whether the node enforces it.
fn by_class(resource: &ResourceJson, classes: &ClassesJson) -> String {
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
