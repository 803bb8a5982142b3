//! Leases at a scheduler: listed with their nodes, and reached through it.

use fabricbios_wire::{
    Answer, Epoch, FleetLease, FleetLeases, FleetPage, LeaseId, LeaseInfo, LeasePhase, NodeId,
    NodeIdentity, Reply, ReportedLease, Request, ResourceId, ResourceType, Role,
};
use serde_json::json;

use crate::{
    LEASE_TEXT,
    common::{
        FakeNode, LEASE,
        fleet::{Fleet, candidate},
        lease,
    },
    fails,
    fleet::{empty, reporting},
    json_of, run, text_of,
};

fn told(id: LeaseId, tenant: &str) -> FleetLease {
    FleetLease {
        node_id: NodeId([0x1a; 32]),
        lease: ReportedLease {
            lease_id: id,
            resource_id: ResourceId(7),
            resource_type: ResourceType::Mem,
            phase: LeasePhase::Grace,
            capacity: 3 << 20,
            expires_at_unix_ms: 1_800_000_000_000,
            tenant: tenant.to_owned(),
        },
    }
}

/// A scheduler with a lease of `admin`, who asks, and one of `blue`; both are at this node.
fn scheduler(fleet: &Fleet, node: &FakeNode) -> FakeNode {
    let (candidates, endpoint) = (vec![candidate(node)], node.endpoint());
    let of_admin = FleetLease {
        node_id: node.id(),
        ..told(LEASE, "admin")
    };
    let page = FleetPage {
        nodes: vec![reporting(node, node.id(), &[], empty(node.id()))],
        away: vec![],
        next: None,
    };
    fleet.scheduler(move |request: &Request| -> Answer {
        Ok(match request {
            Request::FleetLeases { .. } => Reply::FleetLeases(FleetLeases {
                leases: vec![of_admin.clone(), told(LeaseId(LEASE.0 + 1), "blue")],
                more: false,
            }),
            Request::NodeList(_) => Reply::Nodes(page.clone()),
            Request::GetIdentity => Reply::Identity(NodeIdentity {
                node_id: NodeId([9; 32]),
                epoch: Epoch(1),
                endpoint,
                tenant: "admin".into(),
                role: Role::Operator,
                version: "0".into(),
            }),
            _ => Reply::Redirect(candidates.clone()),
        })
    })
}

/// A node with any lease that it is asked for.
fn having(request: &Request) -> Answer {
    Ok(Reply::Lease(LeaseInfo {
        lease_id: request.lease_id().unwrap(),
        ..lease(60_000)
    }))
}

#[test]
fn leases_are_listed_with_their_nodes() {
    let fleet = Fleet::new();
    let node = fleet.node(having);
    let scheduler = scheduler(&fleet, &node);
    let listed = json_of(&scheduler, "lease list");
    assert_eq!(
        listed["leases"][0],
        json!({
            "lease_id": LEASE_TEXT, "node_id": node.id().to_string(),
            "resource_id": ResourceId(7).to_string(), "resource_type": "mem", "state": "grace",
            "capacity": 3 << 20, "expires_at_unix_ms": 1_800_000_000_000_u64, "tenant": "admin",
        })
    );
    let text = text_of(&scheduler, "lease list");
    let rows: Vec<String> = { text.lines() }
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0], "LEASE NODE TENANT STATE TYPE CAPACITY END");
    let id = &node.id().to_string()[..16];
    let first = format!("{LEASE_TEXT} {id} admin grace mem 3 MiB 2027-01-15T08:00:00Z");
    assert_eq!(rows[1], first);
    let (status, error) = fails(&scheduler, "lease list --all");
    let message = error["message"].as_str().unwrap();
    assert!(status == 2 && message.contains("the node"), "{message}");
    assert_eq!(node.asked(), []);
}

#[test]
fn a_lease_is_shown_renewed_and_freed_at_its_node() {
    let fleet = Fleet::new();
    let node = fleet.node(having);
    let scheduler = scheduler(&fleet, &node);
    for (line, expected) in [
        ("lease query", Request::LeaseQuery(LEASE)),
        (
            "lease renew",
            Request::LeaseRenew {
                lease_id: LEASE,
                lease_secs: 0,
            },
        ),
        ("lease free", Request::LeaseFree(LEASE)),
    ] {
        let told = json_of(&scheduler, &format!("{line} {LEASE_TEXT}"));
        assert_eq!(told["lease_id"], LEASE_TEXT);
        assert_eq!(node.asked().last(), Some(&expected));
    }
    assert_eq!(scheduler.asked(), node.asked());
}

#[test]
fn all_own_leases_are_freed_and_no_others() {
    let fleet = Fleet::new();
    let node = fleet.node(having);
    let scheduler = scheduler(&fleet, &node);
    let freed = json_of(&scheduler, "lease free --all");
    assert_eq!(freed["leases"].as_array().unwrap().len(), 1);
    assert_eq!(node.asked(), [Request::LeaseFree(LEASE)]);
}

#[test]
fn a_lease_whose_node_does_not_report_any_more_is_not_told_as_ended() {
    let fleet = Fleet::new();
    let node = fleet.node(having);
    let scheduler = scheduler(&fleet, &node);
    let output = run(&scheduler, "lease revoke --tenant blue");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("does not report any more"), "{message}");
    assert_ne!(output.status.code(), Some(0));
    // Another node that has a lease of that id keeps it.
    assert_eq!(node.asked(), []);
}

#[test]
fn a_node_that_is_gone_keeps_no_lease_of_another_node_alive() {
    let fleet = Fleet::new();
    let (gone, node) = (fleet.node(having), fleet.node(having));
    let at = |node_id, more: u128| FleetLease {
        node_id,
        ..told(LeaseId(LEASE.0 + more), "blue")
    };
    let leases = FleetLeases {
        leases: vec![at(gone.id(), 0), at(gone.id(), 1), at(node.id(), 2)],
        more: false,
    };
    let reporting = |it: &FakeNode| reporting(it, it.id(), &[], empty(it.id()));
    let mut nodes = vec![reporting(&gone), reporting(&node)];
    nodes.sort_by_key(|it| it.node_id);
    let page = FleetPage {
        nodes,
        away: vec![],
        next: None,
    };
    let endpoint = node.endpoint();
    let scheduler = fleet.scheduler(move |request: &Request| -> Answer {
        Ok(match request {
            Request::FleetLeases { .. } => Reply::FleetLeases(leases.clone()),
            Request::NodeList(_) => Reply::Nodes(page.clone()),
            _ => Reply::Identity(NodeIdentity {
                node_id: NodeId([9; 32]),
                epoch: Epoch(1),
                endpoint,
                tenant: "blue".into(),
                role: Role::Tenant,
                version: "0".into(),
            }),
        })
    });
    drop(gone);
    let output = run(&scheduler, "--patience-secs 0 lease free --all");
    let message = String::from_utf8(output.stderr).unwrap();
    assert_ne!(output.status.code(), Some(0));
    // It was asked once.
    assert!(message.contains("did not answer before"), "{message}");
    let last = LeaseId(LEASE.0 + 2);
    assert_eq!(node.asked(), [Request::LeaseFree(last)]);
}
