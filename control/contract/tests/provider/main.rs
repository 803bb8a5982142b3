//! Checks which calls a provider makes to the store and the paths of a lease, their order, and what remains when a call
//! fails. The store and the paths are fakes that remember what they hold. The real ones have tests of their own, also
//! in the lab.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod world;

use std::{
    cell::Cell,
    collections::BTreeSet,
    mem::discriminant,
    sync::{Arc, Mutex},
    thread,
};

use fabricbios_contract::{Removal, stray_binding_id};
use fabricbios_lease::{
    BindError, BindOrder, BindingId, BootTime, Extent, Linger, Order, StepError,
};
use fabricbios_wire::{LeaseId, MemTerms, PeerChange, Transport};

use world::{EXTENT, POOL, World, binding_id, order};

fn error() -> StepError {
    StepError::new("step", "on purpose")
}

#[test]
fn a_lease_is_bound_over_the_paths_it_asked_for() {
    for (transport, asked) in [
        (Transport::Rdma, &["open", "rdma bind"][..]),
        (Transport::Udp, &["open", "udp bind"]),
        (Transport::Both, &["open", "rdma bind", "udp bind"]),
    ] {
        let world = World::new();
        let binding = world.provider.bind(&order(1, transport)).unwrap();
        assert_eq!(world.asked(), asked);
        assert_eq!(binding.rdma().is_some(), transport != Transport::Udp);
        assert_eq!(binding.dp_key.is_some(), transport != Transport::Rdma);
        assert!(binding.limits.is_some());
    }
}

#[test]
fn a_life_over_both_paths_leaves_nothing() {
    let world = World::bound();
    let proof = world.provider.cut(binding_id(1), Linger::None).unwrap();
    let steps: Vec<&str> = proof.steps().iter().map(|it| &*it.step).collect();
    assert_eq!(steps, ["udp", "rdma"]);
    world
        .provider
        .release(binding_id(1), EXTENT, &|| ())
        .unwrap();
    assert!(world.is_empty());
}

#[test]
fn behind_the_order_to_release_a_lease_neither_store_nor_path_gets_one_for_it() {
    let world = World::bound();
    let release = || world.provider.release(binding_id(1), EXTENT, &|| ());
    let nothing_is_made = || {
        world.asked();
        let late = order(2, Transport::Both);
        world.provider.prepare(&late, &|| ()).unwrap();
        let bound = world.provider.bind(&late);
        assert!(matches!(bound, Err(BindError::Cancelled)), "{bound:?}");
        assert_eq!(world.asked(), [""; 0]);
    };
    world.provider.cut(binding_id(1), Linger::None).unwrap();
    world.fail("release", BindError::Failed(error()));
    release().unwrap_err();
    nothing_is_made();
    world.works();
    let (began, let_on) = world.hold("release");
    thread::scope(|scope| {
        let released = scope.spawn(|| world.provider.release(binding_id(1), EXTENT, &|| ()));
        began.recv().unwrap();
        let waiting = scope.spawn(|| world.provider.bind(&order(2, Transport::Both)));
        let_on.send(()).unwrap();
        released.join().unwrap().unwrap();
        let waited = waiting.join().unwrap();
        assert!(matches!(waited, Err(BindError::Cancelled)), "{waited:?}");
    });
    nothing_is_made();
    assert_eq!(release().unwrap().steps(), [], "it was cleaned twice");
    assert_eq!(world.asked(), [""; 0]);
    assert!(world.is_empty());
}

#[test]
fn a_transport_that_nobody_serves_is_refused() {
    let world = World::new();
    let refused = world.provider.bind(&order(1, Transport::NvmeTcp));
    assert!(matches!(refused, Err(BindError::Refused(_))), "{refused:?}");
    assert!(world.is_empty());
}

