//! `health`: what is not well, and an exit status for monitors.

use fabricbios_client::{Inventory, Resource, ResourceHealth};

use super::{Access, HEALTH_WITHIN, within};
use crate::{
    failure::{Exit, Failure},
    json::{Object, field},
    output::{Output, headed_table, one_line},
};

/// The exit status if the node cannot be asked.
const NOT_ASKED: u8 = 2;

/// A resource, or the node, that is not well.
struct NotWell<'a> {
    name: String,
    health: String,
    why: Option<&'a str>,
}

/// Exits with 0 if all is well, with 1 if something is not, and with [`NOT_ASKED`].
pub(super) fn run(access: &Access, output: Output) -> Result<(), Failure> {
    match ask(access, output) {
        Ok(true) => Ok(()),
        // Standard output says what it is.
        Ok(false) => Err(Failure::told(Exit::Other)),
        Err(failure) => Err(failure.exiting_with(NOT_ASKED)),
    }
}

/// Prints the health, and returns whether all is well.
fn ask(access: &Access, output: Output) -> Result<bool, Failure> {
    let node = access.connect()?;
    let asked = within(HEALTH_WITHIN, &node, fabricbios_client::Node::inventory);
    node.close();
    let silent = || {
        let why = format_args!("it has not answered within {} s", HEALTH_WITHIN.as_secs());
        Failure::local("ask for the inventory", &why)
    };
    let inventory = asked.ok_or_else(silent)??;
    let not_well = not_well(&inventory);
    let told = not_well.iter().map(|it| {
        Object::from([
            field("name", &*it.name),
            field("health", &*it.health),
            field("reason", it.why),
        ])
    });
    let is_well = not_well.is_empty();
    let json = Object::from([
        field("node_id", inventory.node_id.to_string()),
        field("well", is_well),
        field("resources", inventory.resources.len() as u64),
        field("not_well", told.collect::<Vec<_>>()),
    ]);
    output.print(&json, || match is_well {
        true => "the node and its resources are well".to_owned(),
        false => {
            let row = |it: &NotWell<'_>| {
                let why = it.why.map(one_line).unwrap_or_default();
                vec![one_line(&it.name), it.health.clone(), why]
            };
            headed_table(["NAME", "HEALTH", "WHY"], not_well.iter().map(row))
        }
    })?;
    Ok(is_well)
}

fn not_well(inventory: &Inventory) -> Vec<NotWell<'_>> {
    let resources = inventory.resources.iter().filter_map(of_resource);
    let mut all: Vec<NotWell<'_>> = resources.collect();
    let why = inventory.health_reason.as_deref();
    // The health of the node is the worst of its resources, so it says something of its own only with a reason.
    if why.is_some() || (all.is_empty() && inventory.health != ResourceHealth::Ok) {
        let of_node = NotWell {
            name: "node".into(),
            health: inventory.health.to_string(),
            why,
        };
        all.insert(0, of_node);
    }
    all
}

fn of_resource(it: &Resource) -> Option<NotWell<'_>> {
    let health = match (it.health, it.fenced_part) {
        (Some(health), _) if health != ResourceHealth::Ok => health.to_string(),
        (_, Some(_)) => "partly fenced".to_owned(),
        _ => return None,
    };
    Some(NotWell {
        name: it.name.clone().unwrap_or_else(|| it.id.to_string()),
        health,
        why: it.health_reason.as_deref(),
    })
}
