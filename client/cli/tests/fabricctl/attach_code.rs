//! `lease bind --attach-code`: the code and where it is presented, refusals, and what it cannot be combined with.

use std::net::SocketAddr;

use fabricbios_wire::{
    Answer, AttachCode, Binding, KindBinding, LeaseError, LeaseInfo, RdmaAttach, RdmaBinding,
    RefusalClass, Reply, Request, ResourceType,
};
use serde_json::json;

use crate::{
    LEASE_TEXT,
    common::{FakeNode, LEASE, lease, rdma, refuse},
    fails, json_of, line_of, saying, text_of,
};

const LISTENER: &str = "10.0.0.1:7471";
const CODE: [u8; 16] = *b"\xa7\xb6 sixteen bytes";
const CODE_TEXT: &str = "a7b6207369787465656e206279746573";

/// The answer to a request for an attach code.
fn telling() -> Answer {
    let attach = Some(RdmaAttach {
        code: AttachCode(CODE),
        endpoint: LISTENER.parse::<SocketAddr>().unwrap().into(),
    });
    Ok(Reply::Lease(LeaseInfo {
        binding: Binding {
            kind: KindBinding::Mem(Some(RdmaBinding { attach, ..rdma() })),
            ..Binding::plain(ResourceType::Mem)
        },
        ..lease(60_000)
    }))
}

/// A node that tells the code to who asks for one, and in no other answer.
fn node() -> FakeNode {
    FakeNode::start(|request: &Request| match request {
        Request::LeaseAttach(LEASE) => telling(),
        _ => Ok(Reply::Lease(lease(60_000))),
    })
}

#[test]
fn a_code_is_shown_with_the_address_where_it_is_presented() {
    let node = node();
    let told = json_of(&node, &format!("lease bind {LEASE_TEXT} --attach-code"));
    let expected = json!({ "code": CODE_TEXT, "address": LISTENER });
    assert_eq!(told["binding"]["rdma"]["attach"], expected);
    let text = text_of(&node, &format!("lease bind {LEASE_TEXT} --attach-code"));
    let line = text.lines().find(|line| line.contains(CODE_TEXT)).unwrap();
    assert!(
        line.contains("attach code") && line.contains(LISTENER),
        "{line}"
    );
    assert_eq!(node.asked(), [(); 2].map(|()| Request::LeaseAttach(LEASE)));
    let told = json_of(&node, &format!("lease query {LEASE_TEXT}"));
    assert!(told["binding"]["rdma"].get("attach").is_none(), "{told}");
}

#[test]
fn a_node_without_a_listener_refuses() {
    let why = "this node has no rdma_cm listener: its operator sets one with --rdma-cm-listen";
    let node = saying(refuse(
        LeaseError::InvalidArgs,
        RefusalClass::Permanent,
        why,
    ));
    let line = format!("lease bind {LEASE_TEXT} --attach-code");
    let (status, object) = fails(&node, &line);
    let reason = json!({ "class": "permanent", "code": "InvalidArgs" });
    assert_eq!((status, &object["reason"]), (3, &reason));
    let (status, text) = line_of(&node, &line);
    assert_eq!(status, 3);
    for told in [object["message"].as_str().unwrap(), &text] {
        assert!(told.contains(why) && told.contains(LEASE_TEXT), "{told}");
    }
}

#[test]
fn a_code_is_asked_for_alone() {
    let node = node();
    let peer = "--rdma-peer qpn=0x11,gid=10.0.0.1,psn=7,mtu=1024";
    for others in [
        peer.to_owned(),
        format!("{peer} --beside"),
        "--beside".to_owned(),
        "--leave 17".to_owned(),
    ] {
        let line = format!("lease bind {LEASE_TEXT} --attach-code {others}");
        let (status, object) = fails(&node, &line);
        assert_eq!(status, 2, "{others}: {object}");
        let message = object["message"].as_str().unwrap();
        assert!(message.contains("--attach-code"), "{others}: {message}");
    }
    assert_eq!(node.asked(), []);
}

#[test]
fn an_answer_that_tells_a_code_does_not_print_it() {
    let answer = telling();
    let printed = format!("{answer:?}");
    let digits = format!("{CODE:?}");
    for secret in [CODE_TEXT, digits.trim_matches(['[', ']']), "sixteen"] {
        assert!(!printed.contains(secret), "{printed}");
    }
    assert!(printed.contains("AttachCode(..)"), "{printed}");
}
