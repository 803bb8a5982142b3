//! The pages of made-up figures. With `GOLDEN=write` in the environment these tests write what they would otherwise compare.

use std::{env, fs, net::SocketAddr, path::PathBuf, time::Instant};

use fabricbios_fabric::{Fabric, FabricDirectory};
use fabricbios_placement::{NotTaken, Policy, Reporter, View};
use fabricbios_wire::{
    AwayNode, Epoch, InventoryExtension, LABEL_BYTES_MAX, LeaseError, MemArena, NodeId, NodeReport,
    Refusal, RefusalClass, ResourceId, ResourceInventory, health,
};
use maud::html;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;
use crate::figures::{Fleet, LISTED_MAX, Tally};

const SCRIPT: &str = "rack=\"><script>alert(1)</script>";
const NOW: u64 = 1_800_000_000_000;

fn endpoint() -> fabricbios_wire::Endpoint {
    SocketAddr::from(([192, 0, 2, 1], 5701)).into()
}

fn id(number: u32) -> NodeId {
    let mut id = [0; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    NodeId(id)
}

fn labels(more: usize) -> Vec<String> {
    vec![SCRIPT.to_owned(), "<".repeat(more), "<".repeat(more)]
}

/// So many nodes that report, each third of them fenced and all a quarter full, and as many that are away.
fn view(nodes: u32, label: usize) -> View {
    let mut view = View::default();
    for number in 0..nodes {
        let from = Reporter {
            node_id: id(2 * number),
            labels: labels(label),
            connection: 1,
        };
        let health = match number % 3 {
            0 => health::FENCED,
            _ => health::OK,
        };
        let inventory = ResourceInventory {
            node_id: from.node_id,
            epoch: Epoch(1),
            health,
            mem_arenas: vec![MemArena {
                resource_id: ResourceId(1),
                base: 0,
                len: 4 << 30,
                align: 4096,
                max_read: 0,
                max_write: 0,
                health,
            }],
            block_devs: Vec::new(),
            cpu_caps: Vec::new(),
            nics: Vec::new(),
            gpus: Vec::new(),
            extensions: vec![
                InventoryExtension::Available(ResourceId(1), 3 << 30),
                InventoryExtension::Transports(ResourceId(1), Vec::new()),
            ],
        };
        let report = NodeReport {
            sequence: 1,
            endpoint: endpoint(),
            inventory,
        };
        view.report(&from, 0, report).unwrap();
        view.know(AwayNode {
            node_id: id(2 * number + 1),
            endpoint: endpoint(),
            last_seen_unix_ms: NOW - 90_061_000 + u64::from(number),
            labels: labels(label),
        });
    }
    view.members_are_known(true);
    view
}

fn moment(nodes: u32, label: usize) -> Moment {
    let mut view = view(nodes, label);
    let now = Instant::now();
    let heard = [(id(0), now), (id(2), now - Duration::from_secs(90))].into();
    let mut tally = Tally {
        placed: 7,
        found: 5,
        reports: [11, 13],
        ..Tally::default()
    };
    for micros in [80, 250, 2_000_000_000] {
        tally.decisions.add(Duration::from_micros(micros));
    }
    let full = LeaseError::CapacityExceeded;
    tally.refused(&Refusal::new(full, RefusalClass::Transient, "full"));
    tally.not_taken(&NotTaken::TooLarge);
    let knowledge = Some(crate::store::Knowledge::Whole);
    let mut of_read = OfCall::default();
    of_read.times.add(Duration::from_millis(2));
    of_read.failed.insert("lost", 3);
    let of_owner = Figures {
        health: Health::of(&view, knowledge, Policy::Binpack, "etcd"),
        fleet: Fleet::of(&view, &heard, now),
        tally,
    };
    view.members_are_known(false);
    Moment {
        about: About {
            scheduler_id: id(9).to_string(),
            fabric: "cd".repeat(16),
            version: "VERSION",
        },
        of_owner,
        queues: [(1, 0), (2, 4)],
        calls: [("read", of_read)].into(),
        connections: 17,
        certificate_ends: Some(1_800_000_000),
        log_lines_dropped: 0,
        descriptors: 40,
        descriptors_max: 1024,
        process: Some(Process {
            cpu: Duration::from_millis(1500),
            resident_bytes: 1 << 24,
        }),
        pages: Default::default(),
    }
}

/// Compares `text` with this file of the repository, or writes it.
fn golden(file: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(file);
    if env::var_os("GOLDEN").is_some_and(|it| it == "write") {
        fs::write(&path, text).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap();
    assert!(
        there == text,
        "{file} is not what the code says: run this test with GOLDEN=write, and look at the change"
    );
}

#[test]
fn the_pages_of_metrics_are_as_they_were() {
    for (file, format) in [
        ("metrics.txt", Format::Text),
        ("metrics.openmetrics", Format::OpenMetrics),
    ] {
        let page = encode(METRICS, &moment(4, 0), format);
        golden(&format!("fleet/scheduler/src/watch/golden/{file}"), &page);
    }
}

#[test]
fn no_node_makes_a_page_of_metrics_longer() {
    let lines = |nodes| {
        encode(METRICS, &moment(nodes, 0), Format::Text)
            .lines()
            .count()
    };
    assert_eq!(lines(2), lines(200));
}

#[test]
fn every_metric_is_on_the_page_of_the_docs() {
    const HEAD: &str = "## Metrics of a scheduler\n";
    const TABLE: &str = "|---|---|---|---|\n";
    let rows: String = METRICS
        .iter()
        .map(fabricbios_http::metrics::Metric::row)
        .collect();
    let file = "docs/metrics.md";
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(file);
    let page = fs::read_to_string(path).unwrap();
    let (before, section) = page.split_once(HEAD).unwrap();
    let (head, rest) = section.split_once(TABLE).unwrap();
    let (_, tail) = rest.split_once("\n\n").unwrap();
    golden(file, &format!("{before}{HEAD}{head}{TABLE}{rows}\n{tail}"));
}

#[test]
fn a_page_of_ten_thousand_nodes_is_small_and_says_how_many_more_there_are() {
    let moment = moment(10_000, LABEL_BYTES_MAX);
    let page = page::live(&moment, &html! {}, true, NOW).into_string();
    assert!(page.len() < 90 << 10, "{} bytes", page.len());
    // None of them has told its limits, so none of them is well.
    let more = format!("And {} more", 10_000 - LISTED_MAX);
    assert_eq!(page.matches(&more).count(), 3, "{page}");
    assert!(page.contains(" for 1 d 1 h"), "{page}");
    assert!(page.contains(&id(0).to_string()), "{page}");
}

#[test]
fn no_label_becomes_markup_and_who_has_no_token_sees_no_node() {
    let moment = moment(4, 0);
    let page = page::live(&moment, &html! {}, true, NOW).into_string();
    assert!(!page.contains("<script"), "{page}");
    assert!(
        page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"),
        "{page}"
    );
    assert!(
        page.contains("late</span>: said nothing for 1 min 30 s"),
        "{page}"
    );
    let page = page::live(&moment, &html! {}, false, NOW).into_string();
    for of_node in [&id(0).to_string(), "192.0.2.1", "script"] {
        assert!(!page.contains(of_node), "{of_node}: {page}");
    }
    for total in [
        "<b>4</b> report",
        "<b>4</b> away",
        "<b>2</b> fenced",
        "CapacityExceeded",
    ] {
        assert!(page.contains(total), "{total}: {page}");
    }
}

#[tokio::test]
async fn a_scheduler_whose_task_does_not_answer_is_not_well() {
    let place = tempfile::tempdir().unwrap();
    let now = std::time::SystemTime::now();
    let directory = FabricDirectory::init(&place.path().join("fabric"), now).unwrap();
    let fabric = Fabric::open_scheduler(&directory.scheduler_identity(), now).unwrap();
    let (asks, _asked) = crate::figures::channel();
    let (queue, _reports, _requests) = crate::queue::Queue::new();
    let watched = Watched {
        asks,
        membership: Membership::new(fabric),
        depths: queue.depths(),
        calls: Calls::default(),
        origin: Arc::default(),
    };
    let http = start(SocketAddr::from(([127, 0, 0, 1], 0)), None, watched, None).unwrap();
    let at = http.local_addr().expect("open");
    // All wait for one answer, and none for the other's time.
    let ask = async |path: &str| {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
        told
    };
    let (health, metrics, page) = tokio::join!(ask("/healthz"), ask("/metrics"), ask("/"));
    for told in [health, metrics] {
        assert!(told.contains(r#""ready":false"#), "{told}");
        assert!(told.contains("does not answer within 2s"), "{told}");
    }
    assert!(page.contains("does not answer"), "{page}");
    http.stop().await;
}
