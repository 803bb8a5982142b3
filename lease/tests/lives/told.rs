//! What roads that look at the clock themselves are told: until when, and that a fence stands.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

const SEC: u64 = 1_000_000_000;

fn deadline_in(world: &World, secs: u64) -> BootTime {
    BootTime(world.now.boot.0 + secs * SEC)
}

/// What comes of the next effects, in their order: `E`xtend, `A`nswer, other orders.
fn order_of_effects(world: &mut World) -> String {
    let effects = std::iter::from_fn(|| world.table.poll_effect());
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
fn the_road_knows_the_deadline_before_the_client_knows_the_lease() {
    let mut world = World::lasting(&[Transport::Udp]);
    world.ask(Request::LeaseAlloc(over(Transport::Udp, 10, 0)));
    assert_eq!(world.said, [], "no access before it is bound");
    let tag = world.bind_order().tag;
    let bound = Report::Bind(tag, Ok(binding_over(Transport::Udp, 7)));
    world.table.on_report(world.now, world.now.boot, bound);
    assert_eq!(order_of_effects(&mut world), "EA");
}

#[test]
fn the_deadline_told_is_that_of_the_answer() {
    let mut world = World::lasting(&[Transport::Udp]);
    let tag = world.granted_over(Transport::Udp, 10, 0);
    assert_eq!(world.said(), Order::Extend(tag, deadline_in(&world, 10)));
    world.pass_ms(9_000);
    let renewed = world.renew(tag.lease_id);
    assert_eq!(world.lease(renewed).remaining_ms, 10_000);
    assert_eq!(world.said(), Order::Extend(tag, deadline_in(&world, 10)));
    world.pass_ms(9_500);
    world.ask(Request::LeaseRenew {
        lease_id: tag.lease_id,
        lease_secs: 0,
    });
    world.said();
    world.pass_ms(8_000);
    world.ask(Request::LeaseRenew {
        lease_id: tag.lease_id,
        lease_secs: 1,
    });
    assert_eq!(
        world.said(),
        Order::Extend(tag, deadline_in(&world, 1)),
        "a shorter term too"
    );
}

#[test]
fn a_renewal_that_rotates_prolongs_at_once() {
    let mut world = World::lasting(&[Transport::Udp]);
    let mut wanted = over(Transport::Udp, 10, 0);
    wanted.rotate_on_renew = true;
    world.ask(Request::LeaseAlloc(wanted));
    let tag = world.bind_order().tag;
    world.report(Report::Bind(tag, Ok(binding_over(Transport::Udp, 7))));
    world.pass_ms(9_000);
    let asked = Asked {
        ticket: Ticket(99),
        tenant: "alice".into(),
        role: Role::Tenant,
        fresh_id: LeaseId(99),
        request: Request::LeaseRenew {
            lease_id: tag.lease_id,
            lease_secs: 0,
        },
    };
    world.table.on_request(world.now, &asked);
    assert_eq!(order_of_effects(&mut world), "ER");
}

#[test]
fn a_new_binding_gets_the_deadline_that_there_is() {
    let mut world = World::lasting(&[Transport::Both]);
    let tag = world.granted_over(Transport::Both, 10, 5);
    let deadline = deadline_in(&world, 10);
    world.said.clear();
    world.pass_ms(3_000);
    world.rebind(tag.lease_id);
    let second = world.bind_order().tag;
    let said = Order::Extend(second, deadline);
    assert_eq!(world.said(), said, "before there is anything to end");
    world.report(Report::Bind(second, Ok(binding_over(Transport::Both, 8))));
    assert_eq!(world.said(), Order::Extend(second, deadline));
}

#[test]
fn in_grace_the_new_deadline_is_told_before_it_is_bound_again() {
    let mut world = World::lasting(&[Transport::Udp]);
    let tag = world.granted_over(Transport::Udp, 10, 5);
    world.said.clear();
    world.pass_ms(10_000);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.renew(tag.lease_id);
    let deadline = deadline_in(&world, 10);
    let third = world.bind_order().tag;
    assert_eq!(world.said(), Order::Extend(third, deadline));
    world.pass_ms(100);
    world.report(Report::Bind(third, Ok(binding_over(Transport::Udp, 8))));
    assert_eq!(world.said(), Order::Extend(third, deadline));
}

#[test]
fn a_binding_that_comes_too_late_is_not_prolonged() {
    let mut world = World::lasting(&[Transport::Both]);
    let tag = world.granted_over(Transport::Both, 10, 0);
    world.said.clear();
    world.rebind(tag.lease_id);
    world.said.clear();
    let second = world.bind_order().tag;
    world.now.boot = deadline_in(&world, 10);
    world.report(Report::Bind(second, Ok(binding_over(Transport::Both, 8))));
    assert_eq!(world.said, []);
}

#[test]
fn the_road_is_told_of_a_fence_after_the_cut() {
    let mut world = World::lasting(&[Transport::Both]);
    let tag = world.granted_over(Transport::Both, 10, 0);
    world.rebind(tag.lease_id);
    let second = world.bind_order().tag;
    let stranded = Report::Bind(second, Err(BindError::Stranded(failed("destroy_qp"))));
    world.table.on_report(world.now, world.now.boot, stranded);
    assert_eq!(order_of_effects(&mut world), "CFA");
}

#[test]
fn the_road_is_told_of_a_cut_that_takes_too_long() {
    let mut world = World::lasting(&[Transport::Udp]);
    let tag = world.granted_over(Transport::Udp, 10, 0);
    world.said.clear();
    world.pass_ms(10_000);
    world.cut_order();
    world.pass_ms(1_000);
    assert_eq!(world.said(), Order::Fenced(tag));
}
