//! Permissions, records of ended leases, and requests about them.

use std::time::Duration;

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

#[test]
fn revoke_takes_an_operator_and_waits_for_the_proof() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 60);
    let by_tenant = world.ask(Request::LeaseRevoke(binding_id.lease_id));
    assert_eq!(world.refusal(by_tenant).error, LeaseError::NotPermitted);
    let revoked = world.operator(Request::LeaseRevoke(binding_id.lease_id));
    assert!(world.answer(revoked).is_none());
    let cut = world.cut_order();
    world.cut_ok(cut);
    assert_eq!(
        world.answer(revoked),
        Some(&Ok(Reply::Revoked(RevokeOutcome::TornDown)))
    );
    world.released();
    assert_eq!(
        world.query(binding_id.lease_id).status,
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
                peers: vec![peer()],
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

/// The names have the largest length, and the proofs would not all fit.
#[test]
fn a_page_of_ended_leases_fits_a_frame_and_has_no_proofs() {
    let mut world = World::new();
    let (tenant, operator) = ("t".repeat(TENANT_BYTES_MAX), "o".repeat(TENANT_BYTES_MAX));
    let mut proof = Proof::default();
    for _ in 0..PROOF_STEPS_MAX {
        proof.add("step", Duration::ZERO, "found");
    }
    for _ in 0..=LEASES_PER_PAGE_MAX {
        world.ask_as(&tenant, Role::Tenant, alloc(PAGE, 10, 0));
        let binding_id = world.bind_order().binding_id;
        world.report(Report::Bind(binding_id, Ok(binding(7))));
        let revoke = Request::LeaseRevoke(binding_id.lease_id);
        world.ask_as(&operator, Role::Operator, revoke);
        let cut = world.cut_order();
        world.report(Report::Cut(cut, Ok(proof.clone())));
        world.released();
    }
    let list = Request::LeaseList {
        after: LeaseId(0),
        ended: true,
    };
    let ticket = world.ask_as(&operator, Role::Operator, list);
    let answer = world.answer(ticket).unwrap();
    let Ok(Reply::Leases(page)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(page.leases.len(), LEASES_PER_PAGE_MAX);
    for info in &page.leases {
        let end = info.end.as_ref().unwrap();
        assert_eq!(info.tenant.as_ref(), Some(&tenant));
        assert_eq!((end.by.as_ref(), end.proof.len()), (Some(&operator), 0));
    }
    let asked = Header {
        msg_type: MessageType::LeaseList as u16,
        ..Header::default()
    };
    let frame = encode_answer(&asked, answer);
    assert_eq!(decode_answer(&asked, &frame).as_ref(), Ok(answer));
    let last = page.leases.last().unwrap().lease_id;
    let ticket = world.operator(Request::LeaseQuery(last));
    let proof = &world.lease(ticket).end.as_ref().unwrap().proof;
    assert_eq!(proof.len(), PROOF_STEPS_MAX, "to who asks for one lease");
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
    world.report(Report::Bind(first.binding_id, Ok(binding(7))));
    world.ask(alloc(PAGE, 10, 0));
    assert_eq!(world.orders.len(), 3);
}

#[test]
fn a_tenant_has_no_more_leases_and_no_more_of_a_kind_than_its_quota() {
    let policy = Policy {
        tenant_leases_max: 2,
        tenant_capacity_max: [(ResourceType::Mem, 3 * PAGE)].into(),
        ..Policy::default()
    };
    let mut world = World::with_policy(policy);
    let first = world.granted(2, 10, 0);
    let too_much = world.ask(alloc(2 * PAGE, 10, 0));
    let refusal = world.refusal(too_much).clone();
    assert_eq!(
        (refusal.error, refusal.class),
        (LeaseError::CapacityExceeded, RefusalClass::Policy)
    );
    world.granted(1, 10, 0);
    let third = world.ask(alloc(1, 10, 0));
    assert_eq!(world.refusal(third).class, RefusalClass::Policy);
    world.ask_as("bob", Role::Tenant, alloc(3 * PAGE, 10, 0));
    world.bind_order();
    // A freed lease does not count once it is clean.
    world.free(first.lease_id);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.released();
    world.granted(2, 10, 0);
}

#[test]
fn what_a_tenant_had_never_refuses_its_next_lease_and_the_oldest_records_give_way() {
    let policy = Policy {
        tenant_ended_max: 3,
        ended_max: 4,
        ..Policy::default()
    };
    let mut world = World::with_policy(policy);
    let mut end_one = |tenant: &str| {
        world.ask_as(tenant, Role::Tenant, alloc(PAGE, 10, 0));
        let binding_id = world.bind_order().binding_id;
        world.report(Report::Bind(binding_id, Ok(binding(7))));
        world.ask_as(
            tenant,
            Role::Tenant,
            Request::LeaseFree(binding_id.lease_id),
        );
        let cut = world.cut_order();
        world.cut_ok(cut);
        world.released();
        world.pass_ms(10);
        binding_id.lease_id
    };
    let his = end_one("bob");
    let hers: Vec<LeaseId> = (0..100).map(|_| end_one("alice")).collect();
    // Both tenants have three records then, one more than the limit of all: a record of the tenant with the most
    // records is dropped.
    end_one("carol");
    assert_eq!(world.table.records(), 4);
    let known = |world: &mut World, tenant: &str, id: LeaseId| {
        let ticket = world.ask_as(tenant, Role::Tenant, Request::LeaseQuery(id));
        world.answer(ticket).unwrap().is_ok()
    };
    assert!(known(&mut world, "bob", his));
    let newest = hers.iter().rev().take(2);
    assert!(newest.copied().all(|id| known(&mut world, "alice", id)));
    assert!(!known(&mut world, "alice", hers[97]));
    let forgotten = hers[..98].iter().all(|id| {
        let gone = Change::RemoveLease(*id);
        world.journal.contains(&gone)
    });
    assert!(forgotten, "the journal forgets too");
}

#[test]
fn who_asks_too_often_is_refused_for_a_moment_and_an_operator_never_is() {
    let policy = Policy {
        tenant_requests_per_sec: 5,
        ..Policy::default()
    };
    let mut world = World::with_policy(policy);
    let now = world.now;
    let mut ask = |tenant: &str, role| world.table.check_rate(now, &tenant.into(), role);
    let taken = (0..50)
        .filter(|_| ask("alice", Role::Tenant).is_ok())
        .count();
    assert_eq!(taken, 5);
    let refusal = ask("alice", Role::Tenant).unwrap_err();
    assert_eq!(refusal.class, RefusalClass::Transient);
    assert!(ask("bob", Role::Tenant).is_ok());
    assert!((0..50).all(|_| ask("root", Role::Operator).is_ok()));
}

#[test]
fn a_peer_that_is_nobody_changes_nothing() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    let before = world.query(binding_id.lease_id);
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
            lease_id: binding_id.lease_id,
            peers: vec![peer],
        });
        assert_eq!(world.refusal(ticket).error, LeaseError::InvalidArgs);
        let mut wanted = request(PAGE, 10, 0);
        wanted = wanted.with_terms(to_peers(vec![peer]));
        let ticket = world.ask(Request::LeaseAlloc(wanted));
        assert_eq!(world.refusal(ticket).error, LeaseError::InvalidArgs);
    }
    assert_eq!(
        (world.query(binding_id.lease_id), world.orders.len()),
        (before, 0)
    );
}

