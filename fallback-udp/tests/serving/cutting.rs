//! After a cut has returned nothing is written any more, however many clients write.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use crate::{
    client::{Client, NO_LEASE, OK},
    fixture::{Fixture, PAGE},
};

const WRITERS: u64 = 4;

/// Writes a page again and again until `stop`; counts the answers with OK.
fn write_on(mut client: Client, at: u64, stop: &AtomicBool, written: &AtomicU64, ready: &Barrier) {
    client.hello();
    ready.wait();
    let mut value: u8 = 1;
    while !stop.load(Ordering::Acquire) {
        match client.write(at, &[value; PAGE as usize]) {
            OK => written.fetch_add(1, Ordering::Relaxed),
            status => {
                assert_eq!(status, NO_LEASE);
                0
            }
        };
        value = value.wrapping_add(1).max(1);
    }
}

#[test]
fn nothing_is_written_after_a_cut_has_returned() {
    for _round in 0..20 {
        let fixture = Fixture::new();
        let binding = fixture.lease(1);
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let ready = Barrier::new(WRITERS as usize + 1);
        thread::scope(|threads| {
            for number in 0..WRITERS {
                let client = fixture.client(1, &binding);
                let (stop, written, ready) = (&stop, &written, &ready);
                threads.spawn(move || write_on(client, number * PAGE, stop, written, ready));
            }
            ready.wait();
            while written.load(Ordering::Relaxed) < 20 {
                thread::yield_now();
            }
            fixture.cut(1);
            let at_the_cut = fixture.bytes(1);
            let asked = fixture.udp.counters().tally().received;
            while fixture.udp.counters().tally().received < asked + 200 {
                thread::yield_now();
            }
            assert_eq!(fixture.bytes(1), at_the_cut);
            stop.store(true, Ordering::Release);
        });
    }
}

#[test]
fn the_bytes_of_a_released_lease_stay_clean_under_its_old_writers() {
    let fixture = Fixture::new();
    let mut client = fixture.leased(1);
    let delayed = client.write_frame(0, b"delayed on its way");
    fixture.cut(1);
    fixture.release(1);
    assert_eq!(client.ask(&delayed).0, NO_LEASE);
    assert!(fixture.bytes(1).iter().all(|byte| *byte == 0));
}

#[test]
fn cuts_of_many_threads_agree() {
    let fixture = Fixture::new();
    fixture.lease(1);
    let proofs: Vec<String> = thread::scope(|threads| {
        let cuts: Vec<_> = (0..8).map(|_| threads.spawn(|| fixture.cut(1))).collect();
        cuts.into_iter().map(|cut| cut.join().unwrap()).collect()
    });
    assert!(proofs.iter().all(|proof| *proof == proofs[0]));
}
