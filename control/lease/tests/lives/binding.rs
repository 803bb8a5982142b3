//! Grants, later bindings, and binds that fail or take long.

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
        order.extent(),
        Extent {
            offset: 0,
            length: 2 * PAGE
        }
    );
    assert_eq!(order.peers(), [peer()]);
    world.pass_ms(700);
    world.report(Report::Bind(order.binding_id, Ok(binding(7))));
    let info = world.lease(ticket);
    assert_eq!(info.remaining_ms, 10_000, "the term starts with the grant");
    assert_eq!(info.binding.rdma().unwrap().rkey, Some(7));
    assert_eq!(info.capacity, 2 * PAGE, "rounded up to whole pages");
    assert!(matches!(world.journal[..], [Change::PutLease(_)]));
}

#[test]
fn a_bind_that_leaves_nothing_behind_refuses_and_forgets() {
    let mut world = World::new();
    let ticket = world.ask(alloc(PAGE, 10, 0));
    let binding_id = world.bind_order().binding_id;
    let error = BindError::Refused(failed("modify_qp RTR"));
    world.report(Report::Bind(binding_id, Err(error)));
    assert_eq!(world.refusal(ticket).error, LeaseError::InvalidArgs);
    assert!(world.refusal(ticket).message.contains("modify_qp RTR"));
    assert_eq!((world.available(), world.table.records()), (16 * PAGE, 0));
    assert_eq!(world.journal, []);
}

#[test]
fn a_second_bind_re_arms_and_what_was_bound_goes_on_until_then() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    let before = world.query(binding_id.lease_id);
    let ticket = world.rebind(binding_id.lease_id);
    let order = world.bind_order();
    assert_eq!(order.binding_id.generation, binding_id.generation.next());
    assert_eq!(world.query(binding_id.lease_id), before);
    let busy = world.rebind(binding_id.lease_id);
    assert_eq!(world.refusal(busy).error, LeaseError::ResourceBusy);
    world.report(Report::Bind(order.binding_id, Ok(binding(9))));
    assert_eq!(world.lease(ticket).generation, order.binding_id.generation);
    let after = world.query(binding_id.lease_id);
    assert_eq!(after.binding.rdma().unwrap().rkey, Some(9));
}

#[test]
fn a_second_bind_that_fails_leaves_what_was_bound_as_it_was() {
    for error in [
        BindError::Refused(failed("modify_qp RTR")),
        BindError::Failed(failed("create_qp")),
        BindError::Cancelled,
    ] {
        let mut world = World::new();
        let binding_id = world.granted(1, 10, 5);
        let before = world.query(binding_id.lease_id);
        let elsewhere = RdmaPeer { qpn: 99, ..peer() };
        let ticket = world.ask(Request::LeaseBind {
            lease_id: binding_id.lease_id,
            peers: vec![elsewhere],
        });
        let order = world.bind_order();
        assert_eq!(order.peers(), [elsewhere]);
        world.report(Report::Bind(order.binding_id, Err(error)));
        let refusal = world.refusal(ticket);
        assert!(refusal.message.contains("goes on"), "{refusal:?}");
        assert_eq!(world.query(binding_id.lease_id), before);
        assert_eq!(world.orders, [], "nothing is cut");
        world.pass_ms(10_000);
        let cut = world.cut_order();
        assert_eq!(cut, order.binding_id, "the deadline is where it was");
        world.cut_ok(cut);
        world.renew(binding_id.lease_id);
        assert_eq!(
            world.bind_order().peers(),
            [peer()],
            "the queue pair on record"
        );
    }
}

