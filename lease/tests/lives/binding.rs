//! Grants, second bindings, and binds that come to nothing or take long.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

#[test]
fn a_lease_is_granted_when_it_is_bound_and_not_before() {
    let mut world = World::new();
    let ticket = world.ask(alloc(PAGE + 1, 10, 0));
    assert!(world.answer(ticket).is_none());
    let order = world.bind_order();
    assert_eq!(
        order.extent,
        Extent {
            offset: 0,
            length: 2 * PAGE
        }
    );
    assert_eq!(order.peers, [peer()]);
    world.pass_ms(700);
    world.report(Report::Bind(order.tag, Ok(binding(7))));
    let info = world.lease(ticket);
    assert_eq!(info.remaining_ms, 10_000, "the term starts with the grant");
    assert_eq!(info.binding.rdma.as_ref().unwrap().rkey, Some(7));
    assert_eq!(info.capacity, 2 * PAGE, "rounded up to whole pages");
    assert!(matches!(world.journal[..], [Change::PutLease(_)]));
}

#[test]
fn a_bind_that_leaves_nothing_behind_refuses_and_forgets() {
    let mut world = World::new();
    let ticket = world.ask(alloc(PAGE, 10, 0));
    let tag = world.bind_order().tag;
    let error = BindError::Refused(failed("modify_qp RTR"));
    world.report(Report::Bind(tag, Err(error)));
    assert_eq!(world.refusal(ticket).error, LeaseError::InvalidArgs);
    assert!(world.refusal(ticket).message.contains("modify_qp RTR"));
    assert_eq!((world.available(), world.table.records()), (16 * PAGE, 0));
    assert_eq!(world.journal, []);
}

#[test]
fn a_second_bind_re_arms_and_a_failed_one_leaves_the_lease_without_access() {
    let mut world = World::new();
    let tag = world.granted(1, 10, 0);
    let ticket = world.ask(Request::LeaseBind {
        lease_id: tag.lease_id,
        peers: vec![peer()],
    });
    let order = world.bind_order();
    assert_eq!(order.tag.generation, tag.generation.next());
    let busy = world.ask(Request::LeaseBind {
        lease_id: tag.lease_id,
        peers: vec![peer()],
    });
    assert_eq!(world.refusal(busy).error, LeaseError::ResourceBusy);
    world.report(Report::Bind(
        order.tag,
        Err(BindError::Refused(failed("modify_qp RTR"))),
    ));
    assert_eq!(world.refusal(ticket).error, LeaseError::InvalidArgs);
    let info = world.query(tag.lease_id);
    assert_eq!(
        (info.phase, info.binding),
        (LeasePhase::Active, Binding::default())
    );
    world.ask(Request::LeaseBind {
        lease_id: tag.lease_id,
        peers: vec![peer()],
    });
    let order = world.bind_order();
    world.report(Report::Bind(order.tag, Ok(binding(9))));
    assert_eq!(world.query(tag.lease_id).generation, Generation(3));
}

/// The order to bind may still wait for a thread when the cut has long been proved. The bytes must
/// not go to somebody else before it has come back.
#[test]
fn nothing_is_released_while_a_bind_is_on_its_way() {
    let mut world = World::new();
    let tag = world.granted(1, 10, 0);
    world.ask(Request::LeaseBind {
        lease_id: tag.lease_id,
        peers: vec![peer()],
    });
    let bind = world.bind_order();
    world.ask(Request::LeaseFree(tag.lease_id));
    let cut = world.cut_order();
    assert_eq!(cut, bind.tag, "the cut is of the newest generation");
    world.cut_ok(cut);
    assert_eq!(world.orders, []);
    world.report(Report::Bind(bind.tag, Err(BindError::Cancelled)));
    world.released();
    assert_eq!(world.available(), 16 * PAGE);
}

#[test]
fn a_bind_that_never_ends_is_cut_and_its_bytes_stay_put_until_it_does() {
    let mut world = World::new();
    let ticket = world.ask(alloc(PAGE, 100, 0));
    let bind = world.bind_order();
    world.pass_ms(30_000);
    let cut = world.cut_order();
    world.cut_ok(cut);
    assert_eq!(world.refusal(ticket).error, LeaseError::Unavailable);
    world.pass_ms(600_000);
    assert_eq!(
        world.table.fences(),
        [],
        "a full lane of binds fences nobody"
    );
    assert_eq!((world.orders.len(), world.available()), (0, 15 * PAGE));
    world.report(Report::Bind(bind.tag, Err(BindError::Cancelled)));
    world.released();
    assert_eq!(world.available(), 16 * PAGE);
}

#[test]
fn a_second_bind_that_takes_long_does_not_cost_the_lease() {
    let mut world = World::new();
    let tag = world.granted(1, 100, 0);
    let ticket = world.ask(Request::LeaseBind {
        lease_id: tag.lease_id,
        peers: vec![peer()],
    });
    let bind = world.bind_order();
    world.pass_ms(30_000);
    assert_eq!(world.refusal(ticket).error, LeaseError::Unavailable);
    assert_eq!(world.orders, []);
    world.report(Report::Bind(bind.tag, Ok(binding(9))));
    assert_eq!(
        world.query(tag.lease_id).binding.rdma.unwrap().rkey,
        Some(9)
    );
    world.pass_ms(70_000);
    assert_eq!(world.cut_order(), bind.tag, "the deadline is where it was");
}

/// Bytes that must be made clean first take as long as writing them.
#[test]
fn a_binding_that_moves_may_take_long_and_one_that_stands_still_is_cut() {
    let mut world = World::new();
    let ticket = world.ask(alloc(PAGE, 3_600, 0));
    let tag = world.bind_order().tag;
    for _ in 0..10 {
        world.pass_ms(29_000);
        world.report(Report::BindProgress(tag));
    }
    assert!(world.answer(ticket).is_none());
    world.pass_ms(29_000);
    world.report(Report::Bind(tag, Ok(binding(7))));
    assert_eq!(world.lease(ticket).remaining_ms, 3_600_000);

    let still = world.ask(alloc(PAGE, 10, 0));
    let tag = world.bind_order().tag;
    world.report(Report::BindProgress(tag));
    world.pass_ms(30_000);
    world.report(Report::BindProgress(tag));
    assert_eq!(world.order(), Order::Cut(tag, Farewell::Brief));
    world.cut_ok(tag);
    assert_eq!(world.refusal(still).error, LeaseError::Unavailable);
}
