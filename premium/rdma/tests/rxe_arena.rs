//! Leases in huge pages and in a file that outlives its daemon, on a real kernel.
//!
//! Runs like `rxe_window`, on the same device, as root: it reserves huge pages and mounts hugetlbfs.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on panics, and its numbers are small"
)]

#[allow(dead_code, reason = "shared with the other suites, which use the rest")]
mod lab;

use std::{fs, io::ErrorKind, path::Path, process::Command};

use fabricbios_arena::{Arena, Source};
use fabricbios_rdma::Strategy;
use lab::{ARENA_BYTES, Lab, PAGE, binding_id, pages, pattern};

pub(crate) const STRATEGY: Strategy = Strategy::Auto;

const HUGE_PAGE: u64 = 2 << 20;
/// Number of huge pages for the arena and, in a file, for the page before it.
const ENOUGH: u64 = 12;
const MOUNT: &str = "/run/fabricbios-lab-huge";

/// Reserves this many huge pages. Fails if the kernel does not have them.
fn set_aside(count: u64) {
    const KNOB: &str = "/proc/sys/vm/nr_hugepages";
    fs::write(KNOB, count.to_string()).unwrap();
    let got = fs::read_to_string(KNOB).unwrap();
    assert_eq!(got.trim(), count.to_string(), "no memory for huge pages");
}

fn mount() {
    fs::create_dir_all(MOUNT).unwrap();
    let mount = Command::new("mount")
        .args(["-t", "hugetlbfs", "-o", "pagesize=2M", "none", MOUNT])
        .status();
    assert!(mount.unwrap().success());
}

fn unmount() {
    assert!(
        Command::new("umount")
            .arg(MOUNT)
            .status()
            .unwrap()
            .success()
    );
}

fn in_file(name: &str) -> Source {
    Source {
        file: Some(Path::new(MOUNT).join(name)),
        ..Source::default()
    }
}

/// Runs one lease that crosses a border of huge pages.
fn live_across_a_border(arena: Arena, strategy: Strategy) {
    let lab = Lab::over(arena, strategy);
    let extent = pages(HUGE_PAGE / PAGE - 1, 3);
    let (mut client, rdma) = lab.grant(1, extent);
    let sent = pattern(extent.length as usize);
    let rkey = rdma.rkey.unwrap();
    client.write(rkey, rdma.remote_addr, &sent).unwrap();
    assert!(lab.bytes(extent) == sent, "bytes differ in the arena");
    let outside = client.write(rkey, rdma.remote_addr + extent.length, &[1]);
    assert!(outside.is_err(), "the rest of the huge page is open");
    lab.cut_and_release(binding_id(1, 1), extent);
    assert!(lab.bytes(extent).iter().all(|byte| *byte == 0));
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn huge_pages_are_used_where_there_are_and_carry_leases() {
    set_aside(ENOUGH);
    for strategy in [Strategy::Window, Strategy::Region] {
        let arena = Arena::open(&Source::default(), ARENA_BYTES).unwrap();
        assert_eq!(arena.backing().page_bytes, HUGE_PAGE);
        live_across_a_border(arena, strategy);
    }
    set_aside(0);
    let arena = Arena::open(&Source::default(), ARENA_BYTES).unwrap();
    assert_eq!(arena.backing().page_bytes, PAGE);
    assert!(!arena.backing().outlives_process);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_file_in_hugetlbfs_carries_leases_and_keeps_its_bytes() {
    set_aside(ENOUGH);
    mount();
    let source = in_file("arena");
    let arena = Arena::open(&source, ARENA_BYTES).unwrap();
    assert_eq!(arena.backing().page_bytes, HUGE_PAGE);
    assert!(arena.backing().outlives_process);
    live_across_a_border(arena, Strategy::Auto);

    let lab = Lab::over(Arena::open(&source, ARENA_BYTES).unwrap(), Strategy::Auto);
    let (mut client, rdma) = lab.grant(1, pages(0, 1));
    let rkey = rdma.rkey.unwrap();
    client.write(rkey, rdma.remote_addr, b"stays").unwrap();
    client.close().unwrap();
    // The end of a lease scrubs its bytes in the file; the end of a daemon does not.
    lab.close();
    let arena = Arena::open(&source, ARENA_BYTES).unwrap();
    let mut bytes = [0; 5];
    arena.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"stays");
    drop(arena);
    unmount();
    set_aside(0);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_file_in_hugetlbfs_says_what_does_not_fit() {
    // One page for the arena and one for the page before it.
    set_aside(2);
    mount();
    let odd = Arena::open(&in_file("odd"), PAGE).unwrap_err();
    assert_eq!(odd.kind(), ErrorKind::InvalidInput);
    assert!(odd.to_string().contains("2097152"), "{odd}");
    let big = Arena::open(&in_file("big"), 2 * HUGE_PAGE).unwrap_err();
    assert_eq!(big.kind(), ErrorKind::OutOfMemory);
    assert!(big.to_string().contains("too few free huge pages"), "{big}");
    Arena::open(&in_file("right"), HUGE_PAGE).unwrap();
    unmount();
    set_aside(0);
}
