//! Schedulers with a real etcd (Debian: etcd-server, and etcd-client for etcdctl), which is killed, stopped, wiped and
//! filled with garbage.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up should fail loudly"
)]

mod alerts;
mod cluster;
mod faults;
mod intent;
mod page;
mod partition;
mod program;
mod proxy;
mod read_only;
mod reports;
mod world;

use std::{fs, time::Duration};

use fabricbios_wire::RefusalClass;
use nix::sys::signal::Signal;
use world::{World, placed, told, until, until_placed, until_refused};

#[tokio::test(flavor = "multi_thread")]
async fn a_member_is_in_etcd_and_each_scheduler_misses_it_until_it_is_forgotten() {
    let world = World::new();
    let one = world.scheduler();
    let node = world.node("rack=r7");
    let connection = node.report_to(&one).await;
    let record = until("its record", || world.get(&world.key(&node))).await;
    for part in [r#""version":1"#, "192.0.2.1:5701", r#"["rack=r7"]"#] {
        assert!(record.contains(part), "{part} is not in {record}");
    }
    // No node reports to the other one: it knows the member from etcd alone.
    let other = world.scheduler();
    let of_other = world.client(&other).await;
    told(
        &of_other,
        "no node reports",
        "; 1 member of the fabric is away",
    )
    .await;
    let members = of_other.members_async().await.unwrap();
    assert_eq!(members.reporting, []);
    let [away] = &members.away[..] else {
        panic!("{members:?}")
    };
    assert_eq!((away.id, away.address.port()), (node.id(), 5701));
    assert_eq!(away.labels, ["rack=r7"]);
    let client = world.client(&one).await;
    assert_eq!(placed(&client).await.unwrap(), [node.id()]);
    assert_eq!(client.members_async().await.unwrap().away, []);
    let refused = client.forget_member_async(node.id()).await.unwrap_err();
    assert_eq!(refused.code(), "ResourceBusy", "{refused}");
    drop(connection);
    told(
        &client,
        "no node reports",
        "; 1 member of the fabric is away",
    )
    .await;
    assert!(
        world.get(&world.key(&node)).is_some(),
        "it belongs to the fabric without a lease"
    );
    of_other.forget_member_async(node.id()).await.unwrap();
    assert_eq!(world.get(&world.key(&node)), None);
    for client in [&client, &of_other] {
        told(client, "no node reports", "ask a node itself").await;
        assert_eq!(client.members_async().await.unwrap().away, []);
    }
    let refused = client.forget_member_async(node.id()).await.unwrap_err();
    assert_eq!(refused.code(), "NotFound", "{refused}");
    // A node that comes back is a member again.
    let connection = node.report_to(&other).await;
    until("its record", || world.get(&world.key(&node))).await;
    world.etcdctl(&["del", &world.key(&node)]);
    until("its record again", || world.get(&world.key(&node))).await;
    drop(connection);

    let presence = world.prefix("schedulers/");
    until("presence", || world.has_keys(&presence)?.then_some(())).await;
    for scheduler in [one, other] {
        scheduler.stop().await;
    }
    until("a scheduler that stops is not present", || {
        (!world.has_keys(&presence)?).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_for_good_only_while_etcd_answers_and_every_member_has_said_all() {
    let mut world = World::new();
    let scheduler = world.scheduler();
    let node = world.node("rack=r7");
    let connection = node.report_to(&scheduler).await;
    let client = world.client(&scheduler).await;
    until("its record", || world.get(&world.key(&node))).await;
    until_refused(&client, RefusalClass::Transient).await;
    node.say_all(&connection).await;
    until_refused(&client, RefusalClass::Permanent).await;
    world.signal(Signal::SIGKILL);
    until_refused(&client, RefusalClass::Transient).await;
    world.etcd.restart().unwrap();
    until_refused(&client, RefusalClass::Permanent).await;
    drop(connection);
    until_refused(&client, RefusalClass::Transient).await;
    scheduler.stop().await;
}

/// Another scheduler may still be writing the members into an etcd that has lost them.
#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_has_just_read_etcd_refuses_nothing_for_good() {
    let world = World::new();
    let scheduler = world.scheduler();
    let waits = world.scheduler_that_waits(vec![world.etcd.url()], Duration::from_secs(3600));
    let node = world.node("rack=r7");
    let [one, other] = [
        node.report_to(&scheduler).await,
        node.report_to(&waits).await,
    ];
    node.say_all(&one).await;
    node.say_all(&other).await;
    until_refused(&world.client(&scheduler).await, RefusalClass::Permanent).await;
    until_refused(&world.client(&waits).await, RefusalClass::Transient).await;
    scheduler.stop().await;
    waits.stop().await;

    let soon = world.scheduler_that_waits(vec![world.etcd.url()], Duration::from_millis(500));
    let connection = node.report_to(&soon).await;
    node.say_all(&connection).await;
    until_refused(&world.client(&soon).await, RefusalClass::Permanent).await;
    soon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_etcd_makes_no_scheduler_forget_who_is_away() {
    let mut world = World::new();
    let scheduler = world.scheduler();
    let node = world.node("rack=r7");
    let connection = node.report_to(&scheduler).await;
    until("its record", || world.get(&world.key(&node))).await;
    drop(connection);
    let client = world.client(&scheduler).await;
    told(
        &client,
        "no node reports",
        "; 1 member of the fabric is away",
    )
    .await;
    world.signal(Signal::SIGKILL);
    until("its end", || (world.state_of_etcd() == 'Z').then_some(())).await;
    fs::remove_dir_all(world.etcd.data()).unwrap();
    world.etcd.restart().unwrap();
    // Who was told of it writes it anew.
    until("its record again", || world.get(&world.key(&node))).await;
    told(
        &client,
        "no node reports",
        "; 1 member of the fabric is away",
    )
    .await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_etcd_a_scheduler_goes_on_and_fills_it_again_when_it_is_back() {
    let mut world = World::new();
    let scheduler = world.scheduler();
    let nodes = [world.node("rack=r7"), world.node("rack=r8")];
    let _first = nodes[0].report_to(&scheduler).await;
    until("its record", || world.get(&world.key(&nodes[0]))).await;
    let before = world.get(&world.key(&nodes[0]));

    world.signal(Signal::SIGKILL);
    let _second = nodes[1].report_to(&scheduler).await;
    let client = world.client(&scheduler).await;
    assert_eq!(placed(&client).await.unwrap().len(), 2);
    world.etcd.restart().unwrap();
    until("the second record", || world.get(&world.key(&nodes[1]))).await;
    assert_eq!(
        world.get(&world.key(&nodes[0])),
        before,
        "it has not changed"
    );

    world.signal(Signal::SIGKILL);
    until("its end", || (world.state_of_etcd() == 'Z').then_some(())).await;
    fs::remove_dir_all(world.etcd.data()).unwrap();
    world.etcd.restart().unwrap();
    for node in &nodes {
        until("a record of each", || world.get(&world.key(node))).await;
    }
    let presence = world.prefix("schedulers/");
    until("presence", || world.has_keys(&presence)?.then_some(())).await;
    assert_eq!(placed(&client).await.unwrap().len(), 2);
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_hangs_delays_no_client_and_no_stop() {
    let world = World::new();
    let scheduler = world.scheduler();
    let nodes = [world.node("rack=r7"), world.node("rack=r8")];
    let first = nodes[0].report_to(&scheduler).await;
    until("its record", || world.get(&world.key(&nodes[0]))).await;
    let client = world.client(&scheduler).await;

    world.signal(Signal::SIGSTOP);
    let _second = nodes[1].report_to(&scheduler).await;
    for _ in 0..100 {
        assert_eq!(placed(&client).await.unwrap().len(), 2);
    }
    drop(first);
    until_placed(&client, &[nodes[1].id()]).await;
    // The operator is answered too, when the call has had its time.
    let refused = client.forget_member_async(nodes[0].id()).await.unwrap_err();
    assert_eq!(refused.code(), "Unavailable", "{refused}");
    // A scheduler that starts now learns from its nodes.
    let other = world.scheduler();
    let _third = nodes[0].report_to(&other).await;
    assert_eq!(
        placed(&world.client(&other).await).await.unwrap(),
        [nodes[0].id()]
    );
    for scheduler in [scheduler, other] {
        scheduler.stop().await;
    }
    assert_eq!(world.state_of_etcd(), 'T', "it has hung until here");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_cannot_be_read_harm_nothing_and_later_ones_stay() {
    let world = World::new();
    let nodes = [
        world.node("rack=r7"),
        world.node("rack=r8"),
        world.node("rack=r9"),
    ];
    let [garbage, later, good] = &nodes;
    let from_later = r#"{"version":2,"where":"elsewhere"}"#;
    world.etcdctl(&["put", &world.key(garbage), "\u{7}not a record"]);
    world.etcdctl(&["put", &world.key(later), from_later]);
    for odd in [
        "nodes/",
        "nodes/zz",
        "schedulers/nobody",
        "intent/x",
        "nodes/a/b/c",
    ] {
        world.etcdctl(&["put", &world.prefix(odd), "odd"]);
    }
    let scheduler = world.scheduler();
    let mut connections = Vec::new();
    for node in &nodes {
        connections.push(node.report_to(&scheduler).await);
    }
    let client = world.client(&scheduler).await;
    assert_eq!(placed(&client).await.unwrap().len(), 3);
    let is_read = |text: &String| text.contains(r#""version":1"#);
    for node in [garbage, good] {
        until("a record", || world.get(&world.key(node)).filter(is_read)).await;
    }
    scheduler.stop().await;
    assert_eq!(world.get(&world.key(later)).as_deref(), Some(from_later));
    assert_eq!(world.get(&world.prefix("intent/x")).as_deref(), Some("odd"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_etcd_is_read_and_what_is_new_is_written_when_it_has_room() {
    let world = World::with(&["--quota-backend-bytes=1000000"]);
    let nodes = [world.node("rack=r7"), world.node("rack=r8")];
    let scheduler = world.scheduler();
    let first = nodes[0].report_to(&scheduler).await;
    until("its record", || world.get(&world.key(&nodes[0]))).await;
    world.fill();
    let second = nodes[1].report_to(&scheduler).await;
    let client = world.client(&scheduler).await;
    assert_eq!(placed(&client).await.unwrap().len(), 2);
    // One that starts now reads who belongs to the fabric.
    let other = world.scheduler();
    let of_other = world.client(&other).await;
    told(
        &of_other,
        "no node reports",
        "; 1 member of the fabric is away",
    )
    .await;
    assert_eq!(world.get(&world.key(&nodes[1])), None);
    drop(first);
    // A member that etcd does not have yet is missed all the same.
    drop(second);
    told(
        &client,
        "no node reports",
        "; 2 members of the fabric are away",
    )
    .await;

    world.make_room();
    until("the second record", || world.get(&world.key(&nodes[1]))).await;
    told(
        &of_other,
        "no node reports",
        "; 2 members of the fabric are away",
    )
    .await;
    for scheduler in [scheduler, other] {
        scheduler.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_was_restored_from_an_older_copy_is_filled_again() {
    let mut world = World::new();
    let scheduler = world.scheduler();
    let nodes = [world.node("rack=r7"), world.node("rack=r8")];
    let first = nodes[0].report_to(&scheduler).await;
    until("its record", || world.get(&world.key(&nodes[0]))).await;
    let copies = tempfile::tempdir().unwrap();
    let copy = copies.path().join("copy");
    world.etcdctl(&["snapshot", "save", copy.to_str().unwrap()]);
    let _second = nodes[1].report_to(&scheduler).await;
    until("the second record", || world.get(&world.key(&nodes[1]))).await;
    drop(first);
    let client = world.client(&scheduler).await;
    until_placed(&client, &[nodes[1].id()]).await;

    world.restore(&copy);
    until("the second record again", || {
        world.get(&world.key(&nodes[1]))
    })
    .await;
    let members = client.members_async().await.unwrap();
    let away: Vec<_> = members.away.iter().map(|it| it.id).collect();
    assert_eq!(away, [nodes[0].id()], "the copy has it");
    scheduler.stop().await;
}
