//! A whole node with fake hardware. The SDK sends requests over real QUIC.
#![allow(clippy::expect_used, reason = "a test that cannot go on says why")]

mod world;

use std::time::Duration;

use fabricbios_node::{process::clock, settings::Settings};
use fabricbios_testbed::fakes::{Step, UNREACHABLE_QPN};
use fabricbios_wire::*;

use world::*;

#[tokio::test]
async fn a_lease_opens_and_its_end_is_told_after_access_is_gone() {
    let world = World::start().await;
    let asked = LeaseAllocRequest {
        lease_secs: 1,
        ..request(8192)
    };
    let info = world.operator.alloc_async(asked).await.expect("granted");
    assert!(world.memory.opens(rkey(&info)));
    let ended = world.until(info.lease_id, LeasePhase::Expired).await;
    assert!(!world.memory.opens(rkey(&info)));
    assert!(
        clock::now().unix_ms >= ended.expires_at_unix_ms,
        "not a moment early"
    );
    world.stop().await;
}

#[tokio::test]
async fn a_free_is_answered_when_the_cut_is_proved() {
    let world = World::start().await;
    let info = world.page().await;
    let freed = world.free(info.lease_id).await.expect("freed");
    assert_eq!(freed.phase, LeasePhase::Freed);
    assert!(!world.memory.opens(rkey(&info)));
    world.stop().await;
}

#[tokio::test]
async fn cuts_do_not_queue_behind_binds() {
    let world = World::start().await;
    let info = world.page().await;
    world.memory.hold(Step::Bind);
    let stuck: Vec<_> = (0..32).map(|_| one_page(&world.operator)).collect();
    let memory = world.memory.clone();
    tokio::task::spawn_blocking(move || memory.wait_for(Step::Bind, 33))
        .await
        .expect("begun");
    world.free(info.lease_id).await.expect("freed meanwhile");
    assert!(!world.memory.opens(rkey(&info)));
    world.memory.let_go(Step::Bind);
    for bind in stuck {
        bind.await.expect("no panic").expect("granted in the end");
    }
    world.stop().await;
}

#[tokio::test]
async fn many_allocations_of_one_tenant_wait_for_their_turn_and_none_is_refused() {
    let world = World::start().await;
    world.memory.hold(Step::Bind);
    let asked: Vec<_> = (0..100).map(|_| one_page(&world.operator)).collect();
    world.until_binding(100).await;
    world.memory.let_go(Step::Bind);
    for granted in asked {
        granted.await.expect("no panic").expect("granted");
    }
    world.stop().await;
}

/// One tenant sends 1,100 requests, of which 1,024 may wait at the node; a connection has at most 128 requests at once.
#[tokio::test]
async fn what_has_no_place_to_wait_at_the_node_waits_in_the_sdk() {
    let world = World::start().await;
    world.memory.hold(Step::Bind);
    let mut asked = Vec::new();
    for _ in 0..11 {
        let connection = connect(&world.service, &world.identity).await;
        let patient = connection.patient(Duration::from_secs(120));
        asked.extend((0..100).map(|_| one_page(&patient)));
    }
    world.until_binding(1_024).await;
    let refused = refusal(world.alloc(4096).await);
    assert_eq!(
        (refused.error, refused.class),
        (LeaseError::ResourceBusy, RefusalClass::Transient)
    );
    world.memory.let_go(Step::Bind);
    for granted in asked {
        granted.await.expect("no panic").expect("granted");
    }
    world.stop().await;
}

/// The scrub takes as long as the test wants.
#[tokio::test]
async fn space_that_is_being_scrubbed_is_waited_for_by_a_client_with_patience() {
    let world = World::start().await;
    let first = world.alloc(ARENA_BYTES).await.expect("granted");
    world.memory.hold(Step::Release);
    world.free(first.lease_id).await.expect("freed");
    let refused = refusal(world.alloc(ARENA_BYTES).await);
    assert_eq!(
        (refused.error, refused.class),
        (LeaseError::ResourceBusy, RefusalClass::Transient),
        "{refused}"
    );
    assert!(refused.retry_after_ms.is_some(), "{refused}");
    let too_much = refusal(world.alloc(ARENA_BYTES + 1).await);
    assert_eq!(
        (too_much.error, too_much.class),
        (LeaseError::CapacityExceeded, RefusalClass::Permanent)
    );
    let patient = world.operator.patient(Duration::from_secs(120));
    let asked = tokio::spawn(async move { patient.alloc_async(request(ARENA_BYTES)).await });
    world.memory.let_go(Step::Release);
    asked.await.expect("no panic").expect("granted when clean");
    world.stop().await;
}

