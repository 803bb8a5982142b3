//! `lease …`: everything that is done with a lease.

use clap::{ArgGroup, Subcommand};
use fabricbios_wire::{LeaseId, RdmaPeer};

use super::{alloc::PEER, local::Enter};
use crate::{kinds::Alloc, values};

#[derive(Debug, Subcommand)]
pub(crate) enum Lease {
    /// Ask for a lease
    #[command(subcommand)]
    Alloc(Alloc),
    /// Connect a lease to a queue pair, also again after an access fault; or change the queue pairs that it has
    #[command(group = ArgGroup::new("queue pairs").args(["rdma_peer", "leave", "attach_code"]).required(true))]
    Bind {
        /// The lease
        #[arg(value_name = "LEASE", value_parser = values::lease_id)]
        id: LeaseId,
        /// The client's queue pair; repeat the flag for each of several, 8 at most
        #[arg(long, value_parser = values::rdma_peer, value_name = PEER)]
        rdma_peer: Vec<RdmaPeer>,
        /// Connect the queue pairs beside those that the lease has, which go on; without it, those are cut
        #[arg(long, requires = "rdma_peer", conflicts_with_all = ["leave", "attach_code"])]
        beside: bool,
        /// Cut this queue pair of the node, by its `qp_num`; the others go on. Repeat the flag for each of several, 8 at
        /// most
        #[arg(long, value_name = "QPN", value_parser = values::number::<1, 0xff_ffff>)]
        leave: Vec<u32>,
        /// Ask for a code with which one program joins the lease through rdma_cm, and print where it connects; the node
        /// needs --rdma-cm-listen. Whoever has the code gets in, once
        #[arg(long)]
        attach_code: bool,
    },
    /// Begin another term, in the last fifth of the current one; `lease keep` waits for that time
    Renew {
        /// The lease
        #[arg(value_name = "LEASE", value_parser = values::lease_id)]
        id: LeaseId,
        /// Length of the new term from now, in seconds; as long as the last term if not given
        #[arg(long, value_name = "SECS", value_parser = values::secs)]
        secs: Option<u32>,
    },
    /// Renew leases in the last fifth of each term, until SIGINT or SIGTERM; print the time of each renewal and
    /// of each end. The leases stay, and end with their last term
    Keep {
        /// The leases
        #[arg(required = true, value_name = "LEASE", value_parser = values::lease_id)]
        ids: Vec<LeaseId>,
        /// Length of each new term, in seconds; as long as the last term if not given
        #[arg(long, value_name = "SECS", value_parser = values::secs)]
        secs: Option<u32>,
    },
    /// Give a lease a new key
    Rotate {
        /// The lease
        #[arg(value_name = "LEASE", value_parser = values::lease_id)]
        id: LeaseId,
        /// How long the old key goes on working, in milliseconds
        #[arg(long, value_name = "MS", default_value_t = 0,
              value_parser = values::number::<0, 60_000>)]
        overlap_ms: u32,
    },
    /// Hand a lease over to a network namespace, on the node itself
    Enter(Enter),
    /// Show a lease
    Query {
        /// The lease
        #[arg(value_name = "LEASE", value_parser = values::lease_id)]
        id: LeaseId,
    },
    /// Give a lease back
    #[command(group = ArgGroup::new("given back").args(["id", "all"]).required(true))]
    Free {
        /// The lease
        #[arg(value_name = "LEASE", value_parser = values::lease_id)]
        id: Option<LeaseId>,
        /// All your leases
        #[arg(long)]
        all: bool,
    },
    /// List your leases, at a scheduler those at all its nodes; an operator lists everybody's
    List {
        /// List ended leases too, if they are still on record
        #[arg(long)]
        all: bool,
    },
    /// Take a lease back from its holder (operator)
    #[command(group = ArgGroup::new("revoked").args(["id", "tenant"]).required(true))]
    Revoke {
        /// The lease
        #[arg(value_name = "LEASE", value_parser = values::lease_id)]
        id: Option<LeaseId>,
        /// All leases of this tenant
        #[arg(long, value_name = "NAME", value_parser = values::tenant)]
        tenant: Option<String>,
    },
    /// Print each change of a lease until it ends
    Watch {
        /// The lease
        #[arg(value_name = "LEASE", value_parser = values::lease_id)]
        id: LeaseId,
        /// How often to look between known deadlines, in milliseconds
        #[arg(long, value_name = "MS", default_value_t = 1_000,
              value_parser = values::number::<10, 60_000>)]
        poll_ms: u32,
    },
}
