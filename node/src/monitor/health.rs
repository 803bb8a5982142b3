//! How the node is, by the same truth as its inventory. It tells neither a tenant nor a lease.

use std::{collections::BTreeMap, time::Duration};

use fabricbios_fabric::Fabric;
use fabricbios_lease::Availability;
use fabricbios_wire::{InventoryExtension, ResourceId, ResourceInventory, admission_flags};
use serde::Serialize;

use crate::{driver::tally::DriverFigures, monitor::Figures};

/// The page of /healthz and /readyz. The names are a contract.
#[derive(Debug, Serialize)]
pub(super) struct Health {
    pub(super) node_id: String,
    pub(super) fabric: String,
    pub(super) version: &'static str,
    /// Whether leases are granted of at least one resource.
    pub(super) ready: bool,
    /// Whether nothing is degraded or fenced.
    pub(super) well: bool,
    /// What is not well, for people.
    pub(super) not_well: Vec<NotWell>,
    resources: usize,
    /// Leases by state.
    pub(super) leases: BTreeMap<&'static str, u64>,
    /// Leases that are in a state for longer than it should take.
    pub(super) leases_above_bound: u64,
}

/// A resource, or the node, that is not well.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct NotWell {
    /// The name of the resource; `node`: the node itself.
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_id: Option<String>,
    /// `degraded`, `fenced`, or `partly fenced`.
    pub(super) state: &'static str,
    pub(super) why: String,
}

/// The page of a node whose driver does not answer.
#[derive(Debug, Serialize)]
pub(super) struct Silent {
    node_id: String,
    fabric: String,
    version: &'static str,
    ready: bool,
    well: bool,
    not_well: [NotWell; 1],
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

impl Health {
    /// `is_operator`: the reasons of resources are told, which may name a lease and what its tenant runs.
    pub(super) fn of(figures: &Figures, is_operator: bool) -> Self {
        let (machine, figures) = (&figures.machine, &figures.driver);
        let not_well = not_well(figures, is_operator);
        let mut leases = BTreeMap::new();
        for of in &figures.states {
            *leases.entry(of.state.name()).or_default() += of.leases;
        }
        let grants = |it: &&Availability| !it.fenced && it.capacity > 0 && !is_absent(it);
        Self {
            node_id: machine.node_id.to_string(),
            fabric: machine.fabric.clone(),
            version: VERSION,
            ready: !figures.is_draining
                && figures.unwritable.is_none()
                && figures.offered.iter().any(|it| grants(&it)),
            well: not_well.is_empty(),
            not_well,
            resources: figures.offered.len(),
            leases,
            leases_above_bound: figures.states.iter().filter_map(|it| it.above_bound).sum(),
        }
    }
}

impl Silent {
    pub(super) fn of(fabric: &Fabric, patience: Duration) -> Self {
        Self {
            node_id: fabric.node_id().to_string(),
            fabric: fabric.id().to_string(),
            version: VERSION,
            ready: false,
            well: false,
            not_well: [NotWell {
                name: "node".into(),
                resource_id: None,
                state: "degraded",
                why: format!("the node stops, or its driver does not answer within {patience:?}"),
            }],
        }
    }
}

/// Whether nothing is granted of the resource until it is back.
fn is_absent(of: &Availability) -> bool {
    matches!(of.admission, InventoryExtension::Admission { flags, .. } if flags & admission_flags::ABSENT != 0)
}

fn not_well(figures: &DriverFigures, is_operator: bool) -> Vec<NotWell> {
    let inventory = &figures.inventory;
    let of_node = inventory.extensions.iter().filter_map(|it| match it {
        InventoryExtension::HealthReason(ResourceId(0), why) => Some(why.clone()),
        _ => None,
    });
    let stops = figures
        .is_draining
        .then(|| "the node is going down".to_owned());
    let of_node = of_node.chain(stops).map(|why| NotWell {
        name: "node".into(),
        resource_id: None,
        state: "degraded",
        why,
    });
    let of_resources = figures.offered.iter().filter_map(|it| {
        let why = reason(inventory, it.resource_id);
        let state = match (it.fenced, it.fenced_part) {
            (true, _) => "fenced",
            (false, 1..) => "partly fenced",
            (false, 0) if why.is_some() => "degraded",
            (false, 0) => return None,
        };
        let unsaid = || "`fabricctl health` and `fabricctl fence list` say why".to_owned();
        Some(NotWell {
            name: name(inventory, it.resource_id),
            resource_id: Some(it.resource_id.to_string()),
            state,
            why: why.filter(|_| is_operator).unwrap_or_else(unsaid),
        })
    });
    of_node.chain(of_resources).collect()
}

/// Why a resource is not well.
pub(super) fn reason(inventory: &ResourceInventory, id: ResourceId) -> Option<String> {
    inventory.extensions.iter().find_map(|it| match it {
        InventoryExtension::HealthReason(of, why) if *of == id => Some(why.clone()),
        _ => None,
    })
}

/// The name of a resource; an id where it has none.
pub(super) fn name(inventory: &ResourceInventory, id: ResourceId) -> String {
    let mut extensions = inventory.extensions.iter();
    let name = extensions.find_map(|it| match it {
        InventoryExtension::Name(of, name) if *of == id => Some(name.clone()),
        _ => None,
    });
    name.unwrap_or_else(|| id.to_string())
}
