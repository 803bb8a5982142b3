//! The inventory, as JSON and for people.

use fabricbios_wire::{
    Answer, BLOCK_RO, BlockDev, CpuCap, Enforcement, Epoch, FlatEntry, InventoryExtension,
    InventoryForm, LeaseError, MemArena, NIC_LINK_UP, NIC_SRIOV, NicInfo, NodeId, RefusalClass,
    Reply, Request, ResourceId, ResourceInventory, ResourceType, Transport, cpu_flags,
};
use serde_json::json;

use crate::{
    RESOURCE_TEXT,
    common::{FakeNode, RESOURCE, refuse},
    failure, json_of, run, text_of,
};

fn empty(health: u32) -> ResourceInventory {
    ResourceInventory {
        node_id: NodeId([0xee; 32]),
        epoch: Epoch(3),
        health,
        mem_arenas: vec![],
        block_devs: vec![],
        cpu_caps: vec![],
        nics: vec![],
        gpus: vec![],
        extensions: vec![],
    }
}

pub(crate) fn inventory(request: &Request) -> Answer {
    let entry = FlatEntry {
        resource_id: RESOURCE,
        resource_type: ResourceType::Mem,
        flags: 0b101,
        capacity: 1 << 30,
        available: 1 << 20,
    };
    let odd = FlatEntry {
        resource_type: ResourceType::Unknown(0x77),
        flags: 0,
        ..entry
    };
    match request {
        Request::GetInventory(InventoryForm::Flat) => Ok(Reply::FlatInventory(vec![
            entry,
            FlatEntry {
                resource_id: fabricbios_wire::ResourceId(1),
                ..odd
            },
            // A port whose link is down.
            FlatEntry {
                resource_id: fabricbios_wire::ResourceId(2),
                resource_type: ResourceType::Net,
                capacity: 0,
                available: 0,
                ..odd
            },
        ])),
        Request::GetInventory(InventoryForm::Structured) => {
            Ok(Reply::Inventory(ResourceInventory {
                mem_arenas: vec![MemArena {
                    resource_id: RESOURCE,
                    base: 0,
                    len: 1 << 30,
                    align: 4_096,
                    max_read: 1 << 20,
                    max_write: 1 << 20,
                    health: 0,
                }],
                extensions: vec![
                    InventoryExtension::Name(RESOURCE, "rxe0".into()),
                    InventoryExtension::Transports(RESOURCE, vec![Transport::Rdma]),
                    InventoryExtension::FencedPart(RESOURCE, 16 << 20),
                    InventoryExtension::HealthReason(RESOURCE, "dealloc_mw: EBUSY".into()),
                    InventoryExtension::HealthReason(ResourceId(0), "the disk\nis full".into()),
                ],
                ..empty(1)
            }))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_inventory_joins_both_forms() {
    let node = FakeNode::start(inventory);
    let expected = json!({
        "node_id": "ee".repeat(32),
        "epoch": 3,
        "health": "degraded",
        "health_reason": "the disk\nis full",
        "resources": [
            {
                "resource_id": RESOURCE_TEXT,
                "resource_type": "mem",
                "name": "rxe0",
                "health": "ok",
                "health_reason": "dealloc_mw: EBUSY",
                "flags": ["fenced", "unknown(0x0004)"],
                "capacity": 1_073_741_824,
                "available": 1_048_576,
                "fenced_part": 16_777_216,
                "transports": ["rdma"],
            },
            {
                "resource_id": "00000000000000000000000000000001",
                "resource_type": "unknown(0x0077)",
                "flags": [],
                "capacity": 1_073_741_824,
                "available": 1_048_576,
            },
            {
                "resource_id": "00000000000000000000000000000002",
                "resource_type": "net",
                "flags": [],
                "capacity": 0,
                "available": 0,
            },
        ],
    });
    assert_eq!(json_of(&node, "inventory"), expected);
    let text = text_of(&node, "inventory");
    for part in [
        "start 3, health degraded: the disk is full\n",
        "mem  rxe0  fenced\n",
        "\n  why         dealloc_mw: EBUSY\n",
        "\n  fenced      16 MiB\n",
        "\n  flags       unknown(0x0004)\n",
        "net  health unknown\n  id          00000000000000000000000000000002\n  capacity    unknown\n",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn a_ping_of_a_node_without_an_inventory_is_answered() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::Ping(number) => Ok(Reply::Pong(*number)),
        _ => refuse(LeaseError::Internal, RefusalClass::Permanent, "no disk"),
    });
    let json = json_of(&node, "ping");
    assert_eq!(json["health"], "unknown");
    assert!(json["health_reason"].as_str().unwrap().contains("no disk"));
}

#[test]
fn a_ping_tells_how_the_node_is() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::Ping(number) => Ok(Reply::Pong(*number)),
        other => inventory(other),
    });
    let json = json_of(&node, "ping");
    assert_eq!(json["health"], "degraded");
    assert_eq!(json["health_reason"], "the disk\nis full");
    let text = text_of(&node, "ping");
    assert!(
        text.ends_with("health degraded: the disk is full\n"),
        "{text}"
    );
}

