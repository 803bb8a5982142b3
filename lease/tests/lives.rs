//! Lives of leases, told from outside: what is asked and reported, and what must follow.

mod support;

use std::time::Duration;

use fabricbios_lease::*;
use fabricbios_wire::*;
use support::*;

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
    assert_eq!(order.peer, Some(peer()));
    world.pass_ms(700);
    world.report(Report::Bind(order.tag, Ok(binding(7))));
    let info = world.lease(ticket);
    assert_eq!(info.remaining_ms, 10_000, "the term starts with the grant");
    assert_eq!(info.binding.rdma.as_ref().unwrap().rkey, Some(7));
    assert_eq!(info.capacity, 2 * PAGE, "rounded up to whole pages");
    assert!(matches!(world.journal[..], [Change::PutLease(_)]));
}

#[test]
fn access_ends_at_the_deadline_to_the_nanosecond_and_is_told_after_the_proof() {
    let mut world = World::new();
    let tag = world.granted(1, 10, 0);
    let deadline = world.table.next_deadline().unwrap();
    world.pass(world.now.boot.until(deadline) - Duration::from_nanos(1));
    assert_eq!(world.orders, []);
    world.pass(Duration::from_nanos(1));
    assert_eq!(world.cut_order(), tag);
    let still = world.query(tag.lease_id);
    assert_eq!(
        (still.status, still.remaining_ms),
        (LeaseStatus::Active, 0),
        "cut, then tell"
    );
    assert_eq!(
        still.binding,
        Binding::default(),
        "no key is told after the deadline"
    );
    world.cut_ok(tag);
    let over = world.query(tag.lease_id);
    assert_eq!(
        (over.status, over.phase),
        (LeaseStatus::Expired, LeasePhase::Expired)
    );
    world.released();
    assert_eq!(world.query(tag.lease_id).status, LeaseStatus::Expired);
    assert_eq!(world.available(), 16 * PAGE);
}

#[test]
fn the_bytes_stay_taken_until_they_are_scrubbed() {
    let mut world = World::new();
    let tag = world.granted(16, 10, 0);
    let freed = world.ask(Request::LeaseFree(tag.lease_id));
    assert!(world.answer(freed).is_none(), "not before the proof");
    let cut = world.cut_order();
    world.cut_ok(cut);
    assert_eq!(world.lease(freed).phase, LeasePhase::Freed);
    let early = world.ask(alloc(PAGE, 10, 0));
    assert_eq!(world.refusal(early).error, LeaseError::CapacityExceeded);
    assert_eq!(world.refusal(early).class, RefusalClass::Transient);
    world.released();
    world.granted(16, 10, 0);
}

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
    let tag = world.granted(1, 10, 5);
    world.pass_ms(10_000);
    let cut = world.cut_order();
    world.cut_ok(cut);
    assert_eq!(world.orders, [], "nothing is scrubbed in grace");
    let info = world.query(tag.lease_id);
    assert_eq!(
        (info.status, info.phase),
        (LeaseStatus::Expired, LeasePhase::Grace)
    );
    assert_eq!(info.grace_ends_unix_ms, info.expires_at_unix_ms + 5_000);
    assert_eq!(info.binding, Binding::default());
    let renewed = world.ask(Request::LeaseRenew {
        lease_id: tag.lease_id,
        lease_secs: 20,
    });
    let order = world.bind_order();
    assert_eq!(order.tag.generation, tag.generation.next());
    world.report(Report::Bind(order.tag, Ok(binding(8))));
    assert_eq!(world.lease(renewed).phase, LeasePhase::Active);
    assert_eq!(
        world.lease(renewed).binding.rdma.as_ref().unwrap().rkey,
        Some(8)
    );
}

#[test]
fn after_grace_the_bytes_are_released() {
    let mut world = World::new();
    let tag = world.granted(1, 10, 5);
    world.pass_ms(10_000);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.pass_ms(4_999);
    assert_eq!(world.orders, []);
    world.pass_ms(1);
    world.released();
    assert_eq!(world.query(tag.lease_id).phase, LeasePhase::Expired);
}

