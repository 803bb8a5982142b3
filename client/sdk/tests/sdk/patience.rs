//! Transient refusals are repeated, others are not.

use std::{collections::HashMap, mem, thread, time::Duration};

use fabricbios_client::{Error, Node};
use fabricbios_control::Limits;
use fabricbios_wire::{Answer, LeaseError, RefusalClass, Reply, Request};

use crate::{
    PEER, admin, builder,
    common::{FakeNode, LEASE, lease, refuse},
    obliging,
};

const LONG: Duration = Duration::from_secs(60);

/// Refuses the first two requests of each kind.
fn busy_at_first() -> impl FnMut(&Request) -> Answer + Send + 'static {
    let mut asked = HashMap::new();
    let mut oblige = obliging();
    move |request| {
        let times = asked.entry(mem::discriminant(request)).or_insert(0);
        *times += 1;
        let busy = |error| refuse(error, RefusalClass::Transient, "a little later");
        match *times {
            1 => busy(LeaseError::ResourceBusy),
            2 => busy(LeaseError::Unavailable),
            _ => oblige(request),
        }
    }
}

fn refusing(error: LeaseError, class: RefusalClass) -> FakeNode {
    FakeNode::start(move |_: &Request| refuse(error, class, "no"))
}

fn code(error: &Error) -> LeaseError {
    error.refusal().unwrap().error
}

#[test]
fn acquiring_binding_rotating_and_freeing_wait_for_a_busy_node() {
    let node = FakeNode::start(busy_at_first());
    let lease = builder(&node).patience(LONG).acquire().unwrap();
    lease.bind(&[PEER]).unwrap();
    lease.rotate().unwrap();
    lease.free().unwrap();
    assert_eq!(node.asked().len(), 4 * 3);
}

#[test]
fn what_will_not_change_by_itself_is_asked_once() {
    for (error, class) in [
        (LeaseError::InvalidArgs, RefusalClass::Permanent),
        (LeaseError::ResourceBusy, RefusalClass::Permanent),
        (LeaseError::Unavailable, RefusalClass::Policy),
        (LeaseError::CapacityExceeded, RefusalClass::Transient),
    ] {
        let node = refusing(error, class);
        let refused = builder(&node).patience(LONG).acquire().unwrap_err();
        assert_eq!((code(&refused), node.asked().len()), (error, 1));
    }
}

#[test]
fn patience_has_an_end_and_the_error_says_how_long_it_was() {
    let node = refusing(LeaseError::ResourceBusy, RefusalClass::Transient);
    let some = builder(&node).patience(Duration::from_secs(2));
    let refused = some.acquire().unwrap_err();
    assert_eq!(code(&refused), LeaseError::ResourceBusy);
    let asked = node.asked().len();
    assert!(asked > 2, "asked {asked} times");
    let told = format!("no (asked {asked} times in ");
    assert!(refused.to_string().starts_with(&told), "{refused}");
    let none = builder(&node).patience(Duration::ZERO);
    let refused = none.acquire().unwrap_err();
    assert_eq!(code(&refused), LeaseError::ResourceBusy);
    assert_eq!(
        (refused.to_string().as_str(), node.asked().len()),
        ("no", asked + 1)
    );
}

#[test]
fn patience_does_not_outlast_the_lease() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::LeaseAlloc(_) => Ok(Reply::Lease(lease(0))),
        _ => refuse(LeaseError::ResourceBusy, RefusalClass::Transient, "no"),
    });
    let lease = builder(&node).patience(LONG).acquire().unwrap();
    let refused = lease.bind(&[PEER]).unwrap_err();
    assert_eq!(
        (code(&refused), node.asked().len()),
        (LeaseError::ResourceBusy, 2)
    );
}

#[test]
fn a_node_asks_once_unless_it_is_made_patient() {
    let node = FakeNode::start(busy_at_first());
    let client = Node::connect(&node.addr(), &admin(&node)).unwrap();
    let query = Request::LeaseQuery(LEASE);
    client.call(query.clone()).unwrap_err();
    assert_eq!(node.asked().len(), 1);
    client.patient(LONG).call(query).unwrap();
    assert_eq!(node.asked().len(), 3);
}

#[test]
fn a_connection_that_a_quota_refuses_is_tried_again() {
    let one = Limits {
        connections_per_tenant_max: 1,
        ..Limits::default()
    };
    let node = FakeNode::limited(one, obliging());
    let connect = || Node::connect(&node.addr(), &admin(&node)).unwrap();
    let only = connect();
    only.call(Request::LeaseQuery(LEASE)).unwrap();
    let waits = builder(&node).patience(LONG);
    let waiting = thread::spawn(move || waits.acquire());
    // When three other requests have been refused, the waiting request has been refused too.
    for _ in 0..3 {
        let refused = connect().call(Request::LeaseQuery(LEASE));
        assert_eq!(code(&refused.unwrap_err()), LeaseError::ResourceBusy);
    }
    only.close();
    waiting.join().unwrap().unwrap().free().unwrap();
}

#[test]
fn a_node_that_starts_again_is_waited_for() {
    let mut node = FakeNode::start(obliging());
    let client = Node::connect(&node.addr(), &admin(&node)).unwrap();
    client.close();
    node.crash();
    let asking = |patience| {
        let client = client.patient(patience);
        thread::spawn(move || client.call(Request::LeaseQuery(LEASE)))
    };
    let waits = asking(LONG);
    let lost = asking(Duration::from_millis(500))
        .join()
        .unwrap()
        .unwrap_err();
    assert!(matches!(lost, Error::Unreachable { .. }), "{lost}");
    assert!(lost.to_string().contains("(asked "), "{lost}");
    node.serve();
    waits.join().unwrap().unwrap();
}

#[test]
fn a_node_that_never_answered_is_not_waited_for() {
    let mut node = FakeNode::start(obliging());
    node.crash();
    let lost = builder(&node)
        .patience(LONG)
        .acquire()
        .unwrap_err()
        .to_string();
    assert!(
        lost.contains("nothing listens") && !lost.contains("(asked "),
        "{lost}"
    );
}