#[test]
fn a_second_bind_that_fails_when_what_was_before_is_cut_leaves_the_lease_without_access() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    let ticket = world.rebind(binding_id.lease_id);
    let order = world.bind_order();
    let lost = BindError::Lost(failed("bind_mw"));
    world.report(Report::Bind(order.binding_id, Err(lost)));
    let refusal = world.refusal(ticket);
    assert!(
        refusal.message.contains("without a key: LEASE_BIND"),
        "{refusal:?}"
    );
    let info = world.query(binding_id.lease_id);
    assert_eq!(
        (info.phase, info.binding, info.generation),
        (
            LeasePhase::Active,
            Binding::plain(ResourceType::Mem),
            order.binding_id.generation
        )
    );
    world.rebind(binding_id.lease_id);
    let order = world.bind_order();
    world.report(Report::Bind(order.binding_id, Ok(binding(9))));
    assert_eq!(world.query(binding_id.lease_id).generation, Generation(3));
}

/// The overlap of an old key ends while another binding is being connected.
fn overlap_ends_while_binding() -> (World, BindingId) {
    let mut world = World::new();
    let binding_id = world.granted(1, 100, 0);
    world.rotate(binding_id.lease_id, 500);
    world.orders.clear();
    world.report(Report::Rotate(binding_id, Ok(rotated(8, 7))));
    world.rebind(binding_id.lease_id);
    let bind = world.bind_order().binding_id;
    let previous = |world: &mut World| {
        world
            .query(binding_id.lease_id)
            .binding
            .rdma()
            .expect("bound")
            .previous
    };
    assert_eq!(previous(&mut world).expect("a key before").rkey, 7);
    world.pass_ms(500);
    assert_eq!(world.order(), Order::RetireKey(bind));
    assert_eq!(previous(&mut world), None);
    (world, bind)
}

#[test]
fn a_key_before_dies_on_time_while_another_binding_is_connected() {
    let (mut world, bind) = overlap_ends_while_binding();
    // The report contains the binding that the backend had at that time.
    world.report(Report::RetireKey(bind, Ok(binding(9))));
    let error = BindError::Refused(failed("modify_qp RTR"));
    world.report(Report::Bind(bind, Err(error)));
    let info = world.query(bind.lease_id);
    let rdma = info.binding.rdma().unwrap();
    assert_eq!((rdma.rkey, rdma.previous), (Some(8), None));

    let (mut world, bind) = overlap_ends_while_binding();
    world.report(Report::RetireKey(bind, Err(failed("dealloc_mw"))));
    assert_eq!(world.cut_order(), bind, "it takes the lease with it");
}

#[test]
fn a_key_before_dies_with_its_binding_and_the_order_to_end_it_ends_no_other_key() {
    let (mut world, bind) = overlap_ends_while_binding();
    world.report(Report::Bind(bind, Ok(binding(9))));
    for ticket in [world.rotate(bind.lease_id, 0), world.rebind(bind.lease_id)] {
        assert_eq!(world.refusal(ticket).error, LeaseError::ResourceBusy);
    }
    world.pass_ms(60_000);
    assert_eq!(world.orders, [], "nobody waits for it");
    world.report(Report::RetireKey(bind, Err(failed("it is gone"))));
    let info = world.query(bind.lease_id);
    let rdma = info.binding.rdma().unwrap();
    assert_eq!((rdma.rkey, rdma.previous), (Some(9), None));
    world.rotate(bind.lease_id, 0);
    assert_eq!(world.order(), Order::Rotate(bind));
}

#[test]
fn what_is_bound_while_a_key_is_being_ended_waits_for_that() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    world.rotate(binding_id.lease_id, 500);
    world.orders.clear();
    world.report(Report::Rotate(binding_id, Ok(rotated(8, 7))));
    world.pass_ms(500);
    assert_eq!(world.order(), Order::RetireKey(binding_id));
    let busy = world.rebind(binding_id.lease_id);
    assert_eq!(world.refusal(busy).error, LeaseError::ResourceBusy);
    assert_eq!(world.refusal(busy).class, RefusalClass::Transient);
    world.report(Report::RetireKey(binding_id, Ok(binding(8))));
    world.rebind(binding_id.lease_id);
    assert_eq!(
        world.bind_order().binding_id.generation,
        binding_id.generation.next()
    );
}

