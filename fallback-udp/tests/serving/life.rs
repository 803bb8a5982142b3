//! From the bind to the release, order by order.

use std::{sync::Arc, time::Duration};

use fabricbios_arena::{Arena, Arenas, Source};
use fabricbios_contract::{DataPath as _, Part};
use fabricbios_fallback_udp::{FbmuConfig, FbmuPath};
use fabricbios_lease::{BindError, BindOrder, BindingId, BootTime, Extent, Placement};
use fabricbios_wire::{DataStatus, LeaseId, ResourceId, Transport};

use crate::{
    client::{Client, NO_LEASE, OK, is_unauthenticated},
    fixture::{
        ARENA, Fixture, PAGE, RESOURCE, binding_id, config, extent, in_a_minute, now, order,
    },
};

#[test]
fn what_is_written_is_read_and_lies_in_the_arena() {
    let fixture = Fixture::new();
    let mut client = fixture.leased(1);
    assert_eq!(client.write(5, b"hello"), OK);
    assert_eq!(client.read(4, 7), (OK, b"\0hello\0".to_vec()));
    assert_eq!(&fixture.bytes(1)[5..10], b"hello");
    assert_eq!(client.write(0, &[0xAB; 9128]), OK);
    assert_eq!(client.read(0, 9128), (OK, vec![0xAB; 9128]));
}

#[test]
fn leases_of_two_arenas_have_equal_extents_and_bytes_of_their_own() {
    let other = ResourceId(RESOURCE.0 + 1);
    let open = || Arc::new(Arena::open(&Source::default(), ARENA).unwrap());
    let arenas = Arenas::from([(RESOURCE, open()), (other, open())]);
    let path = FbmuPath::open(FbmuConfig {
        arenas: arenas.clone(),
        ..config(open())
    });
    let path = path.unwrap();
    let of = |resource_id, number| BindingId {
        resource_id,
        ..binding_id(number, 1)
    };
    let part = Part::at(extent(0));
    for (resource_id, number, bytes) in [(RESOURCE, 1, *b"first"), (other, 2, *b"other")] {
        let order = BindOrder::new(of(resource_id, number), extent(0), Transport::Udp);
        let binding = path.bind(&order, &part).unwrap();
        path.extend(order.binding_id, in_a_minute()).unwrap();
        let mut client = Client::new(path.local_addr(), LeaseId(number), &binding);
        client.hello();
        assert_eq!(client.read(0, 5), (OK, vec![0; 5]));
        assert_eq!(client.write(0, &bytes), OK);
        let mut stored = [0; 5];
        arenas[&resource_id].read(0, &mut stored).unwrap();
        assert_eq!(stored, bytes);
    }
    let nowhere = BindOrder::new(of(ResourceId(99), 3), extent(0), Transport::Udp);
    let Err(BindError::Refused(error)) = path.bind(&nowhere, &part) else {
        panic!("bytes of a resource that is not here")
    };
    assert!(
        error.to_string().contains(&ResourceId(99).to_string()),
        "{error}"
    );
    path.close();
}

#[test]
fn a_binding_says_where_and_how_much() {
    let fixture = Fixture::new();
    let binding = fixture.lease(1);
    let endpoint = binding.udp_endpoint.unwrap();
    assert_eq!(endpoint.port, fixture.udp.local_addr().port());
    let limits = binding.limits.unwrap();
    assert_eq!((limits.offset, limits.length), (0, 4 * PAGE));
    assert!(binding.dp_key.is_some() && binding.rdma().is_none());
    assert_ne!(binding.dp_key, fixture.lease(2).dp_key);
}

#[test]
fn nothing_is_served_before_the_first_deadline_is_told() {
    let fixture = Fixture::new();
    let binding = fixture.backend.bind(&order(1, 1)).unwrap();
    let client = fixture.client(1, &binding);
    let got = client.ping();
    assert_eq!((got.status, got.authentic), (NO_LEASE, true));
    fixture
        .backend
        .extend(binding_id(1, 1), in_a_minute())
        .unwrap();
    assert_eq!(client.ping().status, OK);
}

#[test]
fn the_deadline_ends_a_lease_without_anybodys_order_and_a_renewal_prolongs_it() {
    let fixture = Fixture::new();
    let mut client = fixture.leased(1);
    fixture
        .backend
        .extend(binding_id(1, 1), now() + Duration::from_millis(50))
        .unwrap();
    let mut written = 0;
    while client.write(0, &[written; 64]) == OK {
        written = written.wrapping_add(1);
    }
    let after = fixture.bytes(1);
    assert_eq!(client.write(0, &[0xEE; 64]), NO_LEASE);
    assert_eq!(fixture.bytes(1), after);
    fixture
        .backend
        .extend(binding_id(1, 1), in_a_minute())
        .unwrap();
    assert_eq!(client.write(0, &[0xEE; 64]), OK);
}

#[test]
fn an_older_orders_deadline_does_not_reach_a_newer_binding() {
    let fixture = Fixture::new();
    fixture.lease(1);
    let binding = fixture.backend.bind(&order(1, 2)).unwrap();
    fixture
        .backend
        .extend(binding_id(1, 1), in_a_minute())
        .unwrap();
    let client = fixture.client(1, &binding);
    assert_eq!(client.ping().status, NO_LEASE);
    fixture
        .backend
        .extend(binding_id(1, 2), BootTime(u64::MAX))
        .unwrap();
    assert_eq!(client.ping().status, OK);
    fixture.backend.fenced(binding_id(1, 1));
    assert_eq!(client.ping().status, OK);
}

