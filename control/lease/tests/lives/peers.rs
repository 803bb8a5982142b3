//! Queue pairs that join a live binding, or leave it.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

fn change(world: &mut World, lease_id: LeaseId, change: PeerChange) -> Ticket {
    world.ask(Request::LeasePeers { lease_id, change })
}

fn join(world: &mut World, lease_id: LeaseId) -> Ticket {
    change(world, lease_id, PeerChange::Add(vec![peer()]))
}

fn leave(world: &mut World, lease_id: LeaseId, numbers: &[u32]) -> Ticket {
    change(world, lease_id, PeerChange::Remove(numbers.to_vec()))
}

/// The binding with these queue pairs of the node.
fn with(rkey: u32, pairs: &[u32]) -> Binding {
    let mut binding = binding(rkey);
    if let Some(rdma) = binding.rdma_mut() {
        rdma.qp_num = pairs.first().copied().unwrap_or(0);
        rdma.rkey = rdma.rkey.filter(|_| !pairs.is_empty());
        let further = pairs.iter().skip(1).map(|&qp_num| RdmaQueuePair {
            qp_num,
            psn: 4,
            rkey,
        });
        rdma.further = further.collect();
    }
    binding
}

fn pairs(info: &LeaseInfo) -> Vec<u32> {
    let rdma = info.binding.rdma().expect("bound");
    let further = rdma.further.iter().map(|pair| pair.qp_num);
    [rdma.qp_num].into_iter().chain(further).collect()
}

/// A lease with the queue pairs 18 and 19.
fn joined(world: &mut World, grace: u32) -> BindingId {
    let binding_id = world.granted(1, 10, grace);
    let ticket = join(world, binding_id.lease_id);
    let order = Order::ChangePeers(binding_id, PeerChange::Add(vec![peer()]));
    assert_eq!(world.order(), order);
    world.report(Report::PeersChanged(binding_id, Ok(with(7, &[18, 19]))));
    let info = world.lease(ticket);
    assert_eq!(info.generation, binding_id.generation, "the same binding");
    assert_eq!(pairs(info), [18, 19]);
    binding_id
}

#[test]
fn who_joins_nobody_is_the_first() {
    let mut world = World::new();
    let ticket = world.ask(Request::LeaseAlloc(over(Transport::Rdma, 10, 0)));
    let order = world.bind_order();
    let mut prepared = binding(7);
    prepared.rdma_mut().unwrap().rkey = None;
    world.report(Report::Bind(order.binding_id, Ok(prepared)));
    let lease_id = world.lease(ticket).lease_id;
    join(&mut world, lease_id);
    let order = world.bind_order();
    assert_eq!(order.peers(), [peer()]);
}

#[test]
fn the_journal_has_nothing_to_write_for_queue_pairs() {
    let mut world = World::new();
    let id = joined(&mut world, 0);
    world.journal.clear();
    let ticket = join(&mut world, id.lease_id);
    world.order();
    let three = with(7, &[18, 19, 20]);
    world.report(Report::PeersChanged(id, Ok(three)));
    assert_eq!(pairs(world.lease(ticket)), [18, 19, 20]);
    leave(&mut world, id.lease_id, &[20]);
    world.order();
    let two = with(7, &[18, 19]);
    world.report(Report::PeersChanged(id, Ok(two)));
    assert_eq!(world.journal, []);
}

#[test]
fn only_queue_pairs_of_the_lease_leave_and_its_holder_alone_sends_them_away() {
    let mut world = World::new();
    let id = joined(&mut world, 0).lease_id;
    let unknown = leave(&mut world, id, &[19, 20]);
    let refusal = world.refusal(unknown);
    assert_eq!(refusal.error, LeaseError::InvalidArgs);
    assert!(refusal.message.contains("queue pair 20"), "{refusal:?}");
    for change in [PeerChange::Remove(vec![19]), PeerChange::Add(vec![peer()])] {
        let request = Request::LeasePeers {
            lease_id: id,
            change,
        };
        let ticket = world.ask_as("mallory", Role::Tenant, request);
        assert_eq!(world.refusal(ticket).error, LeaseError::NotFound);
    }
    assert_eq!(world.orders, []);
}

#[test]
fn a_lease_has_64_queue_pairs_at_most() {
    let mut world = World::new();
    let binding_id = joined(&mut world, 0);
    join(&mut world, binding_id.lease_id);
    world.orders.clear();
    let all: Vec<u32> = (18..82).collect();
    world.report(Report::PeersChanged(binding_id, Ok(with(7, &all))));
    let one_more = join(&mut world, binding_id.lease_id);
    let refusal = world.refusal(one_more);
    assert_eq!(refusal.error, LeaseError::InvalidArgs);
    assert!(refusal.message.contains("64"), "{refusal:?}");
}

