use fabricbios_wire::{
    InventoryExtension, LeaseId, LeasePhase, LeaseReport, LeaseTerms, NodeId, NodeReport,
    ReportPart, ReportedLease, ResourceId, ResourceType, Transport, admission_flags,
    admission_most, health,
};

use super::*;
use crate::view::tests::{away, from, node, report};

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
    let refused = view.place(&mem(1), 1).unwrap_err();
    assert!(
        refused.message.contains("its operator offers none"),
        "{refused}"
    );
}

#[test]
fn a_refusal_counts_what_each_filter_has_removed_and_is_not_for_good_while_a_node_has_not_said_all()
{
    let full = view(&[3, 4]).place(&mem(9), 1).unwrap_err();
    assert_eq!(
        (full.error, full.class),
        (LeaseError::CapacityExceeded, RefusalClass::Transient)
    );
    assert!(
        full.message.contains("left out are 2 by capacity"),
        "{full}"
    );
    let over_rdma = LeaseAllocRequest {
        transport: Transport::Rdma,
        ..mem(1)
    };
    let none = view(&[3, 4]).place(&over_rdma, 1).unwrap_err();
    assert_eq!(none.error, LeaseError::Unavailable);
    assert!(none.message.contains("2 by transport"), "{none}");
    let named = LeaseAllocRequest {
        resource_id: Some(ResourceId(99)),
        ..mem(1)
    };
    let nowhere = view(&[3, 4]).place(&named, 1).unwrap_err();
    assert!(nowhere.message.contains("2 by kind"), "{nowhere}");
    let empty = View::default().place(&mem(1), 1).unwrap_err();
    assert_eq!(empty.class, RefusalClass::Transient);
    assert!(empty.message.starts_with("no node reports"), "{empty}");
}

/// A report of a node that says all: one arena of 100, of which this much is free, and no term above a minute.
fn whole(number: u8, room: u64) -> NodeReport {
    let mut told = report(number, 1, room);
    let resource_id = told.inventory.mem_arenas[0].resource_id;
    told.inventory.extensions.extend([
        InventoryExtension::Limits {
            lease_secs_max: 60,
            grace_secs_max: 60,
            bare_metal: false,
        },
        InventoryExtension::Admission {
            resource_id,
            flags: 0,
            forbidden: Vec::new(),
            most: vec![(admission_most::ALONE, room, 100)],
        },
    ]);
    told
}

/// A view that knows its members, nodes 1, 2, 3…, all of which have said all.
fn whole_view(rooms: &[u64]) -> View {
    let mut view = View::default();
    view.members_are_known(true);
    for (number, room) in (1..).zip(rooms) {
        view.know(away(number));
        view.report(&from(number, 1), 0, whole(number, *room))
            .unwrap();
        let leases = LeaseReport {
            sequence: 2,
            part: ReportPart::Whole,
            leases: Vec::new(),
            gone: Vec::new(),
        };
        view.report_leases(&from(number, 1), leases).unwrap();
    }
    view
}

fn last_word(view: &View, request: &LeaseAllocRequest) -> (LeaseError, RefusalClass) {
    let refusal = view.place(request, 1).unwrap_err();
    (refusal.error, refusal.class)
}

#[test]
fn what_no_node_ever_could_is_refused_for_good_once_every_member_has_said_all() {
    let never = (LeaseError::CapacityExceeded, RefusalClass::Permanent);
    let later = (LeaseError::CapacityExceeded, RefusalClass::Transient);
    let mut view = whole_view(&[10, 100]);
    assert_eq!(last_word(&view, &mem(101)), never);
    // One that could does not report.
    view.know(away(3));
    assert_eq!(last_word(&view, &mem(101)), later);
    view.forget(node(3));
    assert_eq!(last_word(&view, &mem(101)), never);
    // One has just connected: its leases have not come.
    view.report(&from(2, 2), 0, whole(2, 100)).unwrap();
    assert_eq!(last_word(&view, &mem(101)), later);
    // Nobody says who belongs to the fabric.
    let mut view = whole_view(&[10]);
    view.members_are_known(false);
    assert_eq!(last_word(&view, &mem(101)), later);
    // One of an earlier version does not say how much it has when it is empty.
    let mut view = whole_view(&[10]);
    view.report(&from(4, 1), 0, report(4, 1, 10)).unwrap();
    assert_eq!(last_word(&view, &mem(101)), later);
}

