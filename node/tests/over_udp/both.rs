//! A lease with two transports: a fake one over RDMA and the real one over UDP.

use std::{path::Path, sync::Arc, time::SystemTime};

use fabricbios_arena::{Arena, ArenaStore, Source};
use fabricbios_contract::Provider;
use fabricbios_fabric::Fabric;
use fabricbios_fallback_udp::{ClientError, FbmuConfig, FbmuPath};
use fabricbios_node::{
    journal::past::Past,
    kinds::{Opened, memory},
};
use fabricbios_testbed::fakes::{FakeMemory, Step, UNREACHABLE_QPN};
use fabricbios_wire::*;

use crate::world::*;

/// A node with a fake RDMA transport and the real UDP transport.
async fn with_both(directory: &Path) -> (World, Arc<FakeMemory>) {
    const ARENA: ResourceId = ResourceId(0xa);
    let settings = settings(directory);
    let fabric = Fabric::open_or_create(settings.state_dir(), SystemTime::now());
    let arena = Arena::open(&Source::default(), ARENA_BYTES).expect("an arena");
    let arena = Arc::new(arena);
    let udp = FbmuPath::open(FbmuConfig {
        listen: "127.0.0.1:0".parse().expect("an address"),
        workers: None,
        arenas: [(ARENA, arena.clone())].into(),
        ops_per_second: FbmuConfig::OPS_PER_SECOND,
    });
    let rdma = Arc::new(FakeMemory::new(ARENA, ARENA_BYTES));
    let store = ArenaStore::new(arena);
    let transports = vec![Transport::Rdma, Transport::Udp, Transport::Both];
    let offer = store.offer(ARENA, transports);
    let provider = Provider::new()
        .with_store(ARENA, Arc::new(store))
        .with_path("RDMA", &[Transport::Rdma], rdma.clone())
        .with_path("UDP", &[Transport::Udp], Arc::new(udp.expect("a path")));
    let offered = memory::offered(offer, Arc::new(provider), 1 << 30);
    let fabric = fabric.expect("a fabric");
    let opened = Opened {
        offered: Some(offered),
        ..Opened::nothing()
    };
    let past = Past::open(&program(), &settings).expect("a journal");
    let world = World::serve(&settings, fabric, past, opened).await;
    (world, rdma)
}

fn over_both() -> LeaseAllocRequest {
    LeaseAllocRequest {
        transport: Transport::Both,
        ..request(60).with_terms(MemTerms {
            rdma_peers: two_peers(),
        })
    }
}

fn two_peers() -> Vec<RdmaPeer> {
    let to = |qpn| RdmaPeer {
        qpn,
        psn: 1,
        gid: [1; 16],
        path_mtu: 0,
    };
    [17, 18].map(to).to_vec()
}

#[tokio::test]
async fn a_lease_over_both_transports_ends_on_both() {
    let directory = tempfile::tempdir().expect("a directory");
    let (world, rdma) = with_both(directory.path()).await;
    let info = world.grant(over_both()).await;
    let binding = info.binding.rdma().cloned().expect("RDMA");
    let keys = [binding.rkey, binding.further.first().map(|pair| pair.rkey)];
    let keys = keys.map(|key| key.expect("a key of each queue pair"));
    assert!(keys.iter().all(|key| rdma.opens(*key)));
    write(&info, 0, b"hello").await.expect("written");
    world.lease(Request::LeaseFree(info.lease_id)).await;
    assert!(!keys.iter().any(|key| rdma.opens(*key)));
    assert!(is_over(&first(&info).await));
    world.stop().await;
}

#[tokio::test]
async fn a_queue_pair_that_cannot_be_reached_does_not_cost_the_other_transport() {
    let directory = tempfile::tempdir().expect("a directory");
    let (world, rdma) = with_both(directory.path()).await;
    let wanted = over_both().with_terms(MemTerms::default());
    let info = world.grant(wanted).await;
    write(&info, 0, b"stays").await.expect("written");
    let mut peers = two_peers();
    peers[0].qpn = UNREACHABLE_QPN;
    let lease_id = info.lease_id;
    let bound = world
        .operator
        .lease_async(Request::LeaseBind { lease_id, peers })
        .await;
    refusal(bound);
    assert_eq!(first(&info).await.expect("read"), *b"stays");
    let peers = two_peers();
    let bound = world.lease(Request::LeaseBind { lease_id, peers }).await;
    no_answer_to(&info).await;
    assert_eq!(first(&bound).await.expect("read"), *b"stays");
    let rkey = bound.binding.rdma().and_then(|rdma| rdma.rkey);
    assert!(rdma.opens(rkey.expect("a key")));
    world.stop().await;
}

#[tokio::test]
async fn a_cut_that_fails_on_one_transport_is_told_on_the_other() {
    let directory = tempfile::tempdir().expect("a directory");
    let (world, rdma) = with_both(directory.path()).await;
    let info = world.grant(over_both()).await;
    rdma.fail(Step::Cut, true);
    let freed = world
        .operator
        .lease_async(Request::LeaseFree(info.lease_id))
        .await;
    assert_eq!(refusal(freed).error, LeaseError::Fenced);
    let outcome = first(&info).await;
    assert!(
        matches!(outcome, Err(ClientError::Fenced { .. })),
        "{outcome:?}"
    );
    rdma.fail(Step::Cut, false);
    let resource_id = info.resource_id;
    let cleared = world
        .operator
        .call_async(Request::FenceClear(resource_id))
        .await;
    assert_eq!(cleared.expect("verified"), Reply::FenceCleared);
    world.stop().await;
}