#[test]
fn a_first_binding_that_fails_leaves_nothing() {
    let world = World::new();
    world.fail("rdma bind", BindError::Refused(error()));
    let Err(BindError::Refused(why)) = world.provider.bind(&order(1, Transport::Both)) else {
        panic!("not refused")
    };
    assert!(why.step.path() == Some("RDMA"), "{why}");
    assert_eq!(world.asked(), ["open", "rdma bind", "forget"]);

    let world = World::new();
    world.fail("udp bind", BindError::Failed(error()));
    let Err(BindError::Failed(why)) = world.provider.bind(&order(1, Transport::Both)) else {
        panic!("not failed")
    };
    assert!(why.step.path() == Some("UDP"), "{why}");
    // A client may have used the binding over the first path.
    let undone = ["rdma revoke", "rdma verify", "rdma remove", "release"];
    assert_eq!(world.asked()[3..], undone);
    assert!(world.is_empty());
}

#[test]
fn what_a_failed_binding_leaves_is_said_and_the_next_lease_is_not_in_its_way() {
    for (step, transport) in [
        ("open", Transport::Both),
        ("rdma bind", Transport::Rdma),
        ("udp bind", Transport::Both),
        ("udp bind", Transport::Udp),
    ] {
        let world = World::new();
        world.fail(step, BindError::Failed(error()));
        let failed = world.provider.bind(&order(1, transport)).unwrap_err();
        assert!(matches!(failed, BindError::Failed(_)), "{step}: {failed:?}");
        assert!(world.is_empty(), "{step} left something");
        world.works();
        world.provider.bind(&order(1, transport)).unwrap();
    }
    let world = World::new();
    world.fail("rdma bind", BindError::Failed(error()));
    world.fail("forget", BindError::Failed(error()));
    let stranded = world.provider.bind(&order(1, Transport::Rdma));
    assert!(
        matches!(stranded, Err(BindError::Stranded(_))),
        "{stranded:?}"
    );
}

#[test]
fn a_later_binding_whose_peer_cannot_be_reached_leaves_both_paths_as_they_were() {
    for failure in [
        BindError::Refused(error()),
        BindError::Failed(error()),
        BindError::Cancelled,
    ] {
        let world = World::bound();
        world.fail("rdma bind", failure.clone());
        let outcome = world.provider.bind(&order(2, Transport::Both)).unwrap_err();
        assert_eq!(discriminant(&outcome), discriminant(&failure));
        assert_eq!(world.asked(), ["open", "rdma bind"]);
        world.provider.rotate(binding_id(2)).unwrap();
        assert_eq!(world.asked(), ["rdma rotate", "udp rotate"]);
    }
}

#[test]
fn a_later_binding_that_fails_after_the_one_before_was_cut_is_closed_and_its_part_stays() {
    let world = World::bound();
    world.fail("rdma bind", BindError::Lost(error()));
    let outcome = world.provider.bind(&order(2, Transport::Both));
    assert!(matches!(outcome, Err(BindError::Lost(_))), "{outcome:?}");
    assert!(!world.has_access(), "{:?}", world.asked());

    let world = World::bound();
    world.fail("udp bind", BindError::Failed(error()));
    let outcome = world.provider.bind(&order(2, Transport::Both));
    assert!(matches!(outcome, Err(BindError::Lost(_))), "{outcome:?}");
    assert!(!world.has_access());
    let asked = world.asked();
    assert!(!asked.iter().any(|it| it == "forget" || it == "release"));
}

#[test]
fn what_cannot_be_closed_again_is_stranded() {
    for (bind, revoke) in [
        ("udp bind", "rdma revoke"),
        ("udp bind", "udp revoke"),
        ("rdma bind", "udp revoke"),
    ] {
        let world = World::bound();
        world.fail(bind, BindError::Lost(error()));
        world.fail(revoke, BindError::Failed(error()));
        let outcome = world.provider.bind(&order(2, Transport::Both));
        assert!(
            matches!(outcome, Err(BindError::Stranded(_))),
            "{outcome:?}"
        );
    }
}

