//! The pages of a running node: real requests over TCP.

use std::time::Duration;

use fabricbios_testbed::scrapes::{Samples, samples};
use fabricbios_wire::{Request, ResourceType};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    daemon::*,
    journal::{Stopped, scribe},
};

/// A node that serves its pages, with memory.
pub(crate) fn watched(place: &Place) -> Daemon {
    let words = [place.memory(), vec!["--metrics-listen=127.0.0.1:0".into()]].concat();
    place.start(&words)
}

/// Status, header in small letters, and body.
async fn ask(daemon: &Daemon, path: &str, accept: &str) -> (u16, String, String) {
    let at = daemon.metrics.as_deref().expect("it serves pages");
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).await.unwrap();
    let (head, body) = told.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

/// A page of metrics, which is newer than all before.
pub(crate) async fn page_of(daemon: &Daemon) -> String {
    // An answer serves all who ask within half a second.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let (status, head, page) = ask(daemon, "/metrics", "*/*").await;
    assert_eq!(status, 200, "{page}");
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    page
}

async fn scrape(daemon: &Daemon) -> Samples {
    samples(&page_of(daemon).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_counted_from_its_grant_to_its_scrub() {
    let place = Place::new();
    let daemon = watched(&place);
    let before = scrape(&daemon).await;
    let mem = |name: &str, more: &str| {
        format!("fabricbios_{name}{{kind=\"mem\",resource=\"mem0\"{more}}}")
    };
    assert_eq!(before[&mem("resource_capacity", "")], f64::from(1 << 20));
    assert_eq!(before[&mem("grants_total", "")], 0.0);

    let client = daemon.client(&place.admin()).await;
    let lease = alloc(&client, ResourceType::Mem).await;
    write(&lease, b"hello").await;
    let refused = client.alloc_async(request(ResourceType::Block)).await;
    refused.expect_err("there is no storage");
    let live = scrape(&daemon).await;
    assert_eq!(live[&mem("leases", ",state=\"active\"")], 1.0);
    assert_eq!(live[&mem("grants_total", "")], 1.0);
    let free = f64::from((1 << 20) - 4096);
    assert_eq!(live[&mem("resource_available", "")], free);
    let refusals = live
        .iter()
        .filter(|(name, _)| name.starts_with("fabricbios_refusals_total{kind=\"block\",class="));
    assert_eq!(refusals.map(|(_, count)| *count).collect::<Vec<_>>(), [1.0]);
    let operations = "fabricbios_udp_operations_total{kind=\"mem\",status=\"OK\"}";
    assert!(live[operations] >= 2.0, "HELLO and WRITE");
    let received = "fabricbios_udp_received_bytes_total{kind=\"mem\"}";
    assert!(live[received] > before[received]);
    assert_eq!(live["fabricbios_journal_writable"], 1.0);
    assert!(live["fabricbios_journal_commit_seconds_count"] >= 1.0);
    assert!(live["fabricbios_certificate_expiry_timestamp_seconds"] > 1.7e9);

    let free = Request::LeaseFree(lease.lease_id);
    client.lease_async(free).await.unwrap();
    let over = scrape(&daemon).await;
    assert_eq!(over[&mem("leases", ",state=\"active\"")], 0.0);
    assert_eq!(over[&mem("cuts_total", ",cause=\"freed\"")], 1.0);
    assert_eq!(over[&mem("cut_seconds_count", "")], 1.0);
    assert_eq!(
        over[&mem("lease_state_seconds_count", ",state=\"active\"")],
        1.0
    );
    assert_eq!(over[&mem("cut_lateness_seconds_count", "")], 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn openmetrics_is_served_on_demand_and_no_tenant_is_named() {
    let place = Place::new();
    let daemon = watched(&place);
    let client = daemon.client(&place.admin()).await;
    let lease = alloc(&client, ResourceType::Mem).await;
    let (status, head, page) = ask(&daemon, "/metrics", "application/openmetrics-text").await;
    assert_eq!(status, 200);
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(page.ends_with("\n# EOF\n"), "{page}");
    assert!(
        page.contains("# TYPE fabricbios_grants counter\n"),
        "{page}"
    );
    for path in ["/metrics", "/healthz", "/readyz"] {
        let (status, _, page) = ask(&daemon, path, "*/*").await;
        assert_eq!(status, 200, "{page}");
        assert!(!page.contains(&lease.lease_id.to_string()), "{page}");
    }
    let (status, _, page) = ask(&daemon, "/else", "*/*").await;
    assert_eq!(status, 404, "{page}");
    assert!(page.contains("there are /metrics"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_says_what_is_not_well_and_a_node_without_its_journal_is_not_ready() {
    let place = Place::new();
    let daemon = watched(&place);
    let (status, _, page) = ask(&daemon, "/readyz", "*/*").await;
    assert_eq!(status, 200, "{page}");
    for part in [
        r#""ready":true"#,
        r#""well":true"#,
        r#""not_well":[]"#,
        &daemon.node,
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    // Nobody writes the journal while its process is stopped.
    let stopped = Stopped::stop(scribe(&daemon));
    let client = daemon.client(&place.admin()).await;
    let refused = client.alloc_async(request(ResourceType::Mem)).await;
    refused.expect_err("nothing is granted without a journal");
    let (ready, _, page) = ask(&daemon, "/readyz", "*/*").await;
    let (health, _, _) = ask(&daemon, "/healthz", "*/*").await;
    drop(stopped);
    assert_eq!((ready, health), (503, 200), "{page}");
    for part in [
        r#""ready":false"#,
        r#""name":"node""#,
        "the journal cannot be written",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}
