//! Cut off from etcd while it is compacted, an etcd that is slow, clocks that differ, and a presence that vanishes.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fabricbios_wire::{NodeId, RefusalClass};

use crate::{
    proxy::{Gate, Way, cut, way_to},
    world::{
        World, away, placed, record, refused, told, until, until_async, until_away, until_placed,
        until_refused,
    },
};

/// A way to the world's etcd: its URL, and what sets it.
fn way(world: &World) -> (String, Gate) {
    let etcd = world.etcd.url().replace("https://", "");
    let (at, gate) = way_to(etcd.parse().unwrap());
    (format!("https://{at}"), gate)
}

fn id(number: u16) -> NodeId {
    let mut id = [7; 32];
    id[..2].copy_from_slice(&number.to_be_bytes());
    NodeId(id)
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, last], 5701))
}

/// A member as another scheduler writes it.
fn put(world: &World, number: u16, address: SocketAddr) -> String {
    let record = record(&address.to_string(), "rack=r8", 1);
    format!("put {} {record:?}", world.key_of(id(number)))
}

/// As after a long time: what the watch told last is compacted, and the lease of the presence has ended.
#[tokio::test(flavor = "multi_thread")]
async fn who_was_cut_off_while_etcd_was_compacted_reads_everything_anew() {
    let world = World::new();
    let (url, gate) = way(&world);
    let scheduler = world.scheduler_with(vec![url]);
    let client = world.client(&scheduler).await;
    let node = world.node("rack=r7");
    let _connection = node.report_to(&scheduler).await;
    until("its record", || world.get(&world.key(&node))).await;
    let put = |number, address| put(&world, number, address);
    let delete = |number| format!("del {}", world.key_of(id(number)));
    let of = |numbers: std::ops::Range<u16>| numbers.map(|it| (id(it), address(2)));
    let first: Vec<String> = (0..20).map(|it| put(it, address(2))).collect();
    world.change(&first);
    let before: BTreeMap<_, _> = of(0..20).collect();
    until_away(&client, &before).await;
    let presence = world.prefix(&format!("schedulers/{}", scheduler.id()));
    until("presence", || world.get(&presence)).await;

    cut(&gate).await;
    // More than a page.
    let others: Vec<String> = (20..700).map(|it| put(it, address(2))).collect();
    world.change(&others);
    let mut changed: Vec<String> = (0..10).chain(600..700).map(delete).collect();
    changed.extend([put(15, address(3)), format!("del {}", world.key(&node))]);
    world.change(&changed);
    for lease in world.etcdctl(&["lease", "list"]).lines().skip(1) {
        world.etcdctl(&["lease", "revoke", lease]);
    }
    world.compact();
    let past = world.try_etcdctl(&["get", "--rev=2", &presence]);
    assert_eq!(past, None, "it is compacted");
    assert_eq!(world.get(&presence), None);
    assert_eq!(away(&client).await, before, "from memory");
    assert_eq!(placed(&client).await.unwrap(), [node.id()]);

    gate.send_replace(Way::Open);
    let mut after: BTreeMap<_, _> = of(10..600).collect();
    after.insert(id(15), address(3));
    until_away(&client, &after).await;
    until("the node's record again", || world.get(&world.key(&node))).await;
    until("presence again", || world.get(&presence)).await;
    // What changes now is told again.
    world.change(&[delete(10)]);
    after.remove(&id(10));
    until_away(&client, &after).await;
    assert_eq!(placed(&client).await.unwrap(), [node.id()]);
    scheduler.stop().await;
}

/// What it wants to hear from is compacted between its reading and its watch.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_what_is_compacted_already_misses_nothing() {
    let world = World::new();
    let (url, gate) = way(&world);
    world.change(&[put(&world, 1, address(2))]);
    gate.send_replace(Way::Late(Duration::from_secs(1)));
    let scheduler = world.scheduler_with(vec![url]);
    let client = world.client(&scheduler).await;
    until_away(&client, &[(id(1), address(2))].into()).await;
    // It has read this, and its request for the watch is under way for a second.
    gate.send_replace(Way::Silent);
    for number in 2..5 {
        world.change(&[put(&world, number, address(2))]);
    }
    world.compact();
    gate.send_replace(Way::Open);
    let all = (1..5).map(|it| (id(it), address(2)));
    until_away(&client, &all.collect()).await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_answers_after_5_s_is_used_and_delays_no_client() {
    let world = World::new();
    let (url, gate) = way(&world);
    gate.send_replace(Way::Late(Duration::from_millis(2_500)));
    world.change(&[put(&world, 1, address(2))]);
    let scheduler = world.scheduler_with(vec![url]);
    let node = world.node("rack=r7");
    let _connection = node.report_to(&scheduler).await;
    let client = world.client(&scheduler).await;
    for _ in 0..100 {
        assert_eq!(placed(&client).await.unwrap(), [node.id()]);
    }
    until_away(&client, &[(id(1), address(2))].into()).await;
    until("its record", || world.get(&world.key(&node))).await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_word_from_an_hour_ahead_stops_no_update_and_hides_nobody() {
    let world = World::new();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ahead = u64::try_from((now + Duration::from_secs(3600)).as_millis()).unwrap();
    let node = world.node("rack=r7");
    let gone = id(1);
    for id in [node.id(), gone] {
        let record = record("192.0.2.2:5701", "rack=r9", ahead);
        world.etcdctl(&["put", &world.key_of(id), &record]);
    }
    let scheduler = world.scheduler();
    let client = world.client(&scheduler).await;
    let both = "; 2 members of the fabric are away";
    told(&client, "no node reports", both).await;

    let connection = node.report_to(&scheduler).await;
    until_placed(&client, &[node.id()]).await;
    let is_new = |it: &String| it.contains("192.0.2.1:5701") && it.contains("rack=r7");
    let record = until("its new record", || {
        world.get(&world.key(&node)).filter(is_new)
    });
    let record = record.await;
    assert!(!record.contains(&ahead.to_string()), "{record}");
    node.say_all(&connection).await;
    assert_eq!(refused(&client).await, RefusalClass::Transient);
    assert_eq!(away(&client).await.into_keys().collect::<Vec<_>>(), [gone]);
    drop(connection);
    told(&client, "no node reports", both).await;
    scheduler.stop().await;
}

/// etcd 3.4 revokes leases that are alive when its leader stalls (etcd #15247).
#[tokio::test(flavor = "multi_thread")]
async fn a_presence_that_vanishes_changes_nothing_and_comes_back() {
    let world = World::new();
    let scheduler = world.scheduler();
    let node = world.node("rack=r7");
    let connection = node.report_to(&scheduler).await;
    node.say_all(&connection).await;
    let client = world.client(&scheduler).await;
    until_refused(&client, RefusalClass::Permanent).await;
    let presence = world.prefix(&format!("schedulers/{}", scheduler.id()));
    until("presence", || world.get(&presence)).await;
    assert_eq!(world.etcdctl(&["del", &presence]).trim(), "1");
    let is_back = async || {
        assert_eq!(placed(&client).await.unwrap(), [node.id()]);
        assert_eq!(refused(&client).await, RefusalClass::Permanent);
        world.get(&presence)
    };
    until_async("presence again", is_back).await;
    scheduler.stop().await;
}
