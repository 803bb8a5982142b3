//! Metrics, and the page for people.

use std::{net::SocketAddr, os::unix::fs::PermissionsExt};

use fabricbios_control::Caller;
use fabricbios_scheduler::{Scheduler, Settings};
use fabricbios_wire::{LeaseId, Reply, Request, Role};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::world::{Fleet, PATIENCE, reports, send, until_it_has};

#[tokio::test(flavor = "multi_thread")]
async fn metrics_follow_nodes_requests_and_refusals() {
    let fleet = Fleet::new();
    let (scheduler, at) = fleet.scheduler();
    let page = until_it_has(at, "/metrics", "", "fabricbios_scheduler_ready 0\n").await;
    assert!(page.contains("version=0.0.4"), "{page}");
    for line in [
        "fabricbios_fleet_nodes{state=\"whole\"} 0\n",
        "fabricbios_scheduler_policy{policy=\"binpack\",from=\"flag\"} 1\n",
        "fabricbios_scheduler_decision_seconds_count 0\n",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    // There is no etcd, and no node that is late.
    for absent in [
        "\nfabricbios_scheduler_etcd_up ",
        "\nfabricbios_fleet_oldest_report_age_seconds ",
    ] {
        assert!(!page.contains(absent), "{absent}: {page}");
    }

    let node = fleet.node();
    let listen = scheduler.local_addr().to_string();
    let caller = Caller::connect(&listen, &node, Role::Scheduler).await;
    let caller = caller.unwrap();
    for report in reports(&node) {
        assert_eq!(caller.call(&report).await.unwrap(), Ok(Reply::Reported));
    }
    let [again, _] = reports(&node);
    caller.call(&again).await.unwrap().unwrap_err();
    let identity = fabricbios_client::Identity::load(fleet.directory.admin_identity()).unwrap();
    let client = fabricbios_client::Node::connect_async(&listen, &identity).await;
    let client = client.unwrap();
    let lease = client.call_async(Request::LeaseQuery(LeaseId(7))).await;
    lease.expect_err("no node has it");
    let not_taken = "fabricbios_scheduler_reports_not_taken_total{why=\"sequence\"} 1\n";
    let refused = "fabricbios_scheduler_refusals_total{class=\"transient\",code=\"NotFound\"} 1\n";
    until_it_has(at, "/metrics", "", refused).await;
    let page = until_it_has(at, "/metrics", "", not_taken).await;
    for line in [
        "fabricbios_fleet_nodes{state=\"whole\"} 1\n",
        "fabricbios_fleet_nodes_by_health{health=\"ok\"} 1\n",
        "fabricbios_scheduler_ready 1\n",
        "fabricbios_scheduler_view_complete 0\n",
        "fabricbios_scheduler_reports_total{of=\"inventory\"} 1\n",
        "fabricbios_scheduler_reports_total{of=\"leases\"} 1\n",
        "fabricbios_scheduler_connections 2\n",
        "\nfabricbios_fleet_oldest_report_age_seconds ",
        "\nfabricbios_scheduler_certificate_expiry_timestamp_seconds ",
        "\nprocess_resident_memory_bytes ",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    assert!(!page.contains(&node.node_id().to_string()), "{page}");
    let accept = "Accept: application/openmetrics-text\r\n";
    let page = until_it_has(at, "/metrics", accept, "# EOF\n").await;
    assert!(page.contains("application/openmetrics-text"), "{page}");
    drop(caller);
    let none = "fabricbios_fleet_nodes{state=\"whole\"} 0\n";
    until_it_has(at, "/metrics", "", none).await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_totals_to_all_and_nodes_to_who_has_the_token() {
    let fleet = Fleet::new();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let settings = Settings {
        run_dir: Some(fleet.place.path().to_owned()),
        ..fleet.settings(Some(any))
    };
    let scheduler = Scheduler::start(&settings).unwrap();
    let at = scheduler.http_addr().unwrap();
    let node = fleet.node();
    let listen = scheduler.local_addr().to_string();
    let caller = Caller::connect(&listen, &node, Role::Scheduler).await;
    let caller = caller.unwrap();
    for report in reports(&node) {
        assert_eq!(caller.call(&report).await.unwrap(), Ok(Reply::Reported));
    }
    let id = node.node_id().to_string();
    let page = until_it_has(at, "/", "", "<b>1</b> report").await;
    assert!(
        page.contains("content-security-policy: default-src 'none'"),
        "{page}"
    );
    assert!(
        page.contains("<code>fabricctl page --state-dir DIR</code>"),
        "{page}"
    );
    assert!(!page.contains(&id) && !page.contains("192.0.2.1"), "{page}");

    let file = fleet.place.path().join("page.url");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let url = std::fs::read_to_string(file).unwrap();
    let path = url.trim().strip_prefix(&format!("http://{at}")).unwrap();
    let asked = |path: &str, host: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        async move { send(at, &request).await }
    };
    let (status, head, _) = asked(path, "127.0.0.1").await;
    assert_eq!(status, 303);
    let cookie = head.split_once("set-cookie: ").unwrap().1;
    let cookie = format!("Cookie: {}\r\n", cookie.split_once(';').unwrap().0);
    let page = until_it_has(at, "/", &cookie, &id).await;
    assert!(page.contains("192.0.2.1:5701"), "{page}");
    let wrong = cookie.replace('=', "=0");
    let page = until_it_has(at, "/", &wrong, "<b>1</b> report").await;
    assert!(!page.contains(&id), "{page}");
    assert_eq!(asked("/?token=0", "127.0.0.1").await.0, 403);
    assert_eq!(asked("/", "scheduler.example").await.0, 421);

    // Who watches is told when the node is gone.
    let mut watching = TcpStream::connect(at).await.unwrap();
    let request = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    watching.write_all(request.as_bytes()).await.unwrap();
    drop(caller);
    let mut told = String::new();
    let gone = async {
        let mut part = [0; 4096];
        while !told.contains("<b>0</b> report") {
            let read = watching.read(&mut part).await.unwrap();
            assert!(read > 0, "it has ended: {told}");
            told += &String::from_utf8_lossy(&part[..read]);
        }
    };
    tokio::time::timeout(PATIENCE, gone)
        .await
        .expect("it is not told");
    scheduler.stop().await;
}
