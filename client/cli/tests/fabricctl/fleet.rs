//! Leases through a scheduler, and the nodes that it knows.

use std::net::SocketAddr;

use fabricbios_wire::{
    Answer, AwayNode, CpuCap, CpuIsolationClass, Epoch, FlatEntry, FleetNode, FleetPage,
    InventoryExtension, InventoryForm, LeaseError, MemArena, NodeId, RefusalClass, Reply, Request,
    ResourceId, ResourceInventory, ResourceType, Tried, health,
};
use serde_json::json;

use crate::{
    LEASE_TEXT,
    common::{
        FakeNode,
        fleet::{Fleet, candidate},
        refuse,
    },
    fails,
    gpu::{RUN, World, gpu_lease},
    granting, json_of, text_of,
};

#[test]
fn a_new_lease_says_which_node_has_it() {
    let fleet = Fleet::new();
    let node = fleet.node(granting());
    let scheduler = fleet.redirecting_to(&[&node]);
    let line = "lease alloc mem --bytes 1MiB --secs 60";
    let told = json_of(&scheduler, line);
    assert_eq!(told["lease_id"], LEASE_TEXT);
    assert_eq!(told["node"], node.addr());
    assert_eq!(told["node_id"], node.id().to_string());
    let text = text_of(&scheduler, line);
    let row = format!("{} {}", node.addr(), node.id());
    assert!(text.contains(&row), "{text}");
    let direct = text_of(&node, line);
    assert!(!direct.contains(&node.addr()), "{direct}");
}

#[test]
fn a_scheduler_explains_which_nodes_it_would_name_and_no_lease_is_asked_for() {
    let fleet = Fleet::new();
    let node = fleet.node(granting());
    let named = candidate(&node);
    let scheduler = fleet.scheduler(move |request: &Request| match request {
        Request::LeaseAlloc(asked) if asked.explain => Ok(Reply::Explained {
            candidates: vec![named],
            why: "policy spread\n1. the only\u{1b} one".into(),
        }),
        other => panic!("{other:?}"),
    });
    let line = "lease alloc mem --bytes 1MiB --secs 60 --explain";
    let told = json!({
        "candidates": [{
            "node_id": node.id().to_string(), "address": node.addr(),
            "resource_id": named.resource_id.to_string(),
        }],
        "why": ["policy spread", "1. the only  one"],
    });
    assert_eq!(json_of(&scheduler, line), told);
    assert_eq!(
        text_of(&scheduler, line),
        "policy spread\n1. the only  one\n"
    );
    assert_eq!(node.asked(), []);
    let (status, error) = fails(&node, line);
    assert_eq!((status, &error["error"]), (2, &json!("usage")));
    assert_eq!(node.asked(), []);
}

#[test]
fn a_node_is_left_out_of_a_search() {
    let fleet = Fleet::new();
    let (bad, good) = (fleet.node(granting()), fleet.node(granting()));
    let scheduler = fleet.redirecting_to(&[&good]);
    let line = format!(
        "lease alloc mem --bytes 1MiB --secs 60 --avoid-node {}",
        bad.id()
    );
    assert_eq!(json_of(&scheduler, &line)["node"], good.addr());
    let Some(Request::LeaseAlloc(asked)) = scheduler.asked().pop() else {
        panic!("{:?}", scheduler.asked())
    };
    assert_eq!(asked.tried, [Tried::avoided(bad.id())]);
    let (status, error) = fails(&bad, &line);
    assert_eq!((status, &error["error"]), (2, &json!("usage")));
    assert_eq!(bad.asked(), []);
}

#[test]
fn a_lease_whose_node_is_not_printed_is_given_back_to_that_node() {
    let fleet = Fleet::new();
    let node = fleet.node(granting());
    let scheduler = fleet.redirecting_to(&[&node]);
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let line = "lease alloc mem --bytes 1MiB --secs 60";
    let status = crate::command(&scheduler, line).stdout(full).status();
    assert!(!status.unwrap().success());
    assert!(matches!(node.asked()[..], [_, Request::LeaseFree(_)]));
    assert_eq!(scheduler.asked().len(), 1);
}

#[test]
fn a_kernel_runs_on_a_gpu_of_the_node_that_granted_it() {
    let fleet = Fleet::new();
    let node = fleet.node(gpu_lease);
    let scheduler = fleet.redirecting_to(&[&node]);
    let world = World::new();
    world.write("a", &[1.0, 2.0]);
    world.write("b", &[10.0, 20.0]);
    let line = world.line(&format!("gpu run --vram 1MiB {RUN}"));
    let ran = json_of(&scheduler, &line);
    assert_eq!(ran["freed"], true);
    assert!(matches!(node.asked().last(), Some(Request::LeaseFree(_))));
    assert_eq!(scheduler.asked().len(), 1);
}

const FIRST: NodeId = NodeId([0x1a; 32]);
const SECOND: NodeId = NodeId([0x1b; 32]);
const AWAY: NodeId = NodeId([0x1c; 32]);
const ARENA: ResourceId = ResourceId(7);

