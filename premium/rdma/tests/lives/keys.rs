//! Rotation, and keys that are never used again.

use std::sync::mpsc;

use fabricbios_lease::BindError;
use fabricbios_rdma::Strategy;

use crate::{
    STRATEGY,
    lab::{ARENA_BYTES, Lab, PAGE, binding_id, client, kernel_objects, pages},
};

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_cut_ends_both_keys_of_an_unfinished_rotation() {
    let lab = Lab::open();
    let (mut client, rdma) = lab.grant(1, pages(0, 1));
    lab.backend.rotate(binding_id(1, 1)).unwrap();
    let proof = lab.cut(binding_id(1, 1));
    let ended = match STRATEGY {
        Strategy::Region => "dereg_mr 2 times",
        _ => "dealloc_mw 2 times",
    };
    assert!(proof.contains(ended), "{proof}");
    assert!(
        client
            .write(rdma.rkey.unwrap(), rdma.remote_addr, &[1])
            .is_err()
    );
    lab.backend
        .release(binding_id(1, 1), pages(0, 1), &|| ())
        .unwrap();
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn leases_of_the_same_bytes_never_hand_a_key_on() {
    let leases = if std::env::var_os("FABRICBIOS_FULL").is_some() {
        1000
    } else {
        100
    };
    let lab = Lab::open();
    let client = client();
    let before = kernel_objects();
    let mut last = None;
    for lease in 1..=leases {
        let rdma = lab
            .bind(binding_id(lease, 1), pages(0, 1), Some(client.peer()))
            .unwrap();
        assert_ne!(rdma.rkey, last, "lease {lease}");
        last = rdma.rkey;
        lab.cut_and_release(binding_id(lease, 1), pages(0, 1));
    }
    assert_eq!(kernel_objects(), before);
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_cut_in_the_middle_of_a_rotation_leaves_nothing() {
    let lab = Lab::open();
    let client = client();
    let before = kernel_objects();
    // Large enough that registering a region of this size takes a moment.
    let extent = pages(0, ARENA_BYTES / PAGE);
    for lease in 1..=40 {
        lab.bind(binding_id(lease, 1), extent, Some(client.peer()))
            .unwrap();
        std::thread::scope(|threads| {
            let (started, rotating) = mpsc::channel();
            let backend = &lab.backend;
            let rotation = threads.spawn(move || {
                started.send(()).unwrap();
                backend.rotate(binding_id(lease, 1))
            });
            rotating.recv().unwrap();
            lab.cut_and_release(binding_id(lease, 1), extent);
            let rotated = rotation.join().unwrap();
            assert!(
                !matches!(rotated, Err(BindError::Stranded(_))),
                "{rotated:?}"
            );
        });
        assert_eq!(kernel_objects(), before, "lease {lease}");
    }
    client.close().unwrap();
    lab.close();
}
