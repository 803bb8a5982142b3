//! Conditions that raise alerts of docs/metrics/alerts.yaml, made on a running node. Each test scrapes the node before and
//! after, and looks at what the rule asks for.

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fabricbios_testbed::scrapes::{Samples, Scene, sum};
use fabricbios_wire::{Request, ResourceType};
use nix::sys::signal::Signal;
use tokio::{net::TcpStream, time::sleep};

use crate::{
    daemon::*,
    joining::{accept, fabric, signed_for},
    journal::{Stopped, scribe},
    monitor::{page_of, watched},
};

mod held;

/// A node that serves its pages, with a pool.
fn with_pool(place: &Place) -> Vec<String> {
    [place.pool(), vec!["--metrics-listen=127.0.0.1:0".into()]].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_is_not_written() {
    let place = Place::new();
    let daemon = watched(&place);
    let scene = Scene::of(
        &page_of(&daemon).await,
        &["FabricbiosJournalNotWritable", "FabricbiosDegraded"],
    );
    let stopped = Stopped::stop(scribe(&daemon));
    let node = daemon.client(&place.admin()).await;
    let waits = tokio::spawn(async move { node.alloc_async(request(ResourceType::Mem)).await });
    scene
        .raised(
            || page_of(&daemon),
            |_, now| {
                now["fabricbios_journal_writable"] == 0.0 && now["fabricbios_node_health"] == 1.0
            },
        )
        .await;
    drop(stopped);
    waits.await.unwrap().unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_cannot_be_cleaned() {
    let place = Place::new();
    let daemon = place.start(&with_pool(&place));
    let scene = Scene::of(&page_of(&daemon).await, &["FabricbiosPartlyFenced"]);
    let node = daemon.client(&place.admin()).await;
    let lease = alloc(&node, ResourceType::Block).await;
    // A directory cannot be overwritten.
    let volume = place.at(&format!("pool/{}.volume", lease.lease_id));
    fs::remove_file(&volume).unwrap();
    fs::create_dir(&volume).unwrap();
    let free = Request::LeaseFree(lease.lease_id);
    node.lease_async(free).await.unwrap();
    scene
        .raised(
            || page_of(&daemon),
            |_, now| sum(now, "fabricbios_resource_fenced_part") > 0.0,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_cannot_be_made() {
    let place = Place::new();
    let daemon = place.start(&with_pool(&place));
    let scene = Scene::of(&page_of(&daemon).await, &["FabricbiosGrantsFail"]);
    let node = daemon.client(&place.admin()).await;
    fs::remove_dir_all(place.at("pool")).unwrap();
    for _ in 0..5 {
        node.alloc_async(request(ResourceType::Block))
            .await
            .unwrap_err();
    }
    scene
        .raised(
            || page_of(&daemon),
            |well, now| {
                let failed = |it| sum(it, "fabricbios_grants_failed_total");
                failed(now) - failed(well) > 3.0
            },
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_long_behind_its_deadline() {
    let place = Place::new();
    let daemon = watched(&place);
    let scene = Scene::of(&page_of(&daemon).await, &["FabricbiosCutsLate"]);
    let node = daemon.client(&place.admin()).await;
    let mut wanted = request(ResourceType::Mem);
    wanted.lease_secs = 2;
    let lease = node.alloc_async(wanted).await.unwrap();
    let stopped = Stopped::stop(daemon.pid());
    let over = UNIX_EPOCH + Duration::from_millis(lease.expires_at_unix_ms + 1_000);
    let left = over.duration_since(SystemTime::now()).unwrap_or_default();
    sleep(left).await;
    drop(stopped);
    scene
        .raised(|| page_of(&daemon), |_, now| {
            let of = |le: &str| {
                let name = format!("fabricbios_cut_lateness_seconds_bucket{{le=\"{le}\",kind=\"mem\",resource=\"mem0\"}}");
                now.get(&name).copied().unwrap_or_default()
            };
            of("+Inf") - of("0.1") > 0.0
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_gone() {
    let place = Place::new();
    let daemon = watched(&place);
    let scene = Scene::of(&page_of(&daemon).await, &["FabricbiosNodeSilent"]);
    let at = daemon.metrics.clone().unwrap();
    daemon.end(Signal::SIGKILL);
    TcpStream::connect(at).await.unwrap_err();
    scene.raised_by(&[""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn few_descriptors() {
    let place = Place::new();
    let daemon = place.command(&with_pool(&place));
    let mut limited = Command::new("sh");
    let limit = "ulimit -n 620; exec \"$0\" \"$@\"";
    limited
        .args(["-c", limit])
        .arg(daemon.get_program())
        .args(daemon.get_args());
    let daemon = place.begin(limited, place.new_log());
    let scene = Scene::of(&page_of(&daemon).await, &["FabricbiosDescriptorsLow"]);
    let node = daemon.client(&place.admin()).await;
    for _ in 0..100 {
        alloc(&node, ResourceType::Block).await;
    }
    scene
        .raised(
            || page_of(&daemon),
            |_, now| now["process_max_fds"] - now["process_open_fds"] < 512.0,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_ends_soon() {
    let place = Place::new();
    let socket = format!("--local-socket={}", place.text("sock"));
    let daemon = place.start(&[with_pool(&place), vec![socket]].concat());
    let scene = Scene::of(&page_of(&daemon).await, &["FabricbiosCertificateEnds"]);
    let days = |number: u64| Duration::from_secs(number * 24 * 3600);
    signed_for(&place, &fabric(&place), "answer", Some(days(10)));
    let accepted = accept(&place, "answer");
    assert!(accepted.status.success(), "{accepted:?}");
    let soon = SystemTime::now() + days(30);
    let soon = soon.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    scene
        .raised(
            || page_of(&daemon),
            |_, now| now["fabricbios_certificate_expiry_timestamp_seconds"] < soon,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_nobody_reads() {
    let place = Place::new();
    let mut command = place.command(&with_pool(&place));
    command.env("RUST_LOG", "trace");
    // The pipe is full soon.
    let daemon = place.begin(command, Stdio::piped());
    let scene = Scene::of(&page_of(&daemon).await, &["FabricbiosLogDropped"]);
    let node = daemon.client(&place.admin()).await;
    for _ in 0..3_000 {
        node.call_async(Request::Ping(0)).await.unwrap();
    }
    scene
        .raised(
            || page_of(&daemon),
            |well, now| {
                let dropped = |it: &Samples| it["fabricbios_log_lines_dropped_total"];
                dropped(now) > dropped(well)
            },
        )
        .await;
}