pub(crate) fn empty(node_id: NodeId) -> ResourceInventory {
    ResourceInventory {
        node_id,
        epoch: Epoch(3),
        health: health::OK,
        mem_arenas: vec![],
        block_devs: vec![],
        cpu_caps: vec![],
        nics: vec![],
        gpus: vec![],
        extensions: vec![],
    }
}

/// The report of a node at the address of `node`.
pub(crate) fn reporting(
    node: &FakeNode,
    node_id: NodeId,
    labels: &[&str],
    inventory: ResourceInventory,
) -> FleetNode {
    FleetNode {
        node_id,
        endpoint: node.endpoint(),
        since_unix_ms: 1_800_000_000_000,
        labels: labels.iter().map(|it| (*it).to_owned()).collect(),
        inventory,
    }
}

/// A scheduler of two nodes; the first has memory, and the second has nothing.
fn scheduler(fleet: &Fleet, node: &FakeNode) -> FakeNode {
    let of = |node_id, labels: &[&str], inventory| reporting(node, node_id, labels, inventory);
    let memory = ResourceInventory {
        mem_arenas: vec![MemArena {
            resource_id: ARENA,
            base: 0,
            len: 4 << 30,
            align: 4096,
            max_read: 1,
            max_write: 1,
            health: health::OK,
        }],
        extensions: vec![
            InventoryExtension::Name(ARENA, "mem0".into()),
            InventoryExtension::Available(ARENA, 3 << 30),
            InventoryExtension::Classes {
                resource_id: ARENA,
                default: 0,
                supported: vec![],
            },
        ],
        ..empty(FIRST)
    };
    let nodes = vec![
        of(FIRST, &["rack=r12", "zone=a"], memory),
        of(SECOND, &[], empty(SECOND)),
    ];
    fleet.scheduler(move |request: &Request| match request {
        Request::NodeList(_) => Ok(Reply::Nodes(FleetPage {
            nodes: nodes.clone(),
            away: vec![AwayNode {
                node_id: AWAY,
                endpoint: SocketAddr::from(([192, 0, 2, 9], 5701)).into(),
                last_seen_unix_ms: 1_800_000_000_000,
                labels: vec!["rack=r7".to_owned()],
            }],
            next: None,
        })),
        Request::NodeForget(AWAY) => Ok(Reply::Forgotten),
        _ => refuse(
            LeaseError::CapacityExceeded,
            RefusalClass::Transient,
            "no node has it",
        ),
    })
}

#[test]
fn the_nodes_of_a_scheduler_are_listed_with_what_they_have() {
    let fleet = Fleet::new();
    let node = fleet.node(granting());
    let scheduler = scheduler(&fleet, &node);
    let address = node.addr();
    let nodes = json!({ "nodes": [
        {
            "node_id": FIRST.to_string(), "address": address, "health": "ok",
            "since_unix_ms": 1_800_000_000_000_u64, "labels": ["rack=r12", "zone=a"],
            "resources": [
                { "resource_type": "mem", "available": 3_u64 << 30, "capacity": 4_u64 << 30 },
            ],
        },
        {
            "node_id": SECOND.to_string(), "address": address, "health": "ok",
            "since_unix_ms": 1_800_000_000_000_u64, "labels": [], "resources": [],
        },
    ], "away": [
        {
            "node_id": AWAY.to_string(), "address": "192.0.2.9:5701",
            "last_seen_unix_ms": 1_800_000_000_000_u64, "labels": ["rack=r7"],
        },
    ] });
    assert_eq!(json_of(&scheduler, "node list"), nodes);
    let text = text_of(&scheduler, "node list");
    let rows: Vec<Vec<&str>> = { text.lines() }
        .map(|line| line.split_whitespace().collect())
        .collect();
    let since = "2027-01-15T08:00:00Z";
    let headings = ["NODE", "ADDRESS", "HEALTH", "SINCE", "AVAILABLE", "LABELS"];
    assert_eq!(rows[0], headings);
    let first =
        format!("1a1a1a1a1a1a1a1a {address} ok {since} mem 3 GiB of 4 GiB rack=r12, zone=a");
    assert_eq!(rows[1].join(" "), first);
    let second = format!("1b1b1b1b1b1b1b1b {address} ok {since} none none");
    assert_eq!(rows[2].join(" "), second);
    let away = format!("1c1c1c1c1c1c1c1c 192.0.2.9:5701 away {since} none rack=r7");
    assert_eq!(rows[3].join(" "), away);
}

#[test]
fn a_member_that_is_away_is_forgotten_by_eight_digits_of_its_id() {
    let fleet = Fleet::new();
    let node = fleet.node(granting());
    let scheduler = scheduler(&fleet, &node);
    let forgotten = json_of(&scheduler, "node forget 1c1c1c1c");
    assert_eq!(forgotten, json!({ "forgotten": AWAY.to_string() }));
    let (status, refused) = fails(&scheduler, "node forget ffffffff");
    assert_eq!(
        (status, &refused["reason"]["code"]),
        (4, &json!("NotFound"))
    );
    let (status, refused) = fails(&scheduler, "node forget 1c");
    let told = refused["message"].as_str().unwrap();
    assert!(status == 2 && told.contains("8 digits"), "{refused}");
    let asked = scheduler.asked();
    let forgets = asked
        .iter()
        .filter(|it| matches!(it, Request::NodeForget(_)));
    assert_eq!(forgets.count(), 1);
}

