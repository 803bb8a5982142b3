//! A journal that an earlier version wrote.

use fabricbios_lease::{FORMAT, FenceRecord, LeaseRecord, Requested};
use fabricbios_wire::RequestToken;

use super::*;
use crate::journal::records;

const LEASE: Key = Key::Lease(LeaseId(1));
const FENCE: Key = Key::Fence(ResourceId(1));

/// Bytes that version 8 wrote, see `records.rs`.
const LEASE_OF_FORMAT_8: &str = concat!(
    "0104626c75650200802001008040802003e807c8dc0300000102000000000104000000003c0a0701040105020104616e6e61",
    "0107436f6e6e65637406077265667573656401000102010100010400010001030204067261636b2037",
);
const FENCE_OF_FORMAT_8: &str = "010102030a6465616c6c6f635f6d770345494f00";

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = (0..hex.len()).step_by(2).map(|at| &hex[at..at + 2]);
    pairs
        .map(|it| u8::from_str_radix(it, 16).unwrap())
        .collect()
}

fn lease(recovered: &Recovered) -> LeaseRecord {
    records::decode(&recovered.records[&LEASE]).unwrap()
}

#[test]
fn a_journal_of_format_8_is_converted_and_its_leases_are_of_no_request() {
    let scene = Scene::new();
    let (journal, _, reports) = scene.open();
    let group = vec![
        Change::put(LEASE, bytes(LEASE_OF_FORMAT_8)),
        Change::put(FENCE, bytes(FENCE_OF_FORMAT_8)),
    ];
    await_durable(&reports, journal.submit(group));
    journal.close().unwrap();
    scene.set_format(8);

    let looked = super::super::store::look(&scene.path()).unwrap();
    assert_eq!(lease(&looked).requested, None);
    // The second start finds what the first one has converted.
    for _ in 0..2 {
        let (journal, recovered, _) = scene.open();
        let lease = lease(&recovered);
        assert_eq!((&*lease.tenant, lease.requested), ("blue", None));
        assert!(lease.intent.is_some());
        let fence: FenceRecord = records::decode(&recovered.records[&FENCE]).unwrap();
        assert_eq!(fence.since_unix_ms, 3);
        journal.close().unwrap();
    }

    // What this version writes there is of its own format.
    let (journal, recovered, reports) = scene.open();
    let requested = Some(Requested {
        token: RequestToken(7),
        sum: 9,
    });
    let asked = LeaseRecord {
        requested,
        ..lease(&recovered)
    };
    let change = Change::put(LEASE, records::encode(&asked).unwrap());
    await_durable(&reports, journal.submit(vec![change]));
    journal.close().unwrap();
    assert_eq!(lease(&scene.open().1), asked);
    assert_eq!(
        FORMAT, 9,
        "another format: this test is about the step from 8 to 9"
    );
}
