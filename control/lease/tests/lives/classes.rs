//! Classes of isolation, execution mode and width, and the profiles of admission.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

use CpuIsolationClass::{BestEffort, StrictIsolated, WholeCore};

/// Four cores with two CPUs each, on two NUMA nodes.
pub(crate) fn cores(classes: ClassOffer) -> Offer {
    let group = |number| CoreGroup {
        number,
        cpus: 2,
        node: number / 2,
    };
    Offer {
        capacity: 4,
        align: 1,
        transports: vec![],
        durability: Durability::Boot,
        fence_scope: FenceScope::Separate,
        allocation_mode: AllocationMode::Cores {
            groups: (0..4).map(group).collect(),
        },
        classes: Some(classes),
        ..offer(ARENA, 0)
    }
}

fn world(classes: ClassOffer) -> World {
    World::of(ResourceType::Cpu, Policy::default(), cores(classes))
}

pub(crate) fn of_cpu(capacity: u64, terms: CpuTerms) -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Cpu, capacity, 10).with_terms(terms)
}

fn isolated(isolation: Option<CpuIsolationClass>) -> CpuTerms {
    CpuTerms {
        isolation,
        ..CpuTerms::default()
    }
}

fn refused(world: &mut World, wanted: LeaseAllocRequest) -> Refusal {
    let ticket = world.ask(Request::LeaseAlloc(wanted));
    world.refusal(ticket).clone()
}

/// One of the four cores has a CPU that is offline.
#[test]
fn cores_that_are_missing_are_not_granted_and_come_back() {
    let mut world = world(classes(WholeCore, None));
    let missing = Condition::Partial {
        why: "cpu7 is offline".into(),
        missing: vec![3],
    };
    world.report(Report::Condition(ARENA, missing));
    let told = |world: &World| {
        let it = world.table.availability().next().unwrap();
        let by_class = it.available_by_class.into_iter().map(|(_, most)| most);
        (it.trouble, it.capacity, by_class.collect::<Vec<_>>())
    };
    let why = Some(Trouble::Resource("cpu7 is offline".into()));
    assert_eq!(told(&world), (why, 4, vec![6, 3, 2]));
    for (amount, class) in [(4, WholeCore), (7, BestEffort)] {
        let refusal = refused(&mut world, of_cpu(amount, isolated(Some(class))));
        let told = (refusal.error, refusal.class);
        assert_eq!(
            told,
            (LeaseError::CapacityExceeded, RefusalClass::Transient)
        );
        assert!(refusal.message.contains("cpu7 is offline"), "{refusal}");
    }
    let asked = |world: &mut World, cores| {
        world.ask(Request::LeaseAlloc(of_cpu(cores, isolated(None))));
        world.bind_order().placement
    };
    let units = |numbers: &[u32]| Placement::Cores(numbers.into());
    assert_eq!(asked(&mut world, 3), units(&[0, 1, 2]));
    world.report(Report::Condition(ARENA, Condition::Good));
    assert_eq!(told(&world), (None, 4, vec![2, 1, 1]));
    assert_eq!(asked(&mut world, 1), units(&[3]));
    assert_eq!(world.table.check(), []);
}

#[test]
fn the_class_is_the_requests_or_the_default_and_always_told() {
    for default in [BestEffort, WholeCore, StrictIsolated] {
        for asked in [
            None,
            Some(BestEffort),
            Some(WholeCore),
            Some(StrictIsolated),
        ] {
            let mut world = world(classes(default, None));
            let ticket = world.ask(Request::LeaseAlloc(of_cpu(1, isolated(asked))));
            let order = world.bind_order();
            let class = Some(asked.unwrap_or(default));
            assert_eq!(order.terms.cpu().unwrap().isolation, class);
            let shared = matches!(order.placement, Placement::Amount(1));
            assert_eq!(shared, class == Some(BestEffort), "{:?}", order.placement);
            let bound = Ok(Binding::plain(ResourceType::Cpu));
            world.report(Report::Bind(order.binding_id, bound));
            assert_eq!(world.lease(ticket).effective.cpu_isolation, class);
            let told = world.query(order.binding_id.lease_id);
            assert_eq!(told.effective.cpu_isolation, class);
        }
    }
}

#[test]
fn a_class_that_cannot_be_had_is_refused_by_its_name_with_the_reason() {
    let why = "CPU 1 has two threads";
    let mut smt = world(classes(WholeCore, Some((StrictIsolated, why))));
    let refusal = refused(&mut smt, of_cpu(1, isolated(Some(StrictIsolated))));
    assert_eq!(refusal.error, LeaseError::InvalidArgs);
    for word in ["cpu isolation strict_isolated", why] {
        assert!(refusal.message.contains(word), "{refusal}");
    }
    let mut by_default = world(classes(StrictIsolated, Some((StrictIsolated, why))));
    let refusal = refused(&mut by_default, of_cpu(1, isolated(None)));
    for word in ["strict_isolated", "default", why] {
        assert!(refusal.message.contains(word), "{refusal}");
    }
    let told = by_default.table.availability().next().expect("the offer");
    assert_eq!(told.available, 0, "no lease gets the default");
    granted(&mut by_default, of_cpu(1, isolated(Some(WholeCore))));
    let mut two = classes(BestEffort, None);
    two.classes.truncate(2);
    let refusal = refused(&mut world(two), of_cpu(1, isolated(Some(StrictIsolated))));
    assert!(refusal.message.contains("strict_isolated"), "{refusal}");
    let without = Offer {
        classes: None,
        ..cores(classes(WholeCore, None))
    };
    let mut without = World::of(ResourceType::Cpu, Policy::default(), without);
    let refusal = refused(&mut without, of_cpu(1, isolated(Some(WholeCore))));
    assert!(refusal.message.contains("has no classes"), "{refusal}");
}

