//! Repeats of LEASE_ALLOC: the same request token gets the same lease.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::{
    restart::{records, restart_into},
    support::*,
};

const UDP: Transport = Transport::Udp;

fn asked(token: u128) -> LeaseAllocRequest {
    LeaseAllocRequest {
        request_token: Some(RequestToken(token)),
        ..over(UDP, 60, 10)
    }
}

fn repeat(world: &mut World, token: u128) -> Ticket {
    world.ask(Request::LeaseAlloc(asked(token)))
}

fn world() -> World {
    World::lasting(&[UDP, Transport::Both])
}

/// The lease as its holder is told it by LEASE_QUERY.
fn as_queried(world: &mut World, ticket: Ticket) -> bool {
    let told = world.lease(ticket).clone();
    told == world.query(told.lease_id) && told.request_token.is_some()
}

#[test]
fn a_repeat_gets_the_same_lease_with_its_key_and_takes_no_capacity() {
    let mut world = world();
    let first = world.granted_for(asked(1));
    let left = world.available();
    let again = repeat(&mut world, 1);
    assert!(as_queried(&mut world, again));
    let told = world.lease(again);
    assert_eq!(told.lease_id, first.lease_id);
    assert!(told.binding.dp_key.is_some(), "{told:?}");
    assert!(world.orders.is_empty(), "{:?}", world.orders);
    assert_eq!(world.available(), left);
}

#[test]
fn what_a_repeat_says_to_schedulers_makes_no_other_request() {
    let mut world = world();
    let first = world.granted_for(asked(1));
    let again = LeaseAllocRequest {
        follows_redirect: true,
        explain: true,
        tried: vec![Tried::avoided(NodeId([7; 32]))],
        ..asked(1)
    };
    let ticket = world.ask(Request::LeaseAlloc(again));
    assert_eq!(world.lease(ticket).lease_id, first.lease_id);
}

#[test]
fn requests_with_other_tokens_or_none_get_leases_of_their_own() {
    let mut world = world();
    let ids = [asked(1), asked(2), over(UDP, 60, 10), over(UDP, 60, 10)]
        .map(|it| world.granted_for(it).lease_id);
    let different: std::collections::BTreeSet<LeaseId> = ids.into();
    assert_eq!(different.len(), 4);
}

#[test]
fn a_repeat_on_other_terms_is_refused_for_good() {
    let mut world = world();
    let id = world.granted_for(asked(1)).lease_id;
    let others = [
        LeaseAllocRequest {
            lease_secs: 61,
            ..asked(1)
        },
        LeaseAllocRequest {
            transport: Transport::Both,
            ..asked(1)
        },
        LeaseAllocRequest {
            resource_id: Some(ARENA),
            ..asked(1)
        },
    ];
    for other in others {
        let ticket = world.ask(Request::LeaseAlloc(other));
        let refusal = world.refusal(ticket);
        let is = (refusal.error, refusal.class);
        assert_eq!(is, (LeaseError::InvalidArgs, RefusalClass::Permanent));
        let says = refusal.message.contains("other terms");
        assert!(
            says && refusal.message.contains(&id.to_string()),
            "{refusal}"
        );
    }
    // Also when the lease is over.
    world.free(id);
    let other = asked(1).with_terms(to_peers(vec![peer()]));
    let ticket = world.ask(Request::LeaseAlloc(other));
    assert_eq!(world.refusal(ticket).error, LeaseError::InvalidArgs);
}

#[test]
fn the_token_of_another_tenant_is_independent() {
    let mut world = world();
    let first = world.granted_for(asked(1));
    let other = LeaseAllocRequest {
        lease_secs: 5,
        ..asked(1)
    };
    world.ask_as("bob", Role::Tenant, Request::LeaseAlloc(other));
    let order = world.bind_order();
    assert_ne!(order.binding_id.lease_id, first.lease_id);
    assert_eq!(&*order.tenant, "bob");
}

#[test]
fn a_repeat_while_the_lease_is_being_bound_waits_for_the_same_answer() {
    for well in [true, false] {
        let mut world = world();
        let first = repeat(&mut world, 1);
        let again = repeat(&mut world, 1);
        let id = world.bind_order().binding_id;
        assert_eq!(world.answer(again), None);
        let outcome = match well {
            true => Ok(binding_over(UDP, 7)),
            false => Err(BindError::Unavailable(failed("bind"))),
        };
        world.report(Report::Bind(id, outcome));
        assert!(world.answer(first).is_some());
        assert_eq!(world.answer(first), world.answer(again));
        // Nothing was leased: the next repeat is a first request.
        let third = repeat(&mut world, 1);
        match well {
            true => assert_eq!(world.lease(third).lease_id, id.lease_id),
            false => assert_ne!(world.bind_order().binding_id.lease_id, id.lease_id),
        }
    }
}

#[test]
fn only_some_repeats_wait_and_the_others_come_back() {
    let mut world = world();
    repeat(&mut world, 1);
    let waiting: Vec<Ticket> = (0..8).map(|_| repeat(&mut world, 1)).collect();
    let over = repeat(&mut world, 1);
    let refusal = world.refusal(over);
    let is = (refusal.error, refusal.class);
    assert_eq!(is, (LeaseError::ResourceBusy, RefusalClass::Transient));
    let id = world.bind_order().binding_id;
    world.report(Report::Bind(id, Ok(binding_over(UDP, 7))));
    for ticket in waiting {
        assert_eq!(world.lease(ticket).lease_id, id.lease_id);
    }
}

