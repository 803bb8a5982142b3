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
    /// A scheduler to answer it.
    Scheduler,
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
        MessageType::NodeReport
        | MessageType::NodeForget
        | MessageType::NodeList
        | MessageType::NodeLeases
        | MessageType::FleetLeases => Needs::Scheduler,
    }
}

/// The role in which the peer's request to the server with this identity is decided. At a node an operator of a former fabric has the rights of a tenant.
///
/// # Errors
/// If the peer may not send such a request, whatever it is about.
pub(crate) fn role_for(
    request: MessageType,
    peer: &Peer,
    fabric: &Fabric,
) -> Result<Role, Refusal> {
    if fabric.role() == Role::Scheduler {
        return role_at_scheduler(request, peer.principal.role);
    }
    let is_former = peer.fabric != fabric.id();
    match (peer.principal.role, needs(request)) {
        (Role::Operator, Needs::Membership) if is_former => Ok(Role::Tenant),
        (role, Needs::Membership) => Ok(role),
        (_, Needs::Scheduler) => Err(no_scheduler(request, fabric)),
        (role @ (Role::Node | Role::Scheduler), _) => Err(of_member(role)),
        (_, Needs::Grant) | (Role::Operator, Needs::Operation) if is_former => {
            Err(former(peer, fabric))
        }
        (Role::Operator, _) if is_former => Ok(Role::Tenant),
        (role @ (Role::Tenant | Role::Operator), _) => Ok(role),
    }
}

/// A scheduler knows nodes and their leases, and has none itself.
fn role_at_scheduler(request: MessageType, role: Role) -> Result<Role, Refusal> {
    use MessageType as M;
    match (request, role) {
        (M::Ping | M::GetIdentity, _) | (M::NodeReport | M::NodeLeases, Role::Node) => Ok(role),
        (
            M::LeaseAlloc
            | M::LeaseRenew
            | M::LeaseQuery
            | M::LeaseFree
            | M::LeaseBind
            | M::LeaseRotate
            | M::LeaseRevoke
            | M::NodeList
            | M::FleetLeases,
            _,
        ) => match role {
            Role::Tenant | Role::Operator => Ok(role),
            Role::Node | Role::Scheduler => Err(of_member(role)),
        },
        (M::NodeForget, Role::Operator) => Ok(role),
        (M::NodeForget, _) => Err(not_permitted(
            "only an operator says that a node does not belong to the fabric any more".to_owned(),
        )),
        (M::IdentityIssue, _) => Err(not_permitted(
            "this is a scheduler, which has no key to sign with: whoever has the directory of its fabric issues identities \
             there, with `fabricctl identity issue --fabric-dir DIR`, and certifies nodes and schedulers with `fabricctl fabric \
             sign`"
                .to_owned(),
        )),
        (M::NodeReport | M::NodeLeases, _) => Err(not_permitted(format!(
            "the identity is of a {role}: only a node reports to a scheduler, with the identity in its state directory"
        ))),
        _ => Err(not_permitted(format!(
            "this is a scheduler, which has no lease and no resource and does not answer {request}: ask the node that has the \
             lease or resource; `node list` at the scheduler names the nodes"
        ))),
    }
}

fn no_scheduler(request: MessageType, fabric: &Fabric) -> Refusal {
    let (node, fabric) = (fabric.node_id(), fabric.id());
    not_permitted(format!(
        "{request} is for a scheduler, and this is node {node}: ask the scheduler of fabric {fabric}"
    ))
}

