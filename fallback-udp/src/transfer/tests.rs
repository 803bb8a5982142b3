//! Planted mistakes in the counts of a client.

use alloc::vec;
use core::time::Duration;

use fabricbios_wire::{DataOp, DpKey, HelloReply};

use super::*;

const NOW: Duration = Duration::from_secs(1000);

fn setup() -> Setup {
    Setup {
        lease_id: LeaseId(7),
        key: DataKey::new(&DpKey([1; 32])),
        payload_mac: false,
        give_up: Duration::from_secs(30),
        seed: 1,
        route_mtu: 9000,
        ip_header: 20,
    }
}

fn session() -> HelloReply {
    HelloReply {
        resource_len: 4096,
        unit: 512,
        max_read: 9128,
        max_write: 9128,
        session: 1,
        window: 128,
        read_only: false,
        remaining_ms: 60_000,
        datagram_max: 9216,
        write_verifier: 1,
    }
}

fn is_found(outcome: Option<Result<(), Failure>>) -> bool {
    matches!(outcome, Some(Err(Failure::Broken(broken))) if broken.invariant == Invariant::Bytes)
}

#[test]
fn a_transfer_of_which_bytes_were_forgotten_or_answered_twice_is_not_done() {
    for confirmed in [9, 11] {
        let mut requester = Requester::new(setup());
        let from = &[1; 10];
        let mut transfer = requester.transfer(Work::Write { offset: 0, from }, NOW);
        transfer.requester.opened(session(), 1472);
        assert_eq!(transfer.outcome(), None);
        transfer.requester.unsent = unsent::Unsent::default();
        transfer.confirmed = confirmed;
        assert!(is_found(transfer.outcome()), "{confirmed}");
    }
}

#[test]
fn an_operation_on_blocks_of_which_bytes_were_answered_twice_is_not_done() {
    let mut blocks = Blocks::new(setup());
    let from = vec![1; 512];
    blocks.submit(Operation::Write { block: 0, from }, NOW);
    blocks.requester_mut().opened(session(), 1472);
    assert!(blocks.poll_transmit(NOW).is_some());
    let piece = piece::Piece {
        operation: 0,
        op: DataOp::Write,
        range: 0..512,
        part: None,
    };
    blocks.on_done(&piece, 513, &[]);
    let finished = blocks.next_finished();
    assert!(is_found(finished.map(|it| it.outcome)));
}