/// The bind order may still wait for a thread when the cut is proved. No other lease may get the bytes before the
/// report of the bind.
#[test]
fn nothing_is_released_while_a_bind_is_on_its_way() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    world.ask(Request::LeaseBind {
        lease_id: binding_id.lease_id,
        peers: vec![peer()],
    });
    let bind = world.bind_order();
    world.ask(Request::LeaseFree(binding_id.lease_id));
    let cut = world.cut_order();
    assert_eq!(cut, bind.binding_id, "the cut is of the newest generation");
    world.cut_ok(cut);
    assert_eq!(world.orders, []);
    world.report(Report::Bind(bind.binding_id, Err(BindError::Cancelled)));
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
    world.report(Report::Bind(bind.binding_id, Err(BindError::Cancelled)));
    world.released();
    assert_eq!(world.available(), 16 * PAGE);
}

#[test]
fn a_second_bind_that_takes_long_does_not_cost_the_lease() {
    let mut world = World::new();
    let binding_id = world.granted(1, 100, 0);
    let ticket = world.ask(Request::LeaseBind {
        lease_id: binding_id.lease_id,
        peers: vec![peer()],
    });
    let bind = world.bind_order();
    world.pass_ms(30_000);
    assert_eq!(world.refusal(ticket).error, LeaseError::Unavailable);
    assert_eq!(world.orders, []);
    world.report(Report::Bind(bind.binding_id, Ok(binding(9))));
    assert_eq!(
        world
            .query(binding_id.lease_id)
            .binding
            .rdma()
            .unwrap()
            .rkey,
        Some(9)
    );
    world.pass_ms(70_000);
    assert_eq!(
        world.cut_order(),
        bind.binding_id,
        "the deadline is where it was"
    );
}

/// A bind that first scrubs bytes takes as long as writing these bytes.
#[test]
fn a_binding_that_moves_may_take_long_and_one_that_stands_still_is_cut() {
    let mut world = World::new();
    let ticket = world.ask(alloc(PAGE, 3_600, 0));
    let binding_id = world.bind_order().binding_id;
    for _ in 0..10 {
        world.pass_ms(29_000);
        world.report(Report::BindProgress(binding_id));
    }
    assert!(world.answer(ticket).is_none());
    world.pass_ms(29_000);
    world.report(Report::Bind(binding_id, Ok(binding(7))));
    assert_eq!(world.lease(ticket).remaining_ms, 3_600_000);

    let still = world.ask(alloc(PAGE, 10, 0));
    let binding_id = world.bind_order().binding_id;
    world.report(Report::BindProgress(binding_id));
    world.pass_ms(30_000);
    world.report(Report::BindProgress(binding_id));
    assert_eq!(world.order(), Order::Cut(binding_id, Linger::Brief));
    world.cut_ok(binding_id);
    assert_eq!(world.refusal(still).error, LeaseError::Unavailable);
}

#[test]
fn coordinates_of_another_kind_are_told_to_nobody_and_fence() {
    let foreign = || block_binding_over(Transport::NvmeTcp, 7);
    let mut world = World::new();
    let ticket = world.ask(alloc(PAGE, 10, 0));
    let bind = world.bind_order().binding_id;
    world.report(Report::Bind(bind, Ok(foreign())));
    assert_eq!(world.refusal(ticket).error, LeaseError::Fenced);
    assert_eq!(world.phase(bind.lease_id), LeasePhase::Fenced);

    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    let ticket = world.rotate(binding_id.lease_id, 0);
    world.orders.clear();
    world.report(Report::Rotate(binding_id, Ok(foreign())));
    assert_eq!(world.refusal(ticket).error, LeaseError::Fenced);
    assert_eq!(world.phase(binding_id.lease_id), LeasePhase::Fenced);

    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    world.rotate(binding_id.lease_id, 0);
    world.orders.clear();
    world.report(Report::Rotate(binding_id, Ok(binding(8))));
    assert_eq!(world.order(), Order::RetireKey(binding_id));
    world.report(Report::RetireKey(binding_id, Ok(foreign())));
    assert_eq!(world.cut_order(), binding_id, "its keys are not known");
}
