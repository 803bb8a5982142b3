//! Nodes that restart, and identities that do not work.

use std::{fs, thread, time::Duration};

use fabricbios_client::{Error, Granted, Identity, Node};
use fabricbios_wire::{
    Answer, LeaseAllocRequest, LeaseId, LeaseInfo, LeasePage, Reply, Request, RequestToken,
    ResourceType,
};

use crate::{
    admin,
    common::{FakeNode, LEASE, granted},
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

/// A node whose answers about leases show the token, or do not.
pub(crate) fn granting(knows_tokens: bool) -> impl FnMut(&Request) -> Answer + Send + 'static {
    let mut leases: Vec<LeaseInfo> = Vec::new();
    move |request| match request {
        Request::LeaseAlloc(asked) => {
            let same = |it: &&LeaseInfo| knows_tokens && it.request_token == asked.request_token;
            if let Some(before) = leases.iter().find(same) {
                return Ok(Reply::Lease(before.clone()));
            }
            let lease_id = LeaseId(leases.len() as u128 + 1);
            let request_token = asked.request_token.filter(|_| knows_tokens);
            let lease = LeaseInfo {
                lease_id,
                request_token,
                ..granted(asked)
            };
            leases.push(lease.clone());
            Ok(Reply::Lease(lease))
        }
        Request::LeaseList { after, .. } => {
            // One lease a page.
            let mut rest = leases.iter().filter(|it| it.lease_id > *after);
            let first = rest.next().cloned();
            let more = rest.next().is_some();
            let next = first.as_ref().map(|it| it.lease_id).filter(|_| more);
            Ok(Reply::Leases(LeasePage {
                leases: first.into_iter().collect(),
                next,
            }))
        }
        other => panic!("nobody asks {other:?} here"),
    }
}

/// Allocates over the connection of `client`; the reply is lost as the node dies, and it comes back.
pub(crate) fn alloc_and_lose_the_reply(
    node: &mut FakeNode,
    client: &Node,
) -> Result<Granted, Error> {
    let arrived = node.ignore_next();
    thread::scope(|scope| {
        let asking = scope.spawn(|| client.acquire(memory()));
        arrived.recv().unwrap();
        node.crash_and_restart();
        asking.join().unwrap()
    })
}

pub(crate) fn memory() -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Mem, 4096, 60)
}

fn patient(node: &FakeNode) -> Node {
    let client = Node::connect(&node.addr(), &admin(node)).unwrap();
    client.patient(Duration::from_secs(60))
}

#[test]
fn a_lost_grant_is_asked_for_again_with_its_token_where_the_node_knows_tokens() {
    let mut node = FakeNode::start(granting(true));
    let client = patient(&node);
    let first = client.acquire(memory()).unwrap();
    let lost = alloc_and_lose_the_reply(&mut node, &client).unwrap();
    assert_ne!(lost.info.lease_id, first.info.lease_id);
    let tokens = node.tokens();
    let [Some(first), Some(lost), Some(again)] = tokens[..] else {
        panic!("{tokens:?}")
    };
    assert_eq!(lost, again);
    assert_ne!(lost, first, "every request has a token of its own");
}

#[test]
fn a_lost_grant_is_not_asked_for_again_where_no_lease_shows_a_token() {
    let mut node = FakeNode::start(granting(false));
    let client = patient(&node);
    client.acquire(memory()).unwrap();
    client.acquire(memory()).unwrap();
    let error = alloc_and_lose_the_reply(&mut node, &client).unwrap_err();
    assert!(
        error.to_string().contains("query before repeating"),
        "{error}"
    );
    assert_eq!(node.tokens().len(), 3);
    let lists = node.asked().into_iter();
    let pages = lists.filter(|it| matches!(it, Request::LeaseList { .. }));
    assert_eq!(pages.count(), 2, "all pages were read");
}

#[test]
fn a_token_of_the_caller_is_kept() {
    let node = FakeNode::start(granting(true));
    let asked = LeaseAllocRequest {
        request_token: Some(RequestToken(7)),
        ..memory()
    };
    let ids = [(), ()].map(|()| patient(&node).acquire(asked.clone()).unwrap().info.lease_id);
    assert_eq!(ids[0], ids[1]);
    assert_eq!(node.tokens(), [Some(RequestToken(7)); 2]);
}

#[test]
fn a_node_that_keeps_its_connection_and_does_not_answer_is_left() {
    let rotate = Request::LeaseRotate {
        lease_id: LEASE,
        overlap_ms: 0,
    };
    for request in [Request::LeaseQuery(LEASE), rotate] {
        let node = FakeNode::start(obliging());
        let client = Node::connect(&node.addr(), &admin(&node)).unwrap();
        let client = client.answers_within(Duration::from_secs(1));
        let _arrived = node.ignore_next();
        let error = client.call(request.clone()).unwrap_err();
        let text = error.to_string();
        for part in [
            &*node.addr(),
            "has not answered",
            "for 1s",
            "query before repeating",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(node.asked(), [request], "it is not sent again");
    }
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