#[test]
fn health_names_what_is_not_well_and_tells_monitors_by_its_exit_status() {
    let node = FakeNode::start(inventory);
    let output = run(&node, "health");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "node  degraded       the disk is full\n",
        "rxe0  partly fenced  dealloc_mw: EBUSY\n",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let output = run(&node, "--json health");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), &json["well"]),
        (Some(1), &json!(false))
    );
    assert_eq!(json["not_well"][1]["name"], "rxe0");

    let well = FakeNode::start(|request: &Request| match request {
        Request::GetInventory(InventoryForm::Flat) => Ok(Reply::FlatInventory(vec![])),
        _ => Ok(Reply::Inventory(empty(0))),
    });
    assert_eq!(
        text_of(&well, "health"),
        "the node and its resources are well\n"
    );

    let other = FakeNode::start(|_: &Request| {
        refuse(LeaseError::Internal, RefusalClass::Permanent, "no disk")
    });
    let output = run(&other, "--json health");
    let (status, told) = failure(&output);
    assert_eq!(status, 2, "{told}");
    assert!(
        told["message"].as_str().unwrap().contains("no disk"),
        "{told}"
    );
}

const CPU: ResourceId = ResourceId(1);
const PORT: ResourceId = ResourceId(4);

/// A node with cores, memory, two pools and two ports.
fn machine(request: &Request) -> Answer {
    use ResourceType::{Block, Cpu, Mem, Net};
    let rows = [
        (Cpu, "cpu0", 15, 11),
        (Mem, "mem0", 64 << 30, 60 << 30),
        (Block, "/srv/leases", 1 << 40, 900 << 30),
        (Net, "enp1s0f0np0", 25_000_000_000, 12_500_000_000),
        (Net, "eno2", 0, 0),
        (Block, "nvme1n1", 3_840_000_000_000, 0),
    ];
    let numbered = || (1..).map(ResourceId).zip(rows);
    let flat = |(resource_id, (resource_type, _, capacity, available))| FlatEntry {
        resource_id,
        resource_type,
        flags: u16::from(resource_id == ResourceId(6)) * 0b10,
        capacity,
        available,
    };
    if *request == Request::GetInventory(InventoryForm::Flat) {
        return Ok(Reply::FlatInventory(numbered().map(flat).collect()));
    }
    let names = numbered().map(|(id, (_, name, ..))| InventoryExtension::Name(id, name.to_owned()));
    let transports = InventoryExtension::Transports;
    let more = [
        InventoryExtension::Classes {
            resource_id: CPU,
            default: 1,
            supported: vec![0, 1, 2],
        },
        InventoryExtension::ClassEnforcement(
            CPU,
            vec![
                (0, Enforcement::Enforced),
                (1, Enforcement::Enforced),
                (2, Enforcement::BestEffort),
            ],
        ),
        InventoryExtension::ClassAvailable(CPU, vec![(0, 22), (1, 11), (2, 1)]),
        InventoryExtension::VirtualFunctions {
            resource_id: PORT,
            total: 8,
            free: 6,
        },
        InventoryExtension::Classes {
            resource_id: PORT,
            default: 0,
            supported: vec![],
        },
        transports(ResourceId(2), vec![Transport::Rdma, Transport::Udp]),
        transports(
            ResourceId(3),
            vec![Transport::NvmeRdma, Transport::NvmeTcp, Transport::Udp],
        ),
        transports(ResourceId(6), vec![Transport::NvmeTcp]),
    ];
    let nic = |id, flags, health| NicInfo {
        resource_id: ResourceId(id),
        speed_bps: 25_000_000_000,
        mtu: 9_000,
        flags,
        health,
    };
    let pool = |id, flags, health| BlockDev {
        resource_id: ResourceId(id),
        block_size: 4_096,
        capacity: 1 << 40,
        flags,
        health,
    };
    Ok(Reply::Inventory(ResourceInventory {
        cpu_caps: vec![CpuCap {
            resource_id: CPU,
            cores: 15,
            threads: 32,
            max_mhz: 3_700,
            flags: cpu_flags::CRC32
                | cpu_flags::TOPOLOGY_AWARE_LEASING
                | cpu_flags::TOPOLOGY_COMPLETE
                | cpu_flags::REJECTS_WIDE_SINGLE_THREADED
                | cpu_flags::ARCH_X86_64 << cpu_flags::ARCH_SHIFT,
            health: 0,
        }],
        nics: vec![nic(4, NIC_SRIOV | NIC_LINK_UP, 0), nic(5, 0, 0)],
        block_devs: vec![pool(3, 0, 0), pool(6, BLOCK_RO, 1)],
        extensions: names.chain(more).collect(),
        ..empty(0)
    }))
}

