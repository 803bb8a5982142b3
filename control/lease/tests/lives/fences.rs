//! Leases that could not be proved clean.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

#[test]
fn a_cut_that_fails_or_takes_too_long_fences_and_nothing_new_is_granted() {
    for late in [false, true] {
        let mut world = World::new();
        let binding_id = world.granted(1, 10, 0);
        let freed = world.ask(Request::LeaseFree(binding_id.lease_id));
        let cut = world.cut_order();
        if late {
            world.pass_ms(1_000);
            world.cut_ok(cut);
        } else {
            world.report(Report::Cut(cut, Err(failed("destroy_qp"))));
        }
        assert_eq!(world.refusal(freed).error, LeaseError::Fenced);
        assert_eq!(world.query(binding_id.lease_id).phase, LeasePhase::Fenced);
        let refused = world.ask(alloc(PAGE, 10, 0));
        assert_eq!(world.refusal(refused).error, LeaseError::Fenced);
        assert_eq!(world.available(), 0);
        let trouble = told(&world).trouble.unwrap();
        assert!(matches!(&trouble, Trouble::Fence(why) if late || why.contains("destroy_qp")));
        assert!(!trouble.for_all().why().contains("destroy_qp"));
        assert_eq!(
            world.orders,
            [],
            "a failed cut is not cleared by its late success"
        );
        assert!(
            world
                .journal
                .iter()
                .any(|change| matches!(change, Change::PutFence(_)))
        );
    }
}

/// The grant cannot be written when the lease has ended already and its cut has failed.
#[test]
fn a_grant_that_is_lost_takes_no_fenced_lease_off_the_record() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    world.pass_ms(10_000);
    let cut = world.cut_order();
    world.report(Report::Cut(cut, Err(failed("destroy_qp"))));
    world.table.on_grant_lost(world.now, binding_id.lease_id);
    world.drain();
    let record = world.journal.iter().rev().find_map(|change| match change {
        Change::PutLease(record) => Some(Ok(record.lease_id)),
        Change::RemoveLease(id) => Some(Err(*id)),
        _ => None,
    });
    assert_eq!(record, Some(Ok(binding_id.lease_id)));
    assert_eq!(world.query(binding_id.lease_id).phase, LeasePhase::Fenced);
}

#[test]
fn cuts_that_wait_for_each_other_are_not_overdue_while_one_of_them_moves_and_not_for_ever() {
    let mut world = World::new();
    let granted = [(); 3].map(|()| world.granted(1, 10, 0));
    let [first, second, third] = granted.map(|binding_id| {
        world.ask(Request::LeaseFree(binding_id.lease_id));
        world.cut_order()
    });
    world.pass_ms(900);
    world.report(Report::CutMoves(first));
    world.cut_ok(first);
    world.pass_ms(900);
    assert_eq!(world.table.fences(), [], "progress counts, not the total");
    world.report(Report::CutMoves(second));
    world.pass_ms(999);
    assert_eq!(world.table.fences(), []);
    world.pass_ms(1);
    assert_eq!(
        world.query(third.lease_id).phase,
        LeasePhase::Fenced,
        "nothing moved for the time that a cut has"
    );

    let mut endless = World::new();
    let binding_id = endless.granted(1, 10, 0);
    endless.ask(Request::LeaseFree(binding_id.lease_id));
    let cut = endless.cut_order();
    for _ in 0..19 {
        endless.pass_ms(500);
        endless.report(Report::CutMoves(cut));
    }
    assert_eq!(endless.table.fences(), []);
    endless.pass_ms(500);
    assert_eq!(endless.table.fences().len(), 1, "ten times that is the end");
}

#[test]
fn only_a_verified_remediation_by_an_operator_clears_a_failed_cut() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    world.ask(Request::LeaseFree(binding_id.lease_id));
    let cut = world.cut_order();
    world.report(Report::Cut(cut, Err(failed("destroy_qp"))));
    let by_tenant = world.ask(Request::FenceClear(ARENA));
    assert_eq!(world.refusal(by_tenant).error, LeaseError::NotPermitted);
    let first = world.operator(Request::FenceClear(ARENA));
    let extent = Extent {
        offset: 0,
        length: PAGE,
    };
    assert_eq!(
        world.order(),
        Order::Reset(ARENA, vec![(binding_id, extent.into())])
    );
    world.report(Report::Reset(ARENA, Err(failed("restrack"))));
    assert_eq!(world.refusal(first).error, LeaseError::Fenced);
    let second = world.operator(Request::FenceClear(ARENA));
    world.orders.clear();
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(world.answer(second), Some(&Ok(Reply::FenceCleared)));
    assert_eq!(world.available(), 16 * PAGE);
    assert_eq!(
        world.query(binding_id.lease_id).phase,
        LeasePhase::Fenced,
        "its record says what it was"
    );
}

