//! Reading and writing: a scripted control plane, and a real data plane over UDP.

use std::sync::Arc;

use fabricbios_client::{DataTransport, Error, MemLease, Node, Transfers};
use fabricbios_wire::{
    Binding, Generation, KindBinding, LeaseError, LeaseInfo, LeasePhase, RefusalClass, Reply,
    Request, ResourceType, Transport,
};

use crate::{
    PEER, admin, builder,
    common::{
        FakeNode, LEASE,
        memory::{BYTES, Memory, over},
        rdma, refuse,
    },
};

/// Bytes in which no two stretches are equal.
fn pattern(length: usize) -> Vec<u8> {
    let words = (0..length as u64 / 8 + 1).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

#[test]
fn what_is_written_is_in_the_lease_and_is_read_again() {
    let memory = Memory::start();
    let node = memory.node();
    let lease = builder(&node).acquire().unwrap();
    assert_eq!(lease.transport(), None);
    let bytes = pattern(300_001);
    let mut steps = Vec::new();
    let progress = |done| steps.push(done);
    lease.write_with_progress(77, &bytes, progress).unwrap();
    assert_eq!(steps.last(), Some(&300_001));
    assert_eq!(lease.transport(), Some(DataTransport::Udp));
    assert!(memory.bytes(77, bytes.len()) == bytes);
    let mut back = vec![0; bytes.len()];
    lease.read(77, &mut back).unwrap();
    assert!(back == bytes);
    lease.read(BYTES, &mut []).unwrap();
    assert_eq!(
        node.asked().len(),
        1,
        "the data plane needs no control plane"
    );
    lease.free().unwrap();
}

#[tokio::test]
async fn the_async_forms_leave_the_callers_runtime_alone() {
    let memory = Memory::start();
    let node = memory.node();
    let lease = builder(&node).acquire_async().await.unwrap();
    let bytes = pattern(100_000);
    // One thread drives both futures: each yields while it waits.
    let (written, read) = tokio::join!(
        lease.write_async(0, bytes.clone()),
        lease.read_async(500_000, 7)
    );
    written.unwrap();
    assert_eq!(read.unwrap(), [0; 7]);
    assert!(lease.read_async(0, 100_000).await.unwrap() == bytes);
    let huge = lease.read_async(0, usize::MAX).await;
    assert!(matches!(huge, Err(Error::Usage(_))));
    lease.free_async().await.unwrap();
    tokio::task::spawn_blocking(move || drop(node))
        .await
        .unwrap();
}

#[test]
fn what_is_outside_is_refused_before_anything_is_sent() {
    let memory = Memory::start();
    let node = memory.node();
    let lease = builder(&node).acquire().unwrap();
    for (offset, length) in [(BYTES, 1), (BYTES - 1, 2), (u64::MAX, 1)] {
        let error = lease.write(offset, &vec![1; length]).unwrap_err();
        assert!(
            matches!(&error, Error::Usage(why) if why.contains("1048576")),
            "{error}"
        );
    }
    assert_eq!(lease.transport(), None);
    assert!(memory.bytes(0, 1 << 20).iter().all(|byte| *byte == 0));
}

#[test]
fn payloads_are_authenticated_where_that_is_asked_for() {
    let memory = Memory::start();
    let node = memory.node();
    let options = Transfers::default().payload_mac(true);
    let lease = builder(&node).transfers(options).acquire().unwrap();
    lease.write(0, b"all of it").unwrap();
    assert_eq!(memory.bytes(0, 9), b"all of it");
    lease.set_transfers(Transfers::default());
    lease.write(0, b"requests").unwrap();
    assert_eq!(memory.bytes(0, 8), b"requests");
}

#[test]
fn a_new_key_is_followed_whoever_learns_of_it() {
    let memory = Memory::start();
    let node = memory.node();
    let lease = builder(&node).acquire().unwrap();
    lease.write(0, b"first key").unwrap();
    memory.bind(2);
    lease.query().unwrap();
    lease.write(0, b"told of the second").unwrap();
    memory.bind(3);
    lease.write(0, b"not told of the third").unwrap();
    assert_eq!(memory.bytes(0, 21), b"not told of the third");
    assert_eq!(lease.info().generation, Generation(3));
}

#[test]
fn a_lease_that_is_over_says_how_it_ended() {
    let memory = Memory::start();
    let node = memory.node();
    let lease = builder(&node).acquire().unwrap();
    lease.write(0, b"alive").unwrap();
    memory.end(LeasePhase::Revoked);
    let error = lease.read(0, &mut [0]).unwrap_err();
    assert!(
        matches!(&error, Error::Ended { why, .. } if why.contains("revoked")),
        "{error}"
    );
}

#[test]
fn a_node_that_forgot_the_lease_ends_a_transfer_at_once() {
    let (memory, other) = (Memory::start(), Memory::start());
    // As after a restart: the server that answers does not know the lease's key.
    let elsewhere = other.info().binding.udp_endpoint;
    memory.told.lock().unwrap().binding.udp_endpoint = elsewhere;
    let node = memory.node();
    let lease = builder(&node).acquire().unwrap();
    memory.say(LeasePhase::Revoked);
    let began = std::time::Instant::now();
    let error = lease.read(0, &mut [0]).unwrap_err();
    assert!(
        matches!(&error, Error::Ended { why, .. } if why.contains("revoked")),
        "{error}"
    );
    let patience = fabricbios_fallback_udp::ClientOptions::default().give_up;
    assert!(
        began.elapsed() < patience,
        "it did not wait for its patience to end"
    );
}

#[test]
fn a_fence_is_told_as_one() {
    let memory = Memory::start();
    let node = memory.node();
    let lease = builder(&node).acquire().unwrap();
    memory.end(LeasePhase::Fenced);
    memory.fence();
    let error = lease.write(0, b"x").unwrap_err();
    assert_eq!(
        error.refusal().unwrap().error,
        LeaseError::Fenced,
        "{error}"
    );
}

#[test]
fn a_lease_of_before_is_opened_if_it_lives() {
    let memory = Memory::start();
    let node = memory.node();
    let client = Node::connect(&node.addr(), &admin(&node)).unwrap();
    let lease = MemLease::open(&client, LEASE).unwrap();
    lease.write(5, b"opened").unwrap();
    assert_eq!(memory.bytes(5, 6), b"opened");
    memory.say(LeasePhase::Grace);
    let error = MemLease::open(&client, LEASE).unwrap_err();
    assert_eq!(error, Error::InGrace { lease_id: LEASE });
    for phase in [LeasePhase::Expired, LeasePhase::Freed] {
        memory.say(phase);
        let error = MemLease::open(&client, LEASE).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Ended {
                    lease_id: LEASE,
                    ..
                }
            ),
            "{error}"
        );
    }
    memory.say(LeasePhase::Fenced);
    let error = MemLease::open(&client, LEASE).unwrap_err();
    assert_eq!(error.refusal().unwrap().error, LeaseError::Fenced);
}

