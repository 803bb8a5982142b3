//! What the operator wants of all schedulers: the policy in etcd.

use std::net::SocketAddr;

use fabricbios_scheduler::Scheduler;
use fabricbios_wire::{LeaseAllocRequest, NodeId, ResourceType};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::world::{World, until, until_async};

const BINPACK: &str = r#"{"version":1,"policy":"binpack"}"#;
const CACHE_AWARE: &str = r#"{"version":1,"policy":"cache-aware"}"#;

pub(crate) async fn get(at: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).await.unwrap();
    let (_, body) = told.split_once("\r\n\r\n").unwrap();
    body.to_owned()
}

async fn health(at: SocketAddr) -> Value {
    serde_json::from_str(&get(at, "/healthz").await).unwrap()
}

/// Waits until /healthz of each scheduler says this of etcd, of the policy, and of where that is from.
async fn until_told(schedulers: &[&Scheduler], expected: [&str; 3]) {
    for scheduler in schedulers {
        let is_told = async || {
            let told = health(scheduler.http_addr().unwrap()).await;
            let told = ["etcd", "policy", "policy_from"].map(|it| told[it].clone());
            (told == expected.map(Value::from)).then_some(())
        };
        until_async(&expected.join(" "), is_told).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_put_changes_the_policy_of_all_schedulers_and_a_delete_gives_each_its_own_back() {
    let mut world = World::new();
    let key = world.prefix("intent/policy");
    let both = [world.scheduler(), world.scheduler()];
    let all = [&both[0], &both[1]];
    until_told(&all, ["answers", "spread", "flag"]).await;
    world.etcdctl(&["put", &key, BINPACK]);
    until_told(&all, ["answers", "binpack", "etcd"]).await;

    // What cannot be read changes nothing: the scheduler has heard of it once it knows a later change.
    let node = world.node("rack=r7");
    for bad in [
        "garbage",
        r#"{"version":2,"policy":"spread"}"#,
        r#"{"version":1}"#,
    ] {
        world.etcdctl(&["put", &key, bad]);
    }
    let _connection = node.report_to(&both[0]).await;
    until("its record", || world.get(&world.key(&node))).await;
    let is_away = async || {
        let told = health(both[1].http_addr().unwrap()).await;
        (told["members_away"] == 1).then_some(())
    };
    until_async("the later change", is_away).await;
    until_told(&all, ["answers", "binpack", "etcd"]).await;
    let wanted = LeaseAllocRequest::new(ResourceType::Mem, 4096, 60);
    let placed = world.client(&both[0]).await.explain_async(wanted).await;
    let why = placed.unwrap().why;
    assert!(why.starts_with("policy binpack;"), "{why}");

    world.etcdctl(&["put", &key, CACHE_AWARE]);
    until_told(&all, ["answers", "cache-aware", "etcd"]).await;
    // Another key of intent is for a later version.
    world.etcdctl(&["put", &world.prefix("intent/cordon"), BINPACK]);

    // While etcd is away the last policy stays, and a restart keeps it, also for one that starts then.
    world.signal(Signal::SIGKILL);
    until_told(&all, ["lost", "cache-aware", "etcd"]).await;
    let late = world.scheduler();
    until_told(&[&late], ["lost", "spread", "flag"]).await;
    world.etcd.restart().unwrap();
    until_told(&[all[0], all[1], &late], ["answers", "cache-aware", "etcd"]).await;

    world.etcdctl(&["del", &key]);
    until_told(&[all[0], all[1], &late], ["answers", "spread", "flag"]).await;
    for scheduler in both.into_iter().chain([late]) {
        scheduler.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_says_how_far_etcd_can_be_relied_on() {
    let world = World::new();
    let scheduler = world.scheduler();
    let at = scheduler.http_addr().unwrap();
    let node = world.node("rack=r7");
    let connection = node.report_to(&scheduler).await;
    node.say_all(&connection).await;
    let is_so = async |name: &str, expected: bool| {
        let told = health(at).await;
        (told[name] == expected).then(|| told["why_not"].to_string())
    };
    let is_whole = async || is_so("view_complete", true).await;
    assert_eq!(until_async("a complete view", is_whole).await, "[]");
    let odd = world.key_of(NodeId([7; 32]));
    world.etcdctl(&["put", &odd, "garbage"]);
    let is_unknown = async || is_so("members_known", false).await;
    let why = until_async("unknown members", is_unknown).await;
    assert!(why.contains("cannot be read"), "{why}");
    world.etcdctl(&["del", &odd]);
    until_async("a complete view", is_whole).await;
    drop(connection);
    let is_empty = async || is_so("ready", false).await;
    let why = until_async("no node", is_empty).await;
    assert!(why.contains("1 member of the fabric is away"), "{why}");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_whether_etcd_answers_and_which_calls_fail() {
    let mut world = World::new();
    let scheduler = world.scheduler();
    let at = scheduler.http_addr().unwrap();
    let has = async |line: &str| {
        let page = get(at, "/metrics").await;
        page.contains(line).then_some(page)
    };
    let up = "fabricbios_scheduler_etcd_up 1\n";
    let page = until_async("etcd answers", async || has(up).await).await;
    for call in ["connect", "read", "watch"] {
        let line = format!("\nfabricbios_scheduler_etcd_call_seconds_count{{call=\"{call}\"}} ");
        assert!(page.contains(&line), "{line}: {page}");
    }
    world.etcd.kill();
    let down = "fabricbios_scheduler_etcd_up 0\n";
    until_async("etcd is lost", async || has(down).await).await;
    let failed = "\nfabricbios_scheduler_etcd_failed_total{call=\"connect\",why=\"lost\"} ";
    until_async("a call fails", async || has(failed).await).await;
    scheduler.stop().await;
}
