//! Leases across restarts of the daemon.

use std::collections::BTreeMap;

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

const UDP: Transport = Transport::Udp;

fn run(same_boot: bool) -> EarlierRun {
    EarlierRun {
        same_boot,
        wall_clock_trusted: true,
    }
}

/// The records after a crash.
pub(crate) fn records(world: &World) -> BTreeMap<LeaseId, LeaseRecord> {
    let mut known = BTreeMap::new();
    for change in &world.journal {
        match change {
            Change::PutLease(record) => drop(known.insert(record.lease_id, record.clone())),
            Change::RemoveLease(id) => drop(known.remove(id)),
            Change::PutFence(_) | Change::RemoveFence(_) => {}
        }
    }
    known
}

/// Restores the records of `before` in `next`, at the same time.
pub(crate) fn restart_into(before: &World, mut next: World, same_boot: bool) -> World {
    (next.now, next.next) = (before.now, before.next);
    next.journal.clone_from(&before.journal);
    for record in records(before).into_values() {
        next.table.restore_lease(next.now, record, run(same_boot));
    }
    let mut fences = BTreeMap::new();
    for change in &before.journal {
        match change {
            Change::PutFence(fence) => drop(fences.insert(fence.resource_id, fence)),
            Change::RemoveFence(id) => drop(fences.remove(id)),
            _ => {}
        }
    }
    for fence in fences.into_values() {
        next.table.restore_fence(next.now, fence.clone(), false);
    }
    next.drain();
    next
}

fn restart(before: &World) -> World {
    restart_into(before, World::lasting(&[UDP, Transport::Both]), true)
}

fn held(world: &World) -> Vec<Extent> {
    let holders = world.table.holders(ARENA);
    holders.map(|(_, part)| part.extent()).collect()
}

fn phase(world: &mut World, id: LeaseId) -> LeasePhase {
    world.query(id).phase
}

#[test]
fn a_lease_over_udp_goes_on_with_its_deadline_and_a_new_key() {
    let mut before = World::lasting(&[UDP]);
    let binding_id = before.granted_over(UDP, 10, 5);
    let told = before.query(binding_id.lease_id);
    before.pass_ms(4_000);
    let mut after = restart(&before);
    let order = after.bind_order();
    assert_eq!(order.binding_id.generation, binding_id.generation.next());
    assert_eq!((order.transport, order.peers().len()), (UDP, 0));
    let deadline = BootTime(after.now.boot.0 + 6_000_000_000);
    assert_eq!(after.said(), Order::Extend(order.binding_id, deadline));
    assert_eq!(held(&after), [order.extent()]);
    let waiting = after.query(binding_id.lease_id);
    assert_eq!(
        (waiting.status, waiting.remaining_ms, &waiting.binding),
        (
            LeaseStatus::Active,
            6_000,
            &Binding::plain(ResourceType::Mem)
        )
    );
    after.report(Report::Bind(order.binding_id, Ok(binding_over(UDP, 8))));
    assert_eq!(after.said(), Order::Extend(order.binding_id, deadline));
    let info = after.query(binding_id.lease_id);
    assert_eq!(info.binding.dp_key, Some(DpKey([8; 32])));
    let times = |info: &LeaseInfo| {
        (
            info.granted_at_unix_ms,
            info.expires_at_unix_ms,
            info.renewable_at_unix_ms,
            info.grace_ends_unix_ms,
        )
    };
    assert_eq!(times(&info), times(&told));
    after.pass_ms(4_000);
    let renewed = after.renew(binding_id.lease_id);
    assert_eq!(after.lease(renewed).remaining_ms, 10_000);
    after.pass_ms(10_000);
    assert_eq!(after.cut_order(), order.binding_id);
}

