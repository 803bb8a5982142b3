//! `lease alloc`: makes a request from the flags and prints the new lease.

use std::io::{self, Write};

use fabricbios_client::{Granted, Node, lease_json};
use fabricbios_wire::{
    AFFINITIES_MAX, LeaseAllocRequest, LeaseId, LeaseInfo, LeaseIntent, LeaseTerms, Request,
    TRIED_MAX, Tried,
};

use super::resource;
use crate::{
    args::Term,
    failure::Failure,
    json::{Field, Object, field},
    kinds::{self, Alloc},
    lease_text,
    output::{Output, one_line},
};

pub(super) fn run(node: &Node, what: Alloc, output: Output) -> Result<(), Failure> {
    let request = what.request(node)?;
    if request.explain {
        return explain(node, request, output);
    }
    let asked = request.capacity;
    let lease = node.acquire(request)?;
    if !output.json {
        warn_of_rounding(&lease.info, asked);
    }
    let printed = output.print(&granted(&lease, asked), || {
        lease_text::granted(&lease.info, other(&lease.node, node))
    });
    let printed = printed
        .map_err(|failure| failure.and_message(&give_back(&lease.node, lease.info.lease_id)));
    close_other(&lease.node, node);
    printed
}

/// Prints which nodes the scheduler would name, and why.
fn explain(node: &Node, request: LeaseAllocRequest, output: Output) -> Result<(), Failure> {
    let told = node.explain(request)?;
    let candidates: Vec<Object<'_>> = { told.candidates.iter() }
        .map(|it| {
            Object::from([
                field("node_id", it.node_id.to_string()),
                field("address", it.endpoint.to_string()),
                field("resource_id", it.resource_id.to_string()),
            ])
        })
        .collect();
    let why: Vec<String> = told.why.lines().map(one_line).collect();
    let json = Object::from([field("candidates", candidates), field("why", why.clone())]);
    output.print(&json, || why.join("\n"))
}

/// A new lease with its node; with the requested capacity, if the granted one is larger.
fn granted(lease: &Granted, asked: u64) -> Object<'_> {
    let info = &lease.info;
    let asked = (info.capacity != asked).then_some(asked);
    lease_json(info)
        .with(node_json(&lease.node))
        .with([field("asked_capacity", asked)])
}

/// The node of a new lease. The names are a contract.
pub(super) fn node_json(node: &Node) -> [Field<'_>; 2] {
    [
        field("node", node.address()),
        field("node_id", node.id().map(|id| id.to_string())),
    ]
}

/// The node of a new lease as text, if a scheduler was asked and has named it.
pub(super) fn other(of_lease: &Node, asked: &Node) -> Option<String> {
    let id = of_lease.id().filter(|id| Some(*id) != asked.id())?;
    Some(format!("{} {id}", of_lease.address()))
}

/// Closes the connection to the node of a lease, if it is not that of the whole command.
pub(super) fn close_other(of_lease: &Node, asked: &Node) {
    if of_lease.id() != asked.id() {
        of_lease.close();
    }
}

/// Warns that the node has rounded the capacity up. The JSON has both numbers.
fn warn_of_rounding(info: &LeaseInfo, asked: u64) {
    if info.capacity != asked {
        let why = kinds::face(info.resource_type()).rounding();
        let line = format!(
            "fabricctl: asked for {} ({asked}), granted {} ({}): {why}",
            info.resource_type().amount(asked),
            info.resource_type().amount(info.capacity),
            info.capacity
        );
        // If standard error is closed, the capacity is still in the output.
        writeln!(io::stderr(), "{line}").ok();
    }
}

/// Frees a lease that is of no use: nobody knows its id, or the work that needed it has failed. Returns the result as
/// text.
pub(super) fn give_back(node: &Node, lease_id: LeaseId) -> String {
    match node.call(Request::LeaseFree(lease_id)) {
        Ok(_) => format!("lease {lease_id} was given back"),
        Err(error) => {
            format!("lease {lease_id} was not given back and ends with its term: {error}")
        }
    }
}

/// A request with what every kind has.
pub(crate) fn request_of(
    node: &Node,
    terms: impl Into<LeaseTerms>,
    capacity: u64,
    term: Term,
) -> Result<LeaseAllocRequest, Failure> {
    if term.affinity.len() > AFFINITIES_MAX {
        return Err(Failure::usage(format!(
            "a lease has at most {AFFINITIES_MAX} of --affinity"
        )));
    }
    if term.avoid_node.len() > TRIED_MAX {
        return Err(Failure::usage(format!(
            "a request has at most {TRIED_MAX} of --avoid-node"
        )));
    }
    let terms = terms.into();
    let kind = terms.resource_type();
    let named = term
        .resource
        .map(|named| resource::find(node, named, Some(kind)));
    Ok(LeaseAllocRequest {
        resource_id: named.transpose()?,
        intent: LeaseIntent {
            affinities: term.affinity,
            ..LeaseIntent::default()
        },
        tried: { term.avoid_node.into_iter() }
            .map(Tried::avoided)
            .collect(),
        explain: term.explain,
        terms,
        ..LeaseAllocRequest::new(kind, capacity, term.secs)
    })
}

/// Prints one lease.
pub(super) fn show(info: &LeaseInfo, output: Output) -> Result<(), Failure> {
    output.print(&lease_json(info), || lease_text::full(info))
}