/// Whether the peer may open a session of a lease.
///
/// # Errors
/// If it may not, whatever the lease is.
pub(crate) fn check_session(peer: &Peer, server: Role) -> Result<(), Refusal> {
    match peer.principal.role {
        _ if server == Role::Scheduler => Err(not_permitted(
            "this is a scheduler, which has no session: open it at the node that has the lease"
                .to_owned(),
        )),
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

    use fabricbios_fabric::{FabricDirectory, FabricId, Principal};
    use fabricbios_wire::NodeId;

    use super::*;

    /// How the request of each of [`COLUMNS`] is decided: `T`, `O`: as a tenant's or an operator's; `m`: as a member's;
    /// `-`: refused.
    const AT_NODE: [(MessageType, &str); 19] = [
        (MessageType::Ping, "TOmmTTmm"),
        (MessageType::GetIdentity, "TOmmTTmm"),
        (MessageType::GetInventory, "TO--TT--"),
        (MessageType::LeaseAlloc, "TO------"),
        (MessageType::LeaseRenew, "TO--TT--"),
        (MessageType::LeaseQuery, "TO--TT--"),
        (MessageType::LeaseFree, "TO--TT--"),
        (MessageType::LeaseList, "TO--TT--"),
        (MessageType::LeaseBind, "TO--TT--"),
        (MessageType::LeaseRotate, "TO--TT--"),
        (MessageType::LeaseRevoke, "TO--T---"),
        (MessageType::FenceList, "TO--T---"),
        (MessageType::FenceClear, "TO--T---"),
        (MessageType::IdentityIssue, "TO--T---"),
        (MessageType::NodeReport, "--------"),
        (MessageType::NodeList, "--------"),
        (MessageType::NodeLeases, "--------"),
        (MessageType::FleetLeases, "--------"),
        (MessageType::NodeForget, "--------"),
    ];

    /// The same at a scheduler. It has no former fabric.
    const AT_SCHEDULER: [(MessageType, &str); 19] = [
        (MessageType::Ping, "TOmm"),
        (MessageType::GetIdentity, "TOmm"),
        (MessageType::GetInventory, "----"),
        (MessageType::LeaseAlloc, "TO--"),
        (MessageType::LeaseRenew, "TO--"),
        (MessageType::LeaseQuery, "TO--"),
        (MessageType::LeaseFree, "TO--"),
        (MessageType::LeaseList, "----"),
        (MessageType::LeaseBind, "TO--"),
        (MessageType::LeaseRotate, "TO--"),
        (MessageType::LeaseRevoke, "TO--"),
        (MessageType::FenceList, "----"),
        (MessageType::FenceClear, "----"),
        (MessageType::IdentityIssue, "----"),
        (MessageType::NodeReport, "--m-"),
        (MessageType::NodeList, "TO--"),
        (MessageType::NodeLeases, "--m-"),
        (MessageType::FleetLeases, "TO--"),
        (MessageType::NodeForget, "-O--"),
    ];

    const COLUMNS: [(Role, bool); 8] = [
        (Role::Tenant, false),
        (Role::Operator, false),
        (Role::Node, false),
        (Role::Scheduler, false),
        (Role::Tenant, true),
        (Role::Operator, true),
        (Role::Node, true),
        (Role::Scheduler, true),
    ];

    fn peer(role: Role, fabric: FabricId) -> Peer {
        Peer {
            principal: Principal {
                tenant: "blue".into(),
                role,
            },
            key: NodeId([0; 32]),
            labels: Vec::new(),
            fabric,
            not_after: SystemTime::now(),
        }
    }

    fn node() -> (tempfile::TempDir, Fabric) {
        let directory = tempfile::tempdir().unwrap();
        let fabric = Fabric::open_or_create(directory.path(), SystemTime::now()).unwrap();
        (directory, fabric)
    }

    fn peers_of(fabric: &Fabric) -> [Peer; 8] {
        COLUMNS.map(|(role, is_former)| match is_former {
            true => peer(role, FabricId([0; 16])),
            false => peer(role, fabric.id()),
        })
    }

    #[track_caller]
    fn check(table: &[(MessageType, &str)], columns: usize, fabric: &Fabric) {
        let listed: Vec<MessageType> = table.iter().map(|(request, _)| *request).collect();
        assert_eq!(listed, MessageType::ALL);
        for (request, row) in table {
            assert_eq!(row.len(), columns, "{request:?}");
            for (peer, expected) in peers_of(fabric).iter().zip(row.chars()) {
                let decided = match role_for(*request, peer, fabric) {
                    Ok(Role::Tenant) => 'T',
                    Ok(Role::Operator) => 'O',
                    Ok(Role::Node | Role::Scheduler) => 'm',
                    Err(refusal) => {
                        assert_eq!(refusal.error, LeaseError::NotPermitted);
                        assert_eq!(refusal.class, RefusalClass::Policy);
                        '-'
                    }
                };
                assert_eq!(decided, expected, "{request:?} of {peer:?}");
            }
        }
    }

    #[test]
    fn each_role_has_its_requests_at_a_node_and_no_others() {
        let (_directory, node) = node();
        check(&AT_NODE, COLUMNS.len(), &node);
        for peer in peers_of(&node) {
            let role = peer.principal.role;
            let may = matches!(role, Role::Tenant | Role::Operator);
            assert_eq!(check_session(&peer, Role::Node).is_ok(), may, "{role}");
            assert!(check_session(&peer, Role::Scheduler).is_err());
        }
    }

    #[test]
    fn each_role_has_its_requests_at_a_scheduler_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let made = FabricDirectory::init(directory.path(), now).unwrap();
        let scheduler = Fabric::open_scheduler(&made.scheduler_identity(), now).unwrap();
        check(&AT_SCHEDULER, 4, &scheduler);
    }

    #[test]
    fn who_asks_the_wrong_server_learns_whom_to_ask() {
        let (_directory, node) = node();
        let why = |request, role| {
            let refused = role_for(request, &peer(role, node.id()), &node);
            refused.unwrap_err().message
        };
        for (request, role) in [
            (MessageType::NodeReport, Role::Node),
            (MessageType::NodeList, Role::Tenant),
            (MessageType::FleetLeases, Role::Operator),
        ] {
            let why = why(request, role);
            assert!(why.contains("the scheduler of fabric"), "{why}");
        }
        let at_scheduler = role_at_scheduler(MessageType::LeaseList, Role::Tenant);
        let why = at_scheduler.unwrap_err().message;
        assert!(
            why.contains("LEASE_LIST") && why.contains("`node list`"),
            "{why}"
        );
        let at_scheduler = role_at_scheduler(MessageType::IdentityIssue, Role::Operator);
        let why = at_scheduler.unwrap_err().message;
        for part in ["identity issue --fabric-dir", "fabricctl fabric sign"] {
            assert!(why.contains(part), "{why}");
        }
    }
}
