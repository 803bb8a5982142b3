//! Rotation: two keys work for a while, on the same sessions.

use fabricbios_wire::DataStatus;

use crate::{
    client::{NO_LEASE, OK, is_unauthenticated},
    fixture::{Fixture, binding_id},
};

#[test]
fn both_keys_work_on_the_same_session_until_the_old_one_is_retired() {
    let fixture = Fixture::new();
    let mut client = fixture.leased(1);
    let frame = client.write_frame(0, b"once");
    assert_eq!(client.ask(&frame).0, OK);
    let rotated = fixture.backend.rotate(binding_id(1, 1)).unwrap();
    assert_eq!(client.write(10, b"old key"), OK);
    let mut newer = fixture.client(1, &rotated);
    (newer.session, newer.counter) = (client.session, client.counter);
    assert_eq!(newer.write(20, b"new key"), OK);
    let reused = newer.frame(client.next(fabricbios_wire::DataOp::Ping, 0, 0), &[]);
    assert_eq!(newer.ask(&reused).0, OK, "PING has any nonce");

    let retired = fixture.backend.retire_key(binding_id(1, 1)).unwrap();
    assert_eq!(retired.dp_key, rotated.dp_key);
    assert!(is_unauthenticated(&client.ping()));
    client.socket.send(&frame).unwrap();
    assert!(is_unauthenticated(&client.receive().unwrap()));
    assert_eq!(newer.read(20, 7), (OK, b"new key".to_vec()));
}

#[test]
fn a_nonce_that_the_old_key_used_is_used_for_the_new_one_too() {
    let fixture = Fixture::new();
    let mut client = fixture.leased(1);
    assert_eq!(client.write(0, b"first"), OK);
    client.counter -= 1;
    client.set_key(&fixture.backend.rotate(binding_id(1, 1)).unwrap());
    assert_eq!(client.write(0, b"again"), DataStatus::Replay as u8);
    assert_eq!(&fixture.bytes(1)[..5], b"first");
}

#[test]
fn one_rotation_at_a_time() {
    let fixture = Fixture::new();
    fixture.lease(1);
    fixture.backend.rotate(binding_id(1, 1)).unwrap();
    assert!(fixture.backend.rotate(binding_id(1, 1)).is_err());
    fixture.backend.retire_key(binding_id(1, 1)).unwrap();
    fixture.backend.rotate(binding_id(1, 1)).unwrap();
}

#[test]
fn a_cut_ends_both_keys() {
    let fixture = Fixture::new();
    let old = fixture.leased(1);
    let rotated = fixture.backend.rotate(binding_id(1, 1)).unwrap();
    let asked = fixture
        .cut(1)
        .matches("PING under its key NO_LEASE")
        .count();
    assert_eq!(asked, 2, "proved under both");
    for client in [old, fixture.client(1, &rotated)] {
        let got = client.ping();
        assert_eq!((got.status, got.authentic), (NO_LEASE, true));
    }
    assert!(fixture.backend.rotate(binding_id(1, 1)).is_err());
}
