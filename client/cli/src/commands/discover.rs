//! `discover`: the schedulers and nodes that announce themselves on the links of this machine.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use fabricbios_client::Identity;
use fabricbios_discovery::{Found, Looking, multicast_interfaces};
use fabricbios_fabric::Verifier;
use fabricbios_wire::{FlatEntry, ResourceType, Solicit, resource_flags};
use tokio::{runtime, time::sleep};

use super::not_found;
use crate::{
    args::Discover,
    failure::Failure,
    json::{Object, field, flag},
    output::{Output, headed_table},
};

/// Who was found.
struct Members {
    schedulers: Vec<Found>,
    nodes: Vec<Found>,
}

pub(super) fn run(what: &Discover, identity: &Path, output: Output) -> Result<(), Failure> {
    // Its errors say what is wrong with the file.
    Identity::load(identity)?;
    let interfaces = match &what.interface[..] {
        [] => multicast_interfaces().map_err(|why| Failure::local("list the interfaces", &why))?,
        named => named.to_vec(),
    };
    let found = look(&interfaces, identity, Duration::from_secs(what.wait.into()))?;
    let Members { schedulers, nodes } = &found;
    if schedulers.is_empty() && nodes.is_empty() {
        return Err(not_found(format!(
            "no scheduler and no node of your fabric has answered on {} within {} s; `--announce IFACE` of \
             fabricbios-scheduler or `fabricbiosd control-server` on the same link and UDP port 5705 in firewalls are needed; \
             or name one with --node",
            list(&interfaces),
            what.wait
        )));
    }
    let told = [
        field(
            "schedulers",
            schedulers.iter().map(scheduler).collect::<Vec<_>>(),
        ),
        field("nodes", nodes.iter().map(node).collect::<Vec<_>>()),
    ];
    output.print(&Object::from(told), || text(&found))
}

fn look(interfaces: &[String], identity: &Path, wait: Duration) -> Result<Members, Failure> {
    let bad = |why: &dyn std::fmt::Display| {
        Failure::usage(format!("identity {}: {why}", identity.display()))
    };
    let text = fs::read(identity).map(zeroize::Zeroizing::new);
    let text = text.map_err(|why| bad(&why))?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|why| Failure::local("start the runtime", &why))?;
    // Each has places of its own: many nodes hide no scheduler.
    let ask = |wanted| {
        let verifier = Verifier::of_identity(&text).map_err(|why| bad(&why))?;
        let looking = Looking::ask(interfaces, verifier, wanted);
        looking.map_err(|why| Failure::usage(why.to_string()))
    };
    runtime.block_on(async {
        let (schedulers, nodes) = (ask(ResourceType::Scheduler)?, ask(Solicit::NODES)?);
        sleep(wait).await;
        Ok(Members {
            schedulers: schedulers.now(),
            nodes: nodes.now(),
        })
    })
}

fn list(interfaces: &[String]) -> String {
    match interfaces {
        [] => "any interface: none is up with an address and multicast".to_owned(),
        some => some.join(", "),
    }
}

/// The names are a contract.
fn scheduler(found: &Found) -> Object<'_> {
    Object::from([
        field("scheduler_id", found.id.to_string()),
        field("addresses", addresses(found)),
        // Absent if it serves no HTTP.
        field("http_port", found.http_port()),
    ])
}

/// The names are a contract.
fn node(found: &Found) -> Object<'_> {
    let resources = found.entries.iter().map(resource);
    Object::from([
        field("node_id", found.id.to_string()),
        field("addresses", addresses(found)),
        field("resources", resources.collect::<Vec<_>>()),
        flag("has_more", found.has_more),
    ])
}

fn resource(entry: &FlatEntry) -> Object<'_> {
    let has = |flag| entry.flags & flag != 0;
    Object::from([
        field("resource_id", entry.resource_id.to_string()),
        field("resource_type", entry.resource_type.to_string()),
        field("available", entry.available),
        field("capacity", entry.capacity),
        flag("fenced", has(resource_flags::FENCED)),
        flag("degraded", has(resource_flags::DEGRADED)),
    ])
}

fn addresses(found: &Found) -> Vec<String> {
    found.addresses.iter().map(ToString::to_string).collect()
}

/// The schedulers first.
fn text(found: &Members) -> String {
    let row = |it: &Found| vec![it.id.to_string(), addresses(it).join(" ")];
    let with_resources = |it: &Found| [row(it), vec![available(it)]].concat();
    let mut tables = Vec::new();
    if !found.schedulers.is_empty() {
        let rows = found.schedulers.iter().map(row);
        tables.push(headed_table(["SCHEDULER", "ADDRESS"], rows));
    }
    if !found.nodes.is_empty() {
        let rows = found.nodes.iter().map(with_resources);
        tables.push(headed_table(["NODE", "ADDRESS", "AVAILABLE"], rows));
    }
    tables.join("\n\n")
}

/// What a node has available, of each kind.
fn available(found: &Found) -> String {
    let mut sums = BTreeMap::<ResourceType, u64>::new();
    for entry in &found.entries {
        let sum = sums.entry(entry.resource_type).or_default();
        *sum = sum.saturating_add(entry.available);
    }
    let words = sums
        .iter()
        .map(|(kind, sum)| format!("{kind} {}", kind.amount(*sum)));
    let more = found.has_more.then(|| "and more".to_owned());
    match words.chain(more).collect::<Vec<_>>() {
        none if none.is_empty() => "none".to_owned(),
        some => some.join(", "),
    }
}
