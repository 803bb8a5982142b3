//! Resources by their names.

use fabricbios_wire::{
    Epoch, FlatEntry, GPU_CUDA, GPU_ROCM, GpuInfo, InventoryExtension, InventoryForm, NodeId,
    Reply, Request, ResourceId, ResourceInventory, ResourceType, health,
};
use serde_json::json;

use crate::{common::FakeNode, fails, granting, json_of};

/// Two pools with one name, a third pool whose name a NIC has too, and memory.
const NAMED: [(u128, ResourceType, &str); 5] = [
    (1, ResourceType::Mem, "mem0"),
    (2, ResourceType::Block, "/srv/leases"),
    (3, ResourceType::Block, "twin"),
    (4, ResourceType::Block, "twin"),
    (5, ResourceType::Net, "/srv/leases"),
];

fn node() -> FakeNode {
    let mut grant = granting();
    FakeNode::start(move |request: &Request| match request {
        Request::GetInventory(form) => Ok(inventory(*form)),
        Request::FenceClear(_) => Ok(Reply::FenceCleared),
        other => grant(other),
    })
}

fn inventory(form: InventoryForm) -> Reply {
    let flat = |(id, resource_type, _): (u128, ResourceType, &str)| FlatEntry {
        resource_id: ResourceId(id),
        resource_type,
        flags: 0,
        capacity: 1 << 30,
        available: 1 << 30,
    };
    let name = |(id, _, name): (u128, ResourceType, &str)| {
        InventoryExtension::Name(ResourceId(id), name.to_owned())
    };
    match form {
        InventoryForm::Flat => Reply::FlatInventory(NAMED.map(flat).to_vec()),
        InventoryForm::Structured => Reply::Inventory(ResourceInventory {
            node_id: NodeId([0xee; 32]),
            epoch: Epoch(3),
            health: 0,
            mem_arenas: vec![],
            block_devs: vec![],
            cpu_caps: vec![],
            nics: vec![],
            gpus: vec![],
            extensions: NAMED.map(name).to_vec(),
        }),
    }
}

fn last(node: &FakeNode) -> Request {
    node.asked().pop().unwrap()
}

fn asked_of(node: &FakeNode) -> Option<ResourceId> {
    match last(node) {
        Request::LeaseAlloc(alloc) => alloc.resource_id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_name_is_as_good_as_an_id() {
    let node = node();
    json_of(&node, "lease alloc mem --bytes 1M --secs 9 --resource mem0");
    assert_eq!(asked_of(&node), Some(ResourceId(1)));
    // The request has the resource of the requested kind.
    json_of(
        &node,
        "lease alloc block --bytes 1M --secs 9 --resource /srv/leases",
    );
    assert_eq!(asked_of(&node), Some(ResourceId(2)));
    json_of(&node, "fence clear mem0");
    assert_eq!(last(&node), Request::FenceClear(ResourceId(1)));
    // An id is used without an inventory request.
    let before = node.asked().len();
    json_of(&node, &format!("fence clear {:032x}", 3));
    assert_eq!(node.asked().len(), before + 1);
}

#[test]
fn a_name_that_nothing_has_is_told_with_those_that_are_there() {
    let node = node();
    let (status, object) = fails(
        &node,
        "lease alloc block --bytes 1M --secs 9 --resource leases",
    );
    assert_eq!((status, &object["reason"]["code"]), (4, &json!("NotFound")));
    let message = object["message"].as_str().unwrap();
    assert!(
        message.contains("\"leases\"") && message.contains("/srv/leases"),
        "{message}"
    );
    assert!(!message.contains("mem0"), "{message}");
    let (status, object) = fails(&node, "lease alloc gpu --vram 1M --secs 9 --resource mem0");
    assert_eq!(status, 4);
    assert!(
        object["message"].as_str().unwrap().contains("none"),
        "{object}"
    );
}

#[test]
fn a_name_that_several_have_is_told_with_their_ids() {
    let node = node();
    for (line, ids) in [
        (
            "lease alloc block --bytes 1M --secs 9 --resource twin",
            [3, 4],
        ),
        ("fence clear /srv/leases", [2, 5]),
    ] {
        let (status, object) = fails(&node, line);
        assert_eq!((status, &object["error"]), (2, &json!("usage")), "{line}");
        for id in ids {
            let id = ResourceId(id).to_string();
            assert!(
                object["message"].as_str().unwrap().contains(&id),
                "{object}"
            );
        }
    }
    let nothing = |it: &Request| matches!(it, Request::GetInventory(_));
    assert!(node.asked().iter().all(nothing));
}

/// GPUs: number, flags, GiB that are available, health.
type Gpus = &'static [(u128, u32, u64, u32)];

fn node_of(gpus: Gpus) -> FakeNode {
    let mut grant = granting();
    FakeNode::start(move |request: &Request| match request {
        Request::GetInventory(InventoryForm::Flat) => {
            let flat = |&(id, _, gib, _): &(u128, u32, u64, u32)| FlatEntry {
                resource_id: ResourceId(id),
                resource_type: ResourceType::Gpu,
                flags: 0,
                capacity: 80 << 30,
                available: gib << 30,
            };
            Ok(Reply::FlatInventory(gpus.iter().map(flat).collect()))
        }
        Request::GetInventory(InventoryForm::Structured) => {
            let Reply::Inventory(empty) = inventory(InventoryForm::Structured) else {
                unreachable!()
            };
            let info = |&(id, flags, _, health): &(u128, u32, u64, u32)| GpuInfo {
                resource_id: ResourceId(id),
                vram_bytes: 80 << 30,
                compute_units: 1,
                flags,
                health,
            };
            Ok(Reply::Inventory(ResourceInventory {
                gpus: gpus.iter().map(info).collect(),
                ..empty
            }))
        }
        other => grant(other),
    })
}

#[test]
fn a_gpu_of_a_vendor_is_chosen_by_what_it_has() {
    let node = node_of(&[
        (20, GPU_ROCM, 0, health::FENCED),
        (21, GPU_ROCM, 8, health::OK),
        (22, GPU_CUDA, 1, health::OK),
        (23, GPU_CUDA, 8, health::OK),
    ]);
    let alloc = "lease alloc gpu --secs 60 --vram";
    for (line, chosen) in [
        ("4GiB --vendor amd", 21),
        ("1GiB --vendor nvidia", 22),
        ("4GiB --vendor nvidia", 23),
        // The node's refusal has the reason.
        ("40GiB --vendor nvidia", 23),
    ] {
        json_of(&node, &format!("{alloc} {line}"));
        assert_eq!(asked_of(&node), Some(ResourceId(chosen)), "{line}");
    }
    for line in ["1GiB --vendor intel", "1GiB --vendor amd --resource x"] {
        assert_eq!(fails(&node, &format!("{alloc} {line}")).0, 2, "{line}");
    }
    // The node's refusal has the reason.
    let node = node_of(&[(20, GPU_ROCM, 0, health::FENCED)]);
    json_of(&node, &format!("{alloc} 4GiB --vendor amd"));
    assert_eq!(asked_of(&node), Some(ResourceId(20)));
    let none = self::node();
    let (status, object) = fails(&none, &format!("{alloc} 1GiB --vendor amd"));
    let message = object["message"].as_str().unwrap();
    assert!(status == 4 && message.contains("GPU of amd"), "{object}");
}