#[test]
fn a_lease_over_both_transports_goes_on_without_its_queue_pairs() {
    let mut before = World::lasting(&[Transport::Both]);
    let mut wanted = over(Transport::Both, 10, 0);
    wanted = wanted.with_terms(to_peers(vec![peer()]));
    before.ask(Request::LeaseAlloc(wanted));
    let binding_id = before.bind_order().binding_id;
    before.report(Report::Bind(
        binding_id,
        Ok(binding_over(Transport::Both, 7)),
    ));
    let mut after = restart(&before);
    let order = after.bind_order();
    assert_eq!((order.transport, order.peers().len()), (Transport::Both, 0));
    let mut without = binding_over(Transport::Both, 8);
    without.rdma_mut().unwrap().rkey = None;
    after.report(Report::Bind(order.binding_id, Ok(without)));
    after.rebind(binding_id.lease_id);
    assert_eq!(after.bind_order().peers(), [peer()]);
}

#[test]
fn a_second_crash_finds_what_the_first_restart_wrote() {
    let mut before = World::lasting(&[UDP]);
    let binding_id = before.granted_over(UDP, 10, 0);
    let after = restart(&restart(&before));
    let record = &records(&after)[&binding_id.lease_id];
    assert_eq!(record.generation, binding_id.generation.next().next());
    assert_eq!(
        record.deadline,
        records(&before)[&binding_id.lease_id].deadline
    );
}

#[test]
fn in_grace_the_bytes_are_kept_and_renewal_gives_a_key() {
    let mut before = World::lasting(&[UDP]);
    let binding_id = before.granted_over(UDP, 10, 5);
    before.pass_ms(10_000);
    let cut = before.cut_order();
    before.cut_ok(cut);
    before.pass_ms(3_000);
    let mut after = restart(&before);
    assert_eq!((after.orders.len(), held(&after).len()), (0, 1));
    assert_eq!(phase(&mut after, binding_id.lease_id), LeasePhase::Grace);
    after.renew(binding_id.lease_id);
    assert_eq!(
        after.bind_order().binding_id.generation,
        binding_id.generation.next()
    );
    let mut unrenewed = restart(&before);
    unrenewed.pass_ms(2_000);
    unrenewed.released();
    assert_eq!(
        phase(&mut unrenewed, binding_id.lease_id),
        LeasePhase::Expired
    );
}

/// The daemon was dead when the term ended: there was no cut, and none is needed.
#[test]
fn the_deadline_of_a_dead_daemon_is_kept() {
    for (grace, pause, expected) in [
        (0, 10_000, LeasePhase::Expired),
        (5, 10_000, LeasePhase::Grace),
        (5, 15_000, LeasePhase::Expired),
    ] {
        let mut before = World::lasting(&[UDP]);
        let binding_id = before.granted_over(UDP, 10, grace);
        before.now.boot = BootTime(before.now.boot.0 + pause * 1_000_000);
        let mut after = restart(&before);
        assert_eq!(after.orders, [], "no access");
        assert_eq!(phase(&mut after, binding_id.lease_id), expected);
        assert_eq!(
            held(&after).len(),
            usize::from(expected == LeasePhase::Grace)
        );
        let on_record = records(&after)[&binding_id.lease_id].ended;
        assert_eq!(on_record.is_none(), expected == LeasePhase::Grace);
    }
}

#[test]
fn a_renewal_in_grace_is_on_record_before_it_is_told() {
    let mut before = World::lasting(&[UDP]);
    let binding_id = before.granted_over(UDP, 10, 5);
    before.pass_ms(10_000);
    let cut = before.cut_order();
    before.cut_ok(cut);
    before.ask(Request::LeaseRenew {
        lease_id: binding_id.lease_id,
        lease_secs: 100,
    });
    before.pass_ms(30_000);
    let mut after = restart(&before);
    assert_eq!(after.query(binding_id.lease_id).remaining_ms, 70_000);
}

