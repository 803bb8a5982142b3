//! Orders to transports that look at the clock themselves: deadlines and fences.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

const SEC: u64 = 1_000_000_000;

fn deadline_in(world: &World, secs: u64) -> BootTime {
    BootTime(world.now.boot.0 + secs * SEC)
}

/// The next effects in order: `E`xtend, `A`nswer, other orders.
fn order_of_effects(world: &mut World) -> String {
    let effects = std::iter::from_fn(|| {
        let effect = world.table.poll_effect()?;
        if let Effect::Order {
            order: Order::Extend(binding_id, deadline),
            ..
        } = effect
        {
            let agreed = Report::Extended(binding_id, deadline, Ok(()));
            world.table.on_report(world.now, world.now.boot, agreed);
        }
        Some(effect)
    });
    let letter = |effect| match effect {
        Effect::Order {
            order: Order::Extend(..),
            ..
        } => Some('E'),
        Effect::Order {
            order: Order::Rotate(_),
            ..
        } => Some('R'),
        Effect::Order {
            order: Order::Cut(..),
            ..
        } => Some('C'),
        Effect::Order {
            order: Order::Fenced(_),
            ..
        } => Some('F'),
        Effect::Answer { .. } => Some('A'),
        _ => None,
    };
    effects.filter_map(letter).collect()
}

#[test]
fn the_transport_knows_the_deadline_before_the_client_knows_the_lease() {
    let mut world = World::lasting(&[Transport::Udp]);
    world.ask(Request::LeaseAlloc(over(Transport::Udp, 10, 0)));
    assert_eq!(world.said, [], "no access before it is bound");
    let binding_id = world.bind_order().binding_id;
    let bound = Report::Bind(binding_id, Ok(binding_over(Transport::Udp, 7)));
    world.table.on_report(world.now, world.now.boot, bound);
    assert_eq!(order_of_effects(&mut world), "EA");
}

#[test]
fn the_deadline_told_is_that_of_the_answer() {
    let mut world = World::lasting(&[Transport::Udp]);
    let binding_id = world.granted_over(Transport::Udp, 10, 0);
    assert_eq!(
        world.said(),
        Order::Extend(binding_id, deadline_in(&world, 10))
    );
    world.pass_ms(9_000);
    let renewed = world.renew(binding_id.lease_id);
    assert_eq!(world.lease(renewed).remaining_ms, 10_000);
    assert_eq!(
        world.said(),
        Order::Extend(binding_id, deadline_in(&world, 10))
    );
    world.pass_ms(9_500);
    world.ask(Request::LeaseRenew {
        lease_id: binding_id.lease_id,
        lease_secs: 0,
    });
    world.said();
    world.pass_ms(8_000);
    world.ask(Request::LeaseRenew {
        lease_id: binding_id.lease_id,
        lease_secs: 1,
    });
    assert_eq!(
        world.said(),
        Order::Extend(binding_id, deadline_in(&world, 1)),
        "a shorter term too"
    );
}

#[test]
fn a_renewal_that_rotates_prolongs_at_once() {
    let mut world = World::lasting(&[Transport::Udp]);
    let binding_id = world.granted_for(LeaseAllocRequest {
        rotate_on_renew: true,
        ..over(Transport::Udp, 10, 0)
    });
    world.pass_ms(9_000);
    let asked = Asked {
        ticket: Ticket(99),
        tenant: "alice".into(),
        role: Role::Tenant,
        fresh_id: LeaseId(99),
        request: Request::LeaseRenew {
            lease_id: binding_id.lease_id,
            lease_secs: 0,
        },
    };
    world.table.on_request(world.now, &asked);
    assert_eq!(order_of_effects(&mut world), "ER");
}

#[test]
fn a_new_binding_gets_the_deadline_that_there_is() {
    let mut world = World::lasting(&[Transport::Both]);
    let binding_id = world.granted_over(Transport::Both, 10, 5);
    let deadline = deadline_in(&world, 10);
    world.said.clear();
    world.pass_ms(3_000);
    world.rebind(binding_id.lease_id);
    let second = world.bind_order().binding_id;
    let said = Order::Extend(second, deadline);
    assert_eq!(world.said(), said, "before there is anything to end");
    world.report(Report::Bind(second, Ok(binding_over(Transport::Both, 8))));
    assert_eq!(world.said(), Order::Extend(second, deadline));
}

