//! Leases without a transport, whose objects stay until a reboot: cores.

use std::time::Duration;

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::{
    classes::{cores, of_cpu},
    restart::restart_into,
    support::*,
};

fn world() -> World {
    let offer = cores(classes(CpuIsolationClass::WholeCore, None));
    World::of(ResourceType::Cpu, Policy::default(), offer)
}

fn asked(count: u64) -> LeaseAllocRequest {
    of_cpu(count, CpuTerms::default())
}

#[test]
fn a_lease_without_a_transport_has_a_life_like_any_other() {
    let mut world = world();
    let named = LeaseAllocRequest {
        transport: Transport::Udp,
        ..asked(1)
    };
    let ticket = world.ask(Request::LeaseAlloc(named));
    let refusal = world.refusal(ticket);
    assert_eq!(refusal.error, LeaseError::InvalidArgs);
    assert!(
        refusal.message.contains("udp is not offered"),
        "{refusal:?}"
    );
    let (binding_id, _) = granted(&mut world, asked(4));
    world.pass_ms(9_000);
    let renewed = world.renew(binding_id.lease_id);
    assert_eq!(world.lease(renewed).remaining_ms, 10_000);
    world.pass_ms(10_000);
    assert_eq!(world.cut_order(), binding_id);
    world.cut_ok(binding_id);
    assert_eq!(world.phase(binding_id.lease_id), LeasePhase::Expired);
    assert_eq!(world.available(), 0, "not before they are clean");
    world.released();
    assert_eq!(world.available(), 4);
}

#[test]
fn its_answer_names_no_transport() {
    let mut world = world();
    let (binding_id, _) = granted(&mut world, asked(2));
    let info = world.query(binding_id.lease_id);
    let told = (info.effective.transport, info.effective.cpu_isolation);
    assert_eq!(told, (None, Some(CpuIsolationClass::WholeCore)));
    assert_eq!((info.capacity, info.generation), (2, Generation(1)));
    let answer = Ok(Reply::Lease(info));
    let query = encode_request(1, 2, &Request::LeaseQuery(binding_id.lease_id));
    let (asked, _) = decode_request(&query).unwrap();
    let frame = encode_answer(&asked, &answer);
    assert_eq!(decode_answer(&asked, &frame).unwrap(), answer);
}

#[test]
fn the_next_run_takes_up_what_lives_and_ends_what_does_not_each_by_itself() {
    let mut before = world();
    let (lives, its) = granted(&mut before, asked(2));
    let (ends, part) = granted(&mut before, asked(1));
    before.free(ends.lease_id);
    let cut = before.cut_order();
    before.cut_ok(cut);
    assert_eq!(before.phase(ends.lease_id), LeasePhase::Freed);
    before.pass_ms(4_000);
    let mut after = restart_into(&before, world(), true);
    let is_bind = |order: &Order| matches!(order, Order::Bind(_));
    let at = after.orders.iter().position(is_bind).unwrap();
    let Order::Bind(bind) = after.orders.remove(at) else {
        panic!("no bind")
    };
    assert_eq!(bind.binding_id.lease_id, lives.lease_id);
    assert_eq!(bind.placement, its);
    assert!(bind.adopts, "what was made for it is there");
    assert_eq!(after.available(), 1, "what is over is not clean yet");
    let bound = Ok(Binding::plain(ResourceType::Cpu));
    after.report(Report::Bind(bind.binding_id, bound));
    let info = after.query(lives.lease_id);
    assert_eq!((info.phase, info.remaining_ms), (LeasePhase::Active, 6_000));
    assert_eq!(after.cut_order(), ends);
    after.cut_ok(ends);
    assert_eq!(after.order(), Order::Release(ends, part));
    after.report(Report::Release(ends, Ok(Proof::default())));
    assert_eq!(after.available(), 2);
    assert_eq!(after.phase(ends.lease_id), LeasePhase::Freed);
    // The deadline passed while the daemon was down.
    before.now.boot = before.now.boot + Duration::from_secs(60);
    let mut late = restart_into(&before, world(), true);
    late.orders.retain(
        |order| matches!(order, Order::Cut(binding_id, _) if binding_id.lease_id == lives.lease_id),
    );
    let cut = late.cut_order();
    late.cut_ok(cut);
    assert_eq!(late.phase(lives.lease_id), LeasePhase::Expired);
}

#[test]
fn after_a_reboot_they_are_over_and_nothing_is_left_to_do() {
    let mut before = world();
    let (lives, _) = granted(&mut before, asked(2));
    let mut after = restart_into(&before, world(), false);
    assert_eq!(after.orders, []);
    assert_eq!(after.phase(lives.lease_id), LeasePhase::Revoked);
    assert_eq!(after.available(), 4);
}
