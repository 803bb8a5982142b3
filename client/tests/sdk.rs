//! The SDK against a node that answers by script.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as loudly as tests")]

mod common;

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use common::{FakeNode, LEASE, honest, lease, refuse};
use fabricbios_client::{Error, Health, Identity, MemBuilder, MemLease, Node};
use fabricbios_wire::{
    Answer, CpuIsolationClass, Effective, Generation, GpuExclusivityClass, LeaseAllocRequest,
    LeaseError, LeaseInfo, RdmaPeer, RefusalClass, Reply, Request, Transport,
};

const PEER: RdmaPeer = RdmaPeer {
    qpn: 5,
    psn: 6,
    gid: [7; 16],
    path_mtu: 1_024,
};

/// Grants, echoes and repeats; each answer has a generation of its own.
fn obliging() -> impl FnMut(&Request) -> Answer + Send + 'static {
    let mut generation = 0;
    let mut effective = Effective::default();
    move |request| {
        generation += 1;
        if let Request::LeaseAlloc(alloc) = request {
            effective = honest(alloc);
        }
        let info = lease(60_000);
        Ok(Reply::Lease(LeaseInfo {
            generation: Generation(generation),
            effective,
            ..info
        }))
    }
}

fn admin(node: &FakeNode) -> Identity {
    Identity::load(node.admin()).unwrap()
}