#[test]
fn a_tenant_has_as_many_queue_pairs_as_the_operator_says() {
    let mut world = World::with_policy(Policy {
        tenant_queue_pairs_max: 3,
        ..Policy::default()
    });
    let first = joined(&mut world, 0);
    let second = world.granted(1, 10, 0);
    let two_more = PeerChange::Add(vec![peer(), peer()]);
    let more = Request::LeaseBind {
        lease_id: second.lease_id,
        peers: vec![peer(), peer()],
    };
    let refused = [
        change(&mut world, first.lease_id, two_more),
        join(&mut world, first.lease_id),
        world.ask(more),
        world.ask(alloc(4096, 10, 0)),
    ];
    for ticket in refused {
        let refusal = world.refusal(ticket);
        assert_eq!(refusal.error, LeaseError::CapacityExceeded);
        let names = refusal.message.contains("queue-pairs-per-tenant-max");
        assert!(names, "{refusal:?}");
    }
    assert_eq!(world.orders, [], "nothing was made");
    // Another tenant has its own.
    world.ask_as("bob", Role::Tenant, alloc(4096, 10, 0));
    world.bind_order();

    // One that was not made does not count, and neither does one that left, nor those of a lease that is released.
    leave(&mut world, first.lease_id, &[19]);
    world.order();
    world.report(Report::PeersChanged(first, Ok(with(7, &[18]))));
    join(&mut world, first.lease_id);
    world.order();
    let lost = BindError::Unavailable(failed("connect"));
    world.report(Report::PeersChanged(first, Err(lost)));
    join(&mut world, first.lease_id);
    world.order();
    world.report(Report::PeersChanged(first, Ok(with(7, &[18, 20]))));
    ended(&mut world, second);
    let ticket = world.ask(alloc(4096, 10, 0));
    assert_eq!(world.answer(ticket), None, "it is being bound");
}

#[test]
fn the_last_one_stays_while_an_old_key_works() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    let id = binding_id.lease_id;
    world.rotate(id, 500);
    world.orders.clear();
    world.report(Report::Rotate(binding_id, Ok(rotated(8, 7))));
    let early = leave(&mut world, id, &[18]);
    assert_eq!(world.refusal(early).error, LeaseError::ResourceBusy);
    assert_eq!(world.refusal(early).class, RefusalClass::Transient);
    world.pass_ms(500);
    world.orders.clear();
    world.report(Report::RetireKey(binding_id, Ok(binding(8))));
    leave(&mut world, id, &[18]);
    world.orders.clear();
    world.report(Report::PeersChanged(binding_id, Ok(with(8, &[]))));
    let info = world.query(id);
    assert_eq!(info.phase, LeasePhase::Active);
    assert_eq!(info.binding.rdma().unwrap().rkey, None);
}

/// A thread that retires a key may report after another one that has let a queue pair join.
#[test]
fn a_late_report_of_a_retired_key_puts_no_older_queue_pairs_back() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    let id = binding_id.lease_id;
    world.rotate(id, 500);
    world.orders.clear();
    world.report(Report::Rotate(binding_id, Ok(rotated(8, 7))));
    join(&mut world, id);
    world.orders.clear();
    world.pass_ms(500);
    assert_eq!(world.order(), Order::RetireKey(binding_id));
    world.report(Report::PeersChanged(binding_id, Ok(with(8, &[18, 19]))));
    world.report(Report::RetireKey(binding_id, Ok(with(8, &[18]))));
    let info = world.query(id);
    assert_eq!(pairs(&info), [18, 19]);
    assert_eq!(info.binding.rdma().unwrap().previous, None);
}

#[test]
fn who_left_and_who_joined_does_not_come_back_after_the_grace_time() {
    for (leaves, back) in [(18, vec![]), (19, vec![peer()])] {
        let mut world = World::new();
        let binding_id = joined(&mut world, 5);
        leave(&mut world, binding_id.lease_id, &[leaves]);
        world.orders.clear();
        world.report(Report::PeersChanged(
            binding_id,
            Ok(with(7, &[37 - leaves])),
        ));
        world.pass_ms(10_000);
        let cut = world.cut_order();
        world.cut_ok(cut);
        world.renew(binding_id.lease_id);
        assert_eq!(world.bind_order().peers(), back, "{leaves} left");
    }
}
