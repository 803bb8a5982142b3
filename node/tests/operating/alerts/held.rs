//! Alerts of nodes with threads that do not go on. These tests need root: the memory of a node is closed to other users,
//! and so are its threads.

use std::fs;

use fabricbios_testbed::scrapes::{Scene, sum};
use fabricbios_wire::{LeaseId, LeasePhase, Request, ResourceType};
use nix::{
    sys::{
        ptrace,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};
use tokio::task::JoinSet;

use crate::{daemon::*, monitor::page_of};

/// Threads that this thread holds by ptrace(2), as a call that does not return would. A drop lets them go on.
struct Held(Vec<Pid>);

impl Held {
    /// Holds the threads with this name, of which there are so many.
    fn threads(of: &Daemon, name: &str, count: usize) -> Self {
        let threads = wait_for(name, || {
            let tasks = fs::read_dir(format!("/proc/{}/task", of.pid())).unwrap();
            let tasks = tasks.map(|it| it.unwrap().path());
            let named = tasks.filter(|it| {
                // The thread may be gone.
                let told = fs::read_to_string(it.join("comm")).unwrap_or_default();
                told.trim_end() == name
            });
            let number = |it: std::path::PathBuf| it.file_name()?.to_str()?.parse().ok();
            let found: Vec<i32> = named.filter_map(number).collect();
            (found.len() == count).then_some(found)
        });
        let mut held = Self(Vec::new());
        for thread in threads.into_iter().map(Pid::from_raw) {
            let seized = ptrace::seize(thread, ptrace::Options::empty());
            seized.expect("ptrace of a node takes root");
            held.0.push(thread);
            ptrace::interrupt(thread).unwrap();
            waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
        }
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A thread that has ended is held no more.
        for thread in &self.0 {
            ptrace::detach(*thread, None).ok();
        }
    }
}

/// A node with memory whose cuts may take so many milliseconds.
fn cutting_within(place: &Place, millis: u32) -> Daemon {
    let more = vec![
        "--metrics-listen=127.0.0.1:0".into(),
        format!("--cut-within-ms={millis}"),
    ];
    place.start(&[place.memory(), more].concat())
}

/// The threads that cut leases of memory.
fn threads_for_cuts(of: &Daemon) -> Held {
    Held::threads(of, "ending work", 2)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_that_no_thread_begins_yet() {
    let place = Place::new();
    // It fails after ten times this.
    let daemon = cutting_within(&place, 2_000);
    let scene = Scene::of(&page_of(&daemon).await, &["FabricbiosAboveBound"]);
    let node = daemon.client(&place.admin()).await;
    let free = Request::LeaseFree(alloc(&node, ResourceType::Mem).await.lease_id);
    let held = threads_for_cuts(&daemon);
    let freed = tokio::spawn(async move { node.lease_async(free).await });
    scene
        .raised(
            || page_of(&daemon),
            |_, now| sum(now, "fabricbios_leases_above_bound") > 0.0,
        )
        .await;
    drop(held);
    assert_eq!(freed.await.unwrap().unwrap().phase, LeasePhase::Freed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_that_is_not_proved() {
    let place = Place::new();
    let daemon = cutting_within(&place, 50);
    let scene = Scene::of(
        &page_of(&daemon).await,
        &["FabricbiosCutUnproved", "FabricbiosFenced"],
    );
    let node = daemon.client(&place.admin()).await;
    let free = Request::LeaseFree(alloc(&node, ResourceType::Mem).await.lease_id);
    let _held = threads_for_cuts(&daemon);
    let fenced = node.lease_async(free).await;
    fenced.expect_err("the end of access is not proved");
    scene
        .raised(
            || page_of(&daemon),
            |well, now| {
                let unproved = |it| sum(it, "fabricbios_cuts_unproved_total");
                unproved(now) > unproved(well) && sum(now, "fabricbios_resource_health") == 2.0
            },
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_than_wait() {
    let place = Place::new();
    let daemon = cutting_within(&place, 1_000);
    let scene = Scene::of(&page_of(&daemon).await, &["FabricbiosBusy"]);
    // The most requests at once of one connection. 512 of one tenant wait.
    let (connections, each) = (5, 128);
    let mut asked = JoinSet::new();
    let mut nodes = Vec::new();
    for _ in 0..connections {
        nodes.push(daemon.client(&place.admin()).await);
    }
    let held = Held::threads(&daemon, "driver", 1);
    for node in nodes.iter().flat_map(|it| vec![it.clone(); each]) {
        asked.spawn(async move { node.call_async(Request::LeaseQuery(LeaseId(7))).await });
    }
    // Those that find no place are answered at once.
    let first = asked.join_next().await.unwrap().unwrap();
    assert_eq!(first.unwrap_err().code(), "ResourceBusy");
    drop(held);
    scene
        .raised(
            || page_of(&daemon),
            |well, now| {
                let away = |it| sum(it, "fabricbios_requests_turned_away_total");
                away(now) > away(well)
            },
        )
        .await;
}
