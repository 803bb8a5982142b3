//! Windows on a real kernel's RDMA device: bind, use, cut, rotate and release, seen from a client.
//!
//! Needs a device; soft-RoCE over a veth pair with address 10.77.0.1/24 is enough. In the lab:
//! `FABRICBIOS_LAB=1 rxe_window --include-ignored --test-threads=1`. Elsewhere the tests are
//! ignored, one says what is missing, and nothing is claimed.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on panics, and its numbers are small"
)]

mod lab;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use fabricbios_arena::{Arena, Source};
use fabricbios_lease::{Backend, BindError, Extent};
use fabricbios_premium::rdma::RequestError;
use lab::{ARENA_BYTES, Lab, PAGE, client, kernel_objects, nobody, pages, pattern, tag};

#[test]
fn says_what_is_missing() {
    if !lab::is_wanted() {
        println!("skipped: no lab (set FABRICBIOS_LAB=1 where an RDMA device is)");
        return;
    }
    let whole = std::env::args().any(|arg| arg == "--include-ignored" || arg == "--ignored");
    assert!(
        whole || std::env::var_os("NEXTEST").is_some(),
        "FABRICBIOS_LAB=1 without --include-ignored would run nothing and look green"
    );
    let lab = Lab::open();
    println!("{:?}", lab.backend.inventory());
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn written_bytes_are_read_back_and_lie_in_the_extent() {
    let lab = Lab::open();
    let extent = pages(3, 64);
    let (mut client, rdma) = lab.grant(1, extent);
    let rkey = rdma.rkey.unwrap();
    let sent = pattern(extent.length as usize);
    client.write(rkey, rdma.remote_addr, &sent).unwrap();
    let mut read = vec![0; sent.len()];
    client.read(rkey, rdma.remote_addr, &mut read).unwrap();
    assert!(read == sent, "bytes differ on the way back");
    assert!(lab.bytes(extent) == sent, "bytes differ in the arena");
    assert!(lab.bytes(pages(0, 3)).iter().all(|byte| *byte == 0));
    lab.cut_and_release(tag(1, 1), extent);
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn another_key_is_refused() {
    let lab = Lab::open();
    let (mut client, rdma) = lab.grant(1, pages(0, 1));
    let result = client.write(rdma.rkey.unwrap() ^ 1, rdma.remote_addr, &[7; 8]);
    assert_eq!(result, Err(RequestError::RemoteAccess));
    lab.cut_and_release(tag(1, 1), pages(0, 1));
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn the_arena_itself_has_no_remote_rights() {
    let lab = Lab::open();
    let (mut client, rdma) = lab.grant(1, pages(1, 1));
    let result = client.write(rdma.rkey.unwrap(), rdma.remote_addr - PAGE, &[7; 8]);
    assert_eq!(result, Err(RequestError::RemoteAccess));
    assert!(lab.bytes(pages(0, 1)).iter().all(|byte| *byte == 0));
    lab.cut_and_release(tag(1, 1), pages(1, 1));
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn the_neighbours_bytes_cannot_be_read() {
    let lab = Lab::open();
    let (mut client, rdma) = lab.grant(1, pages(1, 1));
    let mut stolen = [0; 8];
    let result = client.read(rdma.rkey.unwrap(), rdma.remote_addr + PAGE, &mut stolen);
    assert_eq!(
        result,
        Err(RequestError::RemoteAccess),
        "{:?}",
        lab.backend.inventory()
    );
    lab.cut_and_release(tag(1, 1), pages(1, 1));
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_write_over_the_end_is_refused_and_spares_the_neighbour() {
    let lab = Lab::open();
    let (mut client, rdma) = lab.grant(1, pages(0, 1));
    let (mut other, other_rdma) = lab.grant(2, pages(1, 1));
    let neighbour = pattern(PAGE as usize);
    other
        .write(other_rdma.rkey.unwrap(), other_rdma.remote_addr, &neighbour)
        .unwrap();
    let result = client.write(rdma.rkey.unwrap(), rdma.remote_addr + PAGE - 8, &[0xee; 16]);
    assert_eq!(result, Err(RequestError::RemoteAccess));
    assert!(
        lab.bytes(pages(1, 1)) == neighbour,
        "the neighbour's bytes changed"
    );
    // The neighbour's own connection goes on.
    other
        .write(other_rdma.rkey.unwrap(), other_rdma.remote_addr, &[1; 8])
        .unwrap();
    lab.cut_and_release(tag(1, 1), pages(0, 1));
    lab.cut_and_release(tag(2, 1), pages(1, 1));
    client.close().unwrap();
    other.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_cut_ends_continuous_writes_and_nothing_lands_afterwards() {
    let lab = Lab::open();
    let extent = pages(0, 16);
    let (mut client, rdma) = lab.grant(1, extent);
    let writes = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        let (started, running) = mpsc::channel();
        let writer = threads.spawn(|| {
            let started = started;
            let bytes = extent.length as usize;
            loop {
                let count = writes.fetch_add(1, Ordering::SeqCst);
                let fill = vec![(count % 255) as u8 + 1; bytes];
                let result = client.write(rdma.rkey.unwrap(), rdma.remote_addr, &fill);
                if count == 20 {
                    started.send(()).unwrap();
                }
                if let Err(error) = result {
                    return error;
                }
            }
        });
        running.recv().unwrap();
        let proof = lab.cut(tag(1, 1));
        let after_cut = lab.bytes(extent);
        let ended = writer.join().unwrap();
        // Refused when a write begins after the key has died; a write that was half way is not
        // answered any more, and the client's device gives up.
        let silent = matches!(&ended, RequestError::Failed(why) if why.contains("retry"));
        assert!(
            silent || ended == RequestError::RemoteAccess,
            "{ended:?} after {proof}"
        );
        assert!(
            lab.bytes(extent) == after_cut,
            "bytes changed after the cut"
        );
        println!("cut: {proof}; client: {ended}");
    });
    assert!(writes.load(Ordering::SeqCst) > 20);
    lab.backend.release(tag(1, 1), extent, &|| ()).unwrap();
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_cut_after_a_tenants_fault_does_not_stall() {
    let lab = Lab::open();
    let (client_a, _) = lab.grant(1, pages(0, 1));
    let started = Instant::now();
    lab.cut(tag(1, 1));
    let healthy = started.elapsed();
    let (mut client_b, rdma) = lab.grant(2, pages(1, 1));
    let result = client_b.write(rdma.rkey.unwrap(), rdma.remote_addr + PAGE, &[1]);
    assert_eq!(result, Err(RequestError::RemoteAccess));
    let started = Instant::now();
    let proof = lab.cut(tag(2, 1));
    let faulted = started.elapsed();
    println!("healthy {healthy:?}, after a fault {faulted:?}: {proof}");
    // The stall that this guards against is about ten thousand times the healthy cut.
    assert!(
        faulted < healthy.max(Duration::from_millis(1)) * 500,
        "{faulted:?}: {proof}"
    );
    lab.backend.release(tag(1, 1), pages(0, 1), &|| ()).unwrap();
    lab.backend.release(tag(2, 1), pages(1, 1), &|| ()).unwrap();
    client_a.close().unwrap();
    client_b.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_rotated_key_works_until_it_is_retired() {
    let lab = Lab::open();
    let (mut client, rdma) = lab.grant(1, pages(0, 1));
    let old = rdma.rkey.unwrap();
    let rotated = lab.backend.rotate(tag(1, 1)).unwrap().rdma.unwrap();
    let new = rotated.rkey.unwrap();
    assert_ne!(new, old);
    assert_eq!(rotated.previous.unwrap().rkey, old);
    assert_eq!(
        (rotated.qp_num, rotated.remote_addr),
        (rdma.qp_num, rdma.remote_addr)
    );
    client.write(old, rdma.remote_addr, &[1; 8]).unwrap();
    client.write(new, rdma.remote_addr + 8, &[2; 8]).unwrap();
    assert!(matches!(
        lab.backend.rotate(tag(1, 1)),
        Err(BindError::Refused(_))
    ));
    let retired = lab.backend.retire_key(tag(1, 1)).unwrap().rdma.unwrap();
    assert_eq!((retired.rkey, retired.previous), (Some(new), None));
    client.write(new, rdma.remote_addr, &[3; 8]).unwrap();
    assert_eq!(
        client.write(old, rdma.remote_addr, &[4; 8]),
        Err(RequestError::RemoteAccess)
    );
    assert_eq!(lab.bytes(pages(0, 1))[..16], [[3; 8], [2; 8]].concat());
    lab.cut_and_release(tag(1, 1), pages(0, 1));
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_cut_ends_both_keys_of_an_unfinished_rotation() {
    let lab = Lab::open();
    let (mut client, rdma) = lab.grant(1, pages(0, 1));
    lab.backend.rotate(tag(1, 1)).unwrap();
    let proof = lab.cut(tag(1, 1));
    assert_eq!(proof.matches("dealloc_mw ok").count(), 2, "{proof}");
    assert!(
        client
            .write(rdma.rkey.unwrap(), rdma.remote_addr, &[1])
            .is_err()
    );
    lab.backend.release(tag(1, 1), pages(0, 1), &|| ()).unwrap();
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn release_leaves_zeros_and_is_idempotent() {
    let lab = Lab::open();
    let extent = Extent {
        offset: 0,
        length: ARENA_BYTES,
    };
    let (mut client, rdma) = lab.grant(1, extent);
    client
        .write(rdma.rkey.unwrap(), rdma.remote_addr, &pattern(1 << 20))
        .unwrap();
    assert!(
        lab.backend.release(tag(1, 1), extent, &|| ()).is_err(),
        "it is not cut"
    );
    assert!(lab.bytes(pages(0, 1)).iter().all(|byte| *byte != 0));
    lab.cut(tag(1, 1));
    let reports = AtomicUsize::new(0);
    let progress = || {
        reports.fetch_add(1, Ordering::SeqCst);
    };
    lab.backend.release(tag(1, 1), extent, &progress).unwrap();
    assert!(reports.load(Ordering::SeqCst) > 0);
    assert!(lab.bytes(extent).iter().all(|byte| *byte == 0));
    // The next holder's bytes survive a release that comes twice.
    let (mut next, next_rdma) = lab.grant(2, extent);
    next.write(next_rdma.rkey.unwrap(), next_rdma.remote_addr, &[9; 8])
        .unwrap();
    lab.backend.release(tag(1, 1), extent, &|| ()).unwrap();
    assert_eq!(lab.bytes(pages(0, 1))[..8], [9; 8]);
    lab.cut_and_release(tag(2, 1), extent);
    client.close().unwrap();
    next.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_thousand_leases_of_the_same_bytes_never_hand_a_key_on() {
    let lab = Lab::open();
    let client = client();
    let before = kernel_objects();
    let mut last = None;
    for lease in 1..=1000 {
        let rdma = lab
            .bind(tag(lease, 1), pages(0, 1), Some(client.peer()))
            .unwrap();
        assert_ne!(rdma.rkey, last, "lease {lease}");
        last = rdma.rkey;
        lab.cut_and_release(tag(lease, 1), pages(0, 1));
    }
    assert_eq!(kernel_objects(), before);
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_peer_that_cannot_be_reached_is_refused_by_name_and_delays_nobody() {
    let lab = Lab::open();
    let client = client();
    let before = kernel_objects();
    let finished = AtomicBool::new(false);
    let cuts = std::thread::scope(|threads| {
        let (starting, started) = mpsc::channel();
        let stuck = threads.spawn(|| {
            let starting = starting;
            starting.send(()).unwrap();
            let result = lab.bind(tag(1, 1), pages(0, 1), Some(nobody()));
            finished.store(true, Ordering::SeqCst);
            result
        });
        started.recv().unwrap();
        let mut cuts = 0;
        for lease in 2.. {
            lab.bind(tag(lease, 1), pages(1, 1), Some(client.peer()))
                .unwrap();
            lab.cut(tag(lease, 1));
            if finished.load(Ordering::SeqCst) {
                break;
            }
            cuts += 1;
            lab.backend
                .release(tag(lease, 1), pages(1, 1), &|| ())
                .unwrap();
        }
        match stuck.join().unwrap() {
            Err(BindError::Refused(error)) => {
                let text = error.to_string();
                println!("{text}");
                assert!(
                    text.contains("::ffff:10.77.0.250 cannot be reached"),
                    "{text}"
                );
            }
            other => panic!("expected a refusal, got {other:?}"),
        }
        cuts
    });
    println!("{cuts} other leases were cut meanwhile");
    assert!(
        cuts >= 1,
        "no other lease was cut while one peer was looked for"
    );
    assert_eq!(kernel_objects(), before);
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_cut_does_not_wait_for_a_bind_that_is_looking_for_its_peer() {
    let lab = Lab::open();
    // Seeing that the bind has begun takes a moment, and the kernel's search for the peer has an
    // end: on a slow machine it may be over first, and that round shows nothing.
    let cancelled = (1..=5).find(|lease| cut_while_connecting(&lab, *lease));
    let lease = cancelled.expect("every bind had ended before its cut");
    let again = lab.bind(tag(lease, 1), pages(0, 1), Some(nobody()));
    assert_eq!(
        again,
        Err(BindError::Cancelled),
        "a straggler after the release"
    );
    lab.close();
}

/// Whether the bind was still going on when the cut returned.
fn cut_while_connecting(lab: &Lab, lease: u128) -> bool {
    let before = kernel_objects();
    let finished = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let stuck = threads.spawn(|| {
            let result = lab.bind(tag(lease, 1), pages(0, 1), Some(nobody()));
            finished.store(true, Ordering::SeqCst);
            result
        });
        // The queue pair shows that the bind has begun.
        while kernel_objects() == before && !finished.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        lab.cut(tag(lease, 1));
        let cut_first = !finished.load(Ordering::SeqCst);
        lab.backend
            .release(tag(lease, 1), pages(0, 1), &|| ())
            .unwrap();
        assert_eq!(
            kernel_objects(),
            before,
            "release came before the bind had ended"
        );
        let result = stuck.join().unwrap();
        assert!(
            !cut_first || result == Err(BindError::Cancelled),
            "{result:?}"
        );
        cut_first
    })
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_queue_pair_that_was_told_before_its_peer_is_known_is_the_one_connected() {
    let lab = Lab::open();
    let mut client = client();
    let prepared = lab.bind(tag(1, 1), pages(0, 1), None).unwrap();
    assert_eq!(prepared.rkey, None);
    let bound = lab
        .bind(tag(1, 2), pages(0, 1), Some(client.peer()))
        .unwrap();
    assert_eq!((bound.qp_num, bound.psn), (prepared.qp_num, prepared.psn));
    client.connect(&bound).unwrap();
    client
        .write(bound.rkey.unwrap(), bound.remote_addr, &[5; 8])
        .unwrap();
    lab.cut_and_release(tag(1, 2), pages(0, 1));
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_client_whose_own_fault_killed_its_connection_binds_again() {
    let lab = Lab::open();
    let (mut failed, first) = lab.grant(1, pages(0, 1));
    let result = failed.write(first.rkey.unwrap(), first.remote_addr + PAGE, &[1]);
    assert_eq!(result, Err(RequestError::RemoteAccess));
    let refused = lab.backend.rotate(tag(1, 1));
    assert!(matches!(refused, Err(BindError::Refused(_))), "{refused:?}");
    let mut client = client();
    let second = lab
        .bind(tag(1, 2), pages(0, 1), Some(client.peer()))
        .unwrap();
    assert_ne!(second.rkey, first.rkey);
    client.connect(&second).unwrap();
    client
        .write(second.rkey.unwrap(), second.remote_addr, &[6; 8])
        .unwrap();
    // An order for the binding that is gone does nothing to the one that is there.
    lab.cut(tag(1, 1));
    client
        .write(second.rkey.unwrap(), second.remote_addr, &[7; 8])
        .unwrap();
    lab.cut_and_release(tag(1, 2), pages(0, 1));
    failed.close().unwrap();
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn bytes_of_another_lease_and_bytes_that_are_not_there_are_not_bound() {
    let lab = Lab::open();
    let (mut holder, rdma) = lab.grant(1, pages(0, 4));
    let peer = holder.peer();
    let taken = lab.bind(tag(2, 1), pages(3, 2), Some(peer));
    assert!(matches!(taken, Err(BindError::Failed(_))), "{taken:?}");
    for (offset, length) in [
        (PAGE, 0),
        (ARENA_BYTES, PAGE),
        (PAGE / 2, PAGE),
        (u64::MAX - 4095, PAGE),
    ] {
        let wrong = lab.bind(tag(2, 1), Extent { offset, length }, Some(peer));
        assert!(
            matches!(wrong, Err(BindError::Refused(_))),
            "{offset} {length}: {wrong:?}"
        );
    }
    holder
        .write(rdma.rkey.unwrap(), rdma.remote_addr, &[1])
        .unwrap();
    lab.cut_and_release(tag(1, 1), pages(0, 4));
    lab.bind(tag(2, 1), pages(3, 2), None).unwrap();
    lab.cut_and_release(tag(2, 1), pages(3, 2));
    holder.close().unwrap();
    lab.close();
}

#[test]
fn a_device_asked_for_by_name_must_be_there() {
    let config = fabricbios_premium::rdma::RdmaConfig {
        device: Some("nosuch0".into()),
        arena: Arc::new(Arena::open(&Source::default(), PAGE).unwrap()),
        resource_id: lab::RESOURCE,
        strategy: fabricbios_premium::rdma::Strategy::Auto,
    };
    let error = fabricbios_premium::rdma::RdmaBackend::open(config).unwrap_err();
    assert!(error.to_string().contains("nosuch0"), "{error}");
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn leases_bound_and_cut_by_many_threads_do_not_disturb_each_other() {
    let lab = Lab::open();
    let client = client();
    let before = kernel_objects();
    std::thread::scope(|threads| {
        for thread in 0..6_u64 {
            let (lab, peer) = (&lab, client.peer());
            threads.spawn(move || {
                let extent = pages(thread * 2, 2);
                for round in 0..20_u64 {
                    let lease = tag(u128::from(thread * 1000 + round + 1), 1);
                    let rdma = lab.bind(lease, extent, Some(peer)).unwrap();
                    assert!(rdma.rkey.is_some());
                    lab.backend.rotate(lease).unwrap();
                    lab.cut_and_release(lease, extent);
                }
            });
        }
    });
    assert_eq!(kernel_objects(), before);
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_killed_server_takes_its_access_along() {
    let lab = Lab::open();
    let before = kernel_objects();
    let (mut client, like) = {
        let prepared = lab.bind(tag(9, 1), pages(0, 1), None).unwrap();
        lab.cut_and_release(tag(9, 1), pages(0, 1));
        (client(), prepared)
    };
    let (mut child, rdma) = lab::child::serve_in_child(client.peer(), &like);
    client.connect(&rdma).unwrap();
    let rkey = rdma.rkey.unwrap();
    client.write(rkey, rdma.remote_addr, &[1; 8]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let ended = client.write(rkey, rdma.remote_addr, &[2; 8]);
    assert!(
        matches!(
            ended,
            Err(RequestError::RemoteAccess | RequestError::Failed(_))
        ),
        "{ended:?}"
    );
    client.close().unwrap();
    assert_eq!(
        kernel_objects(),
        before,
        "the dead process left objects behind"
    );
    lab.close();
}

#[test]
#[ignore = "the server half of a_killed_server_takes_its_access_along"]
fn serves_one_lease_as_a_child() {
    lab::child::serve();
}
