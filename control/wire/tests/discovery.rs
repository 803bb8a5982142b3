//! The bounds of the datagrams of discovery.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

use fabricbios_wire::*;
use proptest::prelude::*;

fn told(entries: usize) -> Told {
    let entry = FlatEntry {
        resource_id: ResourceId(1),
        resource_type: ResourceType::Mem,
        flags: 0,
        capacity: 2,
        available: 1,
    };
    Told {
        fabric: [1; 16],
        nonce: 0,
        epoch: Epoch(2),
        sequence: 3,
        sent_unix_ms: 4,
        offer: Some(Announced {
            lifetime_secs: 30,
            endpoint: std::net::SocketAddr::from(([192, 0, 2, 1], 5701)).into(),
            has_more: false,
            entries: vec![entry; entries],
        }),
    }
}

#[test]
fn what_is_said_to_fit_beside_a_certificate_fits_and_one_entry_more_does_not() {
    for certificate in [0, 520, 640, 677, 1_000, ANNOUNCED_CERTIFICATE_BYTES_MAX] {
        let fitting = Announced::entries_beside(certificate);
        let der = vec![7; certificate];
        let unsigned = told(fitting).unsigned(&der).unwrap();
        let datagram = sealed_discovery(&unsigned, &[9; 72]).unwrap();
        assert!(datagram.len() <= DISCOVERY_BYTES_MAX, "{certificate}");
        let Discovery::Signed(read) = decode_discovery(&datagram).unwrap() else {
            panic!("no ANNOUNCE");
        };
        assert_eq!((read.told, read.certificate), (told(fitting), &*der));
        assert_eq!(read.covered, unsigned);
        assert_eq!(told(fitting + 1).unsigned(&der), None, "{certificate}");
    }
    assert_eq!(Announced::entries_beside(520), ANNOUNCED_ENTRIES_MAX);
    assert_eq!(
        told(1).unsigned(&[7; ANNOUNCED_CERTIFICATE_BYTES_MAX + 1]),
        None
    );
}

#[test]
fn no_answer_is_longer_than_a_solicit() {
    let solicit = Solicit {
        fabric: [1; 16],
        nonce: 5,
        resource_type: ResourceType::Scheduler,
    };
    let datagram = solicit.encode();
    assert_eq!(datagram.len(), DISCOVERY_BYTES_MAX);
    assert_eq!(decode_discovery(&datagram), Ok(Discovery::Solicit(solicit)));
}

#[test]
fn an_announce_that_is_cut_short_is_refused_at_each_byte() {
    let unsigned = told(12).unsigned(&[7; 520]).unwrap();
    let datagram = sealed_discovery(&unsigned, &[9; 71]).unwrap();
    for end in 0..datagram.len() {
        decode_discovery(&datagram[..end]).unwrap_err();
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..1_300), kind in 0_u8..5) {
        let head = [b'F', b'B', b'D', b'C', 0, kind, 0, 0];
        for (byte, of_head) in bytes.iter_mut().zip(head) {
            *byte = of_head;
        }
        if let Ok(Discovery::Signed(read)) = decode_discovery(&bytes) {
            let unsigned = read.told.unsigned(read.certificate).unwrap();
            prop_assert_eq!(sealed_discovery(&unsigned, read.signature).unwrap(), bytes);
        }
    }
}
