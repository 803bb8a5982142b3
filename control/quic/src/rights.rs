//! Who may send which request, before anything decides about it. The lease table decides what a tenant or operator may
//! do with which lease.

use fabricbios_fabric::{Fabric, Peer};
use fabricbios_wire::{LeaseError, MessageType, Refusal, RefusalClass, Role};

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// A certificate of a fabric of the node.
    Membership,
    /// The role of a tenant or operator.
    Lease,
    /// That role in the node's present fabric.
    Grant,
    /// The role of an operator in the node's present fabric.
    Operation,
}

fn needs(request: MessageType) -> Needs {
    match request {
        MessageType::Ping | MessageType::GetIdentity => Needs::Membership,
        MessageType::GetInventory
        | MessageType::LeaseRenew
        | MessageType::LeaseQuery
        | MessageType::LeaseFree
        | MessageType::LeaseList
        | MessageType::LeaseBind
        | MessageType::LeaseRotate => Needs::Lease,
        MessageType::LeaseAlloc => Needs::Grant,
        MessageType::LeaseRevoke
        | MessageType::FenceList
        | MessageType::FenceClear
        | MessageType::IdentityIssue => Needs::Operation,
    }
}

/// The role in which the peer's request is decided: an operator of a former fabric has the rights of a tenant.
///
/// # Errors
/// If the peer may not send such a request, whatever it is about.
pub(crate) fn role_for(
    request: MessageType,
    peer: &Peer,
    fabric: &Fabric,
) -> Result<Role, Refusal> {
    let is_former = peer.fabric != fabric.id();
    match (peer.principal.role, needs(request)) {
        (Role::Operator, Needs::Membership) if is_former => Ok(Role::Tenant),
        (role, Needs::Membership) => Ok(role),
        (role @ (Role::Node | Role::Scheduler), _) => Err(of_member(role)),
        (_, Needs::Grant) | (Role::Operator, Needs::Operation) if is_former => {
            Err(former(peer, fabric))
        }
        (Role::Operator, _) if is_former => Ok(Role::Tenant),
        (role @ (Role::Tenant | Role::Operator), _) => Ok(role),
    }
}

/// Whether the peer may open a session of a lease.
///
/// # Errors
/// If it may not, whatever the lease is.
pub(crate) fn check_session(peer: &Peer) -> Result<(), Refusal> {
    match peer.principal.role {
        Role::Tenant | Role::Operator => Ok(()),
        role @ (Role::Node | Role::Scheduler) => Err(of_member(role)),
    }
}

fn of_member(role: Role) -> Refusal {
    not_permitted(format!(
        "the identity is of a {role}, which has no right of a tenant or operator: use the identity of one"
    ))
}

fn former(peer: &Peer, fabric: &Fabric) -> Refusal {
    let (left, now, node) = (peer.fabric, fabric.id(), fabric.node_id());
    not_permitted(format!(
        "the identity is of fabric {left}, which node {node} has left for fabric {now}: it keeps its live leases here and \
         gets no new ones; ask an operator of fabric {now} for an identity"
    ))
}

fn not_permitted(message: String) -> Refusal {
    Refusal::new(LeaseError::NotPermitted, RefusalClass::Policy, message)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use fabricbios_fabric::{FabricId, Principal};

    use super::*;

    /// How the request of each of [`COLUMNS`] is decided: `T`, `O`: as a tenant's or an operator's; `m`: as a member's;
    /// `-`: refused.
    const TABLE: [(MessageType, [char; 6]); 14] = [
        (MessageType::Ping, ['T', 'O', 'm', 'm', 'T', 'T']),
        (MessageType::GetIdentity, ['T', 'O', 'm', 'm', 'T', 'T']),
        (MessageType::GetInventory, ['T', 'O', '-', '-', 'T', 'T']),
        (MessageType::LeaseAlloc, ['T', 'O', '-', '-', '-', '-']),
        (MessageType::LeaseRenew, ['T', 'O', '-', '-', 'T', 'T']),
        (MessageType::LeaseQuery, ['T', 'O', '-', '-', 'T', 'T']),
        (MessageType::LeaseFree, ['T', 'O', '-', '-', 'T', 'T']),
        (MessageType::LeaseList, ['T', 'O', '-', '-', 'T', 'T']),
        (MessageType::LeaseBind, ['T', 'O', '-', '-', 'T', 'T']),
        (MessageType::LeaseRotate, ['T', 'O', '-', '-', 'T', 'T']),
        (MessageType::LeaseRevoke, ['T', 'O', '-', '-', 'T', '-']),
        (MessageType::FenceList, ['T', 'O', '-', '-', 'T', '-']),
        (MessageType::FenceClear, ['T', 'O', '-', '-', 'T', '-']),
        (MessageType::IdentityIssue, ['T', 'O', '-', '-', 'T', '-']),
    ];

    const COLUMNS: [(Role, bool); 6] = [
        (Role::Tenant, false),
        (Role::Operator, false),
        (Role::Node, false),
        (Role::Scheduler, false),
        (Role::Tenant, true),
        (Role::Operator, true),
    ];

    #[test]
    fn each_role_has_its_requests_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let fabric = Fabric::open_or_create(directory.path(), now).unwrap();
        let peer = |role, is_former| Peer {
            principal: Principal {
                tenant: "blue".into(),
                role,
            },
            fabric: match is_former {
                true => FabricId([0; 16]),
                false => fabric.id(),
            },
            not_after: now,
        };
        let listed: Vec<MessageType> = TABLE.iter().map(|(request, _)| *request).collect();
        assert_eq!(listed, MessageType::ALL);
        for (request, row) in TABLE {
            for ((role, is_former), expected) in COLUMNS.into_iter().zip(row) {
                let decided = match role_for(request, &peer(role, is_former), &fabric) {
                    Ok(Role::Tenant) => 'T',
                    Ok(Role::Operator) => 'O',
                    Ok(Role::Node | Role::Scheduler) => 'm',
                    Err(refusal) => {
                        assert_eq!(refusal.error, LeaseError::NotPermitted);
                        '-'
                    }
                };
                assert_eq!(
                    decided, expected,
                    "{request:?} of a {role}, former: {is_former}"
                );
            }
        }
        for (role, is_former) in COLUMNS {
            let may = matches!(role, Role::Tenant | Role::Operator);
            assert_eq!(check_session(&peer(role, is_former)).is_ok(), may, "{role}");
        }
    }
}