#[test]
fn stranded_and_cancelled_stay_what_they_are() {
    for failure in [BindError::Stranded(error()), BindError::Cancelled] {
        for step in ["rdma bind", "udp bind"] {
            let world = World::bound();
            world.fail(step, failure.clone());
            let outcome = world.provider.bind(&order(2, Transport::Both)).unwrap_err();
            assert_eq!(discriminant(&outcome), discriminant(&failure));
        }
    }
}

#[test]
fn a_deadline_and_a_fence_are_told_to_the_paths_that_the_lease_has() {
    let world = World::bound();
    world.provider.extend(binding_id(1), BootTime(1)).unwrap();
    world.provider.fenced(binding_id(1));
    let asked = ["rdma extend", "udp extend", "rdma fenced", "udp fenced"];
    assert_eq!(world.asked(), asked);
    let world = World::new();
    world.provider.bind(&order(1, Transport::Udp)).unwrap();
    world.asked();
    world.provider.extend(binding_id(1), BootTime(1)).unwrap();
    world.provider.cut(binding_id(1), Linger::None).unwrap();
    assert_eq!(world.asked(), ["udp extend", "udp revoke", "udp verify"]);
}

#[test]
fn keys_change_on_the_paths_that_have_one() {
    for (transport, asked) in [
        (Transport::Rdma, &["rdma rotate", "rdma retire"][..]),
        (Transport::Udp, &["udp rotate", "udp retire"]),
        (
            Transport::Both,
            &["rdma rotate", "udp rotate", "udp retire", "rdma retire"],
        ),
    ] {
        let world = World::new();
        let bound = world.provider.bind(&order(1, transport)).unwrap();
        world.asked();
        assert_eq!(world.provider.rotate(binding_id(1)).unwrap(), bound);
        assert_eq!(world.provider.retire_key(binding_id(1)).unwrap(), bound);
        assert_eq!(world.asked(), asked);
    }
}

#[test]
fn a_queue_pair_that_waits_for_its_client_survives_a_new_udp_key() {
    let world = World::new();
    let waiting = BindOrder {
        terms: MemTerms::default().into(),
        ..order(1, Transport::Both)
    };
    let bound = world.provider.bind(&waiting).unwrap();
    world.asked();
    assert_eq!(world.provider.rotate(binding_id(1)).unwrap(), bound);
    assert_eq!(world.provider.retire_key(binding_id(1)).unwrap(), bound);
    assert_eq!(world.asked(), ["udp rotate", "udp retire"]);
    let waiting = BindOrder {
        transport: Transport::Rdma,
        ..waiting
    };
    let world = World::new();
    world.provider.bind(&waiting).unwrap();
    let refused = world.provider.rotate(binding_id(1));
    assert!(matches!(refused, Err(BindError::Refused(_))), "{refused:?}");
}

#[test]
fn half_a_rotation_is_something_left_behind() {
    let world = World::bound();
    world.fail("rdma rotate", BindError::Refused(error()));
    let refused = world.provider.rotate(binding_id(1));
    assert!(matches!(refused, Err(BindError::Refused(_))));
    assert_eq!(world.asked(), ["rdma rotate"]);

    let world = World::bound();
    world.fail("udp rotate", BindError::Failed(error()));
    let stranded = world.provider.rotate(binding_id(1));
    assert!(matches!(stranded, Err(BindError::Stranded(_))));
}

#[test]
fn queue_pairs_change_on_the_path_that_has_them_and_the_other_paths_coordinates_stay() {
    let leave = PeerChange::Remove(vec![2]);
    let world = World::bound();
    let changed = world.provider.change_peers(binding_id(1), &leave);
    let changed = changed.unwrap();
    assert_eq!(world.asked(), ["rdma change"]);
    assert!(changed.rdma().is_some() && changed.dp_key.is_some());

    let world = World::bound();
    world.fail("rdma change", BindError::Failed(error()));
    let failed = world.provider.change_peers(binding_id(1), &leave);
    assert!(matches!(failed, Err(BindError::Failed(_))), "{failed:?}");
    let other = BindingId {
        lease_id: LeaseId(9),
        ..binding_id(1)
    };
    let unknown = world.provider.change_peers(other, &leave);
    assert!(matches!(unknown, Err(BindError::Refused(_))), "{unknown:?}");
}