#[test]
fn a_lease_that_lost_its_key_gets_another() {
    let memory = Memory::start();
    let whole = memory.info();
    memory.told.lock().unwrap().binding = Binding::plain(ResourceType::Mem);
    let rotating = Arc::clone(&memory);
    let mut busy = 2;
    let node = FakeNode::start(move |request: &Request| {
        let rotates = matches!(request, Request::LeaseRotate { .. });
        if rotates && busy > 0 {
            busy -= 1;
            return refuse(
                LeaseError::ResourceBusy,
                RefusalClass::Transient,
                "being bound",
            );
        }
        if rotates {
            *rotating.told.lock().unwrap() = whole.clone();
        }
        Ok(Reply::Lease(rotating.info()))
    });
    let lease = builder(&node).acquire().unwrap();
    lease.write(0, b"again").unwrap();
    assert_eq!(memory.bytes(0, 5), b"again");
}

#[test]
fn transports_that_a_lease_has_not_are_refused() {
    let memory = Memory::start();
    let node = memory.node();
    let lease = builder(&node).acquire().unwrap();
    lease.set_transfers(Transfers::default().transport(DataTransport::Rdma));
    let error = lease.write(0, b"x").unwrap_err();
    assert!(
        matches!(&error, Error::Usage(why) if why.contains("rdma")),
        "{error}"
    );
    lease.set_transfers(Transfers::default().transport(DataTransport::Udp));
    lease.write(0, b"x").unwrap();
}

#[test]
fn queue_pairs_of_the_callers_are_left_alone() {
    let info = LeaseInfo {
        binding: Binding {
            kind: KindBinding::Mem(Some(rdma())),
            ..Binding::plain(ResourceType::Mem)
        },
        ..over(Transport::Rdma)
    };
    let node = FakeNode::start(move |_: &Request| Ok(Reply::Lease(info.clone())));
    let lease = builder(&node).rdma_peer(PEER).acquire().unwrap();
    let error = lease.write(0, b"x").unwrap_err();
    assert!(
        matches!(&error, Error::Usage(why) if why.contains("queue pairs")),
        "{error}"
    );
    assert_eq!(node.asked().len(), 1, "nothing was bound again");
}

#[test]
fn a_lease_over_both_transports_goes_over_udp_where_rdma_does_not_work() {
    let memory = Memory::start();
    {
        // The node's queue pair does not exist, so even a machine with RDMA cannot connect to it.
        let mut told = memory.told.lock().unwrap();
        told.effective.transport = Some(Transport::Both);
        told.binding.kind = KindBinding::Mem(Some(fabricbios_wire::RdmaBinding {
            rkey: None,
            ..rdma()
        }));
    }
    let node = memory.node();
    let lease = builder(&node).acquire().unwrap();
    lease.write(0, b"anyway").unwrap();
    assert_eq!(lease.transport(), Some(DataTransport::Udp));
    assert_eq!(memory.bytes(0, 6), b"anyway");
}
