//! Many requests at once, too many at once, and a node that goes away.

use std::time::Duration;

use fabricbios_control::Limits;
use fabricbios_wire::{
    InventoryForm, LeaseError, LeaseId, RefusalClass, Reply, Request, encode_request,
};

use crate::{
    common::{Handler, World, refusal},
    free,
};

#[tokio::test]
async fn a_silent_stream_is_given_up_and_the_others_go_on() {
    let limits = Limits {
        request_timeout: Duration::from_secs(1),
        ..Limits::default()
    };
    let world = World::start_with(Handler::Refuse, limits).await;
    let client = world.connect(&world.tenant("blue")).await;
    let (mut send, mut recv) = client.open().await;
    send.write_all(&encode_request(1, 2, &free())[..10])
        .await
        .unwrap();
    assert_eq!(client.call(&Request::Ping(5)).await, Ok(Reply::Pong(5)));
    let answer = recv.read_to_end(100_000).await.unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("not complete"));
    assert!(world.seen().is_empty());
}

#[tokio::test]
async fn a_hundred_requests_at_once_each_get_their_own_answer() {
    let world = World::start(Handler::EchoLeaseId).await;
    let client = world.connect(&world.tenant("blue")).await;
    let calls = (1..=100_u128).map(|id| {
        let client = client.clone();
        tokio::spawn(async move { (id, client.call(&Request::LeaseQuery(LeaseId(id))).await) })
    });
    for call in calls.collect::<Vec<_>>() {
        let (id, answer) = call.await.unwrap();
        assert!(
            answer
                .unwrap_err()
                .message
                .contains(&LeaseId(id).to_string())
        );
    }
    assert_eq!(world.seen().len(), 100);
}

#[tokio::test]
async fn a_dropped_reply_is_told_as_unavailable() {
    let world = World::start(Handler::Hold).await;
    let client = world.connect(&world.tenant("blue")).await;
    let call = tokio::spawn(async move { client.call(&free()).await });
    drop(world.take_held().await);
    let refusal = call.await.unwrap().unwrap_err();
    assert_eq!(
        (refusal.error, refusal.class),
        (LeaseError::Unavailable, RefusalClass::Transient)
    );
}

#[tokio::test]
async fn too_many_connections_of_one_tenant_are_turned_away() {
    let limits = Limits {
        connections_per_tenant_max: 1,
        ..Limits::default()
    };
    let world = World::start_with(Handler::Refuse, limits).await;
    let first = world.connect(&world.tenant("blue")).await;
    assert_eq!(first.call(&Request::Ping(1)).await, Ok(Reply::Pong(1)));
    let error = world
        .try_call(Some(&world.tenant("blue")), &Request::Ping(1))
        .await
        .unwrap_err();
    assert!(error.contains("too many connections"), "{error}");
    let other = world.connect(&world.tenant("red")).await;
    assert_eq!(other.call(&Request::Ping(1)).await, Ok(Reply::Pong(1)));
}