#[test]
fn a_release_that_stalls_fences_and_its_late_success_clears() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    world.ask(Request::LeaseFree(binding_id.lease_id));
    let cut = world.cut_order();
    world.cut_ok(cut);
    let (release, _) = world.release_order();
    world.pass_ms(60_000);
    assert_eq!(
        world.table.fences(),
        [],
        "waiting for a thread is not being stuck"
    );
    world.report(Report::ReleaseProgress(release));
    world.pass_ms(9_999);
    world.report(Report::ReleaseProgress(release));
    world.pass_ms(9_999);
    assert_eq!(world.table.fences(), [], "progress counts, not the total");
    world.pass_ms(1);
    assert_eq!(world.table.fences().len(), 1);
    world.report(Report::Release(release, Ok(Proof::default())));
    assert_eq!(world.table.fences(), []);
    assert_eq!(world.available(), 16 * PAGE);
}

#[test]
fn fences_are_shown_to_operators() {
    let mut world = World::new();
    let ticket = world.ask(Request::FenceList);
    assert_eq!(world.refusal(ticket).error, LeaseError::NotPermitted);
    let ticket = world.operator(Request::FenceList);
    assert_eq!(world.answer(ticket), Some(&Ok(Reply::Fences(vec![]))));
}

#[test]
fn a_bind_that_strands_something_fences() {
    let mut world = World::new();
    let ticket = world.ask(alloc(PAGE, 10, 0));
    let binding_id = world.bind_order().binding_id;
    world.report(Report::Bind(
        binding_id,
        Err(BindError::Stranded(failed("destroy_qp"))),
    ));
    assert_eq!(world.refusal(ticket).error, LeaseError::Fenced);
    assert_eq!(world.table.fences().len(), 1);
    assert_eq!(
        world.order(),
        Order::Cut(binding_id, Linger::None),
        "what can be taken away is"
    );
    world.cut_ok(binding_id);
    assert_eq!(world.table.fences().len(), 1, "and that clears nothing");
}

#[test]
fn a_fence_survives_and_is_re_verified_after_a_reboot() {
    let fence = FenceRecord {
        resource_id: ARENA,
        resource_type: ResourceType::Mem,
        lease_id: LeaseId(5),
        since_unix_ms: 1,
        reason: failed("destroy_qp"),
        by_release: false,
    };
    let mut same_boot = World::new();
    same_boot
        .table
        .restore_fence(same_boot.now, fence.clone(), false);
    same_boot.drain();
    assert_eq!((same_boot.orders.len(), same_boot.available()), (0, 0));
    let mut rebooted = World::new();
    rebooted.table.restore_fence(rebooted.now, fence, true);
    rebooted.drain();
    assert_eq!(rebooted.order(), Order::Reset(ARENA, vec![]));
    rebooted.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(rebooted.available(), 16 * PAGE);
    assert_eq!(rebooted.journal, [Change::RemoveFence(ARENA)]);
}

fn told(world: &World) -> Availability {
    world.table.availability().next().expect("the arena")
}

