//! A request that fits once a lease that is over is cleaned: it is refused for a moment, with the time to ask again.

use std::time::Duration;

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

use LeaseError::{CapacityExceeded, ResourceBusy};

const GBIT: u64 = 1_000_000_000;

/// A resource of one kind, the terms of its leases, the whole amount and a smaller one.
struct Kind {
    name: &'static str,
    kind: ResourceType,
    offer: Offer,
    terms: LeaseTerms,
    all: u64,
    some: u64,
}

impl Kind {
    fn wanted(&self, amount: u64) -> LeaseAllocRequest {
        LeaseAllocRequest {
            terms: self.terms.clone(),
            ..LeaseAllocRequest::new(self.kind, amount, 10)
        }
    }
}

fn dimension(name: &str, capacity: u64, takes: Takes) -> Dimension {
    Dimension {
        name: name.into(),
        capacity,
        takes,
    }
}

fn kinds() -> Vec<Kind> {
    let of = |name, kind, offer, terms, all, some| Kind {
        name,
        kind,
        offer,
        terms,
        all,
        some,
    };
    let local = |capacity, durability, allocation_mode, classes| Offer {
        capacity,
        align: 1,
        transports: vec![],
        durability,
        fence_scope: FenceScope::Separate,
        allocation_mode,
        classes,
        ..offer(ARENA, 0)
    };
    let groups = (0..4).map(|number| CoreGroup {
        number,
        cpus: 2,
        node: 0,
    });
    let cores = AllocationMode::Cores {
        groups: groups.collect(),
    };
    let port = AllocationMode::Vector(vec![
        dimension("rate", 10 * GBIT, Takes::Asked),
        dimension("function", 3, Takes::Each(1)),
    ]);
    let gpu = AllocationMode::Device(vec![
        dimension("vram", 8 * PAGE, Takes::Asked),
        dimension("sessions", 3, Takes::Each(1)),
    ]);
    let shared = OfferedClass {
        class: GpuExclusivityClass::Shared as u8,
        state: ClassState::Enforced,
    };
    let sharing = ClassOffer {
        default: GpuExclusivityClass::Shared as u8,
        classes: vec![shared],
    };
    let directory = Offer {
        allocation_mode: AllocationMode::Amounts,
        ..block_offer()
    };
    let whole_cores = Some(classes(CpuIsolationClass::WholeCore, None));
    let (block, plain) = (ResourceType::Block, LeaseTerms::plain);
    let mem = LeaseTerms::from(MemTerms {
        rdma_peers: vec![peer()],
    });
    vec![
        of(
            "memory",
            ResourceType::Mem,
            offer(ARENA, 16 * PAGE),
            mem,
            16 * PAGE,
            4 * PAGE,
        ),
        of(
            "a device",
            block,
            block_offer(),
            plain(block),
            16 * PAGE,
            4 * PAGE,
        ),
        of(
            "a directory",
            block,
            directory,
            plain(block),
            16 * PAGE,
            4 * PAGE,
        ),
        of(
            "cores",
            ResourceType::Cpu,
            local(4, Durability::Boot, cores, whole_cores),
            plain(ResourceType::Cpu),
            4,
            1,
        ),
        of(
            "functions",
            ResourceType::Net,
            local(10 * GBIT, Durability::Boot, port, None),
            NetTerms {
                vlan: None,
                ..NetTerms::default()
            }
            .into(),
            10 * GBIT,
            GBIT,
        ),
        of(
            "a GPU",
            ResourceType::Gpu,
            local(8 * PAGE, Durability::Boot, gpu, Some(sharing)),
            plain(ResourceType::Gpu),
            8 * PAGE,
            2 * PAGE,
        ),
    ]
}

fn world(of: &Kind) -> World {
    let network = NetworkRights {
        vlans: [("alice".to_owned(), "0".parse().expect("a list"))].into(),
        ..NetworkRights::default()
    };
    let policy = Policy {
        network,
        ..Policy::default()
    };
    World::of(of.kind, policy, of.offer.clone())
}

fn begin(world: &mut World, wanted: LeaseAllocRequest) -> BindingId {
    let ticket = world.ask(Request::LeaseAlloc(wanted));
    let Some(Order::Bind(order)) = world.orders.pop() else {
        panic!("{:?}", world.answer(ticket));
    };
    let bound = Binding::plain(order.terms.resource_type());
    world.report(Report::Bind(order.binding_id, Ok(bound)));
    order.binding_id
}

/// Ends the lease; its part is being cleaned.
fn ends(world: &mut World, binding_id: BindingId) -> Order {
    world.free(binding_id.lease_id);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.order()
}

fn cleaned(world: &mut World, order: Order) {
    let Order::Release(binding_id, _) = order else {
        panic!("{order:?}");
    };
    world.report(Report::Release(binding_id, Ok(Proof::default())));
}

fn refused(world: &mut World, wanted: LeaseAllocRequest) -> Refusal {
    let ticket = world.ask(Request::LeaseAlloc(wanted));
    world.refusal(ticket).clone()
}

#[test]
fn of_every_kind_what_is_being_cleaned_is_refused_for_a_moment_and_then_granted() {
    for kind in kinds() {
        let mut world = world(&kind);
        let name = kind.name;
        let all = begin(&mut world, kind.wanted(kind.all));
        let held = refused(&mut world, kind.wanted(kind.some));
        assert_eq!(held.retry_after_ms, None, "{name}: {held}");
        let order = ends(&mut world, all);
        let busy = refused(&mut world, kind.wanted(kind.all));
        let told = (busy.error, busy.class);
        assert_eq!(
            told,
            (ResourceBusy, RefusalClass::Transient),
            "{name}: {busy}"
        );
        assert!(
            busy.retry_after_ms.is_some_and(|it| it > 0),
            "{name}: {busy}"
        );
        let never = refused(&mut world, kind.wanted(kind.all + kind.some));
        let told = (never.error, never.class, never.retry_after_ms);
        assert_eq!(
            told,
            (CapacityExceeded, RefusalClass::Permanent, None),
            "{name}: {never}"
        );
        cleaned(&mut world, order);
        begin(&mut world, kind.wanted(kind.all));
    }
}

