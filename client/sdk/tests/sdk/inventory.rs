//! The inventory, joined from its two forms.

use fabricbios_client::{Node, ResourceHealth};
use fabricbios_wire::{
    Epoch, FlatEntry, GPU_ROCM, GpuInfo, GpuVendor, InventoryExtension, InventoryForm, NodeId,
    Reply, Request, ResourceId, ResourceInventory, ResourceType, Transport, resource_flags,
};

use crate::{admin, common::FakeNode};

fn flat(id: u128, resource_type: ResourceType) -> FlatEntry {
    FlatEntry {
        resource_id: ResourceId(id),
        resource_type,
        flags: 0,
        capacity: 10,
        available: 4,
    }
}

fn structured() -> ResourceInventory {
    let gpu = |id, health| GpuInfo {
        resource_id: ResourceId(id),
        vram_bytes: 1 << 30,
        compute_units: 1,
        flags: GPU_ROCM,
        health,
    };
    ResourceInventory {
        node_id: NodeId([0xee; 32]),
        epoch: Epoch(3),
        health: 7,
        mem_arenas: vec![],
        block_devs: vec![],
        cpu_caps: vec![],
        nics: vec![],
        // GPU 9 appeared after the flat form was sent.
        gpus: vec![gpu(2, 2), gpu(9, 0)],
        extensions: vec![
            // The order of the extensions does not matter.
            InventoryExtension::ClassAvailable(ResourceId(2), vec![(1, 3)]),
            InventoryExtension::Classes {
                resource_id: ResourceId(2),
                default: 0,
                supported: vec![0, 1],
            },
            InventoryExtension::Name(ResourceId(1), "rxe0".into()),
            InventoryExtension::Transports(ResourceId(1), vec![Transport::Udp]),
            // On offer, without a list for its kind.
            InventoryExtension::Available(ResourceId(3), 4),
            InventoryExtension::Available(ResourceId(4), 4),
        ],
    }
}

#[test]
fn an_inventory_is_typed_and_of_one_piece() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::GetInventory(InventoryForm::Flat) => Ok(Reply::FlatInventory(vec![
            flat(2, ResourceType::Gpu),
            flat(1, ResourceType::Mem),
            flat(3, ResourceType::Unknown(0x77)),
            FlatEntry {
                flags: resource_flags::FENCED,
                ..flat(4, ResourceType::Unknown(0x77))
            },
        ])),
        Request::GetInventory(InventoryForm::Structured) => Ok(Reply::Inventory(structured())),
        other => panic!("{other:?}"),
    });
    let client = Node::connect(&node.addr(), &admin(&node)).unwrap();
    let inventory = client.inventory().unwrap();
    assert_eq!(
        (inventory.node_id, inventory.epoch),
        (NodeId([0xee; 32]), Epoch(3))
    );
    assert_eq!(inventory.health, ResourceHealth::Unknown(7));
    let [gpu, mem, other, fenced] = &inventory.resources[..] else {
        panic!("{inventory:?}")
    };
    assert_eq!((gpu.id, gpu.kind), (ResourceId(2), ResourceType::Gpu));
    assert_eq!(gpu.health, Some(ResourceHealth::Fenced));
    assert_eq!(gpu.vendor(), Some(GpuVendor::Amd));
    assert_eq!((gpu.available_of(None), gpu.available_of(Some(1))), (4, 3));
    assert_eq!(gpu.classes.as_ref().unwrap().supported, [0, 1]);
    assert_eq!(mem.name.as_deref(), Some("rxe0"));
    assert_eq!((mem.health, mem.vendor()), (None, None));
    assert_eq!(other.health, Some(ResourceHealth::Ok));
    assert_eq!(fenced.health, Some(ResourceHealth::Fenced));
    assert_eq!(mem.transports, [Transport::Udp]);
}
