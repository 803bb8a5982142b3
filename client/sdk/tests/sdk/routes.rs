//! Requests about a lease through a scheduler, which names the node that has it.

use std::time::Duration;

use fabricbios_client::{Error, MemLease, Node};
use fabricbios_wire::{
    Answer, Candidate, FleetLease, FleetLeases, LeaseError, LeaseId, LeasePhase, NodeId,
    RefusalClass, Reply, ReportedLease, Request, ResourceId, ResourceType,
};

use crate::{
    admin,
    common::{
        FakeNode, LEASE,
        fleet::{Fleet, candidate},
        lease, refuse,
    },
    obliging,
};

const QUERY: Request = Request::LeaseQuery(LEASE);
const RENEW: Request = Request::LeaseRenew {
    lease_id: LEASE,
    lease_secs: 60,
};

fn client(of: &FakeNode) -> Node {
    Node::connect(&of.addr(), &admin(of)).unwrap()
}

fn refusing(
    error: LeaseError,
    class: RefusalClass,
) -> impl FnMut(&Request) -> Answer + Send + 'static {
    move |_: &Request| refuse(error, class, "not here")
}

fn without_it() -> impl FnMut(&Request) -> Answer + Send + 'static {
    refusing(LeaseError::NotFound, RefusalClass::Permanent)
}

#[test]
fn the_node_that_has_the_lease_is_asked_and_remembered() {
    let fleet = Fleet::new();
    let node = fleet.node(obliging());
    let mut scheduler = fleet.redirecting_to(&[&node]);
    let client = client(&scheduler);
    assert_eq!(client.lease(QUERY).unwrap().lease_id, LEASE);
    // Another handle of the same connection, and without the scheduler.
    scheduler.crash();
    client.clone().lease(RENEW).unwrap();
    client.lease(Request::LeaseFree(LEASE)).unwrap();
    assert_eq!(scheduler.asked(), [QUERY]);
    assert_eq!(node.asked(), [QUERY, RENEW, Request::LeaseFree(LEASE)]);
}

#[test]
fn a_lease_that_is_opened_through_a_scheduler_is_at_its_node() {
    let fleet = Fleet::new();
    let node = fleet.node(|_: &Request| Ok(Reply::Lease(lease(60_000))));
    let scheduler = fleet.redirecting_to(&[&node]);
    let opened = MemLease::open(&client(&scheduler), LEASE).unwrap();
    assert_eq!(opened.node_id(), Some(node.id()));
    opened.query().unwrap();
    assert_eq!(scheduler.asked().len(), 1);
}

#[test]
fn a_node_that_does_not_have_the_lease_is_passed_over_and_another_refusal_is_the_answer() {
    let fleet = Fleet::new();
    let (claims, has) = (fleet.node(without_it()), fleet.node(obliging()));
    let scheduler = fleet.redirecting_to(&[&claims, &has]);
    let through = client(&scheduler);
    through.lease(QUERY).unwrap();
    through.lease(RENEW).unwrap();
    assert_eq!(claims.asked(), [QUERY]);
    // The first one is to see whether it has the lease.
    assert_eq!(has.asked(), [QUERY, QUERY, RENEW]);

    let early = fleet.node(refusing(LeaseError::RenewTooEarly, RefusalClass::Transient));
    let scheduler = fleet.redirecting_to(&[&early]);
    let through = client(&scheduler);
    let error = through.lease(RENEW).unwrap_err();
    assert_eq!(error.refusal().unwrap().error, LeaseError::RenewTooEarly);

    let scheduler = fleet.redirecting_to(&[&claims]);
    let error = client(&scheduler).lease(QUERY);
    let text = error.unwrap_err().to_string();
    assert!(text.contains(&claims.addr()), "{text}");
}

#[test]
fn of_two_nodes_that_both_say_that_they_have_the_lease_none_is_believed() {
    let fleet = Fleet::new();
    let (lies, has) = (fleet.node(obliging()), fleet.node(obliging()));
    let scheduler = fleet.redirecting_to(&[&lies, &has]);
    let error = client(&scheduler).lease(Request::LeaseFree(LEASE));
    let text = error.unwrap_err().to_string();
    for part in [lies.addr(), has.addr(), LEASE.to_string()] {
        assert!(text.contains(&part), "{part} in {text}");
    }
    assert_eq!((lies.asked(), has.asked()), (vec![QUERY], vec![QUERY]));
}