#[test]
fn what_cannot_go_on_is_revoked_and_holds_nothing() {
    let rdma = |mut world: World| {
        let binding_id = world.granted(1, 10, 5);
        (world, binding_id)
    };
    let udp = |mut world: World| {
        let binding_id = world.granted_over(UDP, 10, 5);
        (world, binding_id)
    };
    let lasting = || World::lasting(&[UDP]);
    let cases = [
        (
            "memory of the process",
            rdma(World::new()),
            World::new(),
            true,
        ),
        (
            "queue pairs only",
            rdma(World::lasting(&[Transport::Rdma])),
            World::lasting(&[Transport::Rdma]),
            true,
        ),
        ("another boot", udp(lasting()), lasting(), false),
        (
            "no such transport any more",
            udp(lasting()),
            World::lasting(&[Transport::Both]),
            true,
        ),
        (
            "memory does not last any more",
            udp(lasting()),
            World::new(),
            true,
        ),
    ];
    for (why, (before, binding_id), next, same_boot) in cases {
        let mut after = restart_into(&before, next, same_boot);
        assert_eq!(
            phase(&mut after, binding_id.lease_id),
            LeasePhase::Revoked,
            "{why}"
        );
        assert_eq!((after.orders.len(), held(&after).len()), (0, 0), "{why}");
        assert_eq!(after.available(), 16 * PAGE, "{why}");
    }
    let (before, binding_id) = udp(lasting());
    let mut earlier = lasting();
    earlier.now.boot = BootTime(1_000_000_000);
    let record = records(&before)[&binding_id.lease_id].clone();
    earlier.table.restore_lease(earlier.now, record, run(true));
    assert_eq!(
        phase(&mut earlier, binding_id.lease_id),
        LeasePhase::Revoked,
        "another clock"
    );
}

#[test]
fn bytes_that_are_not_free_are_not_adopted() {
    let mut before = World::lasting(&[UDP]);
    let binding_id = before.granted_over(UDP, 10, 0);
    let record = records(&before)[&binding_id.lease_id].clone();
    let at = |offset, length| Some(Extent { offset, length });
    for extent in [
        at(0, PAGE),
        at(0, 0),
        at(1, PAGE),
        at(16 * PAGE, PAGE),
        at(15 * PAGE, 2 * PAGE),
        at(u64::MAX - 1, PAGE),
        None,
    ] {
        let mut after = restart(&before);
        let other = LeaseRecord {
            lease_id: LeaseId(99),
            placement: extent.map(Placement::Stretch),
            ..record.clone()
        };
        after.table.restore_lease(after.now, other, run(true));
        after.drain();
        assert_eq!(
            phase(&mut after, LeaseId(99)),
            LeasePhase::Revoked,
            "{extent:?}"
        );
        assert_eq!(held(&after), [record.placement.clone().unwrap().extent()]);
    }
}

#[test]
fn new_leases_go_around_the_adopted_one() {
    let mut before = World::lasting(&[UDP]);
    let first = before.granted_over(UDP, 10, 0);
    let second = before.granted_over(UDP, 100, 0);
    before.pass_ms(10_000);
    before.orders.clear();
    before.cut_ok(first);
    before.released();
    let mut after = restart(&before);
    after.orders.clear();
    assert_eq!(after.available(), 14 * PAGE);
    for _ in 0..15 {
        after.ask(Request::LeaseAlloc(over(UDP, 10, 0)));
        let got = after.bind_order().extent();
        let kept = records(&before)[&second.lease_id]
            .placement
            .clone()
            .unwrap()
            .extent();
        assert!(!got.overlaps(kept));
    }
    assert_eq!(after.available(), 0);
}

