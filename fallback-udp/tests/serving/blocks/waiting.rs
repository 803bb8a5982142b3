//! Requests whose I/O is in flight.

use std::{thread, time::Duration};

use fabricbios_contract::DataPath as _;
use fabricbios_fallback_udp::Tally;
use fabricbios_lease::Linger;
use fabricbios_wire::DataStatus;

use super::fixture::{Disks, UNIT, block};
use crate::{
    client::{Client, Got, NO_LEASE, OK, is_unauthenticated},
    fixture::{binding_id, in_a_minute, now},
};

const BUSY: u8 = DataStatus::Busy as u8;

impl Disks {
    /// Sends a request and waits until it is in the storage.
    fn begin(&self, client: &Client, frame: &[u8]) {
        let received = self.received();
        client.socket.send(frame).unwrap();
        self.await_received(received + 1);
    }

    fn tally(&self) -> Tally {
        self.backend.counters().tally()
    }
}

/// The next answer is that to a PING, so nothing else was sent.
fn nothing_came(client: &Client) -> Got {
    let got = client.ping();
    assert_eq!(got.nonce, 0, "{got:?}");
    got
}

#[test]
fn a_request_that_comes_again_while_it_is_done_is_answered_once() {
    let disks = Disks::held();
    let mut client = disks.leased(1);
    let frame = client.write_frame(0, &block(1));
    for _again in 0..3 {
        disks.begin(&client, &frame);
    }
    assert_eq!(disks.tally().dropped, 2);
    assert_eq!(nothing_came(&client).status, OK);
    disks.let_go();
    let got = client.receive().unwrap();
    assert_eq!((got.status, got.nonce), (OK, client.nonce()));
    nothing_came(&client);
    assert_eq!(client.ask(&frame).0, OK, "answered from memory");
}

#[test]
fn answers_come_for_all_that_waited() {
    let disks = Disks::held();
    let mut client = disks.leased(1);
    let writes: Vec<_> = (0..20)
        .map(|at| client.write_frame(at, &block(at as u8)))
        .collect();
    for frame in &writes {
        disks.begin(&client, frame);
    }
    disks.let_go();
    let mut nonces: Vec<_> = writes
        .iter()
        .map(|_| client.receive().unwrap().nonce)
        .collect();
    nonces.sort_unstable();
    nonces.dedup();
    assert_eq!(nonces.len(), writes.len());
    assert_eq!(client.read(19, 1), (OK, block(19)));
}

#[test]
fn nothing_that_was_under_way_is_answered_after_a_cut_and_a_release_waits_for_it() {
    let disks = Disks::held();
    let mut client = disks.leased(1);
    for frame in [client.write_frame(3, &block(1)), client.read_frame(0, 1)] {
        disks.begin(&client, &frame);
    }
    assert!(disks.cut(1).contains("NO_LEASE"), "without the storage");
    assert_eq!(client.write(0, &block(2)), NO_LEASE);
    thread::scope(|threads| {
        let retired = threads.spawn(|| disks.retire(1));
        // If the call did not wait, it would have every opportunity to finish.
        (0..1000).for_each(|_| thread::yield_now());
        assert!(!retired.is_finished());
        disks.let_go();
        retired.join().unwrap();
    });
    assert_eq!(
        disks.block(1, 3),
        block(1),
        "the write had been handed over"
    );
    assert_eq!(nothing_came(&client).status, NO_LEASE);
    assert!(!is_open(&disks, 1));
}

/// Whether this process has the file of a lease open.
fn is_open(disks: &Disks, number: u128) -> bool {
    let path = disks.path(number).canonicalize().unwrap();
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut targets = all.filter_map(|it| std::fs::read_link(it.unwrap().path()).ok());
    targets.any(|target| target == path)
}

#[test]
fn nothing_is_answered_once_the_deadline_has_come() {
    let disks = Disks::held();
    let mut client = disks.leased(1);
    let frame = client.read_frame(0, 1);
    disks.begin(&client, &frame);
    let deadline = now() + Duration::from_millis(20);
    disks.backend.extend(binding_id(1, 1), deadline).unwrap();
    while now() < deadline {
        thread::yield_now();
    }
    let dropped = disks.tally().dropped;
    disks.let_go();
    while disks.tally().dropped == dropped {
        thread::yield_now();
    }
    assert_eq!(nothing_came(&client).status, NO_LEASE);
    disks
        .backend
        .extend(binding_id(1, 1), in_a_minute())
        .unwrap();
    assert_eq!(client.read(0, 1), (OK, block(0)));
}