#[test]
fn what_does_not_fit_even_then_is_not_waited_for() {
    for kind in kinds() {
        let mut world = world(&kind);
        begin(&mut world, kind.wanted(kind.some));
        let other = begin(&mut world, kind.wanted(kind.some));
        ends(&mut world, other);
        let refusal = refused(&mut world, kind.wanted(kind.all));
        let told = (refusal.error, refusal.class, refusal.retry_after_ms);
        let expected = (CapacityExceeded, RefusalClass::Transient, None);
        assert_eq!(told, expected, "{}: {refusal}", kind.name);
    }
}

/// A request that names no resource waits for any that can serve it.
#[test]
fn the_resource_that_comes_back_need_not_be_the_one_with_the_most_room() {
    let mut world = World::new();
    world
        .table
        .offer(ResourceType::Mem, offer(ResourceId(0xb), 8 * PAGE));
    let big = LeaseAllocRequest {
        resource_id: Some(ARENA),
        ..memory(16)
    };
    begin(&mut world, big);
    let small = begin(&mut world, memory(8));
    ends(&mut world, small);
    let refusal = refused(&mut world, memory(4));
    assert_eq!(refusal.error, ResourceBusy, "{refusal}");
    assert!(
        refusal.message.contains(&ResourceId(0xb).to_string()),
        "{refusal}"
    );
}

fn memory(pages: u64) -> LeaseAllocRequest {
    let rdma_peers = vec![peer()];
    LeaseAllocRequest {
        terms: MemTerms { rdma_peers }.into(),
        ..LeaseAllocRequest::new(ResourceType::Mem, pages * PAGE, 10)
    }
}

#[test]
fn the_time_to_return_follows_what_the_last_part_took() {
    let mut world = World::new();
    let first = begin(&mut world, memory(4));
    let order = ends(&mut world, first);
    let told = |world: &mut World| refused(world, memory(16)).retry_after_ms;
    // Without a pace: as long again as the cleaning has taken so far.
    world.pass_ms(300);
    assert_eq!(told(&mut world), Some(300));
    world.pass_ms(100);
    assert_eq!(told(&mut world), Some(400));
    cleaned(&mut world, order);
    // The pace is 4 pages in 400 ms.
    let second = begin(&mut world, memory(16));
    let _cleaning = ends(&mut world, second);
    assert_eq!(told(&mut world), Some(1_600));
    world.pass_ms(1_000);
    assert_eq!(told(&mut world), Some(600));
    world.pass(Duration::from_secs(3_600));
    assert_eq!(told(&mut world), Some(60_000), "at most a minute");
}

/// The wall clock of a machine is set while parts are cleaned.
#[test]
fn a_wall_clock_that_jumps_changes_no_time_to_return() {
    for jump in [3_600_000, -3_600_000] {
        let mut world = World::new();
        let first = begin(&mut world, memory(4));
        let order = ends(&mut world, first);
        let told = |world: &mut World| refused(world, memory(16)).retry_after_ms;
        world.pass_ms(300);
        world.now.unix_ms = world.now.unix_ms.saturating_add_signed(jump);
        assert_eq!(told(&mut world), Some(300), "{jump}: so far");
        world.pass_ms(100);
        cleaned(&mut world, order);
        let second = begin(&mut world, memory(16));
        let _cleaning = ends(&mut world, second);
        assert_eq!(told(&mut world), Some(1_600), "{jump}: by the last time");
    }
}

/// One of the leases being cleaned is enough for the request, so the time is that of the sooner one.
#[test]
fn the_time_is_that_of_the_first_part_that_is_enough() {
    let mut world = World::new();
    let first = begin(&mut world, memory(8));
    let second = begin(&mut world, memory(8));
    let _of_first = ends(&mut world, first);
    world.pass_ms(700);
    let _of_second = ends(&mut world, second);
    world.pass_ms(100);
    let told = |world: &mut World, pages| refused(world, memory(pages)).retry_after_ms;
    assert_eq!(told(&mut world, 8), Some(100));
    assert_eq!(told(&mut world, 16), Some(800), "both are needed");
}

#[test]
fn a_quota_waits_for_what_the_tenant_had() {
    let quota = [(ResourceType::Mem, 8 * PAGE)].into();
    let policies = [
        Policy {
            tenant_capacity_max: quota,
            ..Policy::default()
        },
        Policy {
            tenant_leases_max: 1,
            ..Policy::default()
        },
    ];
    for policy in policies {
        let mut world = World::with_policy(policy);
        let first = begin(&mut world, memory(8));
        let over = refused(&mut world, memory(8));
        assert_eq!(
            (over.error, over.class),
            (CapacityExceeded, RefusalClass::Policy)
        );
        let order = ends(&mut world, first);
        let busy = refused(&mut world, memory(8));
        assert_eq!(
            (busy.error, busy.class),
            (ResourceBusy, RefusalClass::Transient)
        );
        assert!(busy.retry_after_ms.is_some(), "{busy}");
        cleaned(&mut world, order);
        begin(&mut world, memory(8));
    }
}