/// The client loses its connection while the lease is being bound, and repeats its request over another one.
#[tokio::test]
async fn a_grant_whose_reply_is_lost_is_the_clients_and_there_is_no_second_one() {
    let world = World::start().await;
    world.memory.hold(Step::Bind);
    let client = connect(&world.service, &world.identity).await;
    let patient = client.patient(Duration::from_secs(120));
    let asking = one_page(&patient);
    world.until_binding(1).await;
    client.close_async().await;
    world.memory.let_go(Step::Bind);
    let info = asking.await.expect("no panic").expect("granted");
    assert!(world.memory.opens(rkey(&info)));
    world.free(info.lease_id).await.expect("freed");
    let list = Request::LeaseList {
        after: LeaseId(0),
        ended: true,
    };
    let Ok(Reply::Leases(page)) = world.operator.call_async(list).await else {
        panic!("no list")
    };
    let leases: Vec<_> = page.leases.iter().map(|it| it.lease_id).collect();
    assert_eq!(leases, [info.lease_id]);
    world.stop().await;
}

#[tokio::test]
async fn a_repeat_after_a_crash_is_told_how_its_lease_ended() {
    let world = World::start().await;
    let asked = LeaseAllocRequest {
        request_token: Some(RequestToken(7)),
        ..request(4096)
    };
    let info = world.operator.alloc_async(asked.clone()).await;
    let id = info.expect("granted").lease_id;
    let world = world.crash().await;
    let refusal = refusal(world.operator.alloc_async(asked).await);
    let told = (refusal.error, refusal.class);
    assert_eq!(told, (LeaseError::Revoked, RefusalClass::Permanent));
    assert!(refusal.message.contains(&id.to_string()), "{refusal}");
    world.stop().await;
}

#[tokio::test]
async fn a_cut_that_fails_fences_until_a_remediation_verifies() {
    let world = World::start().await;
    world.fence().await;
    assert_eq!(refusal(world.alloc(4096).await).error, LeaseError::Fenced);
    let entries = world.flat().await;
    assert_eq!(
        (entries[0].flags, entries[0].available),
        (resource_flags::FENCED, 0)
    );
    let cleared = world.clear().await;
    assert_eq!(
        refusal(cleared).error,
        LeaseError::Fenced,
        "what does not verify stays fenced"
    );
    world.memory.fail(Step::Cut, false);
    let cleared = world.clear().await.expect("verified");
    assert_eq!(cleared, Reply::FenceCleared);
    world.page().await;
    world.stop().await;
}

#[tokio::test]
async fn what_was_alive_in_a_crash_is_revoked_and_what_had_ended_stays_so() {
    let world = World::start().await;
    let (alive, freed) = (world.page().await.lease_id, world.page().await.lease_id);
    world.free(freed).await.expect("freed");
    let world = world.crash().await;
    let told = world.query(alive).await;
    assert_eq!(
        (told.status, told.phase),
        (LeaseStatus::Revoked, LeasePhase::Revoked)
    );
    assert_eq!(world.query(freed).await.phase, LeasePhase::Freed);
    let Ok(Reply::Identity(identity)) = world.operator.call_async(Request::GetIdentity).await
    else {
        panic!("no identity")
    };
    assert_eq!(identity.epoch, Epoch(2));
    world.stop().await;
}

#[tokio::test]
async fn a_fence_outlives_the_daemon() {
    let world = World::start().await;
    let info = world.fence().await;
    let world = world.crash().await;
    let Ok(Reply::Fences(fences)) = world.operator.call_async(Request::FenceList).await else {
        panic!("no list")
    };
    assert_eq!(fences.len(), 1);
    assert_eq!(
        (fences[0].resource_id, fences[0].lease_id),
        (ARENA, info.lease_id)
    );
    assert_eq!(refusal(world.alloc(4096).await).error, LeaseError::Fenced);
    world.stop().await;
}

#[tokio::test]
async fn a_second_fence_outlives_the_daemon_like_the_first() {
    let world = World::start().await;
    world.fence().await;
    world.memory.fail(Step::Cut, false);
    let cleared = world.clear().await;
    assert_eq!(cleared.expect("verified"), Reply::FenceCleared);
    let world = world.crash().await;
    world.fence().await;
    let world = world.crash().await;
    assert_eq!(refusal(world.alloc(4096).await).error, LeaseError::Fenced);
    world.stop().await;
}

