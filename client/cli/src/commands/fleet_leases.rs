//! `lease list` at a scheduler: the leases of all nodes that report to it.

use fabricbios_client::{Node, wire::FleetLease};

use crate::{
    failure::Failure,
    json::{Object, field},
    output::{Output, headed_table, one_line},
    time_text,
};

/// Digits of a node's id in the list.
const ID_DIGITS: usize = 16;

pub(super) fn list(node: &Node, ended: bool, output: Output) -> Result<(), Failure> {
    if ended {
        return Err(Failure::usage(
            "a scheduler knows no leases that are over: leave --all out, or ask the node that had the lease",
        ));
    }
    let leases = node.fleet_leases()?;
    let all: Vec<Object<'_>> = leases.iter().map(json).collect();
    output.print(&Object::from([field("leases", all)]), || {
        if leases.is_empty() {
            return "no leases".to_owned();
        }
        let headings = [
            "LEASE", "NODE", "TENANT", "STATE", "TYPE", "CAPACITY", "END",
        ];
        headed_table(headings, leases.iter().map(columns))
    })
}

/// The names are a contract.
fn json(it: &FleetLease) -> Object<'_> {
    let lease = &it.lease;
    Object::from([
        field("lease_id", lease.lease_id.to_string()),
        field("node_id", it.node_id.to_string()),
        field("resource_id", lease.resource_id.to_string()),
        field("resource_type", lease.resource_type.to_string()),
        field("state", lease.phase.name()),
        field("capacity", lease.capacity),
        field("expires_at_unix_ms", lease.expires_at_unix_ms),
        field("tenant", &*lease.tenant),
    ])
}

fn columns(it: &FleetLease) -> Vec<String> {
    let lease = &it.lease;
    vec![
        lease.lease_id.to_string(),
        it.node_id.to_string().chars().take(ID_DIGITS).collect(),
        one_line(&lease.tenant),
        lease.phase.to_string(),
        lease.resource_type.to_string(),
        lease.resource_type.amount(lease.capacity),
        time_text::utc(lease.expires_at_unix_ms),
    ]
}
