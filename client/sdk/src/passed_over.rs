//! The nodes that a scheduler has named and that did not grant the lease.

use std::net::SocketAddr;

use fabricbios_wire::{NodeId, RefusalClass};

use crate::{Error, patience::is_momentary};

/// Whether another node may be asked after this error: there is no lease, and another node may decide otherwise.
pub(crate) fn may_pass_over(error: &Error) -> bool {
    match error {
        // Quotas, rights and limits are those of one node, and a scheduler does not know all of them.
        Error::Refused(_) => true,
        Error::FailedClosed { freed, .. } => *freed,
        // Nothing was asked. The clock of the node may be wrong.
        Error::UntrustedNode { .. } | Error::IdentityRefused { .. } => true,
        Error::Unreachable { .. } => !error.may_have_happened(),
        _ => false,
    }
}

/// Whether a scheduler whose nodes all ended with this error may name others a moment later.
pub(crate) fn comes_back(error: &Error) -> bool {
    is_momentary(error) || matches!(error, Error::Unreachable { .. })
}

/// The candidates that did not grant the lease.
#[derive(Default)]
pub(crate) struct PassedOver {
    nodes: Vec<NodeId>,
    /// The one whose refusal counts for all, and that refusal.
    refused: Option<(SocketAddr, Error)>,
    /// The last one that refused nothing, because it was asked nothing or named other nodes.
    undecided: Option<Error>,
}

impl PassedOver {
    pub(crate) fn add(&mut self, node: NodeId, address: SocketAddr, error: Error) {
        if !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
        match error {
            Error::Unreachable { .. }
            | Error::UntrustedNode { .. }
            | Error::IdentityRefused { .. }
            | Error::Protocol { .. } => self.undecided = Some(error),
            refused => {
                let last = self.refused.as_ref();
                if last.is_none_or(|(_, last)| weight(&refused) >= weight(last)) {
                    self.refused = Some((address, refused));
                }
            }
        }
    }

    /// The refusal that counts for all, else why the last candidate refused nothing.
    pub(crate) fn into_error(self, scheduler: &str) -> Error {
        let nodes = match self.nodes.len() {
            1 => "the only node".to_owned(),
            more => format!("one of {more} nodes"),
        };
        match (self.refused, self.undecided) {
            (Some((address, refused)), undecided) => {
                let undecided = undecided.map_or_else(String::new, |why| match why {
                    Error::Protocol { .. } => format!("; passed over: {why}"),
                    why => format!("; not asked: {why}"),
                });
                refused.with(&format!(
                    " (node {address}, {nodes} that scheduler {scheduler} named{undecided})"
                ))
            }
            (None, Some(error)) => {
                error.with(&format!(" ({nodes} that scheduler {scheduler} named)"))
            }
            // The codec lets no redirect without candidates through.
            (None, None) => Error::Protocol {
                node: scheduler.to_owned(),
                why: "it named no node".to_owned(),
            },
        }
    }
}

/// What a client waits for comes first, then what may change, then what the operator of one node has chosen.
fn weight(error: &Error) -> impl Ord {
    let class = match error.refusal().map(|it| it.class) {
        Some(RefusalClass::Transient) => 2,
        Some(RefusalClass::Policy) => 1,
        Some(RefusalClass::Permanent) | None => 0,
    };
    (is_momentary(error), class)
}
