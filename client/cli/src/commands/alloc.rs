//! `lease alloc`: makes a request from the flags and prints the new lease.

use std::io::{self, Write};

use fabricbios_client::Node;
use fabricbios_wire::{
    AFFINITIES_MAX, BlockTerms, CpuTerms, GpuTerms, LeaseAllocRequest, LeaseId, LeaseInfo,
    LeaseIntent, LeaseTerms, MemTerms, NetTerms, Request, ResourceType, Transport,
};
use serde::Serialize;

use super::resource;
use crate::{
    args::{Alloc, GpuClass, Term},
    failure::Failure,
    lease_json::LeaseJson,
    lease_text,
    output::Output,
};

pub(super) fn run(node: &Node, what: Alloc, output: Output) -> Result<(), Failure> {
    let request = request(node, what)?;
    check(&request)?;
    let asked = request.capacity;
    let info = node.alloc(request)?;
    if !output.json {
        warn_of_rounding(&info, asked);
    }
    let printed = output.print(&Granted::new(&info, asked), || lease_text::full(&info));
    printed.map_err(|failure| failure.and_message(&give_back(node, info.lease_id)))
}

/// Refuses flags that no node would accept, without asking it.
fn check(request: &LeaseAllocRequest) -> Result<(), Failure> {
    if request.intent.affinities.len() > AFFINITIES_MAX {
        return Err(Failure::usage(format!(
            "a lease has at most {AFFINITIES_MAX} of --affinity"
        )));
    }
    let block = request.terms.block();
    if request.transport == Transport::Udp && block.is_some_and(BlockTerms::names_host) {
        return Err(Failure::usage(
            "--hostnqn, --hostid and --mutual-auth are for NVMe-oF; leave them out with --transport udp",
        ));
    }
    Ok(())
}

/// A new lease.
#[derive(Serialize)]
struct Granted<'a> {
    #[serde(flatten)]
    lease: LeaseJson<'a>,
    /// The requested capacity, if the granted one is larger.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_capacity: Option<u64>,
}

impl<'a> Granted<'a> {
    fn new(info: &'a LeaseInfo, asked: u64) -> Self {
        Self {
            lease: info.into(),
            asked_capacity: (info.capacity != asked).then_some(asked),
        }
    }
}

/// Warns that the node has rounded the capacity up. The JSON has both numbers.
fn warn_of_rounding(info: &LeaseInfo, asked: u64) {
    if info.capacity != asked {
        let why = match info.resource_type() {
            ResourceType::Gpu => "a lease of this class has the whole GPU",
            _ => "this node gives out whole pieces only",
        };
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

fn request(node: &Node, what: Alloc) -> Result<LeaseAllocRequest, Failure> {
    Ok(match what {
        Alloc::Mem {
            bytes,
            term,
            grace,
            transport,
            rdma_peer,
            intent_kv_cache,
            rotate_on_renew,
        } => {
            let terms = MemTerms {
                rdma_peers: rdma_peer,
            };
            let request = request_of(node, terms, bytes, term)?;
            LeaseAllocRequest {
                transport,
                rotate_on_renew,
                grace_secs: grace.grace_secs,
                intent: LeaseIntent {
                    kv_cache: intent_kv_cache,
                    ..request.intent
                },
                ..request
            }
        }
        Alloc::Block {
            bytes,
            term,
            grace,
            transport,
            host,
            read_only,
            rotate_on_renew,
        } => {
            let terms = BlockTerms {
                read_only,
                host_nqn: host.hostnqn,
                host_id: host.hostid,
                mutual_auth: host.mutual_auth,
            };
            LeaseAllocRequest {
                transport,
                rotate_on_renew,
                grace_secs: grace.grace_secs,
                ..request_of(node, terms, bytes, term)?
            }
        }
        Alloc::Net {
            mbps,
            term,
            vlan,
            mac,
            hand_over,
            no_grace: _,
        } => {
            let terms = NetTerms {
                mac,
                vlan,
                hand_over,
            };
            request_of(node, terms, mbps, term)?
        }
        Alloc::Cpu {
            cores,
            term,
            isolation,
            execution_mode,
            execution_width,
            partition,
            no_grace: _,
        } => {
            let terms = CpuTerms {
                isolation,
                execution_mode,
                execution_width,
                partition,
            };
            request_of(node, terms, cores.into(), term)?
        }
        Alloc::Gpu {
            vram,
            term,
            class,
            no_grace: _,
        } => gpu_request(node, vram, term, class)?,
    })
}

/// A request for a GPU or part of one.
pub(super) fn gpu_request(
    node: &Node,
    vram: u64,
    term: Term,
    class: GpuClass,
) -> Result<LeaseAllocRequest, Failure> {
    let GpuClass {
        exclusivity,
        execution_mode,
        compute_slices,
        vendor,
    } = class;
    let class = exclusivity.map(|class| class as u8);
    let of_vendor = vendor.map(|vendor| resource::of_vendor(node, vendor, vram, class));
    let terms = GpuTerms {
        exclusivity,
        execution_mode,
        compute_slices,
    };
    let request = request_of(node, terms, vram, term)?;
    Ok(LeaseAllocRequest {
        resource_id: of_vendor.transpose()?.or(request.resource_id),
        ..request
    })
}

fn request_of(
    node: &Node,
    terms: impl Into<LeaseTerms>,
    capacity: u64,
    term: Term,
) -> Result<LeaseAllocRequest, Failure> {
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
        terms,
        ..LeaseAllocRequest::new(kind, capacity, term.secs)
    })
}

/// Prints one lease.
pub(super) fn show(info: &LeaseInfo, output: Output) -> Result<(), Failure> {
    output.print(&LeaseJson::from(info), || lease_text::full(info))
}
