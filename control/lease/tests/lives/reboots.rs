//! Leases of blocks across restarts of the daemon and reboots of the machine.

use std::time::Duration;

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::{restart::records, support::*};
use Transport::NvmeTcp;

fn world() -> World {
    World::of_blocks(block_offer())
}

fn restart_into(before: &World, mut next: World, now: Now, run: EarlierRun) -> World {
    (next.now, next.next) = (now, before.next);
    next.journal.clone_from(&before.journal);
    for record in records(before).into_values() {
        next.table.restore_lease(next.now, record, run);
    }
    next.drain();
    next
}

/// The daemon dies and comes back at once.
fn restart(before: &World) -> World {
    let run = EarlierRun {
        same_boot: true,
        wall_clock_trusted: true,
    };
    restart_into(before, world(), before.now, run)
}

/// The node is back after this many seconds; the kernel started twenty seconds before that.
fn reboot(before: &World, off_secs: u64, wall_clock_trusted: bool) -> World {
    let now = Now {
        boot: BootTime(20_000_000_000),
        unix_ms: before.now.unix_ms + off_secs * 1_000,
    };
    let run = EarlierRun {
        same_boot: false,
        wall_clock_trusted,
    };
    restart_into(before, world(), now, run)
}

fn extent(world: &World, binding_id: BindingId) -> Extent {
    let placement = records(world)[&binding_id.lease_id].placement.clone();
    placement.expect("it holds its bytes").extent()
}

fn holders(world: &World) -> Vec<(BindingId, Extent)> {
    let holders = world.table.holders(ARENA);
    holders
        .map(|(binding_id, it)| (binding_id, it.extent()))
        .collect()
}

/// Checks that the only orders are a cut and then a release, and that the bytes are free afterwards.
fn is_cut_and_released(world: &mut World, binding_id: BindingId, extent: Extent) {
    assert_eq!(world.order(), Order::Cut(binding_id, Linger::None));
    world.cut_ok(binding_id);
    assert_eq!(holders(world), [(binding_id, extent)]);
    assert_eq!(world.available(), 15 * PAGE, "not before it is released");
    assert_eq!(world.release_order(), (binding_id, extent));
    world.report(Report::Release(binding_id, Ok(Proof::default())));
    assert_eq!((world.available(), holders(world)), (16 * PAGE, vec![]));
}

#[test]
fn on_the_same_boot_a_lease_goes_on_as_it_was() {
    let mut before = world();
    let mut wanted = blocks(10, 5);
    block_terms(&mut wanted).host_nqn = "nqn.2025-01.org.example:mine".parse().ok();
    block_terms(&mut wanted).mutual_auth = true;
    let binding_id = before.granted_for(wanted.clone());
    let told = before.query(binding_id.lease_id);
    before.pass_ms(4_000);
    let mut after = restart(&before);
    let order = after.bind_order();
    assert!(order.adopts, "a client may be using it");
    assert_eq!(order.transport, NvmeTcp);
    let terms = block_terms(&mut wanted).clone();
    assert_eq!(
        (&*order.tenant, order.terms.clone()),
        ("alice", terms.into())
    );
    assert_eq!(order.grace, Duration::from_secs(5));
    assert_eq!(order.extent(), extent(&before, binding_id));
    assert_eq!(holders(&after), [(order.binding_id, order.extent())]);
    let binding = block_binding_over(NvmeTcp, 7);
    after.report(Report::Bind(order.binding_id, Ok(binding.clone())));
    let info = after.query(binding_id.lease_id);
    assert_eq!((info.remaining_ms, info.binding), (6_000, binding));
    assert_eq!(info.expires_at_unix_ms, told.expires_at_unix_ms);
    after.pass_ms(6_000);
    assert_eq!(after.cut_order(), order.binding_id);
}