/// Inventory, FENCE_LIST, remediation and admission agree on a resource that has failed by itself.
#[test]
fn a_resource_that_failed_is_fenced_everywhere_until_it_is_well() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    let why = "XID 79: it has fallen off the bus";
    let failure = Condition::Failed(why.into());
    world.pass_ms(1);
    world.report(Report::Condition(ARENA, failure.clone()));
    let its = told(&world);
    assert_eq!((its.fenced, its.available), (true, 0));
    assert_eq!(its.trouble.as_ref().map(Trouble::why), Some(why));
    let fences = world.table.fences();
    let [fence] = &fences[..] else {
        panic!("{fences:?}")
    };
    assert_eq!((fence.resource_id, fence.lease_id), (ARENA, LeaseId(0)));
    assert_eq!(fence.since_unix_ms, world.now.unix_ms);
    assert!(fence.reason.contains(why), "{fence:?}");
    let ticket = world.ask(alloc(PAGE, 10, 0));
    let refusal = world.refusal(ticket).clone();
    let is = (refusal.error, refusal.class);
    assert_eq!(is, (LeaseError::Fenced, RefusalClass::Transient));
    assert!(refusal.message.contains(why), "{refusal}");
    // The lease of the failed resource goes on.
    assert_eq!(world.phase(binding_id.lease_id), LeasePhase::Active);
    let ticket = world.operator(Request::FenceClear(ARENA));
    assert_eq!(world.order(), Order::Reset(ARENA, vec![]));
    world.report(Report::Reset(ARENA, Ok(())));
    let refusal = world.refusal(ticket).clone();
    assert!(refusal.message.contains(why), "{refusal}");
    assert_eq!(world.table.fences(), fences, "still since then");
    // A store that the remediation has repaired reports it first.
    let ticket = world.operator(Request::FenceClear(ARENA));
    world.order();
    world.report(Report::Condition(ARENA, Condition::Good));
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(world.answer(ticket), Some(&Ok(Reply::FenceCleared)));
    assert_eq!(world.table.fences(), []);
    let its = told(&world);
    assert_eq!((its.fenced, its.trouble), (false, None));
    assert!(its.available > 0);
    let ticket = world.operator(Request::FenceClear(ARENA));
    assert_eq!(world.refusal(ticket).error, LeaseError::NotFound);
}

#[test]
fn a_failure_with_another_reason_is_the_same_fence() {
    let mut world = World::new();
    let failed = |why: &str| Report::Condition(ARENA, Condition::Failed(why.into()));
    let since = world.now.unix_ms;
    world.report(failed("XID 79"));
    world.pass_ms(5_000);
    world.report(failed("XID 79; it needs a reset"));
    let fences = world.table.fences();
    assert_eq!(fences.len(), 1, "{fences:?}");
    assert_eq!(fences[0].since_unix_ms, since);
    assert!(fences[0].reason.contains("it needs a reset"), "{fences:?}");
    // A resource that was good in between has failed again: its fence is new.
    world.report(Report::Condition(ARENA, Condition::Good));
    world.report(failed("XID 79"));
    assert_eq!(world.table.fences()[0].since_unix_ms, since + 5_000);
}

#[test]
fn a_degraded_resource_is_leased_and_says_why() {
    let mut world = World::new();
    let why = "remapped rows";
    world.report(Report::Condition(ARENA, Condition::Degraded(why.into())));
    let its = told(&world);
    assert!(!its.fenced);
    assert_eq!(its.trouble.as_ref().map(Trouble::why), Some(why));
    assert_eq!((its.available, world.table.fences()), (16 * PAGE, vec![]));
    world.granted(1, 10, 0);
}

/// The smaller resource is the tighter fit, and is degraded.
#[test]
fn a_degraded_resource_is_chosen_when_no_good_one_has_room() {
    let mut world = World::new();
    const GOOD: ResourceId = ResourceId(0xb);
    let larger = offer(GOOD, 32 * PAGE);
    world.table.offer(ResourceType::Mem, larger);
    let degraded = Condition::Degraded("remapped rows".into());
    world.report(Report::Condition(ARENA, degraded));
    let mut of = |pages| world.granted(pages, 10, 0).resource_id;
    assert_eq!([of(16), of(16), of(16)], [GOOD, GOOD, ARENA]);
}

/// A lease is fenced and its resource has failed. If a remediation leaves the failure, both fences stay.
#[test]
fn a_failed_resource_with_a_fenced_lease_has_two_fences() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    world.free(binding_id.lease_id);
    let cut = world.cut_order();
    world.report(Report::Cut(cut, Err(failed("destroy_qp"))));
    world.report(Report::Condition(ARENA, Condition::Failed("dead".into())));
    let of = |world: &World| {
        let fences = world.table.fences().into_iter();
        fences.map(|it| it.lease_id).collect::<Vec<_>>()
    };
    assert_eq!(of(&world), [binding_id.lease_id, LeaseId(0)]);
    let ticket = world.operator(Request::FenceClear(ARENA));
    world.order();
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(world.refusal(ticket).error, LeaseError::Fenced);
    assert_eq!(of(&world), [binding_id.lease_id, LeaseId(0)]);
    world.report(Report::Condition(ARENA, Condition::Good));
    assert_eq!(
        (of(&world), told(&world).available),
        (vec![binding_id.lease_id], 0)
    );
}
