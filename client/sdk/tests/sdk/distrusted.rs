//! Candidates of a scheduler that do not behave as a node of the fabric.

use fabricbios_wire::{Answer, LeaseError, RefusalClass, Reply, Request, Tried};

use crate::{
    common::{
        FakeNode,
        fleet::{Fleet, candidate},
    },
    fleet::{ONCE, SHORT, asked_for, at, full, refused},
    nodes::{granting, memory},
    obliging,
};

/// Names this node, whatever it is asked.
fn naming(other: &FakeNode) -> impl FnMut(&Request) -> Answer + Send + 'static {
    let candidates = vec![candidate(other)];
    move |_: &Request| Ok(Reply::Redirect(candidates.clone()))
}

#[test]
fn a_named_node_that_names_others_is_passed_over_and_comes_behind_them_later() {
    let fleet = Fleet::new();
    let (tempting, good, full) = (
        fleet.node(obliging()),
        fleet.node(obliging()),
        fleet.node(full()),
    );
    let bad = fleet.node(naming(&tempting));
    let scheduler = fleet.redirecting_to(&[&bad, &good]);
    let client = at(&scheduler).patient(ONCE);
    for _ in 0..2 {
        let granted = client.acquire(memory()).unwrap();
        assert_eq!(granted.node.id(), Some(good.id()));
    }
    let asked = (bad.asked().len(), asked_for(&bad).len());
    assert_eq!(asked, (2, 2), "there is nothing to settle");
    let told: Vec<Vec<Tried>> = { asked_for(&scheduler).into_iter() }
        .map(|it| it.tried)
        .collect();
    let of_bad = Tried {
        node_id: bad.id(),
        refused: None,
        class: RefusalClass::Transient,
    };
    assert_eq!(told, [vec![], vec![of_bad]]);

    let error = refused(&fleet.redirecting_to(&[&bad]));
    assert_eq!(error.code(), "Protocol");
    for part in [&*bad.addr(), "not again", "the only node that scheduler"] {
        assert!(error.to_string().contains(part), "{part} in {error}");
    }
    // A refusal tells the client more.
    for nodes in [[&bad, &full], [&full, &bad]] {
        let error = refused(&fleet.redirecting_to(&nodes));
        assert_eq!(error.refusal().unwrap().error, LeaseError::CapacityExceeded);
        let passed_over = format!("passed over: node {} answered", bad.addr());
        assert!(error.to_string().contains(&passed_over), "{error}");
    }
    assert_eq!(tempting.asked(), []);
}

/// Such an answer does not say whether there is a lease.
#[test]
fn a_named_node_whose_answer_is_none_ends_the_search_and_is_told_of() {
    let fleet = Fleet::new();
    let good = fleet.node(obliging());
    let candidates = vec![candidate(&good)];
    let bad = fleet.node(move |_: &Request| {
        Ok(Reply::Explained {
            candidates: candidates.clone(),
            why: String::new(),
        })
    });
    let scheduler = fleet.redirecting_to(&[&bad, &good]);
    let client = at(&scheduler).patient(ONCE);
    let error = client.acquire(memory()).unwrap_err();
    assert_eq!(error.code(), "Protocol");
    let leave_out = format!("--avoid-node {}", bad.id());
    for part in [&*bad.addr(), "it may have a lease", &leave_out] {
        assert!(error.to_string().contains(part), "{part} in {error}");
    }
    assert_eq!(good.asked(), []);
    client.acquire(memory()).unwrap_err();
    let told = &asked_for(&scheduler)[1].tried;
    assert_eq!(told[0].node_id, bad.id());
}

/// Of the lost request a redirect says nothing.
#[test]
fn a_node_that_names_others_after_a_lost_reply_is_not_passed_over() {
    let fleet = Fleet::new();
    let good = fleet.node(obliging());
    let (mut grant, mut name) = (granting(true), naming(&good));
    let mut has_granted = false;
    let bad = fleet.node(move |request: &Request| match request {
        Request::LeaseAlloc(_) if std::mem::replace(&mut has_granted, true) => name(request),
        _ => grant(request),
    });
    let scheduler = fleet.redirecting_to(&[&bad, &good]);
    let client = at(&scheduler).patient(ONCE);
    client.acquire(memory()).unwrap();
    let _arrived = bad.ignore_next();
    let lost = client.answers_within(SHORT).acquire(memory()).unwrap_err();
    assert!(lost.to_string().contains("query before"), "{lost}");
    assert_eq!((bad.tokens().len(), good.asked().len()), (3, 0));
}

#[test]
fn a_named_node_of_another_ca_is_asked_nothing_and_the_next_one_is() {
    let fleet = Fleet::new();
    let (foreign, good) = (FakeNode::start(obliging()), fleet.node(obliging()));
    let granted = at(&fleet.redirecting_to(&[&foreign, &good])).acquire(memory());
    assert_eq!(granted.unwrap().node.id(), Some(good.id()));
    let error = refused(&fleet.redirecting_to(&[&foreign]));
    assert_eq!(error.code(), "UntrustedNode");
    assert!(error.to_string().contains(&foreign.addr()), "{error}");
    assert_eq!(foreign.asked(), []);
}
