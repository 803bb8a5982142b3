//! What a scheduler is told of a search: who was tried, and what they said.

use std::{
    net::UdpSocket,
    sync::{Arc, Mutex},
    time::Duration,
};

use fabricbios_client::{Error, Node};
use fabricbios_wire::{
    Candidate, LeaseAllocRequest, LeaseError, NodeId, RefusalClass, Reply, Request, Tried,
};

use crate::{
    admin, builder,
    common::{
        FakeNode,
        fleet::{Fleet, candidate},
        refuse,
    },
    nodes::{granting, memory},
    obliging,
};

const LONG: Duration = Duration::from_secs(60);
/// Long enough for every answer that comes at all.
const SHORT: Duration = Duration::from_secs(4);

/// What each request for a lease said of tried nodes.
fn told(node: &FakeNode) -> Vec<Vec<Tried>> {
    let tried = |request| match request {
        Request::LeaseAlloc(asked) => Some(asked.tried),
        _ => None,
    };
    node.asked().into_iter().filter_map(tried).collect()
}

fn connect(to: &FakeNode) -> Node {
    Node::connect(&to.addr(), &admin(to)).unwrap()
}

fn unanswered(node_id: NodeId) -> Tried {
    Tried {
        node_id,
        refused: None,
        class: RefusalClass::Transient,
    }
}

#[test]
fn a_scheduler_that_is_asked_anew_is_told_who_was_tried_and_what_they_said() {
    use LeaseError::{CapacityExceeded, ResourceBusy};
    let fleet = Fleet::new();
    let refusing = |error, class| fleet.node(move |_: &Request| refuse(error, class, "not here"));
    let full = refusing(CapacityExceeded, RefusalClass::Policy);
    let busy = refusing(ResourceBusy, RefusalClass::Transient);
    let (mut gone, good) = (fleet.node(obliging()), fleet.node(obliging()));
    let first: Vec<Candidate> = [&full, &gone, &busy].map(candidate).to_vec();
    gone.crash();
    let mut answers = vec![vec![candidate(&good)], first];
    let scheduler = fleet.scheduler(move |_: &Request| Ok(Reply::Redirect(answers.pop().unwrap())));
    let lease = builder(&scheduler).patience(LONG).acquire().unwrap();
    assert_eq!(lease.node_id(), Some(good.id()));
    let refused = |node: &FakeNode, error, class| Tried {
        node_id: node.id(),
        refused: Some(error),
        class,
    };
    // The last one first.
    let expected = vec![
        refused(&busy, ResourceBusy, RefusalClass::Transient),
        unanswered(gone.id()),
        refused(&full, CapacityExceeded, RefusalClass::Policy),
    ];
    assert_eq!(told(&scheduler), [vec![], expected]);
    for node in [&full, &busy, &good] {
        assert_eq!(told(node), [vec![]], "nodes are told nothing");
    }
}

#[test]
fn eight_nodes_that_have_no_room_do_not_hide_the_others() {
    let fleet = Fleet::new();
    let refusing = |_: &Request| {
        let (error, class) = (LeaseError::CapacityExceeded, RefusalClass::Transient);
        refuse(error, class, "no room")
    };
    let full: Vec<FakeNode> = (0..8).map(|_| fleet.node(refusing)).collect();
    let good = fleet.node(obliging());
    let named: Vec<Candidate> = full.iter().map(candidate).collect();
    let others = vec![candidate(&full[0]), candidate(&good)];
    let scheduler = fleet.scheduler(move |request: &Request| match request {
        Request::LeaseAlloc(asked) if asked.tried.is_empty() => Ok(Reply::Redirect(named.clone())),
        _ => Ok(Reply::Redirect(others.clone())),
    });
    let lease = builder(&scheduler).acquire().unwrap();
    assert_eq!(lease.node_id(), Some(good.id()));
    assert!(full.iter().all(|it| it.asked().len() == 1));

    // A scheduler that knows no others is asked no third time.
    let all: Vec<&FakeNode> = full.iter().collect();
    let scheduler = fleet.redirecting_to(&all);
    let error = builder(&scheduler).acquire().map(drop).unwrap_err();
    assert!(error.to_string().contains("no room"), "{error}");
    assert_eq!(scheduler.asked().len(), 2);
    assert!(full.iter().all(|it| it.asked().len() == 2));
}

