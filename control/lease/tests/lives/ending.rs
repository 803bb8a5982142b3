//! Deadlines, cuts, grace and releases.

use std::time::Duration;

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

#[test]
fn access_ends_at_the_deadline_to_the_nanosecond_and_is_told_after_the_proof() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    let deadline = world.table.next_deadline().unwrap();
    world.pass(world.now.boot.until(deadline) - Duration::from_nanos(1));
    assert_eq!(world.orders, []);
    world.pass(Duration::from_nanos(1));
    assert_eq!(world.cut_order(), binding_id);
    let still = world.query(binding_id.lease_id);
    assert_eq!(
        (still.status, still.remaining_ms),
        (LeaseStatus::Active, 0),
        "cut, then tell"
    );
    assert_eq!(
        still.binding,
        Binding::plain(ResourceType::Mem),
        "no key is told after the deadline"
    );
    world.cut_ok(binding_id);
    let over = world.query(binding_id.lease_id);
    assert_eq!(
        (over.status, over.phase),
        (LeaseStatus::Expired, LeasePhase::Expired)
    );
    world.released();
    assert_eq!(
        world.query(binding_id.lease_id).status,
        LeaseStatus::Expired
    );
    assert_eq!(world.available(), 16 * PAGE);
}

#[test]
fn the_bytes_stay_taken_until_they_are_scrubbed() {
    let mut world = World::new();
    let binding_id = world.granted(16, 10, 0);
    let freed = world.ask(Request::LeaseFree(binding_id.lease_id));
    assert!(world.answer(freed).is_none(), "not before the proof");
    let cut = world.cut_order();
    world.cut_ok(cut);
    assert_eq!(world.lease(freed).phase, LeasePhase::Freed);
    let early = world.ask(alloc(PAGE, 10, 0));
    assert_eq!(world.refusal(early).error, LeaseError::ResourceBusy);
    assert_eq!(world.refusal(early).class, RefusalClass::Transient);
    world.released();
    world.granted(16, 10, 0);
}

#[test]
fn after_grace_the_bytes_are_released() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 5);
    world.pass_ms(10_000);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.pass_ms(4_999);
    assert_eq!(world.orders, []);
    world.pass_ms(1);
    world.released();
    assert_eq!(world.query(binding_id.lease_id).phase, LeasePhase::Expired);
}

#[test]
fn only_a_client_that_did_not_ask_gets_a_linger_and_only_while_there_is_time() {
    let policy = Policy {
        tenant_binds_max: 1000,
        ..Policy::default()
    };
    let mut world = World::with_policy(policy);
    world
        .table
        .offer(ResourceType::Mem, offer(ResourceId(0xb), 400 * PAGE));
    let freed = world.granted(1, 10, 0);
    world.ask(Request::LeaseFree(freed.lease_id));
    assert_eq!(world.order(), Order::Cut(freed, Linger::None));
    world.cut_ok(freed);
    world.released();
    for _ in 0..100 {
        world.granted(1, 10, 0);
    }
    world.pass_ms(10_000);
    let brief = |order: &&Order| matches!(order, Order::Cut(_, Linger::Brief));
    assert_eq!(world.orders.len(), 100);
    assert_eq!(world.orders.iter().filter(brief).count(), 32);
}

/// A query shows what was cleaned once the part is clean, also for a lease that was fenced meanwhile. A list leaves it
/// out.
#[test]
fn a_query_says_what_was_cleaned_when_it_is_clean() {
    let zeroed = || Proof::of("zero memory", Duration::from_micros(7), "65536 bytes");
    let step = ProofStep {
        step: "zero memory".into(),
        took_us: 7,
        found: "65536 bytes".into(),
    };
    for late in [false, true] {
        let mut world = World::new();
        let binding_id = world.granted(16, 10, 0);
        let id = binding_id.lease_id;
        world.free(id);
        let cut = world.cut_order();
        world.cut_ok(cut);
        let (release, _) = world.release_order();
        if late {
            world.report(Report::Release(release, Err(failed("zero"))));
        }
        let end = world.query(id).end.unwrap();
        assert_eq!(end.cleaning, []);
        world.report(Report::Release(release, Ok(zeroed())));
        let end = world.query(id).end.unwrap();
        assert_eq!(end.cleaning, std::slice::from_ref(&step));
        let ticket = world.ask(Request::LeaseList {
            after: LeaseId(0),
            ended: true,
        });
        let Some(Ok(Reply::Leases(page))) = world.answer(ticket) else {
            panic!("no list")
        };
        assert_eq!(page.leases[0].end.as_ref().unwrap().cleaning, []);
    }
}