#[test]
fn an_old_key_that_stays_on_either_path_is_not_retired() {
    for step in ["rdma retire", "udp retire"] {
        let world = World::bound();
        world.fail(step, BindError::Failed(error()));
        assert!(world.provider.retire_key(binding_id(1)).is_err());
        assert_eq!(world.asked(), ["udp retire", "rdma retire"]);
    }
}

#[test]
fn a_cut_cuts_udp_first_and_both_whatever_happens() {
    for failing in [&["rdma"][..], &["udp"], &["rdma", "udp"]] {
        let world = World::bound();
        for path in failing {
            world.fail(&format!("{path} revoke"), BindError::Failed(error()));
        }
        let cut = world.provider.revoke(binding_id(1), Linger::None);
        assert_eq!(world.asked(), ["udp revoke", "rdma revoke"]);
        assert!(!cut.is_proved());
        let why = world.provider.verify(cut).unwrap_err().to_string();
        assert!(failing.iter().all(|path| why.contains(path)), "{why}");
        let asked = world.asked();
        assert!(asked.contains(&"udp fenced".to_owned()), "{asked:?}");
    }
}

#[test]
fn a_cut_waits_for_no_binding_that_is_being_made() {
    let world = Arc::new(World::bound());
    let (began, let_on) = world.hold("rdma bind");
    let binding = std::thread::spawn({
        let world = world.clone();
        move || world.provider.bind(&order(2, Transport::Both))
    });
    began.recv().unwrap();
    world.provider.cut(binding_id(1), Linger::None).unwrap();
    world.provider.retire_key(binding_id(1)).unwrap();
    let_on.send(()).unwrap();
    binding.join().unwrap().unwrap();
}

#[test]
fn a_part_is_given_back_when_both_paths_have_let_go_of_it() {
    let world = World::bound();
    world.provider.cut(binding_id(1), Linger::None).unwrap();
    world.asked();
    let calls = Cell::new(0);
    let progress = || calls.set(calls.get() + 1);
    world
        .provider
        .release(binding_id(1), EXTENT, &progress)
        .unwrap();
    assert_eq!(world.asked(), ["udp remove", "rdma remove", "release"]);
    assert_eq!(calls.get(), 3);
    for (at, step) in ["udp remove", "rdma remove", "release"].iter().enumerate() {
        let world = World::bound();
        world.provider.cut(binding_id(1), Linger::None).unwrap();
        world.asked();
        world.fail(step, BindError::Failed(error()));
        let failed = world.provider.release(binding_id(1), EXTENT, &|| ());
        assert!(failed.is_err());
        let asked = world.asked();
        assert_eq!(asked[at], *step);
        assert_eq!(asked[at + 1..], ["rdma fenced", "udp fenced"]);
    }
}

#[test]
fn a_release_that_comes_twice_touches_nothing_the_second_time() {
    let world = World::bound();
    world.provider.cut(binding_id(1), Linger::None).unwrap();
    world
        .provider
        .release(binding_id(1), EXTENT, &|| ())
        .unwrap();
    world.asked();
    world
        .provider
        .release(binding_id(1), EXTENT, &|| ())
        .unwrap();
    assert_eq!(world.asked(), Vec::<String>::new());
    // The lease is not bound again either.
    let error = world.provider.bind(&order(2, Transport::Udp));
    assert_eq!(error, Err(BindError::Cancelled));
}

