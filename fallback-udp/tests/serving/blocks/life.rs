//! From the bind to the release, order by order.

use std::{fs, os::unix::fs::symlink};

use fabricbios_contract::{DataPath as _, Volume};
use fabricbios_fallback_udp::FbbuPath;
use fabricbios_lease::BindError;

use super::fixture::{BLOCKS, Disks, block, config};
use crate::{
    client::{NO_LEASE, OK},
    fixture::{binding_id, in_a_minute},
};

#[test]
fn a_binding_says_where_and_how_much() {
    let disks = Disks::new();
    let binding = disks.lease(1, &disks.file(1));
    let endpoint = binding.udp_endpoint.unwrap();
    assert_eq!(endpoint.port, disks.backend.local_addr().port());
    let limits = binding.limits.unwrap();
    assert_eq!((limits.offset, limits.length), (0, BLOCKS));
    assert!(binding.dp_key.is_some());
}

#[test]
fn a_cut_proves_it_and_a_release_is_remembered() {
    let disks = Disks::new();
    let mut client = disks.leased(1);
    assert_eq!(client.write(0, &block(1)), OK);
    assert!(
        disks.backend.remove(binding_id(1, 1), &|| ()).is_err(),
        "in use"
    );
    let proof = disks.cut(1);
    assert!(
        proof.contains("FBBU") && proof.contains("NO_LEASE"),
        "{proof}"
    );
    disks.retire(1);
    assert_eq!(client.ping().status, NO_LEASE);
    assert_eq!(
        disks.block(1, 0),
        block(1),
        "the bytes are another's to scrub"
    );
}

#[test]
fn a_lease_that_nobody_knows_is_retired() {
    let disks = Disks::new();
    disks.retire(9);
    disks.cut(9);
}

#[test]
fn a_new_binding_has_a_new_key_and_keeps_the_blocks() {
    let disks = Disks::new();
    let file = disks.file(1);
    let mut client = disks.client(1, &disks.lease(1, &file));
    client.hello();
    assert_eq!(client.write(0, &block(1)), OK);
    let binding = disks.backend.serve(binding_id(1, 2), "ann", &file).unwrap();
    disks
        .backend
        .extend(binding_id(1, 2), in_a_minute())
        .unwrap();
    client.set_key(&binding);
    client.hello();
    assert_eq!(client.read(0, 1), (OK, block(1)));
}

#[test]
fn both_keys_work_between_rotation_and_retirement() {
    let disks = Disks::new();
    let mut client = disks.leased(1);
    let rotated = disks.backend.rotate(binding_id(1, 1)).unwrap();
    assert_eq!(client.write(0, &block(1)), OK);
    client.set_key(&rotated);
    assert_eq!(client.write(0, &block(2)), OK);
    disks.backend.retire_key(binding_id(1, 1)).unwrap();
    assert_eq!(client.read(0, 1), (OK, block(2)));
}

#[test]
fn a_file_that_cannot_be_served_is_refused_with_its_name() {
    let disks = Disks::new();
    let file = disks.file(1);
    symlink(disks.path(1), disks.path(2)).unwrap();
    fs::create_dir(disks.path(3)).unwrap();
    let at = |number| Volume {
        path: disks.path(number),
        ..file.clone()
    };
    let of = |bytes, block_bytes| Volume {
        bytes,
        block_bytes,
        ..file.clone()
    };
    let refused = [
        (at(2), "neither a regular file"),
        (at(3), "neither a regular file"),
        (at(4), "No such file"),
        (of(file.bytes + 4096, 4096), "bytes are there"),
        (of(4096, 1000), "power of two"),
        (of(4096, 8192), "power of two"),
        (of(4095, 4096), "whole blocks"),
        (of(0, 4096), "whole blocks"),
    ];
    for (file, why) in refused {
        let Err(BindError::Failed(error)) = disks.backend.serve(binding_id(1, 1), "ann", &file)
        else {
            panic!("{file:?}");
        };
        let told = error.to_string();
        let path = file.path.display().to_string();
        assert!(told.contains(why) && told.contains(&path), "{told}");
    }
}

#[test]
fn the_port_is_free_again_after_the_end() {
    let disks = Disks::new();
    disks.leased(1);
    let mut same = config();
    same.listen = disks.backend.local_addr();
    let error = FbbuPath::open(&same).unwrap_err().to_string();
    assert!(
        error.contains("FBBU") && error.contains("another program"),
        "{error}"
    );
    disks.backend.close();
    FbbuPath::open(&same).unwrap();
}