#[test]
fn a_node_that_took_a_request_and_was_silent_is_told_of_until_it_grants_again() {
    let fleet = Fleet::new();
    let (silent, other) = (fleet.node(granting(false)), fleet.node(obliging()));
    let named: Arc<Mutex<Vec<Candidate>>> = Arc::default();
    let names = Arc::clone(&named);
    let scheduler =
        fleet.scheduler(move |_: &Request| Ok(Reply::Redirect(names.lock().unwrap().clone())));
    let client = connect(&scheduler);
    *named.lock().unwrap() = vec![candidate(&silent), candidate(&other)];
    let _arrived = silent.ignore_next();
    let asked = LeaseAllocRequest {
        grace_secs: 10,
        ..memory()
    };
    let lost = client.answers_within(SHORT).acquire(asked).unwrap_err();
    let Error::Unreachable {
        may_have_happened: true,
        ..
    } = lost
    else {
        panic!("{lost}")
    };
    let text = lost.to_string();
    let leave_out = format!("--avoid-node {}", silent.id());
    for part in [&silent.addr(), &leave_out, "for 60 s and 10 s of grace"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(other.asked(), []);

    // Also over a clone, and for a lease of its own.
    *named.lock().unwrap() = vec![candidate(&other)];
    client.clone().acquire(memory()).unwrap();
    *named.lock().unwrap() = vec![candidate(&silent)];
    client.acquire(memory()).unwrap();
    client.acquire(memory()).unwrap();
    let of_silent = vec![unanswered(silent.id())];
    let expected = [vec![], of_silent.clone(), of_silent, vec![]];
    assert_eq!(told(&scheduler), expected);
}

#[test]
fn a_node_that_is_to_be_left_out_is_neither_named_nor_asked() {
    let fleet = Fleet::new();
    let (bad, good) = (fleet.node(obliging()), fleet.node(obliging()));
    let scheduler = fleet.redirecting_to(&[&good]);
    let avoiding = |of: &FakeNode| builder(of).avoid_node(bad.id()).acquire();
    assert_eq!(avoiding(&scheduler).unwrap().node_id(), Some(good.id()));
    assert_eq!(told(&scheduler), [vec![Tried::avoided(bad.id())]]);
    assert_eq!(told(&good), [vec![]]);

    let naming_both = fleet.redirecting_to(&[&bad, &good]);
    assert_eq!(avoiding(&naming_both).unwrap().node_id(), Some(good.id()));
    assert_eq!(bad.asked(), []);
    let naming_it = fleet.redirecting_to(&[&bad]);
    let error = avoiding(&naming_it).unwrap_err();
    assert_eq!(error.code(), "Protocol");
    assert!(error.to_string().contains(&bad.id().to_string()), "{error}");

    let error = avoiding(&bad).unwrap_err();
    assert_eq!(error.code(), "Usage");
    assert_eq!(bad.asked(), []);
    // Another node that is asked itself has nothing to leave out.
    assert_eq!(avoiding(&good).unwrap().node_id(), Some(good.id()));
    assert_eq!(told(&good).last(), Some(&vec![]));

    let many = (0..17).fold(builder(&scheduler), |all, id| {
        all.avoid_node(NodeId([id; 32]))
    });
    assert_eq!(many.acquire().unwrap_err().code(), "Usage");
    assert_eq!(scheduler.asked().len(), 1);
}

/// A node that accepts no connection within 2 s, as one behind a broken network.
#[test]
fn a_node_that_cannot_be_reached_comes_behind_the_others_in_the_next_request_too() {
    let fleet = Fleet::new();
    let good = fleet.node(obliging());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let absent = Candidate {
        node_id: NodeId([7; 32]),
        endpoint: socket.local_addr().unwrap().into(),
        ..candidate(&good)
    };
    let candidates = vec![absent, candidate(&good)];
    let scheduler = fleet.scheduler(move |_: &Request| Ok(Reply::Redirect(candidates.clone())));
    let client = connect(&scheduler);
    for _ in 0..2 {
        client.acquire(memory()).unwrap();
    }
    assert_eq!(told(&scheduler), [vec![], vec![unanswered(absent.node_id)]]);
}