#[tokio::test]
async fn a_tenant_that_fills_its_address_shuts_out_neither_tenants_nor_operators() {
    let limits = Limits {
        connections_per_source_max: 4,
        ..Limits::default()
    };
    let world = World::start_with(Handler::Refuse, limits).await;
    let (blue, red, green) = (
        world.tenant("blue"),
        world.tenant("red"),
        world.tenant("green"),
    );
    let mut clients = Vec::new();
    let mut serves = async |credentials| {
        let client = world.connect(credentials).await;
        assert_eq!(client.call(&Request::Ping(1)).await, Ok(Reply::Pong(1)));
        clients.push(client);
    };
    let refused = async |credentials, why: &str| {
        let call = world.try_call(Some(credentials), &Request::Ping(1)).await;
        let error = call.unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    serves(&blue).await;
    serves(&blue).await;
    refused(
        &blue,
        "this tenant has too many connections from this address",
    )
    .await;
    serves(&red).await;
    serves(&red).await;
    refused(&green, "this address has too many connections").await;
    serves(&world.admin()).await;
    refused(&green, "CONNECTION_REFUSED").await;
}

#[tokio::test]
async fn who_begins_handshakes_in_anothers_name_locks_nobody_out() {
    let limits = Limits {
        connections_per_source_max: 8,
        ..Limits::default()
    };
    let world = World::start_with(Handler::Refuse, limits).await;
    world.leave_handshakes_unfinished(40).await;
    let mut clients = Vec::new();
    for tenant in [world.tenant("blue"), world.tenant("red")] {
        for _ in 0..4 {
            clients.push(world.connect(&tenant).await);
        }
    }
    for client in clients {
        assert_eq!(client.call(&Request::Ping(1)).await, Ok(Reply::Pong(1)));
    }
}

#[tokio::test]
async fn a_shutdown_answers_what_was_asked_and_takes_nothing_more() {
    let mut world = World::start_with(Handler::Hold, Limits::default()).await;
    let client = world.connect(&world.tenant("blue")).await;
    let first = {
        let client = client.clone();
        tokio::spawn(async move { client.call(&free()).await })
    };
    let held = world.take_held().await;
    let stopping = world.shutdown(Duration::from_secs(30));
    let latecomer = world.tenant("late");
    while world
        .try_call(Some(&latecomer), &Request::Ping(1))
        .await
        .is_ok()
    {}
    held.reply.send(Err(refusal("gone"))).unwrap();
    assert_eq!(
        first.await.unwrap().unwrap_err().error,
        LeaseError::NotFound
    );
    stopping.await.unwrap();
    let error = client
        .raw(&encode_request(1, 2, &free()))
        .await
        .unwrap_err();
    assert!(error.contains("shutting down"), "{error}");
}

#[tokio::test]
async fn a_restarted_node_tells_old_clients_that_their_connection_is_gone() {
    let mut world = World::start(Handler::Refuse).await;
    let client = world.connect(&world.tenant("blue")).await;
    assert_eq!(client.call(&Request::Ping(1)).await, Ok(Reply::Pong(1)));
    world.crash_and_restart().await;
    let lost = client
        .raw(&encode_request(1, 2, &Request::Ping(2)))
        .await
        .unwrap_err();
    assert!(lost.contains("Reset"), "{lost}");
}

#[tokio::test]
async fn a_busy_node_asks_newcomers_to_prove_their_address_and_then_serves_them() {
    let limits = Limits {
        connections_max: 2,
        ..Limits::default()
    };
    let world = World::start_with(Handler::Refuse, limits).await;
    let first = world.connect(&world.tenant("blue")).await;
    let second = world.connect(&world.tenant("red")).await;
    for client in [&first, &second] {
        assert_eq!(client.call(&Request::Ping(1)).await, Ok(Reply::Pong(1)));
    }
    let error = world
        .try_call(Some(&world.tenant("red")), &Request::Ping(1))
        .await
        .unwrap_err();
    assert!(error.contains("too many connections"), "{error}");
}

#[tokio::test]
async fn a_client_that_reads_no_answer_has_few_lists_made_and_its_other_requests_go_on() {
    let world = World::start(Handler::Hold).await;
    let client = world.connect(&world.tenant("blue")).await;
    let list = Request::GetInventory(InventoryForm::Structured);
    let calls = (0..20).map(|_| {
        let (client, list) = (client.clone(), list.clone());
        tokio::spawn(async move { client.call(&list).await })
    });
    let calls: Vec<_> = calls.collect();
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(world.take_held().await);
    }
    let other = client.clone();
    let other = tokio::spawn(async move { other.call(&free()).await });
    let next = world.take_held().await;
    assert_eq!(next.request, free());
    next.reply.send(Err(refusal("no"))).unwrap();
    assert!(other.await.unwrap().is_err());
    for call in calls {
        let next = match held.pop() {
            Some(next) => next,
            None => world.take_held().await,
        };
        assert_eq!(next.request, list);
        next.reply.send(Err(refusal("no"))).unwrap();
        drop(call);
    }
}

#[tokio::test]
async fn an_answer_that_nobody_reads_is_given_up() {
    let limits = Limits {
        answer_timeout: Duration::from_millis(50),
        ..Limits::default()
    };
    let world = World::start_with(Handler::Refuse, limits).await;
    let client = world.connect_reading_little(&world.tenant("blue")).await;
    let (mut send, mut recv) = client.open().await;
    send.write_all(&encode_request(1, 2, &free()))
        .await
        .unwrap();
    send.finish().unwrap();
    let reset = recv.received_reset().await.unwrap();
    assert_eq!(reset.map(u64::from), Some(5));
}