#[test]
fn neighbours_do_not_reach_each_other() {
    let fixture = Fixture::new();
    let (mut one, mut two) = (fixture.leased(1), fixture.leased(2));
    assert_eq!(one.write(0, &[1; 64]), OK);
    assert_eq!(two.write(0, &[2; 64]), OK);
    assert_eq!(one.write(4 * PAGE - 1, &[3; 2]), DataStatus::Range as u8);
    assert_eq!(one.read(4 * PAGE, 1).0, DataStatus::Range as u8);
    assert_eq!(one.read(u64::MAX, 2).0, DataStatus::Range as u8);
    assert_eq!(&fixture.bytes(2)[..64], &[2; 64]);
    two.lease = one.lease;
    assert!(is_unauthenticated(&two.ping()), "with the other's key");
}

#[test]
fn retiring_leaves_the_scrub_to_the_other_transport() {
    let fixture = Fixture::new();
    let mut client = fixture.leased(1);
    assert_eq!(client.write(0, b"left"), OK);
    assert!(
        fixture.udp.remove(binding_id(1, 1), &|| ()).is_err(),
        "not cut yet"
    );
    fixture.cut(1);
    fixture.udp.remove(binding_id(1, 1), &|| ()).unwrap();
    assert_eq!(&fixture.bytes(1)[..4], b"left");
    assert_eq!(client.ping().status, NO_LEASE);
}

#[test]
fn a_release_says_that_it_moves_and_refuses_what_is_not_cut() {
    let fixture = Fixture::new();
    fixture.lease(1);
    let calls = std::cell::Cell::new(0);
    let count = || calls.set(calls.get() + 1);
    let release = |extent| fixture.backend.release(binding_id(1, 1), extent, &count);
    assert!(release(extent(1)).is_err(), "it is in use");
    fixture.cut(1);
    assert!(release(extent(2)).is_err(), "other bytes");
    assert!(
        release(Extent {
            offset: ARENA,
            length: 1
        })
        .is_err()
    );
    release(extent(1)).unwrap();
    assert!(calls.get() > 0);
}

#[test]
fn a_new_binding_has_a_new_key_and_no_sessions_and_keeps_the_bytes() {
    let fixture = Fixture::new();
    let mut client = fixture.leased(1);
    assert_eq!(client.write(0, b"stays"), OK);
    let binding = fixture.backend.bind(&order(1, 2)).unwrap();
    fixture
        .backend
        .extend(binding_id(1, 2), in_a_minute())
        .unwrap();
    assert!(is_unauthenticated(&client.ping()), "the old key is dead");
    client.set_key(&binding);
    assert_eq!(client.read(0, 5).0, DataStatus::TooOld as u8);
    client.hello();
    assert_eq!(client.read(0, 5), (OK, b"stays".to_vec()));
}

#[test]
fn orders_that_make_no_sense_are_refused() {
    let fixture = Fixture::new();
    fixture.lease(1);
    assert!(matches!(
        fixture.backend.bind(&order(1, 1)),
        Err(BindError::Failed(_))
    ));
    let mut overlapping = order(2, 1);
    overlapping.placement = extent(1).into();
    let mut foreign = order(3, 1);
    foreign.transport = Transport::Rdma;
    let mut outside = order(4, 1);
    outside.placement = Placement::Stretch(Extent {
        offset: ARENA,
        ..extent(4)
    });
    for order in [overlapping, foreign, outside] {
        assert!(fixture.backend.bind(&order).is_err(), "{order:?}");
    }
    assert!(fixture.backend.rotate(binding_id(5, 1)).is_err());
    assert!(fixture.backend.retire_key(binding_id(5, 1)).is_err());
}

#[test]
fn a_lease_whose_end_was_not_proved_says_so_until_it_is_remedied() {
    let fixture = Fixture::new();
    let mut client = fixture.leased(1);
    assert_eq!(client.write(0, b"left"), OK);
    fixture.backend.fenced(binding_id(1, 1));
    let got = client.ping();
    assert_eq!(
        (got.status, got.authentic),
        (DataStatus::Fenced as u8, true)
    );
    assert_eq!(client.write(0, b"more"), DataStatus::Fenced as u8);
    let leases = [(binding_id(1, 1), extent(1).into())];
    assert!(fixture.backend.reset(ResourceId(8), &leases).is_err());
    fixture.backend.reset(RESOURCE, &leases).unwrap();
    assert!(fixture.bytes(1).iter().all(|byte| *byte == 0));
    assert_eq!(client.ping().status, NO_LEASE);
}

#[test]
fn a_fence_that_another_transport_caused_is_told_until_that_is_remedied() {
    let fixture = Fixture::new();
    let client = fixture.leased(1);
    fixture.cut(1);
    fixture.udp.remove(binding_id(1, 1), &|| ()).unwrap();
    fixture.backend.fenced(binding_id(1, 1));
    assert_eq!(client.ping().status, DataStatus::Fenced as u8);
    fixture.cut(1);
    fixture.udp.remove(binding_id(1, 1), &|| ()).unwrap();
    assert_eq!(client.ping().status, NO_LEASE);
}

#[test]
fn another_process_serves_the_same_bytes_under_new_keys() {
    let first = Fixture::new();
    let mut client = first.leased(1);
    assert_eq!(client.write(0, b"kept"), OK);
    let arena = std::sync::Arc::clone(&first.arena);
    first.close();
    let second = Fixture::over(arena);
    let binding = second.lease(1);
    let mut again = second.client(1, &binding);
    again.key = client.key;
    assert!(is_unauthenticated(&again.ping()), "the old key is dead");
    again.set_key(&binding);
    again.hello();
    assert_eq!(again.read(0, 4), (OK, b"kept".to_vec()));
}