#[test]
fn a_scheduler_that_has_forgotten_a_lease_does_not_end_it() {
    let fleet = Fleet::new();
    let mut node = fleet.node(obliging());
    let candidates = vec![candidate(&node)];
    let mut asked = 0;
    let scheduler = fleet.scheduler(move |_: &Request| {
        asked += 1;
        match asked {
            1 => Ok(Reply::Redirect(candidates.clone())),
            _ => refuse(LeaseError::NotFound, RefusalClass::Transient, "unknown"),
        }
    });
    let client = client(&scheduler);
    client.lease(QUERY).unwrap();
    node.crash();
    let error = client.lease(QUERY).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!(scheduler.asked().len(), 2);
    // Not known before, either: the scheduler may have started a moment ago.
    let other = client.lease(Request::LeaseQuery(LeaseId(7))).unwrap_err();
    assert!(!other.is_over(), "{other}");
}

#[test]
fn only_a_scheduler_is_followed_and_only_once_and_only_to_the_node_that_it_names() {
    let fleet = Fleet::new();
    let tempting = fleet.node(obliging());
    let candidates = vec![candidate(&tempting)];
    let node = fleet.node(move |_: &Request| Ok(Reply::Redirect(candidates.clone())));
    let granting = fleet.scheduler(obliging());
    for (asked, why) in [
        (&node, "is no scheduler"),
        (&fleet.redirecting_to(&[&node]), "redirects again"),
        (&granting, "as only a node does"),
    ] {
        let error = client(asked).lease(QUERY).unwrap_err();
        assert_eq!(error.code(), "Protocol");
        assert!(error.to_string().contains(why), "{error}");
    }
    let mistaken = Candidate {
        node_id: NodeId([7; 32]),
        ..candidate(&tempting)
    };
    let scheduler = fleet.scheduler(move |_: &Request| Ok(Reply::Redirect(vec![mistaken])));
    let error = client(&scheduler).lease(QUERY).unwrap_err();
    assert_eq!(error.code(), "UntrustedNode");
    assert_eq!(tempting.asked(), []);
}

fn told(number: u128) -> FleetLease {
    FleetLease {
        node_id: NodeId([1; 32]),
        lease: ReportedLease {
            lease_id: LeaseId(number),
            resource_id: ResourceId(1),
            resource_type: ResourceType::Mem,
            phase: LeasePhase::Active,
            capacity: 1,
            expires_at_unix_ms: 1,
            tenant: "blue".into(),
        },
    }
}

#[test]
fn the_leases_of_a_fabric_are_listed_page_by_page() {
    let fleet = Fleet::new();
    let scheduler = fleet.scheduler(|request: &Request| {
        let Request::FleetLeases { after, after_node } = request else {
            panic!("{request:?}")
        };
        let page = match after.0 {
            0 => (vec![told(3), told(5)], true),
            5 if *after_node == NodeId([1; 32]) => (vec![told(6)], false),
            _ => panic!("{after}"),
        };
        Ok(Reply::FleetLeases(FleetLeases {
            leases: page.0,
            more: page.1,
        }))
    });
    let leases = client(&scheduler).fleet_leases().unwrap();
    assert_eq!(leases, [told(3), told(5), told(6)]);
    let node = fleet.node(obliging());
    let error = client(&node).fleet_leases().unwrap_err();
    assert!(matches!(error, Error::Usage(_)), "{error}");
    assert_eq!(node.asked(), []);
}

#[test]
fn a_list_that_does_not_go_on_is_refused() {
    let fleet = Fleet::new();
    for page in [vec![], vec![told(5), told(5)], vec![told(5), told(3)]] {
        let scheduler = fleet.scheduler(move |_: &Request| {
            Ok(Reply::FleetLeases(FleetLeases {
                leases: page.clone(),
                more: true,
            }))
        });
        let error = client(&scheduler).fleet_leases().unwrap_err();
        assert_eq!(error.code(), "Protocol", "{error}");
    }
}

#[test]
fn a_busy_node_is_asked_again_by_a_patient_handle() {
    let fleet = Fleet::new();
    let mut asked = 0;
    let node = fleet.node(move |_: &Request| {
        asked += 1;
        match asked {
            1 => refuse(LeaseError::ResourceBusy, RefusalClass::Transient, "busy"),
            _ => Ok(Reply::Lease(lease(60_000))),
        }
    });
    let scheduler = fleet.redirecting_to(&[&node]);
    let patient = client(&scheduler).patient(Duration::from_secs(60));
    patient.lease(QUERY).unwrap();
    assert_eq!((scheduler.asked().len(), node.asked().len()), (1, 2));
}

#[test]
fn the_limit_of_a_handle_holds_at_a_node_that_another_handle_has_found() {
    let fleet = Fleet::new();
    let node = fleet.node(obliging());
    let scheduler = fleet.redirecting_to(&[&node]);
    let client = client(&scheduler);
    client.lease(QUERY).unwrap();
    let _arrived = node.ignore_next();
    let hasty = client.answers_within(Duration::from_millis(50));
    let error = hasty.lease(RENEW).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    client.lease(QUERY).unwrap();
}