#[test]
fn in_grace_the_new_deadline_is_told_before_it_is_bound_again() {
    let mut world = World::lasting(&[Transport::Udp]);
    let binding_id = world.granted_over(Transport::Udp, 10, 5);
    world.said.clear();
    world.pass_ms(10_000);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.renew(binding_id.lease_id);
    let deadline = deadline_in(&world, 10);
    let third = world.bind_order().binding_id;
    assert_eq!(world.said(), Order::Extend(third, deadline));
    world.pass_ms(100);
    world.report(Report::Bind(third, Ok(binding_over(Transport::Udp, 8))));
    assert_eq!(world.said(), Order::Extend(third, deadline));
}

#[test]
fn a_binding_that_comes_too_late_is_not_prolonged() {
    let mut world = World::lasting(&[Transport::Both]);
    let binding_id = world.granted_over(Transport::Both, 10, 0);
    world.said.clear();
    world.rebind(binding_id.lease_id);
    world.said.clear();
    let second = world.bind_order().binding_id;
    world.now.boot = deadline_in(&world, 10);
    world.report(Report::Bind(second, Ok(binding_over(Transport::Both, 8))));
    assert_eq!(world.said, []);
}

#[test]
fn the_transport_is_told_of_a_fence_after_the_cut() {
    let mut world = World::lasting(&[Transport::Both]);
    let binding_id = world.granted_over(Transport::Both, 10, 0);
    world.rebind(binding_id.lease_id);
    let second = world.bind_order().binding_id;
    let stranded = Report::Bind(second, Err(BindError::Stranded(failed("destroy_qp"))));
    world.table.on_report(world.now, world.now.boot, stranded);
    assert_eq!(order_of_effects(&mut world), "CFA");
}

#[test]
fn the_transport_is_told_of_a_cut_that_takes_too_long() {
    let mut world = World::lasting(&[Transport::Udp]);
    let binding_id = world.granted_over(Transport::Udp, 10, 0);
    world.said.clear();
    world.pass_ms(10_000);
    world.cut_order();
    world.pass_ms(1_000);
    assert_eq!(world.said(), Order::Fenced(binding_id));
}

/// A renewal that no path has acknowledged, at the ninth of ten seconds.
fn renewed(world: &mut World) -> (BindingId, BootTime, Ticket) {
    let binding_id = world.granted_over(Transport::Udp, 10, 0);
    world.said.clear();
    world.acknowledges = false;
    world.pass_ms(9_500);
    let ticket = world.renew(binding_id.lease_id);
    let deadline = deadline_in(world, 10);
    assert_eq!(world.said(), Order::Extend(binding_id, deadline));
    (binding_id, deadline, ticket)
}

fn is_stale(world: &World) -> bool {
    matches!(world.notes.last(), Some(Note::Stale(_, "extended")))
}

#[test]
fn a_renewal_is_told_when_the_paths_have_agreed_and_the_old_deadline_is_in_force_until_then() {
    let mut world = World::lasting(&[Transport::Udp]);
    let (binding_id, deadline, ticket) = renewed(&mut world);
    assert_eq!(world.answer(ticket), None);
    assert_eq!(world.query(binding_id.lease_id).remaining_ms, 500);
    for meanwhile in [
        world.renew(binding_id.lease_id),
        world.rotate(binding_id.lease_id, 0),
    ] {
        assert_eq!(world.refusal(meanwhile).error, LeaseError::ResourceBusy);
    }
    world.pass_ms(100);
    world.report(Report::Extended(binding_id, deadline, Ok(())));
    assert_eq!(world.lease(ticket).remaining_ms, 9_900);
    world.report(Report::Extended(binding_id, deadline, Ok(())));
    assert!(is_stale(&world), "once");
}

#[test]
fn a_path_that_has_cut_already_ends_the_lease() {
    let mut world = World::lasting(&[Transport::Udp]);
    let (binding_id, deadline, ticket) = renewed(&mut world);
    world.report(Report::Extended(binding_id, deadline, Err(AlreadyCut)));
    assert_eq!(world.answer(ticket), None, "not before the proof");
    let cut = world.cut_order();
    world.cut_ok(cut);
    let refusal = world.refusal(ticket).clone();
    assert_eq!(refusal.error, LeaseError::Revoked);
    assert!(refusal.message.contains("cut its access"), "{refusal}");
    world.released();
    let info = world.query(binding_id.lease_id);
    assert_eq!(info.phase, LeasePhase::Revoked);
    assert_eq!(info.end.unwrap().cause, EndCause::BindingFailed);
    assert_eq!(world.available(), 16 * PAGE);
}

#[test]
fn a_deadline_that_passes_before_the_paths_agree_cuts_and_a_late_acknowledgement_changes_nothing() {
    let mut world = World::lasting(&[Transport::Udp]);
    let (binding_id, deadline, ticket) = renewed(&mut world);
    world.pass_ms(500);
    let cut = world.cut_order();
    world.report(Report::Extended(binding_id, deadline, Ok(())));
    assert!(is_stale(&world));
    world.cut_ok(cut);
    assert_eq!(world.refusal(ticket).error, LeaseError::Expired);
    world.released();
}