#[tokio::test]
async fn a_drain_cuts_what_is_alive_before_the_node_is_gone() {
    let world = World::start().await;
    let asked = LeaseAllocRequest {
        grace_secs: 30,
        ..request(4096)
    };
    let info = world.operator.alloc_async(asked).await.expect("granted");
    let memory = world.memory.clone();
    world.stop().await;
    assert!(!memory.opens(rkey(&info)));
}

#[tokio::test]
async fn an_address_that_does_not_resolve_is_refused_and_costs_nothing() {
    let world = World::start().await;
    let mut wanted = request(4096);
    wanted.terms = to_peer(UNREACHABLE_QPN);
    let refused = refusal(world.operator.alloc_async(wanted).await);
    assert_eq!(refused.error, LeaseError::InvalidArgs);
    world
        .alloc(ARENA_BYTES)
        .await
        .expect("all of the arena is there");
    world.stop().await;
}

#[tokio::test]
async fn a_queue_pair_that_cannot_be_bound_takes_nothing_from_the_one_that_is() {
    let world = World::start().await;
    let info = world.page().await;
    let lease_id = info.lease_id;
    let bind = |qpn| {
        world.operator.lease_async(Request::LeaseBind {
            lease_id,
            peers: vec![peer(qpn)],
        })
    };
    let refused = refusal(bind(UNREACHABLE_QPN).await);
    assert_eq!(refused.error, LeaseError::InvalidArgs, "{refused}");
    world.memory.fail(Step::Bind, true);
    let failed = refusal(bind(18).await);
    assert_eq!(failed.error, LeaseError::Unavailable, "{failed}");
    world.memory.fail(Step::Bind, false);
    let told = world.query(lease_id).await;
    assert_eq!(
        (&told.binding, told.generation),
        (&info.binding, info.generation)
    );
    assert!(world.memory.opens(rkey(&info)));
    let bound = bind(18).await.expect("bound");
    assert!(world.memory.opens(rkey(&bound)) && !world.memory.opens(rkey(&info)));
    world.stop().await;
}

#[tokio::test]
async fn a_kind_that_is_not_there_is_not_the_operators_choice() {
    // The inventory lists at least this machine's processors.
    let mut settings = Settings::default();
    settings.kinds.shared.auto_detect = true;
    let world = World::with(settings).await;
    let chosen = (RefusalClass::Policy, true);
    let never = (RefusalClass::Permanent, false);
    for (kind, expected) in [(ResourceType::Cpu, chosen), (ResourceType::Gpu, never)] {
        let asked = world
            .operator
            .alloc_async(LeaseAllocRequest::new(kind, 1, 9));
        let refusal = refusal(asked.await);
        let told = (refusal.class, refusal.message.contains("operator"));
        assert_eq!(told, expected, "{refusal}");
    }
    world.stop().await;
}

#[tokio::test]
async fn a_vendors_resource_is_listed_and_never_leased() {
    let mut settings = Settings::default();
    settings.kinds.vendor.advertise_vendor = vec!["fpga0=4".parse().expect("a resource")];
    let world = World::with(settings).await;
    let entries = world.flat().await;
    let is_vendor = |it: &&FlatEntry| it.resource_type == ResourceType::Vendor;
    let listed: Vec<_> = entries.iter().filter(is_vendor).collect();
    let [fpga] = listed[..] else {
        panic!("{entries:?}")
    };
    assert_eq!((fpga.capacity, fpga.available), (4, 0));
    let Ok(Reply::Inventory(inventory)) = world
        .operator
        .call_async(Request::GetInventory(InventoryForm::Structured))
        .await
    else {
        panic!("no inventory")
    };
    let name = InventoryExtension::Name(fpga.resource_id, "fpga0".into());
    assert!(inventory.extensions.contains(&name), "{inventory:?}");
    for resource_id in [None, Some(fpga.resource_id)] {
        let asked = LeaseAllocRequest {
            resource_id,
            ..LeaseAllocRequest::new(ResourceType::Vendor, 1, 60)
        };
        let refusal = refusal(world.operator.alloc_async(asked).await);
        assert_eq!(refusal.error, LeaseError::InvalidArgs);
        assert!(refusal.message.contains("never leased"), "{refusal}");
    }
    world.stop().await;
}