#[test]
fn a_remediation_takes_both_paths_and_stops_at_what_does_not_verify() {
    let leases = [(binding_id(1), EXTENT.into())];
    let world = World::bound();
    world.provider.reset(POOL, &leases).unwrap();
    assert!(world.is_empty());
    for step in ["udp revoke", "udp verify", "rdma remove", "release"] {
        let world = World::bound();
        world.fail(step, BindError::Failed(error()));
        assert!(world.provider.reset(POOL, &leases).is_err(), "{step}");
        let asked = world.asked();
        assert!(
            asked.contains(&"udp fenced".to_owned()),
            "{step}: {asked:?}"
        );
    }
}

#[test]
fn only_the_part_of_a_new_lease_is_made_clean() {
    let world = World::new();
    let prepare = |order: &BindOrder| world.provider.prepare(order, &|| ());
    let new = order(1, Transport::Udp);
    prepare(&new).unwrap();
    assert_eq!(world.asked(), ["prepare"], "it says that it moves");
    world.provider.bind(&new).unwrap();
    world.fail("prepare", BindError::Failed(error()));
    prepare(&order(2, Transport::Udp)).unwrap();
    let mut adopted = order(1, Transport::Udp);
    adopted.binding_id.lease_id = LeaseId(2);
    assert!(prepare(&adopted).is_err());
    adopted.adopts = true;
    prepare(&adopted).unwrap();
}

#[test]
fn a_lease_of_an_earlier_run_keeps_its_part_when_it_cannot_be_bound() {
    let world = World::new();
    world.put("part", LeaseId(1));
    let known = BTreeSet::from([LeaseId(1)]);
    assert_eq!(world.reconcile(&known), []);
    let adopted = BindOrder {
        adopts: true,
        ..order(2, Transport::Udp)
    };
    world.fail("udp bind", BindError::Failed(error()));
    world.provider.bind(&adopted).unwrap_err();
    assert_eq!(world.ids("part"), [LeaseId(1)]);
    world.works();
    world.provider.bind(&adopted).unwrap();
}

#[test]
fn a_lease_of_an_earlier_run_keeps_its_access_when_a_later_path_cannot_be_bound() {
    let world = World::new();
    world.put("part", LeaseId(1));
    world.put("rdma", LeaseId(1));
    assert_eq!(world.reconcile(&BTreeSet::from([LeaseId(1)])), []);
    let adopted = BindOrder {
        adopts: true,
        ..order(2, Transport::Both)
    };
    world.fail("udp bind", BindError::Failed(error()));
    for _ in 0..2 {
        let failed = world.provider.bind(&adopted).unwrap_err();
        assert!(matches!(failed, BindError::Failed(_)), "{failed:?}");
        assert!(world.has_access());
    }
    world.works();
    world.provider.bind(&adopted).unwrap();
}

#[test]
fn strays_go_and_those_on_record_stay() {
    let world = World::new();
    for lease in [1, 2] {
        world.put("part", LeaseId(lease));
        world.put("rdma", LeaseId(lease));
    }
    world.put("udp", LeaseId(3));
    let known = BTreeSet::from([LeaseId(1)]);
    assert_eq!(world.reconcile(&known), []);
    assert_eq!(world.ids("part"), [LeaseId(1)]);
    assert_eq!(world.ids("rdma"), [LeaseId(1)]);
    assert_eq!(world.ids("udp"), []);
    // A remediation removes the stray of lease 4 and leaves lease 1 alone, which is on record and not bound yet.
    world.put("part", LeaseId(4));
    world.provider.reset(POOL, &[]).unwrap();
    assert_eq!(world.ids("part"), [LeaseId(1)]);
}

#[test]
fn a_stray_that_stays_is_named_with_its_place() {
    for (step, is_cut) in [("release", true), ("rdma revoke", false)] {
        let world = World::new();
        world.put("part", LeaseId(9));
        world.fail(step, BindError::Failed(error()));
        let strays = world.reconcile(&BTreeSet::new());
        let [stray] = strays.as_slice() else {
            panic!("{strays:?}");
        };
        let found = (stray.lease_id, stray.resource_id, stray.is_cut);
        assert_eq!(found, (LeaseId(9), POOL, is_cut));
        assert_eq!(stray.place, Some(EXTENT.into()));
    }
}

