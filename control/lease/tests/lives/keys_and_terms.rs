//! Renewal, rotation, and keys that must die.

use std::time::Duration;

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

#[test]
fn renewal_opens_with_the_last_fifth_of_the_term_inclusive() {
    let mut world = World::new();
    let id = world.granted(1, 10, 0).lease_id;
    let renew = Request::LeaseRenew {
        lease_id: id,
        lease_secs: 0,
    };
    world.pass(Duration::from_nanos(7_999_999_999));
    let early = world.ask(renew.clone());
    let refusal = world.refusal(early);
    assert_eq!(refusal.error, LeaseError::RenewTooEarly);
    assert_eq!(refusal.renewable_at_unix_ms, Some(world.now.unix_ms + 1));
    world.pass(Duration::from_nanos(1));
    let renewed = world.ask(renew);
    assert_eq!(world.lease(renewed).remaining_ms, 10_000);
    world.pass_ms(9_999);
    assert_eq!(world.orders, []);
}

#[test]
fn grace_keeps_the_bytes_but_not_the_access_and_renewal_binds_again() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 5);
    world.pass_ms(10_000);
    let cut = world.cut_order();
    world.cut_ok(cut);
    assert_eq!(world.orders, [], "nothing is scrubbed in grace");
    let info = world.query(binding_id.lease_id);
    assert_eq!(
        (info.status, info.phase),
        (LeaseStatus::Expired, LeasePhase::Grace)
    );
    assert_eq!(info.grace_ends_unix_ms, info.expires_at_unix_ms + 5_000);
    assert_eq!(info.binding, Binding::plain(ResourceType::Mem));
    let renewed = world.ask(Request::LeaseRenew {
        lease_id: binding_id.lease_id,
        lease_secs: 20,
    });
    let order = world.bind_order();
    assert_eq!(order.binding_id.generation, binding_id.generation.next());
    world.report(Report::Bind(order.binding_id, Ok(binding(8))));
    assert_eq!(world.lease(renewed).phase, LeasePhase::Active);
    assert_eq!(world.lease(renewed).binding.rdma().unwrap().rkey, Some(8));
}

#[test]
fn an_operator_sees_every_lease_but_no_key() {
    let mut world = World::new();
    let id = world.granted(1, 10, 0).lease_id;
    let ticket = world.operator(Request::LeaseQuery(id));
    assert_eq!(
        world.lease(ticket).binding,
        Binding::plain(ResourceType::Mem)
    );
    let ticket = world.operator(Request::LeaseList {
        after: LeaseId(0),
        ended: false,
    });
    let Some(Ok(Reply::Leases(page))) = world.answer(ticket) else {
        panic!()
    };
    assert_eq!(page.leases.len(), 1);
    let ticket = world.ask_as(
        "mallory",
        Role::Tenant,
        Request::LeaseList {
            after: LeaseId(0),
            ended: true,
        },
    );
    assert_eq!(
        world.answer(ticket),
        Some(&Ok(Reply::Leases(LeasePage::default())))
    );
}

#[test]
fn rotation_without_overlap_is_told_when_the_old_key_is_dead() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    let ticket = world.ask(Request::LeaseRotate {
        lease_id: binding_id.lease_id,
        overlap_ms: 0,
    });
    assert_eq!(world.order(), Order::Rotate(binding_id));
    world.report(Report::Rotate(binding_id, Ok(rotated(8, 7))));
    assert!(world.answer(ticket).is_none());
    assert_eq!(world.order(), Order::RetireKey(binding_id));
    world.report(Report::RetireKey(binding_id, Ok(binding(8))));
    let rdma = world.lease(ticket).binding.rdma().cloned().unwrap();
    assert_eq!((rdma.rkey, rdma.previous), (Some(8), None));
}

/// A driver that stood still hears of the begin of the retirement after it has ordered the cut.
#[test]
fn a_retirement_that_began_before_the_cut_does_not_make_the_cut_late() {
    let mut world = World::new();
    let binding_id = world.granted(1, 1, 0);
    world.rotate(binding_id.lease_id, 0);
    world.order();
    world.report(Report::Rotate(binding_id, Ok(rotated(8, 7))));
    assert_eq!(world.order(), Order::RetireKey(binding_id));
    let began = world.now.boot;
    world.now.boot = began + Duration::from_secs(60);
    let now = world.now;
    let late = Report::EndBegan(binding_id);
    world.table.on_report(now, began, late);
    world.table.tick_some(now, now.boot, 64);
    world.drain();
    assert_eq!(world.cut_order(), binding_id);
    world.cut_ok(binding_id);
    assert_eq!(world.phase(binding_id.lease_id), LeasePhase::Expired);
}

