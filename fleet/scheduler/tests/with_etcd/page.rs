//! The page for people in a real browser, where one is installed.

use std::{env, fs, net::SocketAddr, path::Path, time::Duration};

use fabricbios_control::Caller;
use fabricbios_testbed::browser::Browser;
use fabricbios_wire::{
    BlockDev, Epoch, InventoryExtension, LeaseId, LeasePhase, LeaseReport, MemArena, NodeReport,
    Reply, ReportPart, ReportedLease, Request, ResourceId, ResourceInventory, ResourceType,
    Transport, health,
};

use crate::world::{Reporting, World, placed, refused};

const GIB: u64 = 1 << 30;
/// What each node has: memory and blocks, bytes.
const RESOURCES: [(ResourceId, ResourceType, u64, Transport); 2] = [
    (MEMORY, ResourceType::Mem, 512 * GIB, Transport::Rdma),
    (
        ResourceId(2),
        ResourceType::Block,
        8192 * GIB,
        Transport::NvmeTcp,
    ),
];
const MEMORY: ResourceId = ResourceId(1);

/// A node of the fleet, from its number and its percentage in use.
struct Shown {
    node: Reporting,
    number: u8,
    percent: u64,
    health: u32,
}

impl Shown {
    fn inventory(&self, sequence: u64) -> Request {
        let mut inventory = ResourceInventory {
            node_id: self.node.id(),
            epoch: Epoch(1),
            health: self.health,
            mem_arenas: Vec::new(),
            block_devs: Vec::new(),
            cpu_caps: Vec::new(),
            nics: Vec::new(),
            gpus: Vec::new(),
            extensions: vec![InventoryExtension::Limits {
                lease_secs_max: 3600,
                grace_secs_max: 3600,
                bare_metal: false,
            }],
        };
        for (resource_id, kind, len, transport) in RESOURCES {
            match kind {
                ResourceType::Mem => inventory.mem_arenas.push(MemArena {
                    resource_id,
                    base: 0,
                    len,
                    align: 4096,
                    max_read: 0,
                    max_write: 0,
                    health: self.health,
                }),
                _ => inventory.block_devs.push(BlockDev {
                    resource_id,
                    block_size: 4096,
                    capacity: len,
                    flags: 0,
                    health: health::OK,
                }),
            }
            let free = len - len / 100 * self.percent;
            inventory.extensions.extend([
                InventoryExtension::Available(resource_id, free),
                InventoryExtension::Transports(resource_id, vec![transport]),
                InventoryExtension::Admission {
                    resource_id,
                    flags: 0,
                    forbidden: Vec::new(),
                    most: vec![(0, free, len)],
                },
            ]);
        }
        let endpoint = SocketAddr::from(([192, 0, 2, self.number], 5701)).into();
        Request::NodeReport(NodeReport {
            sequence,
            endpoint,
            inventory,
        })
    }

    /// A lease for each tenth in use.
    fn leases(&self, sequence: u64) -> Request {
        let lease = |of: u64| ReportedLease {
            lease_id: LeaseId((u128::from(self.number) << 64) | u128::from(of)),
            resource_id: MEMORY,
            resource_type: ResourceType::Mem,
            phase: LeasePhase::Active,
            capacity: 51 * GIB,
            expires_at_unix_ms: u64::MAX,
            tenant: "training".to_owned(),
        };
        Request::NodeLeases(LeaseReport {
            sequence,
            part: ReportPart::Whole,
            leases: (0..self.percent / 10).map(lease).collect(),
            gone: Vec::new(),
        })
    }
}

async fn say(over: &Caller, report: &Request) {
    assert_eq!(over.call(report).await.unwrap(), Ok(Reply::Reported));
}

/// A browser must log in, accept the page under its policy, and show of a fleet under load that a node is lost.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium"]
async fn a_browser_shows_the_fleet_and_that_a_node_is_lost() {
    let world = World::new();
    let scheduler = world.scheduler();
    let mut fleet = Vec::new();
    for (number, percent, health) in [
        (1, 20, health::OK),
        (2, 91, health::OK),
        (3, 48, health::OK),
        (4, 35, health::DEGRADED),
        (5, 74, health::OK),
        (6, 12, health::FENCED),
        (7, 60, health::OK),
    ] {
        let node = world.node(&format!("rack=r{number}"));
        let over = node.connect(&scheduler).await;
        let shown = Shown {
            node,
            number,
            percent,
            health,
        };
        say(&over, &shown.inventory(1)).await;
        say(&over, &shown.leases(2)).await;
        fleet.push((shown, over));
    }
    let client = world.client(&scheduler).await;
    let (lost, over_lost) = fleet.pop().unwrap();
    let id = |shown: &Shown| shown.node.id().to_string();
    let stay: Vec<(String, bool)> = { fleet.iter() }
        .map(|(shown, _)| (id(shown), shown.health == health::OK))
        .collect();
    let load = tokio::spawn(async move {
        for sequence in 3.. {
            for (shown, over) in &fleet {
                placed(&client).await.expect("a node has room");
                say(over, &shown.inventory(sequence)).await;
                // Others have the processors too.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            refused(&client).await;
        }
    });

    let url = fs::read_to_string(world.place().join("page.url")).unwrap();
    let browser = Browser {
        url: url.trim(),
        profiles: world.place(),
    };
    let window = browser.open("watches");
    // Only the script writes that, with what the scheduler told after the page.
    window.wait_for_title("redirects clients, knows all – ");
    drop(over_lost);
    window.wait_for_title("redirects clients, does not know all – ");
    let document = browser.document("dumps");
    let (_, lists) = document.split_once("<h2>Away</h2>").expect("logged in");
    let (away, lists) = lists.split_once("<h2>Not well</h2>").unwrap();
    let (unwell, fullest) = lists.split_once("<h2>The fullest</h2>").unwrap();
    assert!(
        away.contains(&id(&lost)) && away.contains("rack=r7"),
        "{away}"
    );
    for (id, is_well) in &stay {
        assert_eq!(unwell.contains(id), !is_well, "{unwell}");
        assert!(fullest.contains(id), "{fullest}");
    }
    // For the documentation.
    if let Ok(directory) = env::var("PICTURES") {
        browser.draw(&Path::new(&directory).join("fleet-page"), (1100, 1530));
    }
    assert!(!load.is_finished(), "clients were redirected meanwhile");
    load.abort();
    scheduler.stop().await;
}