#[test]
fn every_transport_that_is_still_offered_is_adopted() {
    use Transport::{Both, NvmeRdma, Udp};
    let with = |transport| {
        World::of_blocks(Offer {
            transports: vec![transport],
            ..block_offer()
        })
    };
    let run = EarlierRun {
        same_boot: true,
        wall_clock_trusted: false,
    };
    for transport in [NvmeTcp, NvmeRdma, Udp, Both] {
        let mut before = with(transport);
        let binding_id = before.granted_blocks(transport, 10, 0);
        let mut after = restart_into(&before, with(transport), before.now, run);
        let order = after.bind_order();
        assert_eq!((order.transport, order.adopts), (transport, true));
        let other = if transport == Udp { NvmeTcp } else { Udp };
        let mut without = restart_into(&before, with(other), before.now, run);
        let extent = extent(&before, binding_id);
        is_cut_and_released(&mut without, binding_id, extent);
        assert_eq!(without.phase(binding_id.lease_id), LeasePhase::Revoked);
    }
}

#[test]
fn a_reboot_takes_the_time_off_from_the_term() {
    let mut before = world();
    let binding_id = before.granted_blocks(NvmeTcp, 100, 0);
    let told = before.query(binding_id.lease_id);
    before.pass_ms(10_000);
    let mut after = reboot(&before, 60, true);
    let order = after.bind_order();
    assert!(order.adopts);
    after.report(Report::Bind(
        order.binding_id,
        Ok(block_binding_over(NvmeTcp, 7)),
    ));
    let info = after.query(binding_id.lease_id);
    assert_eq!(info.remaining_ms, 30_000);
    assert_eq!(info.expires_at_unix_ms, told.expires_at_unix_ms);
    after.pass_ms(5_000);
    let mut again = restart(&after);
    assert!(again.bind_order().adopts);
    assert_eq!(again.query(binding_id.lease_id).remaining_ms, 25_000);
}

#[test]
fn a_clock_that_cannot_be_believed_ends_the_lease() {
    for (why, trusted, change_ms) in [
        ("it is not set", false, 0),
        ("it is before the grant", true, -1_000),
        ("it leaves more than a term", true, -1),
    ] {
        let mut before = world();
        let binding_id = before.granted_blocks(NvmeTcp, 100, 50);
        let extent = extent(&before, binding_id);
        before.now.unix_ms = before.now.unix_ms.saturating_add_signed(change_ms);
        let mut after = reboot(&before, 0, trusted);
        let told = after.query(binding_id.lease_id);
        assert_eq!(
            (told.phase, told.remaining_ms),
            (LeasePhase::Active, 0),
            "{why}"
        );
        is_cut_and_released(&mut after, binding_id, extent);
        assert_eq!(
            after.phase(binding_id.lease_id),
            LeasePhase::Revoked,
            "{why}"
        );
    }
}

/// A start zeroes memory, opens pools and proves the ends of hundreds of leases. On a busy disk that takes minutes.
#[test]
fn a_start_that_takes_long_fences_nothing() {
    let mut before = world();
    let binding_id = before.granted_blocks(NvmeTcp, 10, 0);
    let extent = extent(&before, binding_id);
    let mut after = reboot(&before, 60, true);
    assert_eq!(after.order(), Order::Cut(binding_id, Linger::None));
    let slow = Duration::from_secs(120);
    after.now.boot = after.now.boot + slow;
    after.table.on_start(after.now);
    after.pass_ms(0);
    assert_ne!(after.phase(binding_id.lease_id), LeasePhase::Fenced);
    after.cut_ok(binding_id);
    assert_eq!(after.release_order(), (binding_id, extent));
    after.report(Report::Release(binding_id, Ok(Proof::default())));
    assert_eq!(after.phase(binding_id.lease_id), LeasePhase::Expired);
    assert_eq!(after.available(), 16 * PAGE);
}

/// The node died again before it cut the revoked lease, and the wall clock is right now.
#[test]
fn what_was_revoked_at_a_restart_stays_revoked() {
    let mut before = world();
    let binding_id = before.granted_blocks(NvmeTcp, 100, 50);
    let revoking = reboot(&before, 1, false);
    for mut after in [reboot(&revoking, 1, true), restart(&revoking)] {
        let extent = extent(&before, binding_id);
        is_cut_and_released(&mut after, binding_id, extent);
        assert_eq!(after.phase(binding_id.lease_id), LeasePhase::Revoked);
    }
}