#[test]
fn what_is_fenced_keeps_its_bytes_until_the_remediation_has_them() {
    let mut before = World::lasting(&[UDP]);
    let alive = before.granted_over(UDP, 100, 0);
    let fenced = before.granted_over(UDP, 10, 0);
    before.ask(Request::LeaseFree(fenced.lease_id));
    let cut = before.cut_order();
    before.report(Report::Cut(cut, Err(failed("close"))));
    for same_boot in [true, false] {
        let lasting = World::lasting(&[UDP]);
        let mut after = restart_into(&before, lasting, same_boot);
        after.orders.clear();
        assert_eq!(phase(&mut after, fenced.lease_id), LeasePhase::Fenced);
        let extent = records(&before)[&fenced.lease_id]
            .placement
            .clone()
            .unwrap()
            .extent();
        assert!(held(&after).contains(&extent));
        assert_eq!(after.available(), 0);
        let cleared = after.operator(Request::FenceClear(ARENA));
        assert_eq!(
            after.order(),
            Order::Reset(ARENA, vec![(fenced, extent.into())]),
            "nothing of {alive}"
        );
        after.report(Report::Reset(ARENA, Ok(())));
        assert_eq!(after.answer(cleared), Some(&Ok(Reply::FenceCleared)));
        assert!(!held(&after).contains(&extent));
        assert_eq!(phase(&mut after, fenced.lease_id), LeasePhase::Fenced);
        let again = records(&after)[&fenced.lease_id].placement.clone();
        assert_eq!(again, None, "the next restart keeps its bytes from nobody");
    }
}

/// The crash came after the record of the fenced lease was written, and before that of its fence.
#[test]
fn a_fenced_lease_fences_without_a_record_of_the_fence() {
    let mut before = World::lasting(&[UDP]);
    let binding_id = before.granted_over(UDP, 10, 0);
    before.ask(Request::LeaseFree(binding_id.lease_id));
    let cut = before.cut_order();
    before.report(Report::Cut(cut, Err(failed("close"))));
    before
        .journal
        .retain(|change| !matches!(change, Change::PutFence(_)));
    let mut after = restart(&before);
    assert_eq!((after.table.fences().len(), after.available()), (1, 0));
    after.operator(Request::FenceClear(ARENA));
    after.order();
    after.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(after.available(), 16 * PAGE);
}

/// The lease was not granted, but one of its objects may still reach its bytes.
#[test]
fn what_strands_before_it_was_granted_is_on_record_until_it_is_clean() {
    let mut before = World::lasting(&[UDP]);
    before.ask(Request::LeaseAlloc(over(UDP, 10, 0)));
    let binding_id = before.bind_order().binding_id;
    let stranded = BindError::Stranded(failed("close"));
    before.report(Report::Bind(binding_id, Err(stranded)));
    let mut after = restart(&before);
    assert_eq!(held(&after).len(), 1);
    after.operator(Request::FenceClear(ARENA));
    after.order();
    after.report(Report::Reset(ARENA, Ok(())));
    assert_eq!((after.available(), records(&after).len()), (16 * PAGE, 0));
}

#[test]
fn what_lived_when_the_process_died_is_revoked_afterwards() {
    let mut before = World::new();
    let alive = before.granted(1, 10, 0);
    let over = before.granted(1, 10, 0);
    before.ask(Request::LeaseFree(over.lease_id));
    let cut = before.cut_order();
    before.cut_ok(cut);
    let mut after = restart_into(&before, World::new(), true);
    assert_eq!(after.query(alive.lease_id).status, LeaseStatus::Revoked);
    assert_eq!(after.query(over.lease_id).phase, LeasePhase::Freed);
    let written = after.journal.len() - before.journal.len();
    assert_eq!(written, 1, "only what changed is written again");
}

#[test]
fn a_restart_is_no_way_around_the_bound_on_binds() {
    let mut before = World::lasting(&[UDP]);
    let binding_id = before.granted_over(UDP, 10, 0);
    let mut after = restart(&before);
    let busy = after.rotate(binding_id.lease_id, 0);
    assert_eq!(after.refusal(busy).error, LeaseError::ResourceBusy);
    let order = after.bind_order();
    let failed = BindError::Failed(failed("bind"));
    after.report(Report::Bind(order.binding_id, Err(failed)));
    assert_eq!(phase(&mut after, binding_id.lease_id), LeasePhase::Active);
    after.rotate(binding_id.lease_id, 0);
    assert_eq!(
        after.bind_order().binding_id.generation,
        order.binding_id.generation.next()
    );
}