#[test]
fn a_remediation_takes_no_stray_away_beside_the_thread_of_the_start() {
    let world = World::new();
    world.put("part", LeaseId(9));
    let removing = Mutex::new(Vec::new());
    let nobody_waits = |removals: Vec<Removal>| {
        let threads = removals.into_iter().map(thread::spawn);
        removing.lock().unwrap().extend(threads);
    };
    let (held, goes_on) = world.hold("release");
    let strays = world.provider.reconcile(&BTreeSet::new(), nobody_waits);
    held.recv().unwrap();
    assert_eq!(strays.unwrap().len(), 1, "it takes long");
    let refused = world.provider.reset(POOL, &[]).unwrap_err();
    assert!(
        refused.detail.contains("still being taken away"),
        "{refused}"
    );
    goes_on.send(()).unwrap();
    for it in removing.into_inner().unwrap() {
        it.join().unwrap();
    }
    world.provider.reset(POOL, &[]).unwrap();
    assert_eq!(world.ids("part"), []);
    let released = world.asked().into_iter().filter(|it| it == "release");
    assert_eq!(released.count(), 1);
}

#[test]
fn a_remediation_takes_a_stray_away_whose_removal_panicked() {
    let world = World::new();
    world.put("part", LeaseId(9));
    let (_held, goes_on) = world.hold("release");
    // The step that waits for it panics.
    drop(goes_on);
    let panic = |removals: Vec<Removal>| {
        for removal in removals {
            thread::spawn(removal).join().unwrap_err();
        }
    };
    let strays = world.provider.reconcile(&BTreeSet::new(), panic).unwrap();
    let why: Vec<&str> = strays.iter().map(|it| it.why.detail.as_str()).collect();
    assert_eq!(why, ["the removal stopped before its end"]);
    world.provider.reset(POOL, &[]).unwrap();
    assert_eq!(world.ids("part"), []);
}

#[test]
fn a_remediation_takes_a_stray_away_that_is_in_the_way_of_a_lease() {
    let world = World::new();
    // The table does not know the part of a stray, and gave it to lease 1.
    world.put("part", LeaseId(9));
    let leases = [(binding_id(1), EXTENT.into())];
    world.provider.reset(POOL, &leases).unwrap();
    assert!(world.is_empty());
}

#[test]
fn a_remediation_ends_its_leases_beside_a_stray_that_stays() {
    let world = World::bound();
    world.put("udp", LeaseId(9));
    world.put("part", LeaseId(9));
    let nobody_removes = |removals: Vec<Removal>| std::mem::forget(removals);
    let known = BTreeSet::from([binding_id(1).lease_id]);
    world.provider.reconcile(&known, nobody_removes).unwrap();
    let leases = [(binding_id(1), EXTENT.into())];
    let refused = world.provider.reset(POOL, &leases).unwrap_err();
    let why = format!("lease {} is still being taken away", LeaseId(9));
    assert_eq!(refused.detail, why);
    assert_eq!(world.ids("part"), [LeaseId(9)]);
}

#[test]
fn a_lease_that_never_had_a_part_ends_beside_a_stray_in_its_place() {
    let world = World::new();
    world.put("part", LeaseId(9));
    world.fail("open", BindError::Failed(error()));
    world.provider.bind(&order(1, Transport::Both)).unwrap_err();
    world.works();
    let ended = world.provider.release(binding_id(1), EXTENT, &|| ());
    ended.unwrap();
    assert_eq!(world.ids("part"), [LeaseId(9)]);
}

