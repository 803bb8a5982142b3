//! A whole node that leases memory over UDP: asked by the SDK over real QUIC, its memory read and
//! written over real UDP.
#![allow(clippy::expect_used, reason = "a test that cannot go on says why")]

mod bare_metal;
mod both;
mod keys;
mod restarts;
mod versions;
mod world;

use std::{
    fs,
    time::{Duration, Instant},
};

use fabricbios_fallback_udp::ClientError;
use fabricbios_node::{config::Settings, past::Past, udp_listen::UdpListen};
use fabricbios_wire::*;
use world::*;

#[tokio::test]
async fn memory_is_leased_without_any_rdma_device() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    let Ok(Reply::Inventory(inventory)) = world
        .operator
        .call(Request::GetInventory(InventoryForm::Structured))
        .await
    else {
        panic!("no inventory")
    };
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
        let info = world
            .alloc(if end(LeaseId(0)).is_some() { 60 } else { 1 })
            .await;
        // A lease of a second may be over before it was written on a slow machine: it still ends.
        let written = write(&info, 0, b"mine!").await;
        match end(info.lease_id) {
            Some(request) => {
                written.expect("written");
                world.operator.call(request).await.expect("ended");
            }
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

#[tokio::test]
async fn a_renewal_is_known_to_the_data_plane_before_it_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    let info = world.alloc(2).await;
    let granted = Instant::now();
    let renew = Request::LeaseRenew {
        lease_id: info.lease_id,
        lease_secs: 60,
    };
    while let Err(error) = world.operator.lease(renew.clone()).await {
        let refusal = error.refusal().expect("from the node").clone();
        assert_eq!(refusal.error, LeaseError::RenewTooEarly, "{refusal}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let served = client(&info, move |client| {
        while granted.elapsed() < Duration::from_millis(2_200) {
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
        let world = World::start(Settings {
            fbmu_listen: anywhere,
            advertise: advertise.map(|ip| ip.parse().expect("an address")),
            ..settings(directory.path())
        })
        .await;
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
    let settings = Settings {
        fbmu_listen: Some(UdpListen::At(address)),
        ..settings(directory.path())
    };
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