#[test]
fn the_last_word_is_transient_before_policy_before_permanent() {
    let mut view = whole_view(&[10]);
    let of = |secs, capacity| LeaseAllocRequest {
        lease_secs: secs,
        ..mem(capacity)
    };
    let policy = (LeaseError::InvalidArgs, RefusalClass::Policy);
    assert_eq!(last_word(&view, &of(61, 5)), policy);
    let named = LeaseAllocRequest {
        resource_id: Some(ResourceId(99)),
        ..mem(1)
    };
    let nowhere = (LeaseError::NotFound, RefusalClass::Permanent);
    assert_eq!(last_word(&view, &named), nowhere);
    // A node with longer terms: what it refuses as too large counts less than what policy refuses.
    let mut longer = whole(2, 50);
    for it in &mut longer.inventory.extensions {
        if let InventoryExtension::Limits { lease_secs_max, .. } = it {
            *lease_secs_max = 3600;
        }
    }
    view.report(&from(2, 1), 0, longer).unwrap();
    let leases = LeaseReport {
        sequence: 2,
        part: ReportPart::Whole,
        leases: Vec::new(),
        gone: Vec::new(),
    };
    view.report_leases(&from(2, 1), leases).unwrap();
    assert_eq!(last_word(&view, &of(61, 101)), policy);
    let full = (LeaseError::CapacityExceeded, RefusalClass::Transient);
    assert_eq!(last_word(&view, &of(61, 60)), full);
    let refusal = view.place(&of(61, 60), 1).unwrap_err();
    let counts = "left out are 1 by capacity, 1 by terms";
    assert!(refusal.message.contains(counts), "{refusal}");
}

#[test]
fn a_gpu_that_a_lease_has_alone_is_busy_so_that_a_client_waits_for_it() {
    let mut view = View::default();
    let mut told = report(1, 1, 0);
    let resource_id = ResourceId(77);
    told.inventory.gpus = vec![fabricbios_wire::GpuInfo {
        resource_id,
        vram_bytes: 100,
        compute_units: 1,
        flags: 0,
        health: health::OK,
    }];
    let enforced = fabricbios_wire::Enforcement::Enforced;
    told.inventory.extensions.extend([
        InventoryExtension::Available(resource_id, 0),
        InventoryExtension::Transports(resource_id, Vec::new()),
        InventoryExtension::Classes {
            resource_id,
            default: 0,
            supported: vec![0, 1],
        },
        InventoryExtension::ClassEnforcement(resource_id, vec![(0, enforced), (1, enforced)]),
        InventoryExtension::Admission {
            resource_id,
            flags: admission_flags::DEVICE | admission_flags::HELD_ALONE,
            forbidden: Vec::new(),
            most: vec![(admission_most::ALONE, 0, 100)],
        },
    ]);
    view.report(&from(1, 1), 0, told).unwrap();
    let gpu = |capacity| LeaseAllocRequest::new(ResourceType::Gpu, capacity, 60);
    let busy = (LeaseError::ResourceBusy, RefusalClass::Transient);
    assert_eq!(last_word(&view, &gpu(10)), busy);
    let refusal = view.place(&gpu(10), 1).unwrap_err();
    assert!(refusal.message.contains("1 by exclusivity"), "{refusal}");
}

#[test]
fn what_is_wrong_at_every_node_is_refused_for_good_without_a_node() {
    let wrong = (LeaseError::InvalidArgs, RefusalClass::Permanent);
    let vendor = LeaseAllocRequest::new(ResourceType::Vendor, 1, 60);
    for request in [mem(0), vendor] {
        assert_eq!(last_word(&View::default(), &request), wrong);
    }
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
    assert!(other.message.contains("1 by class"), "{other}");
}

