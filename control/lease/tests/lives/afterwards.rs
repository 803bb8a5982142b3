//! Answers to requests about a lease that is over: the table of "How a lease ends" in the wire encoding.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

/// The lease is cut, proved and scrubbed.
fn ends(world: &mut World) {
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.released();
}

/// The refusals of renewal, binding and rotation.
fn refused_as(world: &mut World, id: LeaseId) -> Vec<LeaseError> {
    let asked = [world.renew(id), world.rebind(id), world.rotate(id, 0)];
    asked.map(|ticket| world.refusal(ticket).error).to_vec()
}

fn revoked(world: &mut World, id: LeaseId) -> RevokeOutcome {
    let ticket = world.operator(Request::LeaseRevoke(id));
    match world.answer(ticket) {
        Some(Ok(Reply::Revoked(outcome))) => *outcome,
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_a_lease_that_was_freed() {
    let mut world = World::new();
    let id = world.granted(1, 10, 0).lease_id;
    world.free(id);
    ends(&mut world);
    let again = world.free(id);
    assert_eq!(world.lease(again).phase, LeasePhase::Freed);
    assert_eq!(refused_as(&mut world, id), [LeaseError::Expired; 3]);
    assert_eq!(revoked(&mut world, id), RevokeOutcome::TornDown);
}

#[test]
fn of_one_that_ran_out() {
    let mut world = World::new();
    let id = world.granted(1, 10, 0).lease_id;
    world.pass_ms(10_000);
    ends(&mut world);
    let freed = world.free(id);
    assert_eq!(world.refusal(freed).error, LeaseError::Expired);
    assert_eq!(refused_as(&mut world, id), [LeaseError::Expired; 3]);
    assert_eq!(revoked(&mut world, id), RevokeOutcome::TornDown);
}

#[test]
fn of_one_that_was_revoked() {
    let mut world = World::new();
    let id = world.granted(1, 10, 0).lease_id;
    world.operator(Request::LeaseRevoke(id));
    // The requests come while the end is under way; each answer contains its result.
    let freed = world.free(id);
    ends(&mut world);
    assert_eq!(world.lease(freed).phase, LeasePhase::Revoked);
    let by = |info: &LeaseInfo| info.end.as_ref().unwrap().by.clone();
    assert_eq!(by(world.lease(freed)), None, "that is for operators");
    assert_eq!(by(&world.query(id)), None);
    let told = world.operator(Request::LeaseQuery(id));
    assert_eq!(by(world.lease(told)).as_deref(), Some("root"));
    let again = world.free(id);
    assert_eq!(world.refusal(again).error, LeaseError::Revoked);
    assert_eq!(refused_as(&mut world, id), [LeaseError::Revoked; 3]);
    assert_eq!(revoked(&mut world, id), RevokeOutcome::TornDown);
}

#[test]
fn of_one_that_is_fenced() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    world.free(binding_id.lease_id);
    let cut = world.cut_order();
    world.report(Report::Cut(cut, Err(failed("destroy"))));
    let freed = world.free(binding_id.lease_id);
    assert_eq!(world.refusal(freed).error, LeaseError::Fenced);
    assert_eq!(
        refused_as(&mut world, binding_id.lease_id),
        [LeaseError::Fenced; 3]
    );
    assert_eq!(
        revoked(&mut world, binding_id.lease_id),
        RevokeOutcome::Fenced
    );
}

#[test]
fn of_one_in_its_grace_time() {
    let mut world = World::new();
    let id = world.granted(1, 10, 60).lease_id;
    world.pass_ms(10_000);
    let cut = world.cut_order();
    world.cut_ok(cut);
    for ticket in [world.rebind(id), world.rotate(id, 0)] {
        assert_eq!(world.refusal(ticket).error, LeaseError::Expired);
    }
    let freed = world.free(id);
    assert_eq!(world.lease(freed).phase, LeasePhase::Freed);
    world.released();
    assert_eq!(world.available(), 16 * PAGE);
}
