//! From asking for a lease to giving it back.

use std::{net::SocketAddr, time::Duration};

use fabricbios_client::{Error, MemBuilder};
use fabricbios_wire::{
    AttachCode, Binding, Generation, KindBinding, LeaseError, LeaseInfo, RdmaAttach, RdmaBinding,
    RefusalClass, Reply, Request, ResourceType, Transport,
};

use crate::{
    PEER, builder,
    common::{FakeNode, LEASE, lease, rdma, refuse},
    obliging,
};

#[test]
fn a_lease_from_acquire_to_free() {
    let node = FakeNode::start(obliging());
    let lease = builder(&node)
        .lease_secs(60)
        .grace_secs(9)
        .rdma_peer(PEER)
        .acquire()
        .unwrap();
    assert_eq!(lease.lease_id(), LEASE);
    assert_eq!(lease.binding().rdma().unwrap().rkey, Some(0x1234));
    assert!(lease.remaining() > Duration::from_secs(1));
    assert_eq!(lease.expires_at_unix_secs(), 1_800_000_060);
    assert_eq!(lease.bind(&[PEER]).unwrap().generation, Generation(2));
    assert_eq!(lease.rotate().unwrap().generation, Generation(3));
    assert_eq!(lease.renew().unwrap().generation, Generation(4));
    assert_eq!(lease.query().unwrap().generation, Generation(5));
    assert_eq!(
        lease.info().generation,
        Generation(5),
        "the handle keeps the last answer"
    );
    lease.free().unwrap();
    let asked = node.asked();
    let Request::LeaseAlloc(alloc) = &asked[0] else {
        panic!("{asked:?}")
    };
    assert_eq!(
        (alloc.capacity, alloc.lease_secs, alloc.grace_secs),
        (1 << 20, 60, 9)
    );
    assert_eq!(alloc.terms.rdma_peers(), [PEER]);
    assert_eq!(
        asked[1],
        Request::LeaseBind {
            lease_id: LEASE,
            peers: vec![PEER]
        }
    );
    assert_eq!(
        asked[2],
        Request::LeaseRotate {
            lease_id: LEASE,
            overlap_ms: 0
        }
    );
    assert_eq!(
        asked[3],
        Request::LeaseRenew {
            lease_id: LEASE,
            lease_secs: 60
        }
    );
    assert_eq!(asked[5], Request::LeaseFree(LEASE));
}

#[test]
fn an_attach_code_is_told_to_who_asks_and_not_kept_or_printed() {
    let attach = RdmaAttach {
        code: AttachCode([0xa7; 16]),
        endpoint: SocketAddr::from(([10, 0, 0, 1], 7471)).into(),
    };
    let (told, mut obliging) = (attach.clone(), obliging());
    let node = FakeNode::start(move |request: &Request| match request {
        Request::LeaseAttach(LEASE) => Ok(Reply::Lease(LeaseInfo {
            binding: Binding {
                kind: KindBinding::Mem(Some(RdmaBinding {
                    attach: Some(told.clone()),
                    ..rdma()
                })),
                ..Binding::plain(ResourceType::Mem)
            },
            ..lease(60_000)
        })),
        _ => obliging(request),
    });
    let lease = builder(&node).acquire().unwrap();
    let code = lease.attach_code().unwrap();
    assert_eq!(code, attach);
    assert_eq!(lease.binding().rdma().unwrap().attach, None);
    let printed = format!("{code:?} {:?} {:?}", lease.info(), node.asked());
    assert!(
        !printed.contains("167, 167") && !printed.contains("a7a7"),
        "{printed}"
    );
}

#[test]
fn an_answer_without_a_code_is_not_taken_for_one() {
    let node = FakeNode::start(obliging());
    let lease = builder(&node).acquire().unwrap();
    let error = lease.attach_code().unwrap_err();
    assert!(error.to_string().contains("an attach code"), "{error}");
}

#[tokio::test]
async fn the_same_under_somebody_elses_runtime_both_ways() {
    let node = FakeNode::start(obliging());
    let lease = builder(&node).acquire_async().await.unwrap();
    lease.bind_async(&[PEER]).await.unwrap();
    lease.free_async().await.unwrap();
    let lease = builder(&node).acquire().unwrap();
    lease.free().unwrap();
    tokio::task::spawn_blocking(move || drop(node))
        .await
        .unwrap();
}

#[test]
fn a_refusal_arrives_as_it_was_made() {
    let node = FakeNode::start(|_: &Request| {
        refuse(
            LeaseError::CapacityExceeded,
            RefusalClass::Transient,
            "arena is full",
        )
    });
    let error = builder(&node).acquire().unwrap_err();
    let refusal = error.refusal().unwrap();
    assert_eq!(refusal.error, LeaseError::CapacityExceeded);
    assert_eq!(refusal.class, RefusalClass::Transient);
    assert_eq!(error.to_string(), "arena is full");
}

#[test]
fn what_is_not_echoed_is_given_back() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::LeaseAlloc(_) => Ok(Reply::Lease(lease(60_000))),
        _ => Ok(Reply::Lease(lease(0))),
    });
    let wants: [fn(MemBuilder) -> MemBuilder; 3] = [
        |b| b.transport(Transport::Rdma),
        MemBuilder::rotate_on_renew,
        |b| b.bytes(u64::MAX),
    ];
    for (index, want) in wants.into_iter().enumerate() {
        let error = want(builder(&node)).acquire().unwrap_err();
        assert!(
            matches!(
                error,
                Error::FailedClosed {
                    lease_id: LEASE,
                    freed: true,
                    ..
                }
            ),
            "{error}"
        );
        assert_eq!(node.asked()[index * 2 + 1], Request::LeaseFree(LEASE));
    }
}

#[test]
fn nonsense_is_refused_before_anybody_is_asked() {
    let node = FakeNode::start(obliging());
    assert!(matches!(
        builder(&node).bytes(0).acquire(),
        Err(Error::Usage(_))
    ));
    assert!(matches!(
        builder(&node).lease_secs(0).acquire(),
        Err(Error::Usage(_))
    ));
    assert!(matches!(
        builder(&node).node("a:b:c").acquire(),
        Err(Error::Usage(_))
    ));
    assert!(node.asked().is_empty());
}
