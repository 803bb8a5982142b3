//! `node …`: the nodes of a fabric, as a scheduler knows them.

use std::collections::BTreeMap;

use fabricbios_client::{AwayNode, FleetNode, Members, Node, NodeId, Resource};
use fabricbios_wire::{CpuIsolationClass, ResourceType};

use super::{inventory, not_found};
use crate::{
    args,
    failure::Failure,
    json::{Object, field},
    output::{Output, headed_table, one_line},
    time_text,
};

/// Digits of an id in the list.
const ID_DIGITS: usize = 16;
/// Fewer digits could be those of another node by a slip.
const FORGET_DIGITS: usize = 8;

pub(super) fn run(node: &Node, command: args::FleetNode, output: Output) -> Result<(), Failure> {
    let members = node.members()?;
    match command {
        args::FleetNode::List => list(&members, output),
        args::FleetNode::Show { id } => {
            // A report has not all that the node tells.
            let nodes = members.reporting.iter();
            let named = named(
                nodes,
                |it| it.id,
                &id,
                || {
                    let scheduler = node.address();
                    format!(
                        "no node with an id that begins with {id} reports to scheduler {scheduler}"
                    )
                },
            )?;
            inventory::show(&node.reporting(named)?, output)
        }
        args::FleetNode::Forget { id } => {
            if id.len() < FORGET_DIGITS {
                return Err(Failure::usage(format!(
                    "write at least {FORGET_DIGITS} digits of the id of a node that is to be forgotten"
                )));
            }
            let reporting = members.reporting.iter().map(|it| it.id);
            let all: Vec<NodeId> = reporting
                .chain(members.away.iter().map(|it| it.id))
                .collect();
            let named = *named(
                all.iter(),
                |it| *it,
                &id,
                || {
                    let scheduler = node.address();
                    format!(
                        "scheduler {scheduler} knows no member with an id that begins with {id}; without etcd it remembers none"
                    )
                },
            )?;
            // The scheduler refuses it if the node reports.
            node.forget_member(named)?;
            let id = named.to_string();
            let text = format!("forgotten: node {id}");
            output.print(&Object::from([field("forgotten", id)]), || text)
        }
    }
}

/// The node whose id begins with these digits.
fn named<'a, T>(
    nodes: impl Iterator<Item = &'a T>,
    id: impl Fn(&T) -> NodeId,
    digits: &str,
    none: impl Fn() -> String,
) -> Result<&'a T, Failure> {
    let found = nodes.filter(|it| id(it).to_string().starts_with(digits));
    match found.collect::<Vec<_>>()[..] {
        [one] => Ok(one),
        [] => Err(not_found(format!("{}; see `fabricctl node list`", none()))),
        ref several => Err(Failure::usage(format!(
            "the ids of {} nodes begin with {digits}; write more digits, see `fabricctl node list`",
            several.len()
        ))),
    }
}

fn list(members: &Members, output: Output) -> Result<(), Failure> {
    let (nodes, away) = (&members.reporting, &members.away);
    let all: Vec<Object<'_>> = nodes.iter().map(json).collect();
    let absent: Vec<Object<'_>> = away.iter().map(away_json).collect();
    output.print(
        &Object::from([field("nodes", all), field("away", absent)]),
        || {
            if nodes.is_empty() && away.is_empty() {
                return "no node reports to this scheduler".to_owned();
            }
            let headings = ["NODE", "ADDRESS", "HEALTH", "SINCE", "AVAILABLE", "LABELS"];
            headed_table(
                headings,
                nodes
                    .iter()
                    .map(columns)
                    .chain(away.iter().map(away_columns)),
            )
        },
    )
}

/// The names are a contract.
fn json(node: &FleetNode) -> Object<'_> {
    let resources = offered(node)
        .into_iter()
        .map(|(kind, (available, capacity))| {
            Object::from([
                field("resource_type", kind.to_string()),
                field("available", available),
                // Absent where reports do not tell it.
                field("capacity", capacity),
            ])
        });
    let labels: Vec<&str> = node.labels.iter().map(|it| &**it).collect();
    Object::from([
        field("node_id", node.id.to_string()),
        field("address", node.address.to_string()),
        field("health", node.inventory.health.to_string()),
        field("health_reason", node.inventory.health_reason.as_deref()),
        field("since_unix_ms", node.since_unix_ms),
        field("labels", labels),
        field("resources", resources.collect::<Vec<_>>()),
    ])
}

fn away_json(node: &AwayNode) -> Object<'_> {
    let labels: Vec<&str> = node.labels.iter().map(|it| &**it).collect();
    Object::from([
        field("node_id", node.id.to_string()),
        field("address", node.address.to_string()),
        field("last_seen_unix_ms", node.last_seen_unix_ms),
        field("labels", labels),
    ])
}

/// The time is that of its last word.
fn away_columns(node: &AwayNode) -> Vec<String> {
    let labels: Vec<String> = node.labels.iter().map(|it| one_line(it)).collect();
    vec![
        node.id.to_string().chars().take(ID_DIGITS).collect(),
        node.address.to_string(),
        "away".to_owned(),
        time_text::utc(node.last_seen_unix_ms),
        "none".to_owned(),
        or_none(labels),
    ]
}

fn columns(node: &FleetNode) -> Vec<String> {
    let offered = offered(node)
        .into_iter()
        .map(|(kind, (available, capacity))| {
            let of = capacity.map(|it| format!(" of {}", kind.amount(it)));
            format!(
                "{kind} {}{}",
                kind.amount(available),
                of.unwrap_or_default()
            )
        });
    let labels: Vec<String> = node.labels.iter().map(|it| one_line(it)).collect();
    vec![
        node.id.to_string().chars().take(ID_DIGITS).collect(),
        node.address.to_string(),
        node.inventory.health.to_string(),
        time_text::utc(node.since_unix_ms),
        or_none(offered.collect()),
        or_none(labels),
    ]
}

fn or_none(words: Vec<String>) -> String {
    match words.is_empty() {
        true => "none".to_owned(),
        false => words.join(", "),
    }
}

/// Of each kind: what is available, and what there is, over all resources on offer. `None`: it is not known what there is.
fn offered(node: &FleetNode) -> BTreeMap<ResourceType, (u64, Option<u64>)> {
    let mut sums = BTreeMap::new();
    // Every resource on offer lists its classes, even if it has none.
    let on_offer = node
        .inventory
        .resources
        .iter()
        .filter(|it| it.classes.is_some());
    for it in on_offer {
        let (available, capacity) = sums.entry(it.kind).or_insert((0_u64, Some(0_u64)));
        *available = available.saturating_add(it.available);
        *capacity = capacity
            .zip(capacity_of(it))
            .map(|(sum, more)| sum.saturating_add(more));
    }
    sums
}

/// `None`: the report of the node does not tell it, but counts cores where leases are of logical CPUs.
fn capacity_of(resource: &Resource) -> Option<u64> {
    let default = resource.classes.as_ref().map(|it| it.default);
    let is_of_cpus =
        resource.kind == ResourceType::Cpu && default == Some(CpuIsolationClass::BestEffort as u8);
    (!is_of_cpus).then_some(resource.capacity)
}