fn builder(node: &FakeNode) -> MemBuilder {
    MemBuilder::new()
        .bytes(1 << 20)
        .node(node.addr())
        .identity(&admin(node))
        .auto_renew(false)
}

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
    assert_eq!(lease.binding().rdma.unwrap().rkey, Some(0x1234));
    assert!(lease.remaining() > Duration::from_secs(1));
    assert_eq!(lease.expires_at_unix_secs(), 1_800_000_060);
    assert_eq!(lease.bind(PEER).unwrap().generation, Generation(2));
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
    assert_eq!(alloc.rdma_peer, Some(PEER));
    assert_eq!(
        asked[1],
        Request::LeaseBind {
            lease_id: LEASE,
            peer: PEER
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

#[tokio::test]
async fn the_same_under_somebody_elses_runtime_both_ways() {
    let node = FakeNode::start(obliging());
    let lease = builder(&node).acquire_async().await.unwrap();
    lease.bind_async(PEER).await.unwrap();
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
fn classes_that_are_not_enforced_are_missed() {
    let node = FakeNode::start(obliging());
    let lease = builder(&node).acquire().unwrap();
    let Request::LeaseAlloc(plain) = node.asked().remove(0) else {
        panic!()
    };
    lease.free().unwrap();
    let cpu = |class| LeaseAllocRequest {
        cpu_isolation: Some(class),
        ..plain.clone()
    };
    let gpu = |class| LeaseAllocRequest {
        gpu_exclusivity: Some(class),
        ..plain.clone()
    };
    let whole = Effective {
        cpu_isolation: Some(CpuIsolationClass::WholeCore),
        ..Effective::default()
    };
    let partition = Effective {
        gpu_exclusivity: Some(GpuExclusivityClass::PartitionExclusive),
        ..Effective::default()
    };
    let missing = fabricbios_client::unmet;
    assert!(missing(&plain, &Effective::default()).is_empty());
    assert!(missing(&cpu(CpuIsolationClass::BestEffort), &whole).is_empty());
    assert_eq!(
        missing(&cpu(CpuIsolationClass::StrictIsolated), &whole).len(),
        1
    );
    assert_eq!(
        missing(&cpu(CpuIsolationClass::WholeCore), &Effective::default()).len(),
        1
    );
    assert_eq!(
        missing(&gpu(GpuExclusivityClass::DeviceExclusive), &partition).len(),
        1
    );
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

#[test]
fn a_restarted_node_is_found_again_for_what_may_be_asked_twice() {
    let mut node = FakeNode::start(obliging());
    let client = Node::connect_blocking(&node.addr(), &admin(&node)).unwrap();
    client.call_blocking(Request::LeaseQuery(LEASE)).unwrap();
    node.crash_and_restart();
    client.call_blocking(Request::LeaseQuery(LEASE)).unwrap();
    assert_eq!(node.asked().len(), 2);
}

#[test]
fn a_grant_is_never_asked_for_twice() {
    let mut node = FakeNode::start(obliging());
    let client = Node::connect_blocking(&node.addr(), &admin(&node)).unwrap();
    client.call_blocking(Request::LeaseQuery(LEASE)).unwrap();
    node.crash_and_restart();
    let rotate = Request::LeaseRotate {
        lease_id: LEASE,
        overlap_ms: 0,
    };
    let error = client.call_blocking(rotate.clone()).unwrap_err();
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
    client.call_blocking(rotate).unwrap();
    assert_eq!(node.asked().len(), 2);
}

#[test]
fn identities_that_do_not_do_are_told_apart() {
    let (node, other) = (FakeNode::start(obliging()), FakeNode::start(obliging()));
    let call = |identity: &Identity| {
        Node::connect_blocking(&node.addr(), identity)
            .and_then(|client| client.call_blocking(Request::FenceList))
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
    assert!(matches!(
        Identity::load("/no/such/file"),
        Err(Error::Identity { .. })
    ));
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

/// Waits for the `count`th renewal to be asked for, however the node answers it.
fn renewals(
    script: impl Fn(usize) -> Answer + Send + 'static,
) -> (FakeNode, mpsc::Receiver<usize>) {
    let (told, renewed) = mpsc::channel();
    let count = Arc::new(AtomicUsize::new(0));
    let node = FakeNode::start(move |request: &Request| match request {
        Request::LeaseRenew { .. } => {
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            let answer = script(number);
            told.send(number).ok();
            answer
        }
        _ => Ok(Reply::Lease(lease(1_000))),
    });
    (node, renewed)
}

fn renewed_lease(number: usize) -> LeaseInfo {
    let info = lease(1_000);
    let expires_at_unix_ms = info.expires_at_unix_ms + number as u64;
    LeaseInfo {
        expires_at_unix_ms,
        ..info
    }
}

fn short(node: &FakeNode) -> MemLease {
    builder(node)
        .lease_secs(1)
        .auto_renew(true)
        .acquire()
        .unwrap()
}

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_lease_renews_itself_until_it_is_freed() {
    let (node, renewed) = renewals(|number| Ok(Reply::Lease(renewed_lease(number))));
    let lease = short(&node);
    for number in 1..=3 {
        assert_eq!(renewed.recv_timeout(PATIENCE).unwrap(), number);
    }
    lease.free().unwrap();
    let last = node.asked().len();
    assert_eq!(
        node.asked()[last - 1],
        Request::LeaseFree(LEASE),
        "nothing is asked after free"
    );
}

#[test]
fn a_renewal_that_fails_is_tried_again_and_shows_meanwhile() {
    let busy = || refuse(LeaseError::Unavailable, RefusalClass::Transient, "busy");
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let (node, renewed) = renewals(move |number| match number {
        1 => busy(),
        2 => {
            may_go_on.lock().unwrap().recv().ok();
            Ok(Reply::Lease(renewed_lease(number)))
        }
        _ => Ok(Reply::Lease(renewed_lease(number))),
    });
    let lease = short(&node);
    assert_eq!(renewed.recv_timeout(PATIENCE).unwrap(), 1);
    wait_for(&lease, |health| matches!(health, Health::Retrying(_)));
    go_on.send(()).unwrap();
    wait_for(&lease, |health| *health == Health::Good);
}

#[test]
fn a_lease_that_was_taken_back_says_so_at_the_next_use() {
    let (node, _renewed) = renewals(|_| {
        refuse(
            LeaseError::Revoked,
            RefusalClass::Permanent,
            "revoked by an operator",
        )
    });
    let lease = short(&node);
    wait_for(&lease, |health| matches!(health, Health::Lost(_)));
    let error = lease.rotate().unwrap_err();
    assert!(
        matches!(&error, Error::Ended { why, .. } if why.contains("operator")),
        "{error}"
    );
    lease.query().unwrap();
}

fn wait_for(lease: &MemLease, wanted: impl Fn(&Health) -> bool) {
    let start = std::time::Instant::now();
    while !wanted(&lease.health()) {
        assert!(
            start.elapsed() < PATIENCE,
            "health stays {:?}",
            lease.health()
        );
        std::thread::yield_now();
    }
}
