//! After the end of a lease nothing is written any more, however many clients write.

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use super::fixture::{Disks, block};
use crate::client::{Client, NO_LEASE, OK};

const WRITERS: u64 = 4;

/// Writes a block again and again in its session until `stop`; counts the answers with OK.
fn write_on(mut client: Client, at: u64, stop: &AtomicBool, written: &AtomicU64) {
    // A request that waits for the storage when the lease is cut is never answered.
    let patience = Duration::from_millis(10);
    client.socket.set_read_timeout(Some(patience)).unwrap();
    for value in (1..=u8::MAX).cycle() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let frame = client.write_frame(at, &block(value));
        client.socket.send(&frame).unwrap();
        match client.receive().map(|got| got.status) {
            Some(OK) => {
                written.fetch_add(1, Ordering::Relaxed);
            }
            answered => assert!([None, Some(NO_LEASE)].contains(&answered)),
        }
    }
}

#[test]
fn nothing_is_written_after_a_lease_was_retired() {
    for _round in 0..10 {
        let disks = Disks::of_two_threads();
        let binding = disks.lease(1, &disks.file(1));
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|threads| {
            for at in 0..WRITERS {
                let mut client = disks.client(1, &binding);
                // Here and not on the client's thread, which may start after the cut.
                client.hello();
                let (stop, written) = (&stop, &written);
                threads.spawn(move || write_on(client, at, stop, written));
            }
            while written.load(Ordering::Relaxed) < 20 {
                thread::yield_now();
            }
            disks.cut(1);
            disks.retire(1);
            let before = fs::read(disks.path(1)).unwrap();
            disks.await_received(disks.received() + 100);
            assert_eq!(fs::read(disks.path(1)).unwrap(), before);
            stop.store(true, Ordering::Release);
        });
    }
}
