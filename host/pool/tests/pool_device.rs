//! Raw devices as pools, on a real kernel: which lease gets which bytes, and which bytes are left.
//!
//! Needs root, loop devices and device-mapper. In the lab:
//! `FABRICBIOS_LAB=1 pool_device --ignored --test-threads=1`. Elsewhere the tests are ignored.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod lab;

use std::os::unix::fs::FileExt;
use std::process::Command;

use fabricbios_lease::{AllocationMode, Condition};
use fabricbios_pool::{Pool, PoolConfig};
use fabricbios_wire::NodeId;
use lab::{
    BEFORE, DATA_FROM, DISK_BYTES, Disk, Layer, MIB, Tenant, all, config, destroy, dmsetup, extent,
    lease, open, refusal, run,
};

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn facts_are_the_devices() {
    let disk = Disk::new();
    let pool = open(&disk.path);
    let facts = pool.facts().clone();
    assert_eq!(facts.allocation_mode, AllocationMode::Stretches);
    assert_eq!((facts.capacity, facts.align), (DISK_BYTES - 2 * MIB, MIB));
    assert_eq!((facts.block_bytes, facts.read_only), (512, false));
    let name = disk.path.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(facts.device, Some(name));
    drop(pool);
    assert_eq!(open(&disk.path).facts(), &facts, "the same pool again");
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn each_lease_has_its_own_blocks_and_the_next_one_reads_zeros() {
    let disk = Disk::new();
    let pool = open(&disk.path);
    let (here, there) = (extent(0, 2), extent(2, 3));
    let first = Tenant::of(&pool, 1, here);
    let second = Tenant::of(&pool, 2, there);
    assert!(first.is_all(0) && second.is_all(0), "nothing from before");
    first.fill(0x11);
    second.fill(0x22);
    assert!(first.is_all(0x11) && second.is_all(0x22));
    assert!(all(&disk.bytes(here), 0x11) && all(&disk.bytes(there), 0x22));
    assert!(
        all(&disk.bytes(extent(5, 8)), BEFORE),
        "nobody's is left alone"
    );
    drop(first);
    let cleaned = destroy(&pool, 1, here).unwrap().to_string();
    let bytes = format!("zero blocks {} bytes zeroed", here.length);
    assert!(cleaned.contains(&bytes), "{cleaned}");
    assert!(all(&disk.bytes(here), 0));
    assert!(second.is_all(0x22));
    assert_eq!(pool.leases().unwrap(), [lease(2)]);
    let third = Tenant::of(&pool, 3, extent(0, 1));
    assert!(third.is_all(0));
    assert_eq!(pool.condition(), Condition::Good);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn a_gap_of_old_data_is_zeroed_when_it_is_given_out() {
    let disk = Disk::new();
    let pool = open(&disk.path);
    let far = Tenant::of(&pool, 1, extent(6, 2));
    far.fill(0x11);
    assert!(all(&disk.bytes(extent(0, 6)), BEFORE));
    let across = Tenant::of(&pool, 2, extent(2, 4));
    assert!(across.is_all(0) && far.is_all(0x11));
    drop((across, pool));
    let pool = open(&disk.path);
    let near = Tenant::of(&pool, 3, extent(0, 2));
    assert!(near.is_all(0) && far.is_all(0x11));
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn the_number_of_the_latest_grant_is_on_the_device_and_costs_no_byte_of_a_lease() {
    let disk = Disk::new();
    let pool = open(&disk.path);
    let tenant = Tenant::of(&pool, 1, extent(0, 1));
    tenant.fill(0x11);
    pool.count_grant(7).unwrap();
    pool.distrust().unwrap();
    drop(pool);
    let pool = open(&disk.path);
    assert_eq!(pool.grants(), Some(7));
    assert!(tenant.is_all(0x11));
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn a_volume_outlives_the_daemon_and_is_found_by_the_next() {
    let disk = Disk::new();
    let pool = open(&disk.path);
    let at = extent(1, 2);
    Tenant::of(&pool, 7, at).fill(0x77);
    drop(pool);
    let pool = open(&disk.path);
    assert_eq!(pool.leases().unwrap(), [lease(7)]);
    assert!(Tenant::of(&pool, 7, at).is_all(0x77));
    let other = pool.reopen(lease(7), extent(1, 1)).unwrap_err();
    assert!(other.to_string().contains("but it has"), "{other}");
    pool.destroy(lease(7), None, &|| ()).unwrap();
    assert!(all(&disk.bytes(at), 0));
    assert_eq!(pool.leases().unwrap(), []);
    destroy(&pool, 7, at).unwrap();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn what_a_crash_left_is_found_and_taken_away() {
    let disk = Disk::new();
    let pool = open(&disk.path);
    let identity = u128::from_be_bytes(pool.facts().identity);
    let half_made = |number: u128| {
        let name = format!("fabricbios-{}", lease(number));
        let uuid = format!("FABRICBIOS-{identity:032x}-{}", lease(number));
        dmsetup(&["create", &name, "--uuid", &uuid, "--notable"]);
    };
    half_made(8);
    half_made(9);
    dmsetup(&["create", "fabricbios-foreign", "--notable"]);
    assert_eq!(pool.leases().unwrap(), [lease(8), lease(9)]);
    drop(pool);
    let pool = open(&disk.path);
    assert_eq!(pool.leases().unwrap(), [lease(8), lease(9)]);
    assert!(pool.create(lease(8), extent(0, 1)).is_err());
    pool.destroy(lease(8), None, &|| ()).unwrap();
    assert!(Tenant::of(&pool, 8, extent(0, 1)).is_all(0));
    pool.destroy(lease(9), None, &|| ()).unwrap();
    assert_eq!(pool.leases().unwrap(), [lease(8)]);
    assert!(dmsetup(&["ls"]).contains("fabricbios-foreign"));
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn what_another_lease_has_is_neither_given_out_nor_wiped() {
    let disk = Disk::new();
    let pool = open(&disk.path);
    let at = extent(0, 2);
    let tenant = Tenant::of(&pool, 1, at);
    tenant.fill(0x11);
    let late = destroy(&pool, 2, extent(1, 2)).unwrap_err().to_string();
    assert!(late.contains(&lease(1).to_string()), "{late}");
    assert!(pool.create(lease(2), extent(1, 1)).is_err());
    assert!(tenant.is_all(0x11));
    assert_eq!(pool.leases().unwrap(), [lease(1)]);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn extents_beyond_the_device_are_refused() {
    let disk = Disk::new();
    let pool = open(&disk.path);
    for at in [extent(14, 1), extent(0, 15), extent(u64::MAX / MIB, 1)] {
        let error = pool.create(lease(1), at).unwrap_err().to_string();
        assert!(error.contains("ends at"), "{error}");
        assert!(destroy(&pool, 1, at).is_err());
    }
    let last = extent(13, 1);
    Tenant::of(&pool, 1, last).fill(0x11);
    destroy(&pool, 1, last).unwrap();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn a_volume_in_use_cannot_be_destroyed_and_stays_listed() {
    let disk = Disk::new();
    let pool = open(&disk.path);
    let at = extent(0, 1);
    let tenant = Tenant::of(&pool, 1, at);
    tenant.fill(0x11);
    let error = destroy(&pool, 1, at).unwrap_err().to_string();
    assert!(error.contains("busy"), "{error}");
    assert!(tenant.is_all(0x11), "not wiped under its holder");
    assert_eq!(pool.leases().unwrap(), [lease(1)]);
    drop(tenant);
    destroy(&pool, 1, at).unwrap();
    assert!(all(&disk.bytes(at), 0));
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn a_device_with_something_on_it_is_taken_by_force_only() {
    let disk = Disk::new();
    disk.fill(extent(0, 13), 0);
    run("mkfs.ext4", &["-q", disk.path.to_str().unwrap()]);
    let error = refusal(config(&disk.path));
    assert!(error.contains("ext4") && error.contains("force"), "{error}");
    let force = PoolConfig {
        force: true,
        ..config(&disk.path)
    };
    let pool = Pool::open(force).unwrap();
    assert!(Tenant::of(&pool, 1, extent(0, 13)).is_all(0));
    let blkid = Command::new("blkid").arg("-p").arg(&disk.path).status();
    assert_eq!(
        blkid.unwrap().code(),
        Some(2),
        "nothing is seen on it any more"
    );
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn a_device_in_use_is_not_taken_even_by_force() {
    let disk = Disk::new();
    let path = disk.path.to_str().unwrap();
    let force = || PoolConfig {
        force: true,
        ..config(&disk.path)
    };
    run("mkfs.ext4", &["-q", path]);
    let place = tempfile::tempdir().unwrap();
    let at = place.path().to_str().unwrap();
    run("mount", &[path, at]);
    let mounted = refusal(force());
    run("umount", &[at]);
    assert!(mounted.contains(&format!("mounted on {at}")), "{mounted}");
    let layer = Layer::over(&disk, "lab-holder");
    let held = refusal(force());
    drop(layer);
    assert!(held.contains("in use by dm-"), "{held}");
    let pool = Pool::open(force()).unwrap();
    assert!(refusal(force()).contains("busy"));
    drop(pool);
    open(&disk.path);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn another_nodes_pool_is_taken_by_force_only_and_trusted_in_nothing() {
    let disk = Disk::new();
    let pool = open(&disk.path);
    let at = extent(0, 2);
    Tenant::of(&pool, 1, at).fill(0x11);
    destroy(&pool, 1, at).unwrap();
    drop(pool);
    disk.fill(at, 0xEE);
    let other = |force| PoolConfig {
        node_id: NodeId([2; 32]),
        force,
        ..config(&disk.path)
    };
    assert!(refusal(other(false)).contains("the pool of node 0101"));
    let pool = Pool::open(other(true)).unwrap();
    assert!(Tenant::of(&pool, 2, at).is_all(0));
    drop(pool);
    assert!(refusal(config(&disk.path)).contains("the pool of node 0202"));
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn a_pool_whose_leases_are_forgotten_is_zeroed_once_more() {
    let disk = Disk::new();
    let pool = open(&disk.path);
    let (held, forgotten) = (extent(0, 1), extent(1, 1));
    let tenant = Tenant::of(&pool, 1, held);
    tenant.fill(0x11);
    drop(Tenant::of(&pool, 2, forgotten));
    destroy(&pool, 2, forgotten).unwrap();
    disk.fill(forgotten, 0xEE);
    pool.distrust().unwrap();
    drop(pool);
    let pool = open(&disk.path);
    assert!(Tenant::of(&pool, 3, forgotten).is_all(0));
    assert!(tenant.is_all(0x11));
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn a_torn_header_is_survived_and_two_are_refused() {
    use std::os::unix::fs::FileExt;
    let disk = Disk::new();
    let pool = open(&disk.path);
    let identity = pool.facts().identity;
    drop(Tenant::of(&pool, 1, extent(0, 1)));
    destroy(&pool, 1, extent(0, 1)).unwrap();
    drop(pool);
    disk.medium().write_all_at(&[0xEE; 64], 32).unwrap();
    let drop_cache = || run("blockdev", &["--flushbufs", disk.path.to_str().unwrap()]);
    drop_cache();
    assert_eq!(open(&disk.path).facts().identity, identity);
    disk.medium()
        .write_all_at(&[0xEE; 64], (512 << 10) + 32)
        .unwrap();
    drop_cache();
    let error = refusal(config(&disk.path));
    assert!(error.contains("damaged"), "{error}");
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn a_read_only_device_is_offered_as_it_is() {
    let disk = Disk::read_only();
    let pool = open(&disk.path);
    let facts = pool.facts().clone();
    assert!(facts.read_only);
    assert_eq!(facts.capacity, DISK_BYTES);
    let whole = extent(0, DISK_BYTES / MIB);
    let tenant = Tenant::of(&pool, 1, whole);
    assert!(tenant.is_all(BEFORE));
    assert!(tenant.try_to_write().is_err());
    let volume = pool.reopen(lease(1), whole).unwrap();
    assert!(volume.read_only);
    drop((tenant, pool));
    let pool = open(&disk.path);
    assert_eq!(pool.facts().identity, facts.identity);
    assert_eq!(pool.leases().unwrap(), [lease(1)]);
    destroy(&pool, 1, whole).unwrap();
    assert!(all(&disk.bytes(extent(0, 14)), BEFORE), "never wiped");
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn a_device_that_does_not_answer_is_given_up_and_wiped_when_it_does() {
    let disk = Disk::new();
    let layer = Layer::over(&disk, "lab-slow");
    let pool = open(&layer.path);
    let (at, other) = (extent(0, 2), extent(4, 1));
    Tenant::of(&pool, 1, at).fill(0x11);
    let bystander = Tenant::of(&pool, 2, other);
    layer.suspend();
    let error = destroy(&pool, 1, at).unwrap_err().to_string();
    for told in [
        "/dev/mapper/lab-slow",
        "no progress",
        " waits in ",
        &lease(1).to_string(),
    ] {
        assert!(error.contains(told), "{told}: {error}");
    }
    println!("{error}");
    assert_eq!(pool.leases().unwrap(), [lease(1), lease(2)], "still there");
    assert!(matches!(pool.condition(), Condition::Degraded(_)));
    let busy = pool.create(lease(3), at).unwrap_err().to_string();
    assert!(busy.contains("overlaps"), "{busy}");
    layer.resume();
    destroy(&pool, 1, at).unwrap();
    assert!(all(&disk.bytes(at), 0));
    assert_eq!(pool.condition(), Condition::Good);
    assert!(bystander.is_all(0));
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn a_suspended_volume_is_destroyed_in_the_end() {
    let disk = Disk::new();
    let pool = open(&disk.path);
    let at = extent(0, 1);
    Tenant::of(&pool, 1, at).fill(0x11);
    let name = format!("fabricbios-{}", lease(1));
    dmsetup(&["suspend", &name]);
    if let Err(error) = destroy(&pool, 1, at) {
        println!("{error}");
        assert!(error.to_string().contains("no progress"), "{error}");
        dmsetup(&["resume", &name]);
        destroy(&pool, 1, at).unwrap();
    }
    assert!(all(&disk.bytes(at), 0));
    assert_eq!(pool.leases().unwrap(), []);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn a_device_that_fails_says_so_and_leaves_nothing() {
    let disk = Disk::new();
    let layer = Layer::over(&disk, "lab-broken");
    let pool = open(&layer.path);
    let (good, bad) = (extent(0, 1), extent(8, 1));
    drop(Tenant::of(&pool, 1, good));
    layer.breaks_at(DATA_FROM + 4 * MIB);
    let error = pool.create(lease(2), bad).unwrap_err().to_string();
    assert!(error.contains("Input/output error"), "{error}");
    assert_eq!(pool.leases().unwrap(), [lease(1)]);
    assert!(!dmsetup(&["ls"]).contains(&lease(2).to_string()));
    assert!(matches!(pool.condition(), Condition::Degraded(_)));
    destroy(&pool, 1, good).unwrap();
    assert_eq!(pool.condition(), Condition::Good);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn nothing_is_wiped_on_another_pool_than_the_one_that_was_meant() {
    let disk = Disk::new();
    let pool = open(&disk.path);
    let at = extent(0, 1);
    Tenant::of(&pool, 1, at).fill(0x11);
    // Overwrites the headers, as if another device had this name now.
    for place in [0, 512 << 10] {
        disk.medium().write_all_at(&[0xEE; 4096], place).unwrap();
    }
    run("blockdev", &["--flushbufs", disk.path.to_str().unwrap()]);
    let error = destroy(&pool, 1, at).unwrap_err().to_string();
    assert!(error.contains("not the pool"), "{error}");
    assert!(all(&disk.bytes(at), 0x11));
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and loop devices"]
fn a_device_that_has_grown_has_more_to_give() {
    let disk = Disk::new();
    let capacity = open(&disk.path).facts().capacity;
    disk.medium().set_len(DISK_BYTES + 4 * MIB).unwrap();
    run("losetup", &["-c", disk.path.to_str().unwrap()]);
    let pool = open(&disk.path);
    assert_eq!(pool.facts().capacity, capacity + 4 * MIB);
    assert!(
        Tenant::of(&pool, 1, extent(13, 5)).is_all(0),
        "the old end too"
    );
}
