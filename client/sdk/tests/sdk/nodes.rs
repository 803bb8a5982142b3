//! Nodes that restart, and identities that do not work.

use std::{fs, thread, time::Duration};

use fabricbios_client::{Error, Identity, Node};
use fabricbios_wire::Request;

use crate::{
    admin,
    common::{FakeNode, LEASE},
    obliging,
};

#[test]
fn a_restarted_node_is_found_again_for_what_may_be_asked_twice() {
    let mut node = FakeNode::start(obliging());
    let client = Node::connect(&node.addr(), &admin(&node)).unwrap();
    client.call(Request::LeaseQuery(LEASE)).unwrap();
    node.crash_and_restart();
    client.call(Request::LeaseQuery(LEASE)).unwrap();
    assert_eq!(node.asked().len(), 2);
}

#[test]
fn a_grant_is_never_asked_for_twice() {
    let mut node = FakeNode::start(obliging());
    let client = Node::connect(&node.addr(), &admin(&node))
        .unwrap()
        .patient(Duration::from_secs(60));
    let query = || client.call(Request::LeaseQuery(LEASE)).unwrap();
    query();
    let rotate = Request::LeaseRotate {
        lease_id: LEASE,
        overlap_ms: 0,
    };
    let arrived = node.ignore_next();
    let error = thread::scope(|scope| {
        let asking = scope.spawn(|| client.call(rotate.clone()).unwrap_err());
        arrived.recv().unwrap();
        node.crash_and_restart();
        // The restarted node resets the connection when a packet over it arrives.
        query();
        asking.join().unwrap()
    });
    assert!(
        matches!(
            error,
            Error::Unreachable {
                may_have_happened: true,
                ..
            }
        ),
        "{error}"
    );
    client.call(rotate.clone()).unwrap();
    let asked = node.asked();
    assert_eq!(asked.iter().filter(|asked| **asked == rotate).count(), 2);
}

#[test]
fn a_node_that_ends_before_its_answer_is_noticed_by_its_closed_port() {
    let rotate = Request::LeaseRotate {
        lease_id: LEASE,
        overlap_ms: 0,
    };
    for request in [Request::LeaseQuery(LEASE), rotate] {
        let mut node = FakeNode::start(obliging());
        let client = Node::connect(&node.addr(), &admin(&node)).unwrap();
        let arrived = node.ignore_next();
        let error = thread::scope(|scope| {
            let asking = scope.spawn(|| client.call(request.clone()).unwrap_err());
            arrived.recv().unwrap();
            node.crash();
            asking.join().unwrap()
        });
        assert!(error.to_string().contains("nothing listens"), "{error}");
        node.serve();
        client.call(request).unwrap();
    }
}

#[test]
fn identities_that_do_not_do_are_told_apart() {
    let (node, other) = (FakeNode::start(obliging()), FakeNode::start(obliging()));
    let call = |identity: &Identity| {
        Node::connect(&node.addr(), identity)
            .and_then(|client| client.call(Request::FenceList))
            .unwrap_err()
    };
    let expired = call(&Identity::load(node.expired_identity()).unwrap());
    assert!(
        matches!(&expired, Error::IdentityRefused { why, .. } if why.contains("expired")),
        "{expired:?}"
    );
    let foreign = call(&admin(&other));
    assert!(
        matches!(foreign, Error::UntrustedNode { .. }),
        "{foreign:?}"
    );
    assert!(node.asked().is_empty());
}

#[test]
fn an_identity_file_that_cannot_be_used_is_named() {
    let node = FakeNode::start(obliging());
    let path = node.dir().join("x.identity");
    let whole = fs::read_to_string(node.admin()).unwrap();
    let other = FakeNode::start(obliging());
    let foreign = fs::read_to_string(other.admin()).unwrap();
    let key = |text: &str| {
        text.split("-----BEGIN PRIVATE")
            .nth(1)
            .unwrap()
            .split("-----END PRIVATE")
            .next()
            .unwrap()
            .to_owned()
    };
    let mixed = whole.replace(&key(&whole), &key(&foreign));
    for text in ["", "rubbish", &whole[..whole.len() / 2], &mixed] {
        fs::write(&path, text).unwrap();
        let error = Identity::load(&path).unwrap_err();
        assert!(matches!(error, Error::Identity { .. }), "{error:?}");
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
    let mut cut_off = whole.split_at(whole.find("-----END").unwrap()).0.to_owned();
    for _ in 0..2 {
        fs::write(&path, &cut_off).unwrap();
        let error = Identity::load(&path).unwrap_err().to_string();
        assert!(error.contains("cut off or is not PEM"), "{error}");
        cut_off.push_str("-----BEGIN");
    }
    assert!(matches!(
        Identity::load("/no/such/file"),
        Err(Error::Identity { .. })
    ));
}

#[test]
fn in_an_identity_file_the_key_may_stand_anywhere() {
    let node = FakeNode::start(obliging());
    let whole = fs::read_to_string(node.admin()).unwrap();
    let (certificate, rest) = whole.split_at(whole.find("-----BEGIN PRIVATE").unwrap());
    let (key, ca) = rest.split_at(rest.find("-----BEGIN CERT").unwrap());
    let path = node.dir().join("other.identity");
    for text in [
        format!("{certificate}{ca}{key}"),
        format!("{key}{certificate}{ca}"),
    ] {
        fs::write(&path, text).unwrap();
        let identity = Identity::load(&path).unwrap();
        let client = Node::connect(&node.addr(), &identity).unwrap();
        client.call(Request::LeaseQuery(LEASE)).unwrap();
    }
}

#[test]
fn keys_are_not_printed() {
    let node = FakeNode::start(obliging());
    let printed = format!("{:?}", admin(&node));
    assert!(
        !printed.contains("PRIVATE") && printed.len() < 200,
        "{printed}"
    );
}

#[test]
fn an_identity_tells_when_it_expires() {
    let node = FakeNode::start(obliging());
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let late = Identity::load(node.expired_identity()).unwrap();
    let late = late.expires_at_unix_secs().unwrap();
    assert!((now - 90_000..now).contains(&late), "{late}");
    assert!(admin(&node).expires_at_unix_secs().unwrap() > now);
}