/// A fleet of so many nodes with one arena each. The first is empty, and the others are full or empty as well.
fn fleet(nodes: u16, others: u64) -> View {
    let mut view = View::default();
    for number in 0..nodes {
        let mut id = [0; 32];
        id[..2].copy_from_slice(&number.wrapping_mul(0x9e37).to_be_bytes());
        let mut told = report(1, 1, if number == 0 { 1 << 30 } else { others });
        told.inventory.node_id = NodeId(id);
        let reporter = crate::Reporter {
            node_id: NodeId(id),
            ..from(1, u64::from(number) + 1)
        };
        view.report(&reporter, 0, told).unwrap();
    }
    view
}

#[test]
fn in_a_large_fleet_each_node_has_its_turn_and_the_only_one_with_room_is_found() {
    let empty = fleet(1_000, 1 << 30);
    let mut firsts: Vec<NodeId> = (0..300)
        .map(|seed| empty.place(&mem(4096), seed).unwrap()[0].node_id)
        .collect();
    firsts.sort_unstable();
    firsts.dedup();
    assert!(firsts.len() > 200, "{}", firsts.len());

    let full = fleet(1_000, 0);
    for seed in 0..20 {
        assert_eq!(nodes(full.place(&mem(4096), seed)), [NodeId([0; 32])]);
    }
    let refused = full.place(&mem(1 << 31), 1).unwrap_err();
    let all = "left out are 1000 by capacity";
    assert!(refused.message.contains(all), "{refused}");
}

/// An affinity to the resource of this id.
fn near_resource(strength: u8, id: u128) -> fabricbios_wire::Affinity {
    fabricbios_wire::Affinity {
        category: 1,
        strength,
        target_type: 1,
        target: id.to_be_bytes().to_vec(),
    }
}

#[test]
fn a_wish_for_some_resource_makes_no_lease_read_only() {
    let mut view = View::default();
    let mut told = whole(1, 90);
    let writable = told.inventory.mem_arenas[0];
    let read_only = ResourceId(99);
    told.inventory.mem_arenas.push(fabricbios_wire::MemArena {
        resource_id: read_only,
        ..writable
    });
    told.inventory.extensions.extend([
        InventoryExtension::Available(read_only, 10),
        InventoryExtension::Transports(read_only, vec![Transport::Udp]),
        InventoryExtension::Admission {
            resource_id: read_only,
            flags: admission_flags::READ_ONLY,
            forbidden: Vec::new(),
            most: vec![(admission_most::ALONE, 10, 10)],
        },
    ]);
    view.report(&from(1, 1), 0, told).unwrap();
    let chosen = |request: &LeaseAllocRequest| view.place(request, 1).unwrap()[0].resource_id;
    assert_eq!(chosen(&mem(5)), writable.resource_id);
    // The tighter one is the read-only one, and nobody has what is preferred.
    let mut wishing = mem(5);
    wishing.intent.affinities = vec![near_resource(2, 1234)];
    assert_eq!(chosen(&wishing), writable.resource_id);
    wishing.intent.affinities = vec![near_resource(2, read_only.0)];
    assert_eq!(chosen(&wishing), read_only);
}

#[test]
fn what_a_table_says_counts_before_what_the_request_leaves_out() {
    let view = whole_view(&[10, 10]);
    let policy = (LeaseError::InvalidArgs, RefusalClass::Policy);
    let avoiding = LeaseAllocRequest {
        lease_secs: 61,
        tried: vec![fabricbios_wire::Tried::avoided(node(1))],
        ..mem(1)
    };
    assert_eq!(last_word(&view, &avoiding), policy);
    let mut near = LeaseAllocRequest {
        lease_secs: 61,
        ..mem(1)
    };
    let id = view.members[&node(1)].shadow.offers()[0].resource_id;
    near.intent.affinities = vec![near_resource(1, id.0)];
    assert_eq!(last_word(&view, &near), policy);
}

