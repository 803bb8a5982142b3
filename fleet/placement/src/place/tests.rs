use fabricbios_wire::{InventoryExtension, ResourceId, ResourceType};

use fabricbios_wire::NodeId;

use super::*;
use crate::view::tests::{from, node, report};

/// A view of nodes 1, 2, 3… with one arena each, which have this much room.
fn view(rooms: &[u64]) -> View {
    let mut view = View::default();
    for (number, room) in (1..).zip(rooms) {
        view.report(&from(number, 1), 0, report(number, 1, *room))
            .unwrap();
    }
    view
}

fn mem(capacity: u64) -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Mem, capacity, 60)
}

fn nodes(placed: Result<Vec<Candidate>, Refusal>) -> Vec<NodeId> {
    placed.unwrap().iter().map(|it| it.node_id).collect()
}

#[test]
fn the_node_with_the_most_room_comes_first_and_those_with_too_little_not_at_all() {
    let view = view(&[50 << 20, 999 << 20, 10 << 20, 700 << 20]);
    let wanted = mem(50 << 20);
    assert_eq!(nodes(view.place(&wanted, 1)), [node(2), node(4), node(1)]);
    let first = view.place(&wanted, 1).unwrap()[0];
    assert_eq!(first.resource_id, ResourceId(3));
    assert_eq!(first.endpoint.to_string(), "192.0.2.2:5760");
}

#[test]
fn equal_nodes_take_turns_with_the_seed_and_eight_are_named_at_most() {
    let view = view(&[50; 20]);
    let first = |seed| nodes(view.place(&mem(1), seed))[0];
    let mut firsts: Vec<NodeId> = (0..200).map(first).collect();
    assert_eq!(first(5), first(5));
    firsts.sort_unstable();
    firsts.dedup();
    assert!(firsts.len() > 10, "{}", firsts.len());
    assert_eq!(view.place(&mem(1), 5).unwrap().len(), CANDIDATES_MAX);
}

#[test]
fn a_degraded_resource_comes_last_and_a_fenced_one_is_left_out() {
    let mut view = view(&[50]);
    for (number, health) in [(2, health::DEGRADED), (3, health::FENCED)] {
        let mut told = report(number, 1, 90);
        told.inventory.mem_arenas[0].health = health;
        view.report(&from(number, 1), 0, told).unwrap();
    }
    assert_eq!(nodes(view.place(&mem(1), 1)), [node(1), node(2)]);
}

#[test]
fn a_node_that_is_not_well_itself_comes_last() {
    let mut view = view(&[50]);
    let mut told = report(2, 1, 90);
    told.inventory.health = health::DEGRADED;
    view.report(&from(2, 1), 0, told).unwrap();
    assert_eq!(nodes(view.place(&mem(1), 1)), [node(1), node(2)]);
}

#[test]
fn detected_and_not_offered_is_nothing_to_lease() {
    let mut view = View::default();
    let mut told = report(1, 1, 90);
    let is_transports = |it: &InventoryExtension| matches!(it, InventoryExtension::Transports(..));
    told.inventory.extensions.retain(|it| !is_transports(it));
    view.report(&from(1, 1), 0, told).unwrap();
    let refused = view.place(&mem(0), 1).unwrap_err();
    assert!(refused.message.contains("none offers mem"), "{refused}");
}

#[test]
fn a_refusal_counts_what_each_filter_has_removed_and_is_never_the_last_word() {
    let full = view(&[3, 4]).place(&mem(9), 1).unwrap_err();
    assert_eq!(
        (full.error, full.class),
        (LeaseError::CapacityExceeded, RefusalClass::Transient)
    );
    assert!(full.message.contains("2 with less room"), "{full}");
    let over_rdma = LeaseAllocRequest {
        transport: Transport::Rdma,
        ..mem(1)
    };
    let none = view(&[3, 4]).place(&over_rdma, 1).unwrap_err();
    assert_eq!(none.error, LeaseError::Unavailable);
    assert!(none.message.contains("2 without the transport"), "{none}");
    let named = LeaseAllocRequest {
        resource_id: Some(ResourceId(99)),
        ..mem(1)
    };
    let nowhere = view(&[3, 4]).place(&named, 1).unwrap_err();
    assert!(
        nowhere.message.contains("none offers resource"),
        "{nowhere}"
    );
    let empty = View::default().place(&mem(1), 1).unwrap_err();
    assert_eq!(empty.class, RefusalClass::Transient);
    assert!(empty.message.starts_with("no node reports"), "{empty}");
}

#[test]
fn a_named_class_is_never_weakened() {
    let mut view = View::default();
    let mut told = report(1, 1, 0);
    told.inventory.gpus = vec![fabricbios_wire::GpuInfo {
        resource_id: ResourceId(77),
        vram_bytes: 1 << 30,
        compute_units: 1,
        flags: 0,
        health: health::OK,
    }];
    told.inventory.extensions.extend([
        InventoryExtension::Available(ResourceId(77), 100),
        InventoryExtension::Transports(ResourceId(77), Vec::new()),
        InventoryExtension::Classes {
            resource_id: ResourceId(77),
            default: 0,
            supported: vec![0, 1],
        },
        InventoryExtension::ClassAvailable(ResourceId(77), vec![(0, 100), (1, 40)]),
    ]);
    view.report(&from(1, 1), 0, told).unwrap();
    let asks = |class, capacity| {
        let mut request = LeaseAllocRequest::new(ResourceType::Gpu, capacity, 60);
        if let LeaseTerms::Gpu(terms) = &mut request.terms {
            terms.exclusivity = class;
        }
        view.place(&request, 1).map(|it| it.len())
    };
    let class = fabricbios_wire::GpuExclusivityClass::from_byte;
    assert_eq!(asks(None, 100), Ok(1));
    assert_eq!(asks(class(1), 40), Ok(1));
    assert_eq!(
        asks(class(1), 41).unwrap_err().error,
        LeaseError::CapacityExceeded
    );
    let other = asks(class(2), 1).unwrap_err();
    assert!(other.message.contains("1 without the class"), "{other}");
}