#[test]
fn reports_about_what_is_over_change_nothing() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    let before = world.query(binding_id.lease_id);
    let old = BindingId {
        generation: Generation(0),
        ..binding_id
    };
    let unknown = BindingId {
        lease_id: LeaseId(77),
        ..binding_id
    };
    for binding_id in [old, unknown] {
        world.report(Report::Cut(binding_id, Err(failed("x"))));
        world.report(Report::Release(binding_id, Ok(Proof::default())));
        world.report(Report::Bind(
            binding_id,
            Err(BindError::Stranded(failed("x"))),
        ));
    }
    world.report(Report::Cut(binding_id, Ok(Proof::default())));
    world.report(Report::Release(binding_id, Ok(Proof::default())));
    assert_eq!(world.query(binding_id.lease_id), before);
    assert_eq!((world.orders.len(), world.table.fences().len()), (0, 0));
}

#[test]
fn ended_leases_are_told_for_as_long_as_promised() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    world.ask(Request::LeaseFree(binding_id.lease_id));
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.released();
    world.pass(Duration::from_secs(600));
    assert_eq!(world.query(binding_id.lease_id).phase, LeasePhase::Freed);
    let again = world.ask(Request::LeaseFree(binding_id.lease_id));
    assert_eq!(
        world.lease(again).phase,
        LeasePhase::Freed,
        "freeing twice is no error"
    );
    let forgotten_at = world.table.next_deadline().unwrap();
    world.pass(world.now.boot.until(forgotten_at));
    let gone = world.ask(Request::LeaseQuery(binding_id.lease_id));
    assert_eq!(world.refusal(gone).error, LeaseError::NotFound);
    assert_eq!(world.table.next_deadline(), None);
    assert!(
        world
            .journal
            .contains(&Change::RemoveLease(binding_id.lease_id))
    );
}

#[test]
fn a_drain_takes_everything_back() {
    let mut world = World::new();
    let ids: Vec<_> = (0..3).map(|_| world.granted(1, 100, 50).lease_id).collect();
    world.table.on_drain(world.now);
    world.drain();
    for order in std::mem::take(&mut world.orders) {
        let Order::Cut(binding_id, _) = order else {
            panic!("{order:?}")
        };
        world.cut_ok(binding_id);
    }
    for order in std::mem::take(&mut world.orders) {
        let Order::Release(binding_id, _) = order else {
            panic!("{order:?}")
        };
        world.report(Report::Release(binding_id, Ok(Proof::default())));
    }
    assert!(world.table.census().is_empty());
    for id in ids {
        assert_eq!(world.query(id).status, LeaseStatus::Revoked);
    }
}
