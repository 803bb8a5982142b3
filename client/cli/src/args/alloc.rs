//! The arguments of `lease alloc` that several kinds have.

use std::convert::Infallible;

use clap::Args;
use fabricbios_wire::{Affinity, NodeId};

use crate::values::{self, Named};

/// The form of a queue pair.
pub(crate) const PEER: &str = "qpn=N,gid=G,psn=N[,mtu=N]";

/// What every lease has.
#[derive(Debug, Args)]
pub(crate) struct Term {
    /// The term, in seconds
    #[arg(long, value_name = "SECS", value_parser = values::secs)]
    pub(crate) secs: u32,
    /// The resource, by name or id as `fabricctl inventory` shows them; any of the kind if not
    /// given
    #[arg(long, value_name = "NAME|ID", value_parser = values::resource)]
    pub(crate) resource: Option<Named>,
    /// What the lease should be near to or far from: required, preferred or avoid; then resource, node,
    /// rack, tenant or data; then a name or an id. Repeat the flag for each of several. A scheduler acts on
    /// affinities; a node keeps them with the lease
    #[arg(long, value_name = "STRENGTH:CATEGORY=TARGET", value_parser = values::affinity)]
    pub(crate) affinity: Vec<Affinity>,
    /// A node that the scheduler is not to name, by its id, such as one that did not answer. Repeat the flag for each of
    /// several, 16 at most
    #[arg(long, value_name = "HEX", value_parser = values::avoided)]
    pub(crate) avoid_node: Vec<NodeId>,
    /// Ask the scheduler which nodes it would name, and why, and for no lease
    #[arg(long)]
    pub(crate) explain: bool,
}

/// What leases with contents have.
#[derive(Debug, Args)]
pub(crate) struct Grace {
    /// How long the contents are kept after the end, without access, in seconds
    #[arg(long, value_name = "SECS", default_value_t = 0,
          value_parser = values::number::<0, { u32::MAX }>)]
    pub(crate) grace_secs: u32,
}

/// Refuses the grace time of a lease without contents, instead of a tip to use another flag.
#[derive(Debug, Args)]
pub(crate) struct NoGrace {
    #[arg(long, hide = true, value_parser = values::no_grace)]
    grace_secs: Option<Infallible>,
}