#[test]
fn a_repeat_during_the_cut_is_told_the_end_and_never_gets_a_second_lease() {
    let mut world = world();
    let id = world.granted_for(asked(1));
    world.operator(Request::LeaseRevoke(id.lease_id));
    let during = repeat(&mut world, 1);
    assert_eq!(world.answer(during), None, "the cut is not proved");
    world.cut_order();
    world.cut_ok(id);
    let released = repeat(&mut world, 1);
    world.released();
    let clean = repeat(&mut world, 1);
    for ticket in [during, released, clean] {
        let refusal = world.refusal(ticket);
        let is = (refusal.error, refusal.class);
        assert_eq!(is, (LeaseError::Revoked, RefusalClass::Permanent));
        let says =
            refusal.message.contains("revoked") && refusal.message.contains("new request token");
        assert!(
            says && refusal.message.contains(&id.lease_id.to_string()),
            "{refusal}"
        );
    }
    assert!(world.orders.is_empty(), "{:?}", world.orders);
}

#[test]
fn a_repeat_says_of_each_end_what_it_was() {
    let mut world = world();
    let freed = world.granted_for(asked(1));
    world.free(freed.lease_id);
    world.cut_order();
    world.cut_ok(freed);
    world.released();
    let expired = world.granted_for(asked(2));
    world.pass_ms(60_000);
    world.cut_order();
    world.cut_ok(expired);
    // In its grace time the lease can be renewed, so it is told as LEASE_QUERY does.
    let kept = repeat(&mut world, 2);
    assert!(as_queried(&mut world, kept));
    assert_eq!(world.lease(kept).phase, LeasePhase::Grace);
    world.pass_ms(10_000);
    world.released();
    let fenced = world.granted_for(asked(3));
    world.free(fenced.lease_id);
    world.cut_order();
    world.report(Report::Cut(fenced, Err(failed("cut"))));
    for (token, error, word) in [
        (1, LeaseError::Expired, "freed"),
        (2, LeaseError::Expired, "expired"),
        (3, LeaseError::Fenced, "could not be proved clean"),
    ] {
        let ticket = repeat(&mut world, token);
        let refusal = world.refusal(ticket);
        assert_eq!(refusal.error, error);
        assert!(refusal.message.contains(word), "{refusal}");
    }
}

#[test]
fn the_deadline_of_the_lease_comes_before_the_repeat() {
    let mut world = world();
    let id = world.granted_for(LeaseAllocRequest {
        grace_secs: 0,
        ..asked(1)
    });
    world.now.boot = world.now.boot + core::time::Duration::from_secs(60);
    let ticket = world.ask(Request::LeaseAlloc(LeaseAllocRequest {
        grace_secs: 0,
        ..asked(1)
    }));
    world.cut_order();
    world.cut_ok(id);
    assert_eq!(world.refusal(ticket).error, LeaseError::Expired);
}

#[test]
fn a_restart_knows_the_requests_of_leases_alive_and_over() {
    let mut world = world();
    let over = world.granted_for(asked(1));
    ended(&mut world, over);
    let alive = world.granted_for(asked(2));
    assert!(records(&world)[&over.lease_id].requested.is_some());
    let mut after = restart_into(&world, self::world(), true);
    // The lease is bound anew: the answer has its key.
    let ticket = repeat(&mut after, 2);
    assert_eq!(after.answer(ticket), None);
    let order = after.bind_order();
    assert_eq!(order.binding_id.lease_id, alive.lease_id);
    after.report(Report::Bind(order.binding_id, Ok(binding_over(UDP, 8))));
    assert!(as_queried(&mut after, ticket));
    assert!(after.lease(ticket).binding.dp_key.is_some());
    let ticket = repeat(&mut after, 1);
    assert_eq!(after.refusal(ticket).error, LeaseError::Expired);
    let other = LeaseAllocRequest {
        lease_secs: 61,
        ..asked(2)
    };
    let ticket = after.ask(Request::LeaseAlloc(other));
    assert_eq!(after.refusal(ticket).error, LeaseError::InvalidArgs);
}

#[test]
fn a_token_is_forgotten_with_the_record_of_its_lease() {
    let mut world = world();
    let id = world.granted_for(asked(1));
    ended(&mut world, id);
    world.pass(Policy::default().keep_ended);
    assert!(records(&world).is_empty());
    let again = world.granted_for(asked(1));
    assert_ne!(again.lease_id, id.lease_id);
}

#[test]
fn a_lease_that_the_journal_could_not_write_is_of_no_request() {
    let mut world = world();
    let id = world.granted_for(asked(1));
    world.table.on_grant_lost(world.now, id.lease_id);
    world.drain();
    let during = repeat(&mut world, 1);
    world.cut_order();
    world.cut_ok(id);
    assert_eq!(world.refusal(during).error, LeaseError::Unavailable);
    world.released();
    let again = repeat(&mut world, 1);
    let order = world.bind_order();
    assert_ne!(order.binding_id.lease_id, id.lease_id);
    world.report(Report::Bind(order.binding_id, Ok(binding_over(UDP, 9))));
    assert_eq!(world.lease(again).lease_id, order.binding_id.lease_id);
}

#[test]
fn a_node_explains_nothing_and_grants_nothing_to_who_asks_for_it() {
    let mut world = world();
    let left = world.available();
    let explaining = LeaseAllocRequest {
        explain: true,
        ..asked(1)
    };
    let ticket = world.ask(Request::LeaseAlloc(explaining));
    assert_eq!(world.refusal(ticket).error, LeaseError::InvalidArgs);
    assert_eq!(world.available(), left);
}
