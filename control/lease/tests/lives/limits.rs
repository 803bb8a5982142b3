//! Limits of the operator that change while leases live.

use std::time::Duration;

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

/// Limits at which a tenant may have one page and lease it for five seconds.
fn narrow() -> Policy {
    Policy {
        lease_secs_max: 5,
        grace_secs_max: 0,
        tenant_leases_max: 1,
        tenant_capacity_max: [(ResourceType::Mem, PAGE)].into(),
        tenant_queue_pairs_max: 1,
        ..Policy::default()
    }
}

fn refused(world: &mut World, request: Request) -> Refusal {
    let ticket = world.ask(request);
    assert!(world.orders.is_empty(), "{:?}", world.orders);
    world.refusal(ticket).clone()
}

#[test]
fn leases_above_a_new_limit_go_on_to_their_deadlines_and_no_more_are_granted() {
    let mut world = World::new();
    let held = [world.granted(2, 100, 7), world.granted(2, 100, 0)];
    let (journal, deadline) = (world.journal.len(), world.table.next_deadline());
    world.table.change_limits(narrow());
    world.drain();
    assert_eq!(world.table.next_deadline(), deadline);
    assert_eq!(
        world.journal.len(),
        journal,
        "nothing about a lease changed"
    );
    for of in &held {
        assert_eq!(world.phase(of.lease_id), LeasePhase::Active);
    }
    let quota = refused(&mut world, alloc(PAGE, 5, 0));
    let told = (quota.error, quota.class);
    assert_eq!(told, (LeaseError::CapacityExceeded, RefusalClass::Policy));
    assert!(
        quota.message.contains("has 2 leases and may have 1"),
        "{quota}"
    );
    // The grace time of the first is longer than a new one may be.
    world.pass(Duration::from_secs(99));
    assert!(world.orders.is_empty(), "{:?}", world.orders);
    world.pass(Duration::from_secs(1));
    let cuts = std::mem::take(&mut world.orders);
    for (of, order) in held.iter().zip(cuts) {
        assert!(matches!(order, Order::Cut(id, _) if id == *of), "{order:?}");
        world.report(Report::EndBegan(*of));
        world.cut_ok(*of);
    }
    assert_eq!(world.phase(held[0].lease_id), LeasePhase::Grace);
}

#[test]
fn a_renewal_is_for_no_longer_than_a_new_limit_and_the_lease_stays() {
    let mut world = World::new();
    let held = world.granted(1, 10, 0);
    world.table.change_limits(narrow());
    world.pass(Duration::from_secs(9));
    let ticket = world.renew(held.lease_id);
    assert_eq!(world.refusal(ticket).class, RefusalClass::Policy);
    assert_eq!(world.phase(held.lease_id), LeasePhase::Active);
    let ticket = world.ask(Request::LeaseRenew {
        lease_id: held.lease_id,
        lease_secs: 5,
    });
    assert_eq!(world.lease(ticket).phase, LeasePhase::Active);
    world.pass(Duration::from_secs(4));
    assert_eq!(world.phase(held.lease_id), LeasePhase::Active);
}

#[test]
fn the_next_request_is_judged_by_the_new_limits() {
    let mut world = World::new();
    world.table.change_limits(narrow());
    for (secs, grace) in [(6, 0), (5, 1)] {
        let term = refused(&mut world, alloc(PAGE, secs, grace));
        let told = (term.error, term.class);
        assert_eq!(told, (LeaseError::InvalidArgs, RefusalClass::Policy));
    }
    world.granted(1, 5, 0);
    refused(&mut world, alloc(PAGE, 5, 0));
    world.table.change_limits(Policy::default());
    world.granted(2, 3600, 3600);
}

#[test]
fn requests_in_a_second_are_counted_by_the_new_limit() {
    let mut world = World::new();
    let name = std::sync::Arc::from("alice");
    let taken = |world: &mut World| {
        let mut ask = || world.table.check_rate(world.now, &name, Role::Tenant);
        (0..100).filter(|_| ask().is_ok()).count()
    };
    assert_eq!(taken(&mut world), 100);
    world.table.change_limits(Policy {
        tenant_requests_per_sec: 2,
        ..Policy::default()
    });
    world.pass(Duration::from_secs(2));
    assert_eq!(taken(&mut world), 2);
}

/// A cut under way keeps the patience with which it began.
#[test]
fn time_limits_of_steps_stay() {
    let mut world = World::new();
    let held = world.granted(1, 10, 0);
    world.free(held.lease_id);
    world.cut_order();
    let patience = world.table.next_deadline();
    world.table.change_limits(Policy {
        cut_within: Duration::from_millis(10),
        ..Policy::default()
    });
    world.pass_ms(500);
    assert_eq!(world.table.next_deadline(), patience);
    assert_eq!(world.table.fences(), []);
}