#[test]
fn a_part_that_the_store_could_not_take_back_is_cleaned_at_the_release() {
    let world = World::new();
    world.fail("open", BindError::Stranded(error()));
    world.provider.bind(&order(1, Transport::Both)).unwrap_err();
    world.works();
    world.put("part", LeaseId(9));
    let refused = world.provider.release(binding_id(1), EXTENT, &|| ());
    assert_eq!(refused.unwrap_err().detail, "another lease has it");
}

#[test]
fn access_ends_by_the_name_alone() {
    let world = World::new();
    world.put("rdma", LeaseId(5));
    let its = stray_binding_id(POOL, LeaseId(5));
    assert!(world.has_access());
    world.provider.cut(its, Linger::None).unwrap();
    assert!(!world.has_access());
}

#[test]
fn a_lease_of_before_concerns_the_paths_of_its_transport_alone() {
    let world = World::new();
    world.provider.expect(LeaseId(1), Transport::Udp);
    world.provider.extend(binding_id(1), BootTime(1)).unwrap();
    world.provider.cut(binding_id(1), Linger::None).unwrap();
    assert_eq!(world.asked(), ["udp extend", "udp revoke", "udp verify"]);
}

/// The driver's thread must never wait, so what it does itself is asked of every path and of the store.
#[test]
fn an_order_is_inline_if_no_path_and_no_store_of_the_lease_waits() {
    let world = World::new();
    let whole_life = |transport| {
        let provider = &world.provider;
        let bind = provider.is_inline(&Order::Bind(order(1, transport)));
        provider.bind(&order(1, transport)).unwrap();
        let id = binding_id(1);
        let more = [
            Order::Rotate(id),
            Order::Cut(id, Linger::None),
            Order::Release(id, EXTENT.into()),
        ];
        let more = more.map(|order| provider.is_inline(&order));
        provider.cut(id, Linger::None).unwrap();
        provider.release(id, EXTENT, &|| ()).unwrap();
        (bind, more)
    };
    assert_eq!(whole_life(Transport::Udp), (true, [true; 3]));
    for transport in [Transport::Rdma, Transport::Both] {
        let world = World::new();
        let bind = Order::Bind(order(1, transport));
        assert!(!world.provider.is_inline(&bind));
        world.provider.bind(&order(1, transport)).unwrap();
        let cut = Order::Cut(binding_id(1), Linger::None);
        assert!(!world.provider.is_inline(&cut));
    }
}

#[test]
fn what_takes_long_or_may_be_under_way_elsewhere_is_not_inline() {
    let world = World::new();
    let udp = order(1, Transport::Udp);
    let provider = &world.provider;
    let adopts = BindOrder {
        adopts: true,
        ..udp.clone()
    };
    assert!(!provider.is_inline(&Order::Bind(adopts)));
    let cut = Order::Cut(binding_id(1), Linger::None);
    assert!(
        !provider.is_inline(&cut),
        "this process does not know the lease"
    );
    provider.bind(&udp).unwrap();
    let long = Extent {
        length: EXTENT.length + 1,
        ..EXTENT
    };
    let release = Order::Release(binding_id(1), long.into());
    assert!(!provider.is_inline(&release));

    // A thread that hangs in the lease's storage keeps nobody who asks.
    let (began, let_on) = world.hold("release");
    thread::scope(|threads| {
        threads.spawn(|| {
            provider.cut(binding_id(1), Linger::None).unwrap();
            provider.release(binding_id(1), EXTENT, &|| ()).unwrap();
        });
        began.recv().unwrap();
        for order in [cut, Order::Release(binding_id(1), EXTENT.into())] {
            assert!(!provider.is_inline(&order), "{order:?}");
        }
        let other = BindOrder {
            binding_id: BindingId {
                lease_id: LeaseId(2),
                ..binding_id(1)
            },
            ..order(1, Transport::Udp)
        };
        assert!(provider.is_inline(&Order::Bind(other)));
        let_on.send(()).unwrap();
    });
}
