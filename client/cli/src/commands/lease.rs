//! `lease …`: the operations on an existing lease.

use std::collections::BTreeMap;

use fabricbios_client::{Error, Node, lease_json};
use fabricbios_wire::{
    LeaseId, LeaseInfo, LeasePhase, PeerChange, RdmaPeer, RefusalClass, Reply, Request,
    RevokeOutcome,
};

use super::{alloc, bulk, fleet_leases, keep, local, not_found, watch};
use crate::{
    args::Lease,
    failure::{Exit, Failure},
    json::{Object, field},
    lease_text,
    output::Output,
};

pub(super) fn run(node: &Node, command: Lease, output: Output) -> Result<(), Failure> {
    let (lease_id, request) = match command {
        Lease::Alloc(what) => return alloc::run(node, what, output),
        Lease::Rotate { id, overlap_ms } => return rotate(node, id, overlap_ms, output),
        Lease::List { all } => return list(node, all, output),
        Lease::Revoke { id, tenant } => {
            return match (id, tenant) {
                (Some(id), _) => revoke(node, id, output),
                (None, tenant) => bulk::revoke(node, &tenant.unwrap_or_default(), output),
            };
        }
        Lease::Free { id: Some(id), .. } => return free(node, id, output),
        Lease::Free { id: None, .. } => return bulk::free(node, output),
        Lease::Enter(what) => return local::enter(what, output),
        Lease::Keep { ids, secs } => return keep::run(node, &ids, secs.unwrap_or(0), output),
        Lease::Watch { id, poll_ms } => return watch::run(node, id, poll_ms, output),
        Lease::Bind {
            id,
            rdma_peer,
            beside,
            leave,
            attach_code: false,
        } => (id, bind(id, rdma_peer, beside, leave)),
        Lease::Bind { id, .. } => (id, Request::LeaseAttach(id)),
        Lease::Renew { id, secs } => (
            id,
            Request::LeaseRenew {
                lease_id: id,
                lease_secs: secs.unwrap_or(0),
            },
        ),
        Lease::Query { id } => (id, Request::LeaseQuery(id)),
    };
    let info = ask(node, lease_id, request)?;
    alloc::show(&info, output)
}

fn bind(lease_id: LeaseId, peers: Vec<RdmaPeer>, beside: bool, leave: Vec<u32>) -> Request {
    let change = match (beside, leave.is_empty()) {
        (false, true) => return Request::LeaseBind { lease_id, peers },
        (true, _) => PeerChange::Add(peers),
        (false, false) => PeerChange::Remove(leave),
    };
    Request::LeasePeers { lease_id, change }
}

fn rotate(node: &Node, lease_id: LeaseId, overlap_ms: u32, output: Output) -> Result<(), Failure> {
    let request = Request::LeaseRotate {
        lease_id,
        overlap_ms,
    };
    let info = ask(node, lease_id, request)?;
    output.print(&lease_json(&info), || {
        lease_text::rotated(&info, overlap_ms)
    })
}

/// Sends a request whose reply is a lease; a failure names the lease.
pub(super) fn ask(node: &Node, lease_id: LeaseId, request: Request) -> Result<LeaseInfo, Failure> {
    let named = |error| Failure::from(error).at(&format!("lease {lease_id}"));
    node.lease(request).map_err(named)
}

fn free(node: &Node, lease_id: LeaseId, output: Output) -> Result<(), Failure> {
    let info = ask(node, lease_id, Request::LeaseFree(lease_id))?;
    output.print(&lease_json(&info), || {
        format!("lease {lease_id} is {}", info.phase)
    })?;
    match info.phase {
        LeasePhase::Fenced => Err(fenced(lease_id)),
        _ => Ok(()),
    }
}

pub(super) fn fenced(lease_id: LeaseId) -> Failure {
    let message = format!(
        "lease {lease_id} ended and something of it could not be cleaned; see `fabricctl fence list`"
    );
    Failure::new(Exit::Fenced, RefusalClass::Permanent, "Fenced", message)
}

