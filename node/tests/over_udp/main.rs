//! A whole node that leases memory over UDP. The SDK sends requests over real QUIC; clients read and write the memory
//! over real UDP.
#![allow(clippy::expect_used, reason = "a test that cannot go on says why")]

mod arenas;
mod bare_metal;
mod both;
mod keys;
mod restarts;
mod world;

use std::{
    fs,
    time::{Duration, Instant},
};

use fabricbios_fallback_udp::ClientError;
use fabricbios_node::{journal::past::Past, kinds::settings::UdpListen};
use fabricbios_wire::*;
use world::*;

#[tokio::test]
async fn memory_is_leased_without_any_rdma_device() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    let inventory = world.inventory().await;
    let transports = |extension: &InventoryExtension| matches!(extension, InventoryExtension::Transports(_, transports) if transports == &[Transport::Udp]);
    assert!(inventory.extensions.iter().any(transports), "{inventory:?}");
    let info = world.alloc(60).await;
    assert_eq!(info.effective.transport, Some(Transport::Udp));
    assert!(info.binding.rdma().is_none());
    write(&info, LEASE_BYTES - 5, b"bytes")
        .await
        .expect("written");
    let back = client(&info, |client| {
        let mut all = vec![0xee; usize::try_from(LEASE_BYTES).unwrap_or(0)];
        client.read(0, &mut all, &mut |_| ())?;
        Ok(all)
    });
    let back = back.await.expect("read");
    let (zeros, last) = back.split_at(back.len() - 5);
    assert!(zeros.iter().all(|byte| *byte == 0) && last == b"bytes");
    let outside = write(&info, LEASE_BYTES - 1, b"xx").await;
    assert!(matches!(outside, Err(ClientError::OutOfRange { .. })));
    world.stop().await;
}

/// A lease with a tenant's bytes in it. Its term is the first of `terms` that is long enough for the write.
async fn written(world: &World, terms: &[u32]) -> LeaseInfo {
    for secs in terms {
        let info = world.alloc(*secs).await;
        if write(&info, 0, b"mine!").await.is_ok() {
            return info;
        }
        world.until(info.lease_id, LeasePhase::Expired).await;
    }
    panic!("nothing could be written before the end of a lease of {terms:?} s");
}

#[tokio::test]
async fn however_a_lease_ends_nothing_is_served_and_nothing_is_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    let ends: [fn(LeaseId) -> Option<Request>; 3] = [
        |_| None,
        |id| Some(Request::LeaseFree(id)),
        |id| Some(Request::LeaseRevoke(id)),
    ];
    for end in ends {
        let is_expiry = end(LeaseId(0)).is_none();
        let info = written(&world, if is_expiry { &[1, 5, 25] } else { &[60] }).await;
        match end(info.lease_id) {
            Some(request) => drop(world.operator.call_async(request).await.expect("ended")),
            None => drop(world.until(info.lease_id, LeasePhase::Expired).await),
        }
        let outcome = first(&info).await;
        assert!(is_over(&outcome), "{outcome:?}");
        let next = world.alloc(60).await;
        assert_eq!(first(&next).await.expect("read"), [0; 5]);
        world.lease(Request::LeaseFree(next.lease_id)).await;
    }
    world.stop().await;
}

/// Renews as soon as the node allows it; `false` if the lease is over before.
async fn renews(world: &World, lease_id: LeaseId) -> bool {
    let renew = Request::LeaseRenew {
        lease_id,
        lease_secs: 60,
    };
    loop {
        let renewed = world.operator.lease_async(renew.clone()).await;
        if renewed.is_ok() {
            return true;
        }
        let refusal = refusal(renewed);
        if refusal.error == LeaseError::Expired {
            return false;
        }
        assert_eq!(refusal.error, LeaseError::RenewTooEarly, "{refusal}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_renewal_is_known_to_the_data_plane_before_it_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    // A lease can be renewed in the last fifth of its term. If the term is short, a slow machine may miss that.
    let mut renewed = None;
    for secs in [2, 10, 50] {
        let (info, granted) = (world.alloc(secs).await, Instant::now());
        if renews(&world, info.lease_id).await {
            renewed = Some((
                info,
                granted + Duration::from_millis(u64::from(secs) * 1_000 + 200),
            ));
            break;
        }
    }
    let (info, past) = renewed.expect("a lease that was renewed in its term");
    let served = client(&info, move |client| {
        while Instant::now() < past {
            client.read(0, &mut [0; 5], &mut |_| ())?;
        }
        Ok(())
    });
    served.await.expect("served through the old deadline");
    world.stop().await;
}

#[tokio::test]
async fn a_wildcard_is_told_as_what_was_reached_or_advertised() {
    let directory = tempfile::tempdir().expect("a directory");
    let anywhere = Some(UdpListen::At("[::]:0".parse().expect("an address")));
    for (advertise, told) in [(None, "127.0.0.1"), (Some("127.0.0.7"), "127.0.0.7")] {
        let mut settings = settings(directory.path());
        settings.kinds.memory.fbmu_listen = anywhere;
        settings.advertise = advertise.map(|ip| ip.parse().expect("an address"));
        let world = World::start(settings).await;
        let info = world.alloc(60).await;
        assert_eq!(coordinates(&info).endpoint.ip().to_string(), told);
        assert_eq!(first(&info).await.expect("it is served there"), [0; 5]);
        world.stop().await;
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_told_with_its_flag() {
    let directory = tempfile::tempdir().expect("a directory");
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = taken.local_addr().expect("an address");
    let mut settings = settings(directory.path());
    settings.kinds.memory.fbmu_listen = Some(UdpListen::At(address));
    fs::create_dir(settings.state_dir()).expect("a directory");
    let past = Past::open(&program(), &settings).expect("a journal");
    let opened = open(&settings, NodeId([1; 32]), &past);
    let error = opened.expect_err("taken");
    let error = format!("{error:#}");
    assert!(
        error.contains("--fbmu-listen") && error.contains(&address.to_string()),
        "{error}"
    );
}
