//! Alerts of schedulers that have too much to do: a fleet with thousands of resources, of which many clients want one.

use std::time::Instant;

use fabricbios_client::{Error, Node};
use fabricbios_wire::{
    InventoryExtension, LeaseAllocRequest, LeaseReport, MemArena, ReportPart, ResourceId,
    ResourceType, Transport,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::task::JoinSet;

use super::*;
use crate::world::PATIENCE;

/// Nodes with so many resources each, which are nearly all that a report has room for.
const NODES: u8 = 8;
const RESOURCES: u128 = 200;

/// A scheduler with a large fleet.
struct Large {
    world: World,
    program: Program,
    _connections: Vec<Caller>,
}

impl Large {
    async fn start() -> Self {
        let world = World::new();
        let program = Program::start(&world);
        let mut connections = Vec::new();
        for number in 0..NODES {
            let node = world.node(&format!("rack=r{number}"));
            let connection = node.connect_at(&program.listen).await;
            for report in reports(&node) {
                let taken = connection.call(&report).await;
                assert_eq!(taken.unwrap(), Ok(Reply::Reported));
            }
            connections.push(connection);
        }
        Self {
            world,
            program,
            _connections: connections,
        }
    }

    async fn scene(&self, alerts: &'static [&'static str]) -> Scene {
        Scene::of(&self.program.well(NODES.into()).await, alerts)
    }

    async fn client(&self) -> Node {
        self.world.client_at(&self.program.listen).await
    }
}

/// All that decides about a lease of this node's memory, of which it has many pieces.
fn reports(node: &Reporting) -> [Request; 2] {
    let mut report = node.report();
    let inventory = &mut report.inventory;
    let [arena] = inventory.mem_arenas[..] else {
        panic!("{inventory:?}");
    };
    inventory.mem_arenas.clear();
    inventory.extensions = vec![InventoryExtension::Limits {
        lease_secs_max: 3600,
        grace_secs_max: 3600,
        bare_metal: false,
    }];
    for resource_id in (1..=RESOURCES).map(ResourceId) {
        inventory.extensions.extend([
            InventoryExtension::Available(resource_id, arena.len),
            InventoryExtension::Transports(resource_id, vec![Transport::Udp]),
            InventoryExtension::Admission {
                resource_id,
                flags: 0,
                forbidden: Vec::new(),
                most: vec![(0, arena.len, arena.len)],
            },
        ]);
        inventory.mem_arenas.push(MemArena {
            resource_id,
            ..arena
        });
    }
    let leases = LeaseReport {
        sequence: 2,
        part: ReportPart::Whole,
        leases: Vec::new(),
        gone: Vec::new(),
    };
    [Request::NodeReport(report), Request::NodeLeases(leases)]
}

/// So many requests at once, whose answers are awaited elsewhere.
fn ask(client: &Node, count: usize) -> JoinSet<Result<Reply, Error>> {
    let mut asked = JoinSet::new();
    for _ in 0..count {
        let client = client.clone();
        let wanted = LeaseAllocRequest {
            follows_redirect: true,
            ..LeaseAllocRequest::new(ResourceType::Mem, 4096, 60)
        };
        asked.spawn(async move { client.call_async(Request::LeaseAlloc(wanted)).await });
    }
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_than_wait() {
    let large = Large::start().await;
    let scene = large.scene(&["FabricbiosSchedulerBusy"]).await;
    // The most requests at once of one connection. 256 of one operator wait.
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(large.client().await);
    }
    let is_turned_away = |answer: &Result<Reply, Error>| {
        let refusal = answer.as_ref().err().map(ToString::to_string);
        refusal.is_some_and(|it| it.contains("too many requests waiting"))
    };
    until_async("a request that is turned away", async || {
        let asked: Vec<_> = clients.iter().map(|it| ask(it, 128)).collect();
        let mut answers = Vec::new();
        for of_one in asked {
            answers.extend(of_one.join_all().await);
        }
        answers.iter().any(is_turned_away).then_some(())
    })
    .await;
    scene
        .raised(
            || large.program.page(),
            |well, now| {
                let away = "fabricbios_scheduler_turned_away_total{queue=\"requests\"}";
                now[away] > well[away]
            },
        )
        .await;
}

/// Decisions that took longer than 100 ms, and all.
fn decisions(page: &str) -> [f64; 2] {
    let of = samples(page);
    let all = of["fabricbios_scheduler_decision_seconds_count"];
    let quick = of["fabricbios_scheduler_decision_seconds_bucket{le=\"0.1\"}"];
    [all - quick, all]
}

/// The scheduler gets no processor for a while, again and again: for longer than a decision may take.
#[tokio::test(flavor = "multi_thread")]
async fn decisions_that_are_interrupted() {
    let large = Large::start().await;
    let well = large.program.well(NODES.into()).await;
    let scene = Scene::of(&well, &["FabricbiosDecisionsSlow"]);
    let client = large.client().await;
    let pid = Pid::from_raw(large.program.child.id().cast_signed());
    let begin = Instant::now();
    let mut pages = vec![well];
    // The alert waits for five minutes, in each of which it looks at the last five: slow ones in four suffice.
    while pages.len() < 5 {
        let mut asked = ask(&client, 16);
        asked.join_next().await.unwrap().unwrap().unwrap();
        // It makes the next decision now, mostly.
        kill(pid, Signal::SIGSTOP).unwrap();
        sleep(Duration::from_millis(150)).await;
        kill(pid, Signal::SIGCONT).unwrap();
        asked.join_all().await;
        let page = large.program.page().await;
        let ([slow_before, before], [slow, all]) =
            (decisions(&pages[pages.len() - 1]), decisions(&page));
        if (slow - slow_before) / (all - before) > 0.01 {
            pages.push(page);
        }
        assert!(begin.elapsed() < PATIENCE, "{slow} of {all} are slow");
    }
    let pages: Vec<_> = pages[1..].iter().map(String::as_str).collect();
    scene.raised_by(&pages);
}