const MACHINE: &str = "\
node eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee
start 3, health ok

cpu  cpu0  ok
  id          00000000000000000000000000000001
  capacity    15 cores, 32 threads online, x86_64, up to 3700 MHz
  available   22 cores  best_effort      enforced
              11 cores  whole_core       enforced, default
              1 core    strict_isolated  best effort
  flags       crc32, topology-complete, topology-aware-leasing,
              rejects-wide-single-threaded

mem  mem0  health unknown
  id          00000000000000000000000000000002
  capacity    64 GiB
  available   60 GiB at most for one lease
  transports  rdma, udp

block  /srv/leases  ok
  id          00000000000000000000000000000003
  capacity    1 TiB, blocks of 4096 B
  available   900 GiB at most for one lease
  transports  nvme-rdma, nvme-tcp, udp

net  enp1s0f0np0  ok
  id          00000000000000000000000000000004
  capacity    25 Gbit/s, link up, MTU 9000
  available   12.5 Gbit/s
  functions   6 of 8 virtual functions free
  flags       sr-iov

net  eno2  ok
  id          00000000000000000000000000000005
  capacity    unknown, link down, MTU 9000
  available   none: listed, not offered for lease

block  nvme1n1  degraded
  id          00000000000000000000000000000006
  capacity    3.4 TiB, blocks of 4096 B
  available   none: listed, not offered for lease
  transports  nvme-tcp
  flags       read-only
";

#[test]
fn people_get_a_block_for_each_resource() {
    let node = FakeNode::start(machine);
    let text = text_of(&node, "inventory");
    assert_eq!(text, MACHINE);
    assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
}

#[test]
fn classes_and_functions_are_in_the_json_too() {
    let node = FakeNode::start(machine);
    let json = json_of(&node, "inventory");
    let cpu = json!({
        "resource_id": "00000000000000000000000000000001",
        "resource_type": "cpu",
        "name": "cpu0",
        "health": "ok",
        "flags": ["crc32", "topology-complete", "topology-aware-leasing", "rejects-wide-single-threaded"],
        "capacity": 15,
        "available": 11,
        "classes": {
            "default": "whole_core",
            "supported": ["best_effort", "whole_core", "strict_isolated"],
            "enforcement": { "best_effort": "enforced", "whole_core": "enforced", "strict_isolated": "best_effort" },
            "available": { "best_effort": 22, "whole_core": 11, "strict_isolated": 1 },
        },
        "cpu": { "threads": 32, "max_mhz": 3_700, "arch": "x86_64" },
    });
    assert_eq!(json["resources"][0], cpu);
    let port = &json["resources"][3];
    assert_eq!(port["virtual_functions"], json!({ "total": 8, "free": 6 }));
    assert_eq!(port["classes"], json!({ "supported": [] }));
    assert_eq!(port["nic"], json!({ "mtu": 9_000, "link_up": true }));
    assert_eq!(json["resources"][4]["nic"]["link_up"], false);
}

#[test]
fn a_node_that_tells_no_amounts_by_class_tells_that_of_the_default() {
    let node = FakeNode::start(|request: &Request| {
        let mut answer = machine(request)?;
        if let Reply::Inventory(inventory) = &mut answer {
            inventory
                .extensions
                .retain(|it| !matches!(it, InventoryExtension::ClassAvailable(..)));
        }
        Ok(answer)
    });
    let text = text_of(&node, "inventory");
    let lines = [
        "  available   -         best_effort      enforced\n",
        "              11 cores  whole_core       enforced, default\n",
    ];
    assert!(text.contains(&lines.concat()), "{text}");
}

#[test]
fn a_default_that_cannot_be_named_is_listed_too() {
    let node = FakeNode::start(|request: &Request| {
        let mut answer = machine(request)?;
        if let Reply::Inventory(inventory) = &mut answer {
            for extension in &mut inventory.extensions {
                if let InventoryExtension::Classes { supported, .. } = extension {
                    supported.retain(|class| *class != 1);
                }
            }
        }
        Ok(answer)
    });
    let text = text_of(&node, "inventory");
    let line = "  available   11 cores  whole_core       enforced, default, not named\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn a_ping_of_a_node_whose_resource_is_not_well_points_to_the_inventory() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::Ping(number) => Ok(Reply::Pong(*number)),
        Request::GetInventory(InventoryForm::Structured) => Ok(Reply::Inventory(empty(1))),
        other => inventory(other),
    });
    let text = text_of(&node, "ping");
    let end = "health degraded; see `fabricctl inventory`\n";
    assert!(text.ends_with(end), "{text}");
}