#[test]
fn a_node_is_named_by_first_digits_of_its_id_that_no_other_node_has() {
    let fleet = Fleet::new();
    let node = fleet.node(granting());
    let scheduler = scheduler(&fleet, &node);
    let (status, none) = fails(&scheduler, "node show ff");
    assert_eq!((status, &none["reason"]["code"]), (4, &json!("NotFound")));
    let (status, both) = fails(&scheduler, "node show 1");
    assert_eq!(status, 2);
    assert!(
        both["message"].as_str().unwrap().contains("2 nodes"),
        "{both}"
    );
}

/// Kinds whose flat entry tells more than the structured form: CPUs that are leased by time, and a resource of a vendor.
fn cpus_and_a_vendors(request: &Request) -> Answer {
    let (cpus, fpga) = (ResourceId(1), ResourceId(2));
    let flat = |resource_id, resource_type, capacity, available| FlatEntry {
        resource_id,
        resource_type,
        flags: 0,
        capacity,
        available,
    };
    let id = NodeId([0xee; 32]);
    Ok(match request {
        Request::GetInventory(InventoryForm::Flat) => Reply::FlatInventory(vec![
            flat(cpus, ResourceType::Cpu, 8, 3),
            flat(fpga, ResourceType::Vendor, 4, 0),
        ]),
        Request::GetInventory(InventoryForm::Structured) => Reply::Inventory(ResourceInventory {
            cpu_caps: vec![CpuCap {
                resource_id: cpus,
                cores: 4,
                threads: 16,
                max_mhz: 0,
                flags: 0,
                health: health::OK,
            }],
            extensions: vec![
                InventoryExtension::Name(cpus, "cpu0".into()),
                InventoryExtension::Available(cpus, 3),
                InventoryExtension::Classes {
                    resource_id: cpus,
                    default: CpuIsolationClass::BestEffort as u8,
                    supported: vec![CpuIsolationClass::BestEffort as u8],
                },
                InventoryExtension::Name(fpga, "fpga0".into()),
                InventoryExtension::Available(fpga, 0),
            ],
            ..empty(id)
        }),
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_node_is_shown_through_a_scheduler_as_it_tells_itself() {
    let fleet = Fleet::new();
    let node = fleet.node(cpus_and_a_vendors);
    let Ok(Reply::Inventory(structured)) =
        cpus_and_a_vendors(&Request::GetInventory(InventoryForm::Structured))
    else {
        panic!("no inventory")
    };
    let nodes = vec![reporting(&node, node.id(), &[], structured)];
    let scheduler = fleet.scheduler(move |_: &Request| {
        Ok(Reply::Nodes(FleetPage {
            nodes: nodes.clone(),
            away: vec![],
            next: None,
        }))
    });
    let show = format!("node show {}", &node.id().to_string()[..8]);
    let told = json_of(&node, "inventory");
    assert_eq!(told["resources"].as_array().unwrap().len(), 2);
    assert_eq!(json_of(&scheduler, &show), told);
    assert_eq!(text_of(&scheduler, &show), text_of(&node, "inventory"));
    // A report does not tell how many logical CPUs there are.
    let listed = &json_of(&scheduler, "node list")["nodes"][0]["resources"];
    assert_eq!(*listed, json!([{ "resource_type": "cpu", "available": 3 }]));
    let text = text_of(&scheduler, "node list");
    assert!(text.contains("cpu 3 cores  none"), "{text}");
}

#[test]
fn a_node_says_that_it_is_no_scheduler() {
    let node = FakeNode::start(granting());
    let (status, error) = fails(&node, "node list");
    let message = error["message"].as_str().unwrap();
    assert_eq!(status, 2, "{message}");
    assert!(
        message.contains("no scheduler") && message.contains(&node.addr()),
        "{message}"
    );
    assert_eq!(node.asked(), []);
}

#[test]
fn a_resource_is_named_among_those_of_all_nodes() {
    let fleet = Fleet::new();
    let node = fleet.node(granting());
    let scheduler = scheduler(&fleet, &node);
    let line = "lease alloc mem --bytes 1MiB --secs 60 --resource";
    let (status, error) = fails(&scheduler, &format!("{line} mem0"));
    assert_eq!(
        (status, &error["reason"]["code"]),
        (3, &json!("CapacityExceeded"))
    );
    let message = error["message"].as_str().unwrap();
    assert_eq!(message, "no node has it; see `fabricctl node list`");
    let Some(Request::LeaseAlloc(asked)) = scheduler.asked().pop() else {
        panic!("{:?}", scheduler.asked())
    };
    assert_eq!(asked.resource_id, Some(ARENA));
    let (_, error) = fails(&scheduler, &format!("{line} other"));
    assert_eq!(error["reason"]["code"], "NotFound");
}
