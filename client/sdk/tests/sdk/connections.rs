//! The connections to nodes that a scheduler has named.

use std::{net::UdpSocket, thread, time::Duration};

use fabricbios_client::Node;
use fabricbios_control::Limits;
use fabricbios_wire::{LeaseError, RefusalClass, Request};

use crate::{
    admin,
    common::{FakeNode, fleet::Fleet, refuse},
    nodes::memory,
    obliging,
};

/// Long enough for every answer that comes at all.
const SHORT: Duration = Duration::from_secs(4);

fn at(to: &FakeNode) -> Node {
    Node::connect(&to.addr(), &admin(to)).unwrap()
}

#[test]
fn leases_of_one_node_share_a_connection_whether_it_granted_them_or_refused() {
    let fleet = Fleet::new();
    let one = Limits {
        connections_per_tenant_max: 1,
        ..Limits::default()
    };
    let mut count = 0;
    let node = fleet.limited_node(one, move |asked: &Request| {
        count += 1;
        match count {
            3 => refuse(
                LeaseError::CapacityExceeded,
                RefusalClass::Transient,
                "full",
            ),
            _ => obliging()(asked),
        }
    });
    let scheduler = fleet.redirecting_to(&[&node]);
    let client = at(&scheduler);
    let ask = || client.acquire(memory());
    let leases = [ask().unwrap(), ask().unwrap()];
    let refused = ask().map(drop).unwrap_err();
    assert!(refused.to_string().contains("full"), "{refused}");
    let again = ask().unwrap();
    assert!(leases.iter().all(|it| it.node.id() == again.node.id()));
}

#[test]
fn closing_a_lease_or_the_scheduler_leaves_the_connection_of_another_lease() {
    let fleet = Fleet::new();
    let node = fleet.node(obliging());
    let scheduler = fleet.redirecting_to(&[&node]);
    let client = at(&scheduler);
    let [one, other] = [(); 2].map(|()| client.acquire(memory()).unwrap());
    let arrived = node.ignore_next();
    let waiting = thread::spawn(move || {
        let query = Request::LeaseQuery(one.info.lease_id);
        one.node.answers_within(SHORT).call(query)
    });
    arrived.recv().unwrap();
    other.node.close();
    client.close();
    let error = waiting.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("keeps the connection alive"), "{error}");
}

/// It is gone without a word, as after a loss of power: the connection to it seems to be there.
#[test]
fn a_node_that_has_gone_since_its_last_lease_is_passed_over() {
    let fleet = Fleet::new();
    let [mut gone, there] = [fleet.node(obliging()), fleet.node(obliging())];
    let scheduler = fleet.redirecting_to(&[&gone, &there]);
    let client = at(&scheduler);
    for listens in [false, true] {
        let before = client.acquire(memory()).unwrap();
        assert_eq!(before.node.id(), Some(gone.id()));
        gone.crash();
        let silent = listens.then(|| UdpSocket::bind(gone.addr()).unwrap());
        let granted = client.acquire(memory()).unwrap();
        assert_eq!(granted.node.id(), Some(there.id()), "silent: {listens}");
        drop(silent);
        gone.serve();
    }
}
