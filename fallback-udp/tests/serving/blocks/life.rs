//! From the bind to the release, order by order.

use std::{fs, os::unix::fs::symlink};

use fabricbios_contract::Volume;
use fabricbios_fallback_udp::FbbuPath;
use fabricbios_lease::BindError;

use super::fixture::{BLOCKS, Disks, config};
use crate::fixture::binding_id;

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
fn a_lease_that_nobody_knows_is_retired() {
    let disks = Disks::new();
    disks.retire(9);
    disks.cut(9);
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