/// Node 1 has an arena of 100, of which 20 are free, and these leases of it: phase and capacity.
fn with_leases(leases: &[(LeasePhase, u64)]) -> View {
    let mut view = whole_view(&[20]);
    let resource_id = view.members[&node(1)].shadow.offers()[0].resource_id;
    let leases = (1..)
        .zip(leases)
        .map(|(id, (phase, capacity))| ReportedLease {
            lease_id: LeaseId(id),
            resource_id,
            resource_type: ResourceType::Mem,
            phase: *phase,
            capacity: *capacity,
            expires_at_unix_ms: 0,
            tenant: "blue".into(),
        });
    let report = LeaseReport {
        sequence: 3,
        part: ReportPart::Changes,
        leases: leases.collect(),
        gone: Vec::new(),
    };
    view.report_leases(&from(1, 1), report).unwrap();
    view
}

#[test]
fn a_part_that_is_being_cleaned_is_worth_waiting_for_if_it_is_enough() {
    use LeasePhase::{Active, Expired, Fenced, Freed, Revoked};
    let busy = (LeaseError::ResourceBusy, RefusalClass::Transient);
    let full = (LeaseError::CapacityExceeded, RefusalClass::Transient);
    let never = (LeaseError::CapacityExceeded, RefusalClass::Permanent);
    for over in [Expired, Freed, Revoked] {
        let view = with_leases(&[(over, 80)]);
        assert_eq!(last_word(&view, &mem(100)), busy, "{over}");
        assert_eq!(last_word(&view, &mem(101)), never, "{over}");
        assert!(view.place(&mem(20), 1).is_ok());
    }
    for held in [Active, Fenced] {
        let view = with_leases(&[(Freed, 10), (held, 70)]);
        assert_eq!(last_word(&view, &mem(30)), busy);
        assert_eq!(last_word(&view, &mem(31)), full);
    }
    // What is free may be on both sides of what is being cleaned.
    let view = with_leases(&[(Freed, 10), (Active, 10)]);
    assert_eq!(last_word(&view, &mem(90)), busy);
    assert_eq!(last_word(&view, &mem(91)), full);
    let mut named = mem(90);
    named.resource_id = Some(view.members[&node(1)].shadow.offers()[0].resource_id);
    assert_eq!(last_word(&view, &named), busy);
    let refusal = view.place(&named, 1).unwrap_err();
    assert!(refusal.message.contains("1 by capacity"), "{refusal}");
    assert!(refusal.message.contains("is being cleaned"), "{refusal}");
}

#[test]
fn a_part_that_is_clean_or_gone_with_its_node_is_not_waited_for() {
    let busy = (LeaseError::ResourceBusy, RefusalClass::Transient);
    let full = (LeaseError::CapacityExceeded, RefusalClass::Transient);
    let changes = |sequence, leases, gone| LeaseReport {
        sequence,
        part: ReportPart::Changes,
        leases,
        gone,
    };
    let mut view = with_leases(&[(LeasePhase::Active, 80)]);
    assert_eq!(last_word(&view, &mem(100)), full);
    let page = view.lease_page((LeaseId(0), node(0)), crate::Whose::All);
    let mut over = page.leases[0].lease.clone();
    over.phase = LeasePhase::Freed;
    view.report_leases(&from(1, 1), changes(4, vec![over], vec![]))
        .unwrap();
    assert_eq!(last_word(&view, &mem(100)), busy);
    let clean = changes(5, vec![], vec![LeaseId(1)]);
    view.report_leases(&from(1, 1), clean).unwrap();
    assert_eq!(last_word(&view, &mem(100)), full);

    let mut view = with_leases(&[(LeasePhase::Freed, 80)]);
    assert!(view.gone(node(1), 1));
    view.report(&from(1, 2), 0, whole(1, 20)).unwrap();
    let capacity = LeaseError::CapacityExceeded;
    assert_eq!(last_word(&view, &mem(100)).0, capacity);
}
