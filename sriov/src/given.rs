//! What a local user gives for an interface.

use std::os::fd::{AsFd, OwnedFd};

use fabricbios_contract::{Given, LocalRefusal};
use fabricbios_wire::HandOver;

use crate::netlink::require_network_namespace;

/// The network namespace for the interface of a lease.
///
/// # Errors
/// The lease takes none, or it is something else.
pub(crate) fn namespace(given: Given, hand_over: HandOver) -> Result<OwnedFd, LocalRefusal> {
    let namespace = match given {
        Given::NetworkNamespace(namespace) if hand_over == HandOver::Netns => namespace,
        other => {
            return Err(LocalRefusal::Unsupported(format!(
                "the lease takes no {other}; a lease with --hand-over netns takes a network namespace"
            )));
        }
    };
    require_network_namespace(namespace.as_fd())
        .map_err(|error| LocalRefusal::Unsupported(error.to_string()))?;
    Ok(namespace)
}