#[test]
fn what_ran_out_while_the_node_was_off_is_cut_and_released() {
    let mut before = world();
    let binding_id = before.granted_blocks(NvmeTcp, 10, 5);
    let extent = extent(&before, binding_id);
    let mut late = restart_into(
        &before,
        world(),
        Now {
            boot: before.now.boot + Duration::from_secs(15),
            ..before.now
        },
        EarlierRun {
            same_boot: true,
            wall_clock_trusted: false,
        },
    );
    for after in [&mut late, &mut reboot(&before, 15, true)] {
        is_cut_and_released(after, binding_id, extent);
        assert_eq!(after.phase(binding_id.lease_id), LeasePhase::Expired);
    }
}

/// It is unknown whether the earlier run had cut the lease.
#[test]
fn in_grace_a_lease_is_cut_then_kept_and_can_be_renewed() {
    let mut before = world();
    let binding_id = before.granted_blocks(NvmeTcp, 10, 60);
    let mut late = world();
    (late.now, late.next) = (before.now, before.next);
    late.journal.clone_from(&before.journal);
    late.pass_ms(15_000);
    for mut after in [restart(&late), reboot(&before, 15, true)] {
        assert_eq!(after.order(), Order::Cut(binding_id, Linger::None));
        assert_eq!(after.phase(binding_id.lease_id), LeasePhase::Active);
        after.cut_ok(binding_id);
        assert_eq!(after.orders, []);
        assert_eq!(after.phase(binding_id.lease_id), LeasePhase::Grace);
        after.pass_ms(1_000);
        after.renew(binding_id.lease_id);
        let order = after.bind_order();
        assert!(order.adopts, "its bytes are those of the earlier run");
        after.report(Report::Bind(
            order.binding_id,
            Ok(block_binding_over(NvmeTcp, 8)),
        ));
        after.pass_ms(10_000);
        let cut = after.cut_order();
        after.cut_ok(cut);
        after.renew(binding_id.lease_id);
        assert!(!after.bind_order().adopts, "this run knows it");
    }
    let mut unrenewed = reboot(&before, 15, true);
    unrenewed.orders.clear();
    unrenewed.cut_ok(binding_id);
    unrenewed.pass_ms(55_000);
    assert_eq!(unrenewed.release_order().0, binding_id);
}

#[test]
fn a_release_that_a_crash_interrupted_is_done_again_and_its_bytes_are_nobodys_before() {
    let mut before = world();
    let binding_id = before.granted_blocks(NvmeTcp, 10, 0);
    before.free(binding_id.lease_id);
    let cut = before.cut_order();
    before.cut_ok(cut);
    let extent = extent(&before, binding_id);
    for mut after in [restart(&before), reboot(&before, 1, false)] {
        assert_eq!(
            after.phase(binding_id.lease_id),
            LeasePhase::Freed,
            "that was told"
        );
        let too_much = LeaseAllocRequest {
            capacity: 16 * PAGE,
            ..blocks(10, 0)
        };
        let refused = after.ask(Request::LeaseAlloc(too_much));
        let refused = after.refusal(refused);
        assert_eq!(refused.class, RefusalClass::Transient);
        let renewed = after.renew(binding_id.lease_id);
        assert_eq!(after.refusal(renewed).error, LeaseError::Expired);
        is_cut_and_released(&mut after, binding_id, extent);
        assert_eq!(after.phase(binding_id.lease_id), LeasePhase::Freed);
        assert_eq!(records(&after)[&binding_id.lease_id].placement, None);
        let mut next = restart(&after);
        assert_eq!((next.orders.len(), holders(&next)), (0, vec![]));
        assert_eq!(next.phase(binding_id.lease_id), LeasePhase::Freed);
    }
}

/// The next lease has the same bytes, and both are on record.
#[test]
fn a_release_is_on_record_before_the_next_grant() {
    let mut before = world();
    let first = before.granted_blocks(NvmeTcp, 10, 0);
    before.free(first.lease_id);
    let cut = before.cut_order();
    before.cut_ok(cut);
    before.released();
    let second = before.granted_blocks(NvmeTcp, 10, 0);
    let mut after = restart(&before);
    let order = after.bind_order();
    assert_eq!(order.binding_id.lease_id, second.lease_id);
    assert_eq!(holders(&after).len(), 1);
}