#[test]
fn rotation_with_overlap_announces_it_and_ends_it_on_time() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    let ticket = world.ask(Request::LeaseRotate {
        lease_id: binding_id.lease_id,
        overlap_ms: 500,
    });
    world.orders.clear();
    world.report(Report::Rotate(binding_id, Ok(rotated(8, 7))));
    let rdma = world.lease(ticket).binding.rdma().cloned().unwrap();
    assert_eq!(
        rdma.previous,
        Some(PreviousKey {
            rkey: 7,
            remaining_ms: 500
        })
    );
    let again = world.ask(Request::LeaseRotate {
        lease_id: binding_id.lease_id,
        overlap_ms: 0,
    });
    assert_eq!(world.refusal(again).error, LeaseError::ResourceBusy);
    world.pass_ms(499);
    assert_eq!(world.orders, []);
    world.pass_ms(1);
    assert_eq!(world.order(), Order::RetireKey(binding_id));
    world.report(Report::RetireKey(binding_id, Ok(binding(8))));
    assert_eq!(
        world
            .query(binding_id.lease_id)
            .binding
            .rdma()
            .unwrap()
            .previous,
        None
    );
}

#[test]
fn a_key_that_does_not_die_takes_the_lease_with_it() {
    for silent in [false, true] {
        let mut world = World::new();
        let binding_id = world.granted(1, 10, 0);
        let ticket = world.ask(Request::LeaseRotate {
            lease_id: binding_id.lease_id,
            overlap_ms: 0,
        });
        world.orders.clear();
        world.report(Report::Rotate(binding_id, Ok(rotated(8, 7))));
        world.orders.clear();
        world.report(Report::EndBegan(binding_id));
        if silent {
            world.pass_ms(1_000);
        } else {
            world.report(Report::RetireKey(binding_id, Err(failed("dealloc_mw"))));
        }
        let cut = world.cut_order();
        world.cut_ok(cut);
        assert_eq!(world.refusal(ticket).error, LeaseError::Revoked);
    }
}

#[test]
fn renewal_rotates_only_for_a_client_that_follows() {
    let mut world = World::new();
    let mut wanted = request(PAGE, 10, 0);
    wanted.rotate_on_renew = true;
    let ticket = world.ask(Request::LeaseAlloc(wanted));
    let binding_id = world.bind_order().binding_id;
    world.report(Report::Bind(binding_id, Ok(binding(7))));
    assert!(world.lease(ticket).effective.rotate_on_renew, "echoed");
    world.pass_ms(9_000);
    let renewed = world.ask(Request::LeaseRenew {
        lease_id: binding_id.lease_id,
        lease_secs: 0,
    });
    assert_eq!(world.order(), Order::Rotate(binding_id));
    world.report(Report::Rotate(binding_id, Ok(rotated(8, 7))));
    let info = world.lease(renewed);
    assert_eq!(info.remaining_ms, 10_000);
    assert_eq!(info.binding.rdma().unwrap().previous.unwrap().rkey, 7);
}

#[test]
fn a_short_lease_that_rotates_can_be_renewed_again_and_again() {
    let mut world = World::new();
    let mut wanted = request(PAGE, 2, 0);
    wanted.rotate_on_renew = true;
    world.ask(Request::LeaseAlloc(wanted));
    let binding_id = world.bind_order().binding_id;
    world.report(Report::Bind(binding_id, Ok(binding(7))));
    for _ in 0..3 {
        world.pass_ms(1_700);
        world.orders.clear();
        world.report(Report::RetireKey(binding_id, Ok(binding(8))));
        let renewed = world.ask(Request::LeaseRenew {
            lease_id: binding_id.lease_id,
            lease_secs: 0,
        });
        world.report(Report::Rotate(binding_id, Ok(rotated(8, 7))));
        assert_eq!(world.lease(renewed).remaining_ms, 2_000);
    }
}

/// A renewal in grace binds to the queue pair on record, which may not exist any more.
#[test]
fn a_renewal_whose_binding_fails_is_a_renewal_without_a_key() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 5);
    world.pass_ms(10_000);
    let cut = world.cut_order();
    world.cut_ok(cut);
    let renewed = world.ask(Request::LeaseRenew {
        lease_id: binding_id.lease_id,
        lease_secs: 0,
    });
    let bind = world.bind_order();
    let unreachable = BindError::Refused(failed("modify_qp RTR"));
    world.report(Report::Bind(bind.binding_id, Err(unreachable)));
    let info = world.lease(renewed);
    assert_eq!(
        (info.phase, info.remaining_ms),
        (LeasePhase::Active, 10_000)
    );
    assert_eq!(info.binding, Binding::plain(ResourceType::Mem));
}
