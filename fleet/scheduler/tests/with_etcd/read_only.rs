//! An etcd that lets a scheduler read and not write, and what a scheduler writes under a lease.

use std::io::{BufRead, BufReader};

use serde_json::Value;

use crate::world::{World, placed, told, until, until_async};

/// The key as etcd has it.
fn record(world: &World, key: &str) -> Option<Value> {
    let told = world.try_etcdctl(&["get", "--write-out=json", key])?;
    let told: Value = serde_json::from_str(&told).unwrap();
    Some(told["kvs"].get(0)?.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_has_no_lease_and_the_presence_of_a_scheduler_has_one_of_30_s() {
    let world = World::new();
    let scheduler = world.scheduler();
    let node = world.node("rack=r7");
    let connection = node.report_to(&scheduler).await;
    let member = until("its record", || record(&world, &world.key(&node))).await;
    // What is 0 is left out.
    assert_eq!(member.get("lease"), None, "{member}");
    let presence = world.prefix(&format!("schedulers/{}", scheduler.id()));
    let presence = until("presence", || record(&world, &presence)).await;
    let lease = format!("{:x}", presence["lease"].as_i64().unwrap());
    let words = ["lease", "timetolive", "--keys", "--write-out=json", &lease];
    let lease: Value = serde_json::from_str(&world.etcdctl(&words)).unwrap();
    assert_eq!(lease["granted-ttl"], 30, "{lease}");
    assert_eq!(lease["keys"], Value::from(vec![presence["key"].clone()]));
    drop(connection);
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_may_only_be_read_is_read_and_what_is_new_is_written_once_it_may_be() {
    let world = World::new();
    let before = world.scheduler();
    let nodes = [world.node("rack=r7"), world.node("rack=r8")];
    let first = nodes[0].report_to(&before).await;
    until("its record", || world.get(&world.key(&nodes[0]))).await;
    drop(first);
    before.stop().await;

    let may_write = world.read_only();
    // As an operator sees it.
    let mut program = world.program().spawn().unwrap();
    let says = BufReader::new(program.stderr.take().unwrap()).lines();
    let says = { says.map_while(Result::ok) }.find(|it| it.contains("etcd refuses to write"));
    let says = says.expect("the program has ended");
    assert!(
        says.contains("WARN") && says.contains("PermissionDenied"),
        "{says}"
    );
    program.kill().unwrap();
    program.wait().unwrap();

    let scheduler = world.scheduler();
    let second = nodes[1].report_to(&scheduler).await;
    let client = world.client(&scheduler).await;
    assert_eq!(placed(&client).await.unwrap(), [nodes[1].id()]);
    let is_read = async || {
        let members = client.members_async().await.unwrap();
        let away: Vec<_> = members.away.iter().map(|it| it.id).collect();
        (away == [nodes[0].id()]).then_some(())
    };
    until_async("the member in etcd is known", is_read).await;
    assert_eq!(world.get(&world.key(&nodes[1])), None);
    may_write();
    until("the second record", || world.get(&world.key(&nodes[1]))).await;
    drop(second);
    let both = "; 2 members of the fabric are away";
    told(&client, "no node reports", both).await;
    scheduler.stop().await;
}