#[test]
fn a_lease_that_nobody_was_told_of_leaves_nothing_on_record() {
    let mut before = world();
    before.ask(Request::LeaseAlloc(blocks(10, 0)));
    let binding_id = before.bind_order().binding_id;
    before.report(Report::Bind(
        binding_id,
        Err(BindError::Failed(failed("link"))),
    ));
    assert_eq!(before.journal, []);
    before.ask(Request::LeaseAlloc(blocks(10, 0)));
    before.bind_order();
    assert_eq!(holders(&restart(&before)), []);
}

#[test]
fn an_adopted_lease_without_a_binding_ends_like_any_other() {
    let mut before = world();
    let binding_id = before.granted_blocks(NvmeTcp, 10, 0);
    let mut after = restart(&before);
    let order = after.bind_order();
    let error = BindError::Failed(failed("link"));
    after.report(Report::Bind(order.binding_id, Err(error)));
    after.rotate(binding_id.lease_id, 0);
    let again = after.bind_order();
    assert!(again.adopts, "this run has made nothing of it");
    let error = BindError::Failed(failed("link"));
    after.report(Report::Bind(again.binding_id, Err(error)));
    after.pass_ms(10_000);
    assert_eq!(after.cut_order(), again.binding_id);
    after.cut_ok(again.binding_id);
    assert_eq!(after.release_order(), (again.binding_id, order.extent()));
}

#[test]
fn a_lease_whose_part_is_gone_is_over_and_nothing_is_released() {
    let mut before = world();
    let first = before.granted_blocks(NvmeTcp, 10, 0);
    let lost = before.granted_blocks(NvmeTcp, 10, 0);
    let smaller = World::of_blocks(Offer {
        capacity: PAGE,
        ..block_offer()
    });
    let run = EarlierRun {
        same_boot: true,
        wall_clock_trusted: true,
    };
    let mut after = restart_into(&before, smaller, before.now, run);
    assert_eq!(after.bind_order().binding_id.lease_id, first.lease_id);
    assert_eq!(after.phase(lost.lease_id), LeasePhase::Revoked);
    let noted = |note: &Note| matches!(note, Note::Displaced { lease_id, .. } if *lease_id == lost.lease_id);
    assert!(after.notes.iter().any(noted), "{:?}", after.notes);
    assert_eq!(holders(&after).len(), 1);
    assert_eq!(records(&after)[&lost.lease_id].placement, None);
}

/// An address or a disk is not ready yet after a boot, and no client waits that would ask again.
#[test]
fn what_is_not_ready_after_a_reboot_is_tried_again_until_it_is() {
    let mut before = world();
    let binding_id = before.granted_for(blocks(3_600, 0));
    let mut after = reboot(&before, 5, true);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let order = after.bind_order();
        assert!(order.adopts, "what is there is its own");
        after.report(Report::Bind(
            order.binding_id,
            Err(BindError::Failed(failed("publish"))),
        ));
        assert_eq!(after.query(binding_id.lease_id).phase, LeasePhase::Active);
        let due = after.table.next_deadline().unwrap();
        pauses.push(after.now.boot.until(due).as_secs());
        after.pass_ms(1_000 * pauses.last().unwrap());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    let order = after.bind_order();
    let binding = block_binding_over(NvmeTcp, 7);
    after.report(Report::Bind(order.binding_id, Ok(binding.clone())));
    assert_eq!(after.query(binding_id.lease_id).binding, binding);
    let expires = after.table.next_deadline().unwrap();
    assert!(
        after.now.boot.until(expires).as_secs() > 3_000,
        "nothing more is tried"
    );
}

#[test]
fn what_is_refused_after_a_reboot_is_not_tried_again() {
    let mut before = world();
    before.granted_for(blocks(3_600, 0));
    let mut after = reboot(&before, 5, true);
    let binding_id = after.bind_order().binding_id;
    after.report(Report::Bind(
        binding_id,
        Err(BindError::Refused(failed("no such transport"))),
    ));
    let due = after.table.next_deadline().unwrap();
    assert!(after.now.boot.until(due).as_secs() > 3_000);
}
