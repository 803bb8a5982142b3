//! The HTTP port of a scheduler, without etcd: real requests over TCP.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up should fail loudly"
)]

mod page;
mod start;
mod world;

use std::{net::SocketAddr, process::Command};

use fabricbios_control::Caller;
use fabricbios_discovery::{Found, Looking};
use fabricbios_fabric::Verifier;
use fabricbios_scheduler::{Scheduler, Settings};
use fabricbios_wire::{Reply, ResourceType, Role};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use world::{Fleet, PATIENCE, ask, get, reports, send, until};

#[test]
fn the_program_names_its_commit_as_the_others_do() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_fabricbios-scheduler"));
    let output = program.arg("--version").output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let begin = format!("fabricbios-scheduler {version} (commit ");
    assert!(told.starts_with(&begin), "{told}");
}

/// Waits until the server has ended the connection.
async fn ended(mut stream: TcpStream) {
    let mut told = Vec::new();
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut told)).await;
    // Also by a reset.
    end.expect("the connection goes on").ok();
}

/// The connections that this server has open, of proc_net_tcp(5).
fn connections(at: SocketAddr) -> usize {
    const ESTABLISHED: &str = "01";
    let local = format!(":{:04X}", at.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let lines = table
        .lines()
        .map(|it| it.split_whitespace().collect::<Vec<_>>());
    let is_open = |it: &Vec<&str>| it[1].ends_with(&local) && it[3] == ESTABLISHED;
    lines.filter(is_open).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_is_ready_while_a_node_reports_and_says_what_it_lacks() {
    let fleet = Fleet::new();
    let (scheduler, at) = fleet.scheduler();
    let (status, page) = get(at, "/readyz").await;
    assert_eq!(status, 503);
    let (status, alive) = get(at, "/healthz").await;
    assert_eq!((status, &alive), (200, &page));
    let why = page["why_not"].as_array().unwrap();
    assert!(
        why[0].as_str().unwrap().contains("no node reports"),
        "{page}"
    );
    assert!(why[1].as_str().unwrap().contains("without etcd"), "{page}");
    for (name, expected) in [
        ("scheduler_id", json!(scheduler.id().to_string())),
        ("fabric", json!(fleet.directory.id().to_string())),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("ready", json!(false)),
        ("view_complete", json!(false)),
        ("nodes_reporting", json!(0)),
        ("members_away", json!(0)),
        ("members_known", json!(false)),
        ("etcd", json!("none")),
        ("policy", json!("binpack")),
        ("policy_from", json!("flag")),
    ] {
        assert_eq!(page[name], expected, "{name}");
    }

    let node = fleet.node();
    let listen = scheduler.local_addr().to_string();
    let caller = Caller::connect(&listen, &node, Role::Scheduler).await;
    let caller = caller.unwrap();
    let [inventory, leases] = reports(&node);
    assert_eq!(caller.call(&inventory).await.unwrap(), Ok(Reply::Reported));
    let (page, ready) = until(at, "nodes_reporting", json!(1)).await;
    assert_eq!((ready, &page["nodes_whole"]), (200, &json!(0)));
    let untold = "1 have not told their leases";
    assert!(page["why_not"].to_string().contains(untold), "{page}");
    assert_eq!(caller.call(&leases).await.unwrap(), Ok(Reply::Reported));
    let (page, _) = until(at, "nodes_whole", json!(1)).await;
    assert!(!page["why_not"].to_string().contains(untold), "{page}");

    drop(caller);
    let (_, ready) = until(at, "nodes_reporting", json!(0)).await;
    assert_eq!(ready, 503);
    scheduler.stop().await;
    assert!(TcpStream::connect(at).await.is_err(), "the port is open");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_wrongly_is_told_so() {
    let fleet = Fleet::new();
    let (scheduler, at) = fleet.scheduler();
    for path in ["/metrics/", "/leases", "/healthz/", "/../healthz", "*"] {
        assert_eq!(ask(at, "GET", path).await.0, 404, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let (status, head, _) = ask(at, method, "/healthz").await;
        assert_eq!(status, 405, "{method}");
        assert!(head.contains("allow: get, head"), "{head}");
    }
    let (status, head, body) = ask(at, "HEAD", "/healthz?verbose").await;
    assert_eq!((status, &body[..]), (200, ""));
    assert!(head.contains("content-length: "), "{head}");
    for garbage in [
        "\r\n\u{7}\u{7}\r\n\r\n",
        "GET /healthz\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
    ] {
        assert_eq!(send(at, garbage).await.0, 400, "{garbage:?}");
    }
    let long = format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(1 << 20));
    let mut stream = TcpStream::connect(at).await.unwrap();
    // It may be refused before all of it is sent.
    stream.write_all(long.as_bytes()).await.ok();
    ended(stream).await;
    assert_eq!(get(at, "/healthz").await.0, 200);
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_say_nothing_hold_up_nobody_and_are_ended() {
    let fleet = Fleet::new();
    let (scheduler, at) = fleet.scheduler();
    let mut idle = Vec::new();
    for number in 0..200 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        // Some have begun to ask.
        if number % 2 == 0 {
            // It may have been ended for a later one.
            stream.write_all(b"GET /healthz HTTP/1.1\r\n").await.ok();
        }
        idle.push(stream);
    }
    for _ in 0..100 {
        assert_eq!(get(at, "/healthz").await.0, 200);
    }
    // Some that have been ended may still be counted.
    let open = connections(at);
    assert!(open < 60, "{open} connections are open");
    // One that asks for ever and reads nothing is answered once.
    let mut greedy = TcpStream::connect(at).await.unwrap();
    let request = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100);
    greedy.write_all(request.as_bytes()).await.unwrap();
    idle.push(greedy);
    for stream in idle {
        ended(stream).await;
    }
    // Of those that are alone none goes on either.
    let silent = TcpStream::connect(at).await.unwrap();
    ended(silent).await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_port_is_announced() {
    let fleet = Fleet::new();
    let lo = vec!["lo".to_owned()];
    // At another address than those that are announced, another program may have the port.
    for (http, is_announced) in [("127.0.0.1:0", true), ("127.0.0.2:0", false)] {
        let any = Some(http.parse().unwrap());
        let settings = Settings {
            announce: lo.clone(),
            ..fleet.settings(any)
        };
        let scheduler = Scheduler::start(&settings).unwrap();
        let verifier = Verifier::new(fleet.directory.ca().certificate()).unwrap();
        let looking = Looking::ask(&lo, verifier, ResourceType::Scheduler).unwrap();
        let mut changes = looking.changes();
        let is_it = |it: &&Found| it.id == scheduler.id();
        let port = {
            let found = changes.wait_for(|all| all.iter().any(|it| is_it(&it)));
            let found = tokio::time::timeout(PATIENCE, found).await.unwrap();
            found.unwrap().iter().find(is_it).unwrap().http_port()
        };
        let listened = scheduler.http_addr().map(|it| it.port());
        assert_eq!(port, listened.filter(|_| is_announced));
        scheduler.stop().await;
    }
}