#[test]
fn a_cut_that_fails_or_takes_too_long_fences_and_nothing_new_is_granted() {
    for late in [false, true] {
        let mut world = World::new();
        let tag = world.granted(1, 10, 0);
        let freed = world.ask(Request::LeaseFree(tag.lease_id));
        let cut = world.cut_order();
        if late {
            world.pass_ms(1_000);
            world.cut_ok(cut);
        } else {
            world.report(Report::Cut(cut, Err(failed("destroy_qp"))));
        }
        assert_eq!(world.refusal(freed).error, LeaseError::Fenced);
        assert_eq!(world.query(tag.lease_id).phase, LeasePhase::Fenced);
        let refused = world.ask(alloc(PAGE, 10, 0));
        assert_eq!(world.refusal(refused).error, LeaseError::Fenced);
        assert_eq!(world.available(), 0);
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

#[test]
fn only_a_verified_remediation_by_an_operator_clears_a_failed_cut() {
    let mut world = World::new();
    let tag = world.granted(1, 10, 0);
    world.ask(Request::LeaseFree(tag.lease_id));
    let cut = world.cut_order();
    world.report(Report::Cut(cut, Err(failed("destroy_qp"))));
    let by_tenant = world.ask(Request::FenceClear(ARENA));
    assert_eq!(world.refusal(by_tenant).error, LeaseError::NotPermitted);
    let first = world.operator(Request::FenceClear(ARENA));
    let extent = Extent {
        offset: 0,
        length: PAGE,
    };
    assert_eq!(world.order(), Order::Reset(ARENA, vec![(tag, extent)]));
    world.report(Report::Reset(ARENA, Err(failed("restrack"))));
    assert_eq!(world.refusal(first).error, LeaseError::Fenced);
    let second = world.operator(Request::FenceClear(ARENA));
    world.orders.clear();
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(world.answer(second), Some(&Ok(Reply::FenceCleared)));
    assert_eq!(world.available(), 16 * PAGE);
    assert_eq!(
        world.query(tag.lease_id).phase,
        LeasePhase::Fenced,
        "its record says what it was"
    );
}

#[test]
fn a_release_that_stalls_fences_and_its_late_success_clears() {
    let mut world = World::new();
    let tag = world.granted(1, 10, 0);
    world.ask(Request::LeaseFree(tag.lease_id));
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
    world.report(Report::Release(release, Ok(())));
    assert_eq!(world.table.fences(), []);
    assert_eq!(world.available(), 16 * PAGE);
}

#[test]
fn revoke_takes_an_operator_and_waits_for_the_proof() {
    let mut world = World::new();
    let tag = world.granted(1, 10, 60);
    let by_tenant = world.ask(Request::LeaseRevoke(tag.lease_id));
    assert_eq!(world.refusal(by_tenant).error, LeaseError::NotPermitted);
    let revoked = world.operator(Request::LeaseRevoke(tag.lease_id));
    assert!(world.answer(revoked).is_none());
    let cut = world.cut_order();
    world.cut_ok(cut);
    assert_eq!(
        world.answer(revoked),
        Some(&Ok(Reply::Revoked(RevokeOutcome::TornDown)))
    );
    world.released();
    assert_eq!(
        world.query(tag.lease_id).status,
        LeaseStatus::Revoked,
        "grace is for expiry only"
    );
    let unknown = world.operator(Request::LeaseRevoke(LeaseId(999)));
    assert_eq!(
        world.answer(unknown),
        Some(&Ok(Reply::Revoked(RevokeOutcome::NotFound)))
    );
}

#[test]
fn another_tenants_lease_and_no_lease_look_the_same() {
    let mut world = World::new();
    let id = world.granted(1, 10, 0).lease_id;
    let requests = |id| {
        [
            Request::LeaseQuery(id),
            Request::LeaseFree(id),
            Request::LeaseRenew {
                lease_id: id,
                lease_secs: 0,
            },
            Request::LeaseBind {
                lease_id: id,
                peer: peer(),
            },
            Request::LeaseRotate {
                lease_id: id,
                overlap_ms: 0,
            },
        ]
    };
    for (theirs, nobodys) in requests(id).into_iter().zip(requests(LeaseId(999))) {
        let theirs = world.ask_as("mallory", Role::Tenant, theirs);
        let nobodys = world.ask_as("mallory", Role::Tenant, nobodys);
        let shape = |ticket| (world.refusal(ticket).error, world.refusal(ticket).class);
        assert_eq!(shape(theirs), shape(nobodys));
        assert_eq!(world.refusal(theirs).error, LeaseError::NotFound);
    }
    assert_eq!(world.orders, []);
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
fn an_operator_sees_every_lease_but_no_key() {
    let mut world = World::new();
    let id = world.granted(1, 10, 0).lease_id;
    let ticket = world.operator(Request::LeaseQuery(id));
    assert_eq!(world.lease(ticket).binding, Binding::default());
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
fn pages_of_a_list_follow_one_another_without_gap_or_repetition() {
    let mut world = World::new();
    world
        .table
        .offer(ResourceType::Mem, offer(ResourceId(0xb), 400 * PAGE));
    let mut ids: Vec<_> = (0..300).map(|_| world.granted(1, 10, 0).lease_id).collect();
    ids.sort();
    let mut seen = Vec::new();
    let mut after = LeaseId(0);
    loop {
        let ticket = world.ask(Request::LeaseList {
            after,
            ended: false,
        });
        let Some(Ok(Reply::Leases(page))) = world.answer(ticket) else {
            panic!()
        };
        seen.extend(page.leases.iter().map(|info| info.lease_id));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(seen, ids);
}

#[test]
fn rotation_without_overlap_is_told_when_the_old_key_is_dead() {
    let mut world = World::new();
    let tag = world.granted(1, 10, 0);
    let ticket = world.ask(Request::LeaseRotate {
        lease_id: tag.lease_id,
        overlap_ms: 0,
    });
    assert_eq!(world.order(), Order::Rotate(tag));
    world.report(Report::Rotate(tag, Ok(rotated(8, 7))));
    assert!(world.answer(ticket).is_none());
    assert_eq!(world.order(), Order::RetireKey(tag));
    world.report(Report::RetireKey(tag, Ok(binding(8))));
    let rdma = world.lease(ticket).binding.rdma.clone().unwrap();
    assert_eq!((rdma.rkey, rdma.previous), (Some(8), None));
}

#[test]
fn rotation_with_overlap_announces_it_and_ends_it_on_time() {
    let mut world = World::new();
    let tag = world.granted(1, 10, 0);
    let ticket = world.ask(Request::LeaseRotate {
        lease_id: tag.lease_id,
        overlap_ms: 500,
    });
    world.orders.clear();
    world.report(Report::Rotate(tag, Ok(rotated(8, 7))));
    let rdma = world.lease(ticket).binding.rdma.clone().unwrap();
    assert_eq!(
        rdma.previous,
        Some(PreviousKey {
            rkey: 7,
            remaining_ms: 500
        })
    );
    let again = world.ask(Request::LeaseRotate {
        lease_id: tag.lease_id,
        overlap_ms: 0,
    });
    assert_eq!(world.refusal(again).error, LeaseError::ResourceBusy);
    world.pass_ms(499);
    assert_eq!(world.orders, []);
    world.pass_ms(1);
    assert_eq!(world.order(), Order::RetireKey(tag));
    world.report(Report::RetireKey(tag, Ok(binding(8))));
    assert_eq!(
        world.query(tag.lease_id).binding.rdma.unwrap().previous,
        None
    );
}

#[test]
fn a_key_that_does_not_die_takes_the_lease_with_it() {
    for silent in [false, true] {
        let mut world = World::new();
        let tag = world.granted(1, 10, 0);
        let ticket = world.ask(Request::LeaseRotate {
            lease_id: tag.lease_id,
            overlap_ms: 0,
        });
        world.orders.clear();
        world.report(Report::Rotate(tag, Ok(rotated(8, 7))));
        world.orders.clear();
        if silent {
            world.pass_ms(1_000);
        } else {
            world.report(Report::RetireKey(tag, Err(failed("dealloc_mw"))));
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
    let tag = world.bind_order().tag;
    world.report(Report::Bind(tag, Ok(binding(7))));
    assert!(world.lease(ticket).effective.rotate_on_renew, "echoed");
    world.pass_ms(9_000);
    let renewed = world.ask(Request::LeaseRenew {
        lease_id: tag.lease_id,
        lease_secs: 0,
    });
    assert_eq!(world.order(), Order::Rotate(tag));
    world.report(Report::Rotate(tag, Ok(rotated(8, 7))));
    let info = world.lease(renewed);
    assert_eq!(info.remaining_ms, 10_000);
    assert_eq!(
        info.binding.rdma.as_ref().unwrap().previous.unwrap().rkey,
        7
    );
}

#[test]
fn a_short_lease_that_rotates_can_be_renewed_again_and_again() {
    let mut world = World::new();
    let mut wanted = request(PAGE, 2, 0);
    wanted.rotate_on_renew = true;
    world.ask(Request::LeaseAlloc(wanted));
    let tag = world.bind_order().tag;
    world.report(Report::Bind(tag, Ok(binding(7))));
    for _ in 0..3 {
        world.pass_ms(1_700);
        world.orders.clear();
        world.report(Report::RetireKey(tag, Ok(binding(8))));
        let renewed = world.ask(Request::LeaseRenew {
            lease_id: tag.lease_id,
            lease_secs: 0,
        });
        world.report(Report::Rotate(tag, Ok(rotated(8, 7))));
        assert_eq!(world.lease(renewed).remaining_ms, 2_000);
    }
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
fn a_bind_that_strands_something_fences() {
    let mut world = World::new();
    let ticket = world.ask(alloc(PAGE, 10, 0));
    let tag = world.bind_order().tag;
    world.report(Report::Bind(
        tag,
        Err(BindError::Stranded(failed("destroy_qp"))),
    ));
    assert_eq!(world.refusal(ticket).error, LeaseError::Fenced);
    assert_eq!(world.table.fences().len(), 1);
    assert_eq!(
        world.order(),
        Order::Cut(tag, Farewell::None),
        "what can be taken away is"
    );
    world.cut_ok(tag);
    assert_eq!(world.table.fences().len(), 1, "and that clears nothing");
}

#[test]
fn a_second_bind_re_arms_and_a_failed_one_leaves_the_lease_without_access() {
    let mut world = World::new();
    let tag = world.granted(1, 10, 0);
    let ticket = world.ask(Request::LeaseBind {
        lease_id: tag.lease_id,
        peer: peer(),
    });
    let order = world.bind_order();
    assert_eq!(order.tag.generation, tag.generation.next());
    let busy = world.ask(Request::LeaseBind {
        lease_id: tag.lease_id,
        peer: peer(),
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
        peer: peer(),
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
        peer: peer(),
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
    assert_eq!(world.refusal(ticket).error, LeaseError::Internal);
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
        peer: peer(),
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

#[test]
fn one_tenant_has_so_many_binds_on_their_way_and_no_more() {
    let policy = Policy {
        tenant_binds_max: 2,
        ..Policy::default()
    };
    let mut world = World::with_policy(policy);
    world.ask(alloc(PAGE, 10, 0));
    world.ask(alloc(PAGE, 10, 0));
    let third = world.ask(alloc(PAGE, 10, 0));
    assert_eq!(world.refusal(third).error, LeaseError::ResourceBusy);
    assert_eq!(world.refusal(third).class, RefusalClass::Transient);
    world.ask_as("bob", Role::Tenant, alloc(PAGE, 10, 0));
    assert_eq!(world.orders.len(), 3, "another tenant is not concerned");
    let Order::Bind(first) = world.orders.remove(0) else {
        panic!()
    };
    world.report(Report::Bind(first.tag, Ok(binding(7))));
    world.ask(alloc(PAGE, 10, 0));
    assert_eq!(world.orders.len(), 3);
}

#[test]
fn one_tenants_records_do_not_fill_the_table_for_others() {
    let policy = Policy {
        tenant_records_max: 1,
        ..Policy::default()
    };
    let mut world = World::with_policy(policy);
    let tag = world.granted(1, 10, 0);
    let more = world.ask(alloc(PAGE, 10, 0));
    assert_eq!(world.refusal(more).error, LeaseError::Unavailable);
    world.ask(Request::LeaseFree(tag.lease_id));
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.released();
    let ended_ones_count = world.ask(alloc(PAGE, 10, 0));
    assert_eq!(
        world.refusal(ended_ones_count).error,
        LeaseError::Unavailable
    );
    world.ask_as("bob", Role::Tenant, alloc(PAGE, 10, 0));
    world.bind_order();
}

#[test]
fn a_peer_that_is_nobody_changes_nothing() {
    let mut world = World::new();
    let tag = world.granted(1, 10, 0);
    let before = world.query(tag.lease_id);
    for gid in [
        "::",
        "::1",
        "ff02::1",
        "::ffff:224.0.0.1",
        "::ffff:255.255.255.255",
    ] {
        let gid = gid.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let peer = RdmaPeer { gid, ..peer() };
        let ticket = world.ask(Request::LeaseBind {
            lease_id: tag.lease_id,
            peer,
        });
        assert_eq!(world.refusal(ticket).error, LeaseError::InvalidArgs);
        let mut wanted = request(PAGE, 10, 0);
        wanted.rdma_peer = Some(peer);
        let ticket = world.ask(Request::LeaseAlloc(wanted));
        assert_eq!(world.refusal(ticket).error, LeaseError::InvalidArgs);
    }
    assert_eq!((world.query(tag.lease_id), world.orders.len()), (before, 0));
}

#[test]
fn only_a_client_that_did_not_ask_gets_a_farewell_and_only_while_there_is_time() {
    let policy = Policy {
        tenant_binds_max: 1000,
        ..Policy::default()
    };
    let mut world = World::with_policy(policy);
    world
        .table
        .offer(ResourceType::Mem, offer(ResourceId(0xb), 400 * PAGE));
    let freed = world.granted(1, 10, 0);
    world.ask(Request::LeaseFree(freed.lease_id));
    assert_eq!(world.order(), Order::Cut(freed, Farewell::None));
    world.cut_ok(freed);
    world.released();
    for _ in 0..100 {
        world.granted(1, 10, 0);
    }
    world.pass_ms(10_000);
    let brief = |order: &&Order| matches!(order, Order::Cut(_, Farewell::Brief));
    assert_eq!(world.orders.len(), 100);
    assert_eq!(world.orders.iter().filter(brief).count(), 32);
}

#[test]
fn reports_about_what_is_over_change_nothing() {
    let mut world = World::new();
    let tag = world.granted(1, 10, 0);
    let before = world.query(tag.lease_id);
    let old = Tag {
        generation: Generation(0),
        ..tag
    };
    let unknown = Tag {
        lease_id: LeaseId(77),
        ..tag
    };
    for tag in [old, unknown] {
        world.report(Report::Cut(tag, Err(failed("x"))));
        world.report(Report::Release(tag, Ok(())));
        world.report(Report::Bind(tag, Err(BindError::Stranded(failed("x")))));
    }
    world.report(Report::Cut(tag, Ok("not asked for".into())));
    world.report(Report::Release(tag, Ok(())));
    assert_eq!(world.query(tag.lease_id), before);
    assert_eq!((world.orders.len(), world.table.fences().len()), (0, 0));
}

#[test]
fn ended_leases_are_told_for_as_long_as_promised() {
    let mut world = World::new();
    let tag = world.granted(1, 10, 0);
    world.ask(Request::LeaseFree(tag.lease_id));
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.released();
    world.pass(Duration::from_secs(600));
    assert_eq!(world.query(tag.lease_id).phase, LeasePhase::Freed);
    let again = world.ask(Request::LeaseFree(tag.lease_id));
    assert_eq!(
        world.lease(again).phase,
        LeasePhase::Freed,
        "freeing twice is no error"
    );
    let forgotten_at = world.table.next_deadline().unwrap();
    world.pass(world.now.boot.until(forgotten_at));
    let gone = world.ask(Request::LeaseQuery(tag.lease_id));
    assert_eq!(world.refusal(gone).error, LeaseError::NotFound);
    assert_eq!(world.table.next_deadline(), None);
    assert!(world.journal.contains(&Change::RemoveLease(tag.lease_id)));
}

#[test]
fn what_lived_when_the_process_died_is_revoked_afterwards() {
    let mut before = World::new();
    let alive = before.granted(1, 10, 0);
    let over = before.granted(1, 10, 0);
    before.ask(Request::LeaseFree(over.lease_id));
    let cut = before.cut_order();
    before.cut_ok(cut);
    let mut after = World::new();
    let mut known = std::collections::BTreeMap::new();
    for change in &before.journal {
        if let Change::PutLease(record) = change {
            known.insert(record.lease_id, record.clone());
        }
    }
    for record in known.into_values() {
        after.table.restore_lease(after.now, record);
    }
    after.drain();
    assert_eq!(after.query(alive.lease_id).status, LeaseStatus::Revoked);
    assert_eq!(after.query(over.lease_id).phase, LeasePhase::Freed);
    assert_eq!(after.journal.len(), 1, "only what changed is written again");
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

#[test]
fn a_drain_takes_everything_back() {
    let mut world = World::new();
    let ids: Vec<_> = (0..3).map(|_| world.granted(1, 100, 50).lease_id).collect();
    world.table.on_drain(world.now);
    world.drain();
    for order in std::mem::take(&mut world.orders) {
        let Order::Cut(tag, _) = order else {
            panic!("{order:?}")
        };
        world.cut_ok(tag);
    }
    for order in std::mem::take(&mut world.orders) {
        let Order::Release(tag, _) = order else {
            panic!("{order:?}")
        };
        world.report(Report::Release(tag, Ok(())));
    }
    assert!(world.table.census().is_empty());
    for id in ids {
        assert_eq!(world.query(id).status, LeaseStatus::Revoked);
    }
}

mod refusals {
    use super::*;

    fn refused(change: impl FnOnce(&mut LeaseAllocRequest)) -> (LeaseError, RefusalClass) {
        let policy = Policy {
            detected: vec![ResourceType::Gpu],
            ..Policy::default()
        };
        let mut world = World::with_policy(policy);
        let mut wanted = request(PAGE, 10, 0);
        change(&mut wanted);
        let ticket = world.ask(Request::LeaseAlloc(wanted));
        assert_eq!(
            (world.orders.len(), world.available()),
            (0, 16 * PAGE),
            "nothing changes"
        );
        let refusal = world.refusal(ticket);
        assert!(!refusal.message.is_empty());
        (refusal.error, refusal.class)
    }

    #[test]
    fn each_has_its_code_and_class() {
        use LeaseError::*;
        use RefusalClass::*;
        assert_eq!(refused(|r| r.capacity = 0), (InvalidArgs, Permanent));
        assert_eq!(
            refused(|r| r.capacity = 17 * PAGE),
            (CapacityExceeded, Permanent)
        );
        assert_eq!(
            refused(|r| r.capacity = u64::MAX),
            (CapacityExceeded, Permanent)
        );
        assert_eq!(refused(|r| r.lease_secs = 0), (InvalidArgs, Permanent));
        assert_eq!(refused(|r| r.lease_secs = 3601), (InvalidArgs, Policy));
        assert_eq!(refused(|r| r.grace_secs = 3601), (InvalidArgs, Policy));
        assert_eq!(
            refused(|r| r.resource_id = Some(ResourceId(9))),
            (NotFound, Permanent)
        );
        assert_eq!(
            refused(|r| r.transport = Transport::Udp),
            (InvalidArgs, Permanent)
        );
        assert_eq!(
            refused(|r| r.resource_type = ResourceType::Gpu),
            (InvalidArgs, Policy)
        );
        assert_eq!(
            refused(|r| r.resource_type = ResourceType::Cpu),
            (InvalidArgs, Permanent)
        );
        assert_eq!(
            refused(|r| r.resource_type = ResourceType::Vendor),
            (InvalidArgs, Permanent)
        );
        let unknown = |r: &mut LeaseAllocRequest| r.resource_type = ResourceType::Unknown(0x1234);
        assert_eq!(refused(unknown), (InvalidArgs, Permanent));
        let cpu = |r: &mut LeaseAllocRequest| r.cpu_isolation = Some(CpuIsolationClass::BestEffort);
        assert_eq!(refused(cpu), (InvalidArgs, Permanent));
        let gpu = |r: &mut LeaseAllocRequest| r.gpu_exclusivity = Some(GpuExclusivityClass::Shared);
        assert_eq!(refused(gpu), (InvalidArgs, Permanent));
    }

    #[test]
    fn a_full_table_refuses_for_now() {
        let policy = Policy {
            records_max: 1,
            ..Policy::default()
        };
        let mut world = World::with_policy(policy);
        world.granted(1, 10, 0);
        let ticket = world.ask(alloc(PAGE, 10, 0));
        assert_eq!(world.refusal(ticket).error, LeaseError::Unavailable);
    }
}