#[test]
fn an_acknowledgement_that_does_not_come_leaves_the_lease_its_deadline() {
    let mut world = World::lasting(&[Transport::Udp]);
    let binding_id = world.granted_over(Transport::Udp, 10, 0);
    world.acknowledges = false;
    world.pass_ms(8_000);
    let ticket = world.renew(binding_id.lease_id);
    let deadline = deadline_in(&world, 10);
    world.pass_ms(999);
    assert_eq!(world.answer(ticket), None);
    world.pass_ms(1);
    let refusal = world.refusal(ticket);
    let told = (refusal.error, refusal.class);
    assert_eq!(told, (LeaseError::Unavailable, RefusalClass::Transient));
    world.report(Report::Extended(binding_id, deadline, Ok(())));
    assert!(is_stale(&world));
    assert_eq!(world.query(binding_id.lease_id).remaining_ms, 1_000);
    world.acknowledges = true;
    let again = world.renew(binding_id.lease_id);
    assert_eq!(world.lease(again).remaining_ms, 10_000);
}

#[test]
fn nothing_is_granted_and_nothing_bound_anew_until_the_paths_have_agreed() {
    let mut world = World::lasting(&[Transport::Both]);
    world.acknowledges = false;
    let ticket = world.ask(Request::LeaseAlloc(over(Transport::Both, 10, 0)));
    let binding_id = world.bind_order().binding_id;
    let bound = |binding_id, key| Report::Bind(binding_id, Ok(binding_over(Transport::Both, key)));
    world.report(bound(binding_id, 7));
    assert_eq!(world.answer(ticket), None);
    assert_eq!(world.phase(binding_id.lease_id), LeasePhase::Binding);
    let deadline = deadline_in(&world, 10);
    world.report(Report::Extended(binding_id, deadline, Ok(())));
    assert_eq!(world.lease(ticket).remaining_ms, 10_000);

    let rebound = world.rebind(binding_id.lease_id);
    assert_eq!(world.orders, [], "it waits for the deadline");
    let second = BindingId {
        generation: binding_id.generation.next(),
        ..binding_id
    };
    world.report(Report::Extended(second, deadline, Ok(())));
    assert_eq!(world.bind_order().binding_id, second);
    world.report(bound(second, 8));
    assert_eq!(world.answer(rebound), None);
    let none = Binding::plain(ResourceType::Mem);
    let told = world.query(binding_id.lease_id).binding;
    assert_eq!(told, none, "the one before is cut, this one not open");
    world.report(Report::Extended(second, deadline, Ok(())));
    let keys = binding_over(Transport::Both, 8).dp_key;
    assert_eq!(world.lease(rebound).binding.dp_key, keys);
}

#[test]
fn a_grant_whose_paths_do_not_agree_is_none() {
    for answer in [None, Some(Err(AlreadyCut))] {
        let mut world = World::lasting(&[Transport::Udp]);
        world.acknowledges = false;
        let ticket = world.ask(Request::LeaseAlloc(over(Transport::Udp, 1, 5)));
        let binding_id = world.bind_order().binding_id;
        world.report(Report::Bind(
            binding_id,
            Ok(binding_over(Transport::Udp, 7)),
        ));
        let deadline = deadline_in(&world, 1);
        match answer {
            Some(refuses) => world.report(Report::Extended(binding_id, deadline, refuses)),
            None => world.pass_ms(1_000),
        }
        let cut = world.cut_order();
        world.cut_ok(cut);
        assert_eq!(world.refusal(ticket).error, LeaseError::Unavailable);
        world.released();
        assert_eq!(world.table.records(), 0);
        assert_eq!(world.available(), 16 * PAGE);
    }
}

/// The new binding was cut with the old one, because a path did not open.
#[test]
fn a_lease_that_lost_its_binding_is_renewed_without_one() {
    let mut world = World::lasting(&[Transport::Both]);
    let binding_id = world.granted_over(Transport::Both, 10, 0);
    world.rebind(binding_id.lease_id);
    let second = world.bind_order().binding_id;
    let lost = Report::Bind(second, Err(BindError::Lost(failed("bind"))));
    world.report(lost);
    world.pass_ms(9_000);
    world.acknowledges = false;
    let ticket = world.renew(binding_id.lease_id);
    let deadline = deadline_in(&world, 10);
    world.report(Report::Extended(second, deadline, Err(AlreadyCut)));
    assert_eq!(world.lease(ticket).remaining_ms, 10_000);
}