#[test]
fn what_the_old_key_asked_is_not_answered_once_that_is_retired() {
    let disks = Disks::held();
    let mut client = disks.leased(1);
    let frame = client.read_frame(0, 1);
    disks.begin(&client, &frame);
    let rotated = disks.backend.rotate(binding_id(1, 1)).unwrap();
    disks.backend.retire_key(binding_id(1, 1)).unwrap();
    assert!(is_unauthenticated(&client.ping()));
    client.set_key(&rotated);
    disks.let_go();
    assert_eq!(client.read(0, 1), (OK, block(0)));
    assert_eq!(nothing_came(&client).status, OK);
}

#[test]
fn a_request_under_the_key_before_the_rotation_is_answered_under_it() {
    let disks = Disks::held();
    let mut client = disks.leased(1);
    let frame = client.read_frame(0, 1);
    disks.begin(&client, &frame);
    disks.backend.rotate(binding_id(1, 1)).unwrap();
    disks.let_go();
    let got = client.receive().unwrap();
    assert_eq!((got.status, got.authentic), (OK, true));
}

#[test]
fn a_lease_whose_storage_is_stuck_gets_busy_and_others_go_on() {
    let disks = Disks::held();
    let (mut stuck, mut other) = (disks.leased(1), disks.leased(2));
    let mut second = disks.client(1, &disks.backend.rotate(binding_id(1, 1)).unwrap());
    second.hello();
    for at in 0..128 {
        let frame = stuck.write_frame(at, &block(1));
        disks.begin(&stuck, &frame);
    }
    let refused = second.write_frame(200, &block(2));
    assert_eq!(second.ask(&refused).0, BUSY);
    assert_eq!(stuck.ping().status, OK);
    let frame = other.write_frame(0, &block(3));
    disks.begin(&other, &frame);
    disks.let_go();
    assert_eq!(other.receive().unwrap().status, OK);
    for _ in 0..128 {
        assert_eq!(stuck.receive().unwrap().status, OK);
    }
    assert_eq!(second.ask(&refused).0, OK, "its nonce was not used");
    assert_eq!(disks.block(1, 200), block(2));
}

#[test]
fn few_flushes_wait_at_once() {
    let disks = Disks::held();
    let mut client = disks.leased(1);
    for _ in 0..4 {
        let frame = client.flush_frame();
        disks.begin(&client, &frame);
    }
    assert_eq!(client.flush(), BUSY);
    disks.let_go();
    for _ in 0..4 {
        assert_eq!(client.receive().unwrap().status, OK);
    }
}

#[test]
fn a_write_of_a_session_that_was_given_up_undoes_no_later_one() {
    let disks = Disks::held();
    let mut client = disks.leased(1);
    let frame = client.write_frame(0, &block(1));
    disks.begin(&client, &frame);
    client.hello();
    let later = client.write_frame(0, &block(2));
    assert_eq!(client.ask(&later).0, BUSY);
    disks.let_go();
    let got = client.receive().unwrap();
    assert_eq!((got.status, got.nonce), (OK, 1 << 32 | 1), "its own answer");
    assert_eq!(client.ask(&later).0, OK);
    assert_eq!(client.read(0, 1), (OK, block(2)));
}

#[test]
fn a_new_binding_waits_for_what_the_older_one_has_under_way() {
    let disks = Disks::held();
    let mut client = disks.leased(1);
    let file = fabricbios_contract::Volume {
        path: disks.path(1),
        bytes: u64::from(UNIT),
        block_bytes: UNIT,
        read_only: false,
    };
    let frame = client.write_frame(0, &block(1));
    disks.begin(&client, &frame);
    thread::scope(|threads| {
        let bound = threads.spawn(|| disks.backend.serve(binding_id(1, 2), "ann", &file));
        // The older binding ends first.
        while client.ping().status == OK {}
        assert!(!bound.is_finished());
        disks.let_go();
        let binding = bound.join().unwrap().unwrap();
        disks
            .backend
            .extend(binding_id(1, 2), in_a_minute())
            .unwrap();
        client.set_key(&binding);
    });
    (client.session, client.counter) = (0, 0);
    client.hello();
    assert_eq!(client.read(0, 1), (OK, block(1)));
}

#[test]
fn a_bind_that_waits_for_the_storage_can_be_cut() {
    let disks = Disks::held();
    let mut client = disks.leased(1);
    let file = disks.file(1);
    let frame = client.write_frame(0, &block(1));
    disks.begin(&client, &frame);
    thread::scope(|threads| {
        let bound = threads.spawn(|| disks.backend.serve(binding_id(1, 2), "ann", &file));
        while client.ping().status == OK {}
        disks
            .backend
            .revoke(binding_id(1, 2), Linger::None)
            .unwrap();
        disks.let_go();
        assert!(bound.join().unwrap().is_err());
    });
    assert_eq!(client.ping().status, NO_LEASE);
}