/// A node has two CPU resources; the tenant gets its class on the one that offers the class.
#[test]
fn a_resource_that_refuses_the_class_is_left_for_another() {
    let why = "incomplete topology";
    let mut world = world(classes(BestEffort, Some((WholeCore, why))));
    let other = Offer {
        resource_id: ResourceId(0xb),
        ..cores(classes(WholeCore, None))
    };
    world.table.offer(ResourceType::Cpu, other);
    let (binding_id, _) = granted(&mut world, of_cpu(2, isolated(Some(WholeCore))));
    assert_eq!(binding_id.resource_id, ResourceId(0xb));
    let refusal = refused(&mut world, of_cpu(5, isolated(Some(WholeCore))));
    assert_eq!(refusal.class, RefusalClass::Permanent, "{refusal}");
}

#[test]
fn a_lease_that_shares_its_cpus_has_no_partition() {
    let with = |isolation, partition| CpuTerms {
        isolation,
        partition: Some(partition),
        ..CpuTerms::default()
    };
    for (default, asked) in [(WholeCore, Some(BestEffort)), (BestEffort, None)] {
        let mut world = world(classes(default, None));
        let refusal = refused(&mut world, of_cpu(1, with(asked, CpuPartition::Root)));
        assert_eq!(refusal.error, LeaseError::InvalidArgs);
        assert!(refusal.message.contains("partition root"), "{refusal}");
    }
    let mut world = world(classes(WholeCore, None));
    let (binding_id, _) = granted(&mut world, of_cpu(1, with(None, CpuPartition::Isolated)));
    let told = world.query(binding_id.lease_id).effective;
    assert_eq!(told.cpu_partition, Some(CpuPartition::Isolated));
}

#[test]
fn mode_and_width_are_told_as_asked_and_linux_grants_more_cores_than_threads() {
    for class in [BestEffort, WholeCore, StrictIsolated] {
        let mut world = world(classes(WholeCore, None));
        let (wide, _) = granted(&mut world, of_cpu(2, isolated(Some(class))));
        let told = world.query(wide.lease_id).effective;
        assert_eq!(told.cpu_execution_width, None, "as asked");
    }
    let mut world = world(classes(WholeCore, None));
    let terms = CpuTerms {
        execution_mode: Some(CpuExecutionMode::SharedMemory),
        execution_width: Some(2),
        ..CpuTerms::default()
    };
    let (binding_id, _) = granted(&mut world, of_cpu(3, terms));
    let told = world.query(binding_id.lease_id).effective;
    let expected = (Some(CpuExecutionMode::SharedMemory), Some(2));
    assert_eq!(
        (told.cpu_execution_mode, told.cpu_execution_width),
        expected
    );
}

#[test]
fn on_bare_metal_cores_without_a_thread_are_refused_with_and_without_a_class() {
    let policy = Policy {
        profile: Profile::BareMetal,
        ..Policy::default()
    };
    let why = "nothing enforces it on bare metal";
    let offer = cores(classes(WholeCore, Some((StrictIsolated, why))));
    let mut world = World::of(ResourceType::Cpu, policy, offer);
    for isolation in [
        None,
        Some(BestEffort),
        Some(WholeCore),
        Some(StrictIsolated),
    ] {
        let refusal = refused(&mut world, of_cpu(4, isolated(isolation)));
        assert_eq!(refusal.error, LeaseError::InvalidArgs);
        let line = "wider CPU lease not accepted: capacity=4 execution_width=1; use TLV_LEASE_CPU_ISOLATION";
        assert!(refusal.message.starts_with(line), "{refusal}");
        assert!(!refusal.message.contains('\n'));
    }
    let refusal = refused(&mut world, of_cpu(1, isolated(Some(StrictIsolated))));
    for word in ["strict_isolated", why] {
        assert!(refusal.message.contains(word), "{refusal}");
    }
    granted(&mut world, of_cpu(1, isolated(None)));
    let two = CpuTerms {
        execution_mode: Some(CpuExecutionMode::SharedMemory),
        execution_width: Some(2),
        ..CpuTerms::default()
    };
    let refusal = refused(&mut world, of_cpu(1, two.clone()));
    assert!(refusal.message.starts_with("narrower"), "{refusal}");
    granted(&mut world, of_cpu(2, two));
}
