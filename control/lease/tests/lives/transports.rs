//! Leases over UDP and over both transports: the choice of the transport, and keys of datagrams.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

fn dp_key(info: &LeaseInfo) -> Option<&DpKey> {
    info.binding.dp_key.as_ref()
}

fn transport_of(wanted: LeaseAllocRequest) -> Result<Transport, LeaseError> {
    let transports = [Transport::Rdma, Transport::Udp, Transport::Both];
    let mut world = World::lasting(&transports);
    let ticket = world.ask(Request::LeaseAlloc(wanted));
    match world.answer(ticket) {
        Some(Err(refusal)) => Err(refusal.error),
        _ => Ok(world.bind_order().transport),
    }
}

#[test]
fn with_every_transport_on_offer_each_asker_gets_the_one_he_means() {
    let without = |transport| transport_of(over(transport, 10, 0));
    let with = |transport| {
        transport_of(LeaseAllocRequest {
            transport,
            ..request(PAGE, 10, 0)
        })
    };
    use Transport::*;
    assert_eq!([without(Auto), with(Auto)], [Ok(Rdma), Ok(Rdma)]);
    assert_eq!([without(Rdma), with(Rdma)], [Ok(Rdma), Ok(Rdma)]);
    assert_eq!([without(Both), with(Both)], [Ok(Both), Ok(Both)]);
    assert_eq!(without(Udp), Ok(Udp));
    assert_eq!(with(Udp), Err(LeaseError::InvalidArgs));
}

#[test]
fn every_queue_pair_goes_into_the_order() {
    let mut world = World::new();
    let peers: Vec<_> = (1..=4).map(|qpn| RdmaPeer { qpn, ..peer() }).collect();
    let mut wanted = request(PAGE, 10, 0);
    wanted = wanted.with_terms(to_peers(peers.clone()));
    world.ask(Request::LeaseAlloc(wanted));
    let order = world.bind_order();
    assert_eq!(order.peers(), peers);
    world.report(Report::Bind(order.binding_id, Ok(binding(7))));
    world.ask(Request::LeaseBind {
        lease_id: order.binding_id.lease_id,
        peers: peers[..2].to_vec(),
    });
    assert_eq!(world.bind_order().peers(), &peers[..2]);
}

#[test]
fn the_key_of_datagrams_rotates_with_and_without_overlap() {
    for transport in [Transport::Udp, Transport::Both] {
        let mut world = World::lasting(&[transport]);
        let binding_id = world.granted_over(transport, 100, 0);
        let ticket = world.rotate(binding_id.lease_id, 500);
        assert_eq!(world.order(), Order::Rotate(binding_id));
        world.report(Report::Rotate(binding_id, Ok(binding_over(transport, 8))));
        assert_eq!(dp_key(world.lease(ticket)), Some(&DpKey([8; 32])));
        let both_work = world.rotate(binding_id.lease_id, 0);
        assert_eq!(world.refusal(both_work).error, LeaseError::ResourceBusy);
        world.pass_ms(500);
        assert_eq!(world.order(), Order::RetireKey(binding_id));
        world.report(Report::RetireKey(
            binding_id,
            Ok(binding_over(transport, 8)),
        ));
        let ticket = world.rotate(binding_id.lease_id, 0);
        assert_eq!(world.order(), Order::Rotate(binding_id));
        world.report(Report::Rotate(binding_id, Ok(binding_over(transport, 9))));
        assert!(world.answer(ticket).is_none(), "the old key still works");
        assert_eq!(world.order(), Order::RetireKey(binding_id));
        world.report(Report::RetireKey(
            binding_id,
            Ok(binding_over(transport, 9)),
        ));
        assert_eq!(dp_key(world.lease(ticket)), Some(&DpKey([9; 32])));
    }
}

#[test]
fn a_lease_over_both_transports_rotates_before_it_has_a_queue_pair() {
    let mut world = World::lasting(&[Transport::Both]);
    world.ask(Request::LeaseAlloc(over(Transport::Both, 10, 0)));
    let binding_id = world.bind_order().binding_id;
    let mut without = binding_over(Transport::Both, 7);
    without.rdma_mut().unwrap().rkey = None;
    world.report(Report::Bind(binding_id, Ok(without)));
    world.rotate(binding_id.lease_id, 0);
    assert_eq!(world.order(), Order::Rotate(binding_id));
}

#[test]
fn renewal_rotates_the_key_of_datagrams() {
    let mut world = World::lasting(&[Transport::Udp]);
    let binding_id = world.granted_for(LeaseAllocRequest {
        rotate_on_renew: true,
        ..over(Transport::Udp, 10, 0)
    });
    world.pass_ms(9_000);
    let renewed = world.renew(binding_id.lease_id);
    assert_eq!(world.order(), Order::Rotate(binding_id));
    world.report(Report::Rotate(
        binding_id,
        Ok(binding_over(Transport::Udp, 8)),
    ));
    let info = world.lease(renewed);
    assert_eq!(
        (info.remaining_ms, dp_key(info)),
        (10_000, Some(&DpKey([8; 32])))
    );
    world.pass_ms(5_000);
    assert_eq!(world.order(), Order::RetireKey(binding_id));
}

#[test]
fn a_new_queue_pair_is_a_new_binding_on_both_transports_and_none_on_udp() {
    let mut world = World::lasting(&[Transport::Both, Transport::Udp]);
    let both = world.granted_over(Transport::Both, 10, 0);
    let ticket = world.rebind(both.lease_id);
    let second = world.bind_order().binding_id;
    assert_eq!(second.generation, both.generation.next());
    let told = world.query(both.lease_id);
    assert_eq!(
        told.binding.dp_key,
        Some(DpKey([7; 32])),
        "it goes on until then"
    );
    world.report(Report::Bind(second, Ok(binding_over(Transport::Both, 8))));
    assert_eq!(dp_key(world.lease(ticket)), Some(&DpKey([8; 32])));
    let udp = world.granted_over(Transport::Udp, 10, 0);
    let refused = world.rebind(udp.lease_id);
    assert_eq!(world.refusal(refused).error, LeaseError::InvalidArgs);
    assert_eq!(world.orders, []);
}

/// A renewal in grace failed to bind. The message names the request that gives a key again.
#[test]
fn what_gives_a_key_to_a_lease_without_one_is_told_and_works() {
    for (transport, name) in [
        (Transport::Udp, "LEASE_ROTATE"),
        (Transport::Both, "LEASE_BIND"),
        (Transport::Both, "LEASE_ROTATE"),
    ] {
        let mut world = World::lasting(&[transport]);
        let binding_id = world.granted_over(transport, 10, 5);
        world.pass_ms(10_000);
        let cut = world.cut_order();
        world.cut_ok(cut);
        world.renew(binding_id.lease_id);
        let bind = world.bind_order().binding_id;
        world.report(Report::Bind(bind, Err(BindError::Failed(failed("bind")))));
        let told = world.notes.iter().any(
            |note| matches!(note, Note::Refused { refusal, .. } if refusal.message.contains(name)),
        );
        assert!(told, "{:?}", world.notes);
        let ticket = match name {
            "LEASE_ROTATE" => world.rotate(binding_id.lease_id, 0),
            _ => world.rebind(binding_id.lease_id),
        };
        let order = world.bind_order();
        assert_eq!(order.peers().is_empty(), name == "LEASE_ROTATE");
        assert_eq!(order.binding_id.generation, bind.generation.next());
        world.report(Report::Bind(
            order.binding_id,
            Ok(binding_over(transport, 9)),
        ));
        assert_eq!(dp_key(world.lease(ticket)), Some(&DpKey([9; 32])));
    }
}
