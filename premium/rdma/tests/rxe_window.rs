//! Leases as windows on a real kernel's RDMA device: bind, use, cut, rotate and release, as a client sees them.
//!
//! Needs a device; soft-RoCE over a veth pair with address 10.77.0.1/24 is enough. In the lab: `FABRICBIOS_LAB=1
//! rxe_window --ignored --test-threads=1`. Elsewhere these tests are ignored.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on panics, and its numbers are small"
)]

mod lab;
mod lives;

use std::sync::Arc;

use fabricbios_arena::{Arena, Source};
use fabricbios_rdma::Strategy;
use fabricbios_wire::RdmaStrategy;
use lab::{Lab, PAGE, binding_id, kernel_objects, pages};
use lives::faults::fails_then_recovers;

pub(crate) const STRATEGY: Strategy = Strategy::Window;

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn leases_are_windows() {
    let lab = Lab::open();
    println!("{:?}", lab.rdma.inventory());
    assert_eq!(lab.rdma.inventory().strategy, RdmaStrategy::Window);
    lab.close();
}

#[test]
fn a_device_asked_for_by_name_must_be_there() {
    let config = fabricbios_rdma::RdmaConfig {
        device: Some("nosuch0".into()),
        arenas: [(
            lab::RESOURCE,
            Arc::new(Arena::open(&Source::default(), PAGE).unwrap()),
        )]
        .into(),
        strategy: STRATEGY,
    };
    let error = fabricbios_rdma::RdmaPath::open(config).unwrap_err();
    assert!(error.to_string().contains("nosuch0"), "{error}");
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_window_that_cannot_be_taken_away_fails_the_cut() {
    fails_then_recovers(&["local_inv", "dealloc_mw"], "dealloc_mw");
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn an_invalidated_window_is_proof_enough_and_release_takes_it_away() {
    let lab = Lab::open();
    let before = kernel_objects();
    let (mut tenant, rdma) = lab.grant(1, pages(0, 1));
    lab.fail_next(&["dealloc_mw"]);
    let proof = lab.cut(binding_id(1, 1));
    assert!(
        proof.contains("local_inv ok") && proof.contains("dealloc_mw EIO"),
        "{proof}"
    );
    assert!(
        tenant
            .write(rdma.rkey.unwrap(), rdma.remote_addr, &[1])
            .is_err()
    );
    lab.backend
        .release(binding_id(1, 1), pages(0, 1), &|| ())
        .unwrap();
    tenant.close().unwrap();
    assert_eq!(kernel_objects(), before);
    lab.close();
}