fn revoke(node: &Node, lease_id: LeaseId, output: Output) -> Result<(), Failure> {
    let outcome = match node.call(Request::LeaseRevoke(lease_id))? {
        Reply::Revoked(outcome) => outcome,
        other => return Err(node.unexpected("a revocation", &other).into()),
    };
    match outcome {
        RevokeOutcome::TornDown => {
            let json = Object::from([
                field("lease_id", lease_id.to_string()),
                field("outcome", outcome.name()),
            ]);
            output.print(&json, || {
                format!("lease {lease_id} is revoked: proven unreachable")
            })
        }
        RevokeOutcome::Fenced => Err(fenced(lease_id)),
        RevokeOutcome::NotFound => {
            let message = format!("no lease {lease_id}; see `fabricctl lease list`");
            Err(Failure::new(
                Exit::NotFound,
                RefusalClass::Permanent,
                "NotFound",
                message,
            ))
        }
    }
}

fn list(node: &Node, ended: bool, output: Output) -> Result<(), Failure> {
    if node.is_scheduler() {
        return fleet_leases::list(node, ended, output);
    }
    let leases = all_pages(node, ended)?;
    let all: Vec<Object<'_>> = leases.iter().map(lease_json).collect();
    let json = Object::from([field("leases", all)]);
    output.print(&json, || {
        if leases.is_empty() {
            return "no leases".to_owned();
        }
        lease_text::list(&leases)
    })
}

/// Pages of the longest list: a node keeps about 1.3 million records, 128 on a page.
const PAGES_MAX: usize = 1 << 14;

/// A live lease, and the node that has it.
pub(super) type Live = (LeaseId, Result<Node, Failure>);

/// The leases that have not ended and whose tenant `is_one` accepts. A node tells tenants to operators alone. Each lease of
/// a scheduler's list is ended at the node that has reported it: so a node that reports another one's lease ends nothing.
pub(super) fn live(
    node: &Node,
    is_one: impl Fn(Option<&str>) -> bool,
) -> Result<Vec<Live>, Failure> {
    if !node.is_scheduler() {
        let leases = all_pages(node, false)?.into_iter();
        let of = leases.filter(|it| is_one(it.tenant.as_deref()));
        return Ok(of.map(|it| (it.lease_id, Ok(node.clone()))).collect());
    }
    let leases = node.fleet_leases()?.into_iter();
    let nodes = node.nodes()?;
    let mut handles = BTreeMap::new();
    for it in &nodes {
        handles.insert(it.id, node.reporting(it)?);
    }
    let at = |id| match handles.get(&id) {
        Some(node) => Ok(node.clone()),
        None => Err(not_found(format!("its node {id} does not report any more"))),
    };
    let of = leases.filter(|it| is_one(Some(&it.lease.tenant)));
    Ok(of.map(|it| (it.lease.lease_id, at(it.node_id))).collect())
}

pub(super) fn all_pages(node: &Node, ended: bool) -> Result<Vec<LeaseInfo>, Failure> {
    let (mut leases, mut after) = (Vec::new(), LeaseId(0));
    // A node must cause no endless loop, neither with a page again nor with ever more.
    for _ in 0..PAGES_MAX {
        let page = match node.call(Request::LeaseList { after, ended })? {
            Reply::Leases(page) => page,
            other => return Err(node.unexpected("a list of leases", &other).into()),
        };
        let is_empty = page.leases.is_empty();
        leases.extend(page.leases);
        match page.next {
            Some(_) if is_empty => break,
            Some(next) if next > after => after = next,
            _ => return Ok(leases),
        }
    }
    Err(Failure::from(Error::Protocol {
        node: node.address().to_owned(),
        why: format!(
            "its list of leases has an empty page before the last one, or more than {PAGES_MAX} pages"
        ),
    }))
}
