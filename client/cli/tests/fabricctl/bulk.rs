//! Many leases ended with one command.

use std::sync::{Arc, Mutex};

use fabricbios_wire::{
    Endpoint, Epoch, LeaseError, LeaseId, LeaseInfo, LeasePage, LeasePhase, NodeId, NodeIdentity,
    RefusalClass, Reply, Request, RevokeOutcome, Role,
};
use serde_json::json;

use crate::{
    common::{FakeNode, lease, refuse},
    json_of, run, text_of,
};

/// Leases 1 and 2 belong to blue and lease 3 to red; lease 4 ends before the command reaches it.
const HOLDERS: [(u128, &str); 4] = [(1, "blue"), (2, "blue"), (3, "red"), (4, "blue")];

/// A node whose caller is blue, and the numbers of the leases that were ended there.
fn node(phase: LeasePhase) -> (FakeNode, Arc<Mutex<Vec<u128>>>) {
    node_of(Role::Operator, phase)
}

fn node_of(role: Role, phase: LeasePhase) -> (FakeNode, Arc<Mutex<Vec<u128>>>) {
    let ended = Arc::new(Mutex::new(Vec::new()));
    let its = Arc::clone(&ended);
    let node = FakeNode::start(move |request: &Request| match request {
        Request::GetIdentity => Ok(Reply::Identity(NodeIdentity {
            node_id: NodeId([0xee; 32]),
            epoch: Epoch(3),
            endpoint: Endpoint::from(std::net::SocketAddr::from(([10, 0, 0, 1], 5701))),
            tenant: "blue".into(),
            role,
            version: "1".into(),
        })),
        Request::LeaseList { ended: false, .. } => Ok(Reply::Leases(LeasePage {
            leases: HOLDERS
                .iter()
                .map(|(id, tenant)| LeaseInfo {
                    lease_id: LeaseId(*id),
                    tenant: Some((*tenant).to_owned()),
                    ..lease(5_000)
                })
                .collect(),
            next: None,
        })),
        Request::LeaseFree(LeaseId(4)) => refuse(
            LeaseError::Expired,
            RefusalClass::Permanent,
            "it has expired",
        ),
        Request::LeaseFree(id) => {
            its.lock().unwrap().push(id.0);
            Ok(Reply::Lease(LeaseInfo {
                lease_id: *id,
                phase,
                ..lease(0)
            }))
        }
        Request::LeaseRevoke(LeaseId(4)) => Ok(Reply::Revoked(RevokeOutcome::NotFound)),
        Request::LeaseRevoke(id) => {
            its.lock().unwrap().push(id.0);
            Ok(Reply::Revoked(RevokeOutcome::TornDown))
        }
        other => panic!("{other:?}"),
    });
    (node, ended)
}

#[test]
fn all_leases_of_the_caller_are_freed_and_no_others() {
    let (node, ended) = node(LeasePhase::Freed);
    let json = json_of(&node, "lease free --all");
    let one = |id: u128| json!({ "lease_id": LeaseId(id).to_string(), "state": "freed" });
    assert_eq!(json, json!({ "leases": [one(1), one(2)] }));
    assert_eq!(*ended.lock().unwrap(), [1, 2]);
    assert_eq!(text_of(&node, "lease free --all").lines().count(), 2);
}

#[test]
fn a_lease_that_is_fenced_spares_no_other_and_is_told() {
    let (node, ended) = node(LeasePhase::Fenced);
    let output = run(&node, "lease free --all");
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert_eq!(*ended.lock().unwrap(), [1, 2]);
    let lines = String::from_utf8(output.stderr).unwrap();
    for id in [1, 2] {
        assert!(lines.contains(&LeaseId(id).to_string()), "{lines}");
    }
}

#[test]
fn all_leases_of_a_tenant_are_revoked_and_no_others() {
    let (node, ended) = node(LeasePhase::Freed);
    let json = json_of(&node, "lease revoke --tenant red");
    let one = json!({ "lease_id": LeaseId(3).to_string(), "state": "revoked" });
    assert_eq!(json, json!({ "leases": [one] }));
    assert_eq!(*ended.lock().unwrap(), [3]);
    // One of blue's leases ends before it is revoked.
    let json = json_of(&node, "lease revoke --tenant blue");
    assert_eq!(json["leases"].as_array().unwrap().len(), 2, "{json}");
    assert_eq!(
        text_of(&node, "lease revoke --tenant nobody"),
        "no leases\n"
    );
}

/// A tenant's list has only the tenant's own leases, without tenant names.
#[test]
fn a_tenant_revokes_nothing_and_is_not_told_that_there_is_nothing() {
    let (node, ended) = node_of(Role::Tenant, LeasePhase::Freed);
    let output = run(&node, "lease revoke --tenant blue");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("lease free --all"), "{said}");
    assert!(ended.lock().unwrap().is_empty());
}

#[test]
fn one_lease_or_all_is_to_be_said() {
    let (node, ended) = node(LeasePhase::Freed);
    let id = LeaseId(1).to_string();
    for line in [
        "lease free".to_owned(),
        format!("lease free {id} --all"),
        "lease revoke".to_owned(),
        format!("lease revoke {id} --tenant red"),
    ] {
        assert_eq!(run(&node, &line).status.code(), Some(2), "{line}");
    }
    assert!(ended.lock().unwrap().is_empty());
}
