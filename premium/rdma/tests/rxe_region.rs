//! The tests of `rxe_window` with leases as regions, as on devices without windows. Runs in the same way, on the same
//! device.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on panics, and its numbers are small"
)]

mod lab;
mod lives;

use fabricbios_rdma::{RequestError, Strategy};
use fabricbios_wire::RdmaStrategy;
use lab::{Lab, binding_id, kernel_objects, pages};
use lives::faults::fails_then_recovers;

pub(crate) const STRATEGY: Strategy = Strategy::Region;

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn leases_are_regions() {
    let lab = Lab::open();
    println!("{:?}", lab.rdma.inventory());
    assert_eq!(lab.rdma.inventory().strategy, RdmaStrategy::Region);
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_region_that_cannot_be_taken_away_fails_the_cut() {
    fails_then_recovers(&["dereg_mr", "dereg_mr"], "dereg_mr");
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_region_that_stays_while_its_queue_pair_works_is_taken_away_after_it() {
    let lab = Lab::open();
    let before = kernel_objects();
    let (client, _) = lab.grant(1, pages(0, 1));
    lab.fail_next(&["dereg_mr"]);
    let proof = lab.cut(binding_id(1, 1));
    let (refused, done) = (proof.find("dereg_mr EIO"), proof.find("dereg_mr ok"));
    assert!(refused < proof.find("destroy_qp ok"), "{proof}");
    assert!(done > proof.find("restrack ok"), "{proof}");
    lab.backend
        .release(binding_id(1, 1), pages(0, 1), &|| ())
        .unwrap();
    client.close().unwrap();
    assert_eq!(kernel_objects(), before);
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_retired_key_that_the_kernel_gives_again_is_not_handed_on() {
    let lab = Lab::open();
    let (tenant, _) = lab.grant(1, pages(0, 1));
    let usual = kernel_objects();
    lab.cut_and_release(binding_id(1, 1), pages(0, 1));
    tenant.close().unwrap();
    lab.fail_next(&["fresh_key", "fresh_key"]);
    let (mut tenant, rdma) = lab.grant(2, pages(0, 1));
    assert_eq!(kernel_objects(), usual, "those refused must not stay");
    tenant
        .write(rdma.rkey.unwrap(), rdma.remote_addr, &[1])
        .unwrap();
    lab.cut_and_release(binding_id(2, 1), pages(0, 1));
    tenant.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn the_arena_is_not_registered() {
    let lab = Lab::open();
    assert!(kernel_objects().contains(" mr 0 "), "{}", kernel_objects());
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn the_key_of_one_lease_is_nothing_to_the_queue_pair_of_another() {
    let lab = Lab::open();
    let (mut thief, own) = lab.grant(1, pages(0, 1));
    let (victim, other) = lab.grant(2, pages(1, 1));
    let stolen = thief.write(other.rkey.unwrap(), other.remote_addr, &[1; 8]);
    assert_eq!(stolen, Err(RequestError::RemoteAccess));
    assert!(lab.bytes(pages(1, 1)).iter().all(|byte| *byte == 0));
    assert_ne!(own.rkey, other.rkey);
    lab.cut_and_release(binding_id(1, 1), pages(0, 1));
    lab.cut_and_release(binding_id(2, 1), pages(1, 1));
    thief.close().unwrap();
    victim.close().unwrap();
    lab.close();
}
