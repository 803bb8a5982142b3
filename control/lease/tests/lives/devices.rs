//! Leases of GPUs: the amounts and the answers of each, the choice among several GPUs, and the refusals.

use std::collections::BTreeMap;

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::{
    device_classes::{
        GIB, Gpu, Mode, PARTITION, SESSIONS, WHOLE, amounts, asked, gpu, refused, world,
    },
    restart::restart_into,
    support::*,
};

use GpuExclusivityClass::{DeviceExclusive, SessionExclusive, Shared};

pub(crate) fn free(world: &World) -> Vec<u64> {
    let told = world.table.availability().next().expect("the offer");
    told.free_dimensions.iter().map(|it| it.amount).collect()
}

/// The available amount by default, and of each class that these tests request.
pub(crate) fn available(world: &World) -> [u64; 4] {
    let told = world.table.availability().next().expect("the offer");
    let by_class: BTreeMap<u8, u64> = told.available_by_class.into_iter().collect();
    let [shared, session, device] =
        [Shared, SessionExclusive, DeviceExclusive].map(|it| by_class[&(it as u8)] / GIB);
    [told.available / GIB, shared, session, device]
}

#[test]
fn a_lease_is_told_its_class_its_mode_and_the_slices_that_it_has() {
    for (of, mode, wanted, class, taken) in [
        (
            WHOLE,
            Mode::Fractional,
            asked(20, None, None),
            Shared,
            [20, 2, 1],
        ),
        (
            WHOLE,
            Mode::Fractional,
            asked(20, Some(5), None),
            Shared,
            [20, 5, 1],
        ),
        (
            WHOLE,
            Mode::Fractional,
            asked(20, None, Some(SessionExclusive)),
            SessionExclusive,
            [80, 7, 3],
        ),
        (
            WHOLE,
            Mode::Exclusive,
            asked(20, Some(5), None),
            DeviceExclusive,
            [80, 7, 3],
        ),
        (
            PARTITION,
            Mode::Exclusive,
            asked(20, None, None),
            DeviceExclusive,
            [40, 4, 3],
        ),
    ] {
        for mode_asked in [
            None,
            Some(GpuExecutionMode::Session),
            Some(GpuExecutionMode::OneShot),
        ] {
            let mut world = world(of, mode);
            let mut wanted = wanted.clone();
            if let LeaseTerms::Gpu(terms) = &mut wanted.terms {
                terms.execution_mode = mode_asked;
            }
            let ticket = world.ask(Request::LeaseAlloc(wanted));
            let order = world.bind_order();
            let [gib, slices, sessions] = taken;
            assert_eq!(amounts(&order.placement), [gib * GIB, slices, sessions]);
            let slices = u16::try_from(slices).ok();
            let terms = GpuTerms {
                exclusivity: Some(class),
                execution_mode: mode_asked.or(Some(GpuExecutionMode::Session)),
                compute_slices: slices,
            };
            assert_eq!(order.terms.gpu(), Some(&terms));
            let bound = Ok(Binding::plain(ResourceType::Gpu));
            world.report(Report::Bind(order.binding_id, bound));
            let told = world.lease(ticket).clone();
            assert_eq!(
                (told.capacity, told.effective.gpu_compute_slices),
                (gib * GIB, slices)
            );
            let (class, mode) = (
                told.effective.gpu_exclusivity,
                told.effective.gpu_execution_mode,
            );
            assert_eq!((class, mode), (terms.exclusivity, terms.execution_mode));
            // The record keeps the terms: the next run has them too.
            let mut next = restart_into(&world, self::world(of, mode_of(of, &terms)), true);
            assert_eq!(next.query(told.lease_id).effective, told.effective);
            assert_eq!(next.bind_order().terms.gpu(), Some(&terms));
        }
    }
}

/// The mode of the next run: the other mode, where that makes a difference.
fn mode_of(of: Gpu, terms: &GpuTerms) -> Mode {
    match of == WHOLE && terms.exclusivity == Some(Shared) {
        true => Mode::Exclusive,
        false => Mode::Fractional,
    }
}

#[test]
fn what_is_available_is_told_by_class_and_by_dimension() {
    let mut world = world(WHOLE, Mode::Fractional);
    assert_eq!(available(&world), [80, 80, 80, 80]);
    let (shares, _) = granted(&mut world, asked(10, Some(3), None));
    assert_eq!(free(&world), [70 * GIB, 4, 2]);
    assert_eq!(available(&world), [45, 45, 0, 0], "four slices of seven");
    ended(&mut world, shares);
    let (alone, _) = granted(&mut world, asked(10, None, Some(DeviceExclusive)));
    assert_eq!((free(&world), available(&world)), (vec![0, 0, 0], [0; 4]));
    ended(&mut world, alone);
    assert_eq!(free(&world), [80 * GIB, 7, SESSIONS]);
    let exclusive = self::world(WHOLE, Mode::Exclusive);
    assert_eq!(available(&exclusive), [80, 0, 80, 80]);
    let partition = self::world(PARTITION, Mode::Exclusive);
    assert_eq!(available(&partition), [40, 0, 40, 40]);
}

/// A node with two whole GPUs (0xa and 0xb) and a partition (0xc).
fn several(mode: Mode) -> World {
    let mut world = world(WHOLE, mode);
    for (id, of) in [(0xb, WHOLE), (0xc, PARTITION)] {
        let offer = Offer {
            resource_id: ResourceId(id),
            ..gpu(of, mode)
        };
        world.table.offer(ResourceType::Gpu, offer);
    }
    world
}

#[test]
fn a_request_without_an_id_gets_a_device_that_is_free_and_has_its_class() {
    let mut world = several(Mode::Fractional);
    let mut gets = |wanted| {
        let ticket = world.ask(Request::LeaseAlloc(wanted));
        match world.answer(ticket) {
            Some(answer) => Err(answer.as_ref().unwrap_err().error),
            None => Ok(world.bind_order().binding_id.resource_id.0),
        }
    };
    let device = || asked(1, None, Some(DeviceExclusive));
    assert_eq!(gets(asked(50, None, None)), Ok(0xa));
    assert_eq!(
        gets(asked(5, None, None)),
        Ok(0xa),
        "leaves free devices to others"
    );
    assert_eq!(
        gets(device()),
        Ok(0xb),
        "not the partition, which is smaller"
    );
    assert_eq!(gets(device()), Err(LeaseError::ResourceBusy));
    assert_eq!(gets(asked(1, None, Some(SessionExclusive))), Ok(0xc));
    assert_eq!(
        gets(asked(41, None, None)),
        Err(LeaseError::CapacityExceeded)
    );
    assert_eq!(
        gets(asked(1, Some(2), None)),
        Err(LeaseError::CapacityExceeded)
    );
    assert_eq!(gets(asked(1, Some(1), None)), Ok(0xa));
}

#[test]
fn a_resource_of_another_kind_is_told_by_its_kind() {
    let memory = ResourceId(0xb);
    let refusal = |world: &mut World, kind, id| {
        let wanted = LeaseAllocRequest {
            resource_id: Some(id),
            ..LeaseAllocRequest::new(kind, 1, 10)
        };
        let refusal = refused(world, wanted);
        assert_eq!(refusal.error, LeaseError::InvalidArgs);
        refusal.message
    };
    let gpus_only = world(WHOLE, Mode::Fractional);
    let mut with_memory = world(WHOLE, Mode::Fractional);
    with_memory
        .table
        .offer(ResourceType::Mem, offer(memory, PAGE));
    let of_a_gpu = refusal(&mut with_memory, ResourceType::Gpu, memory);
    assert!(of_a_gpu.contains("is of type mem"), "{of_a_gpu}");
    for mut world in [gpus_only, with_memory] {
        let blocks = refusal(&mut world, ResourceType::Block, ARENA);
        assert!(blocks.contains("is of type gpu"), "{blocks}");
        let vram = refusal(&mut world, ResourceType::Mem, ARENA);
        let why = "memory of a GPU is not leased as MEM (RDMA into VRAM)";
        assert!(
            vram.contains(why) && vram.ends_with("lease it as gpu"),
            "{vram}"
        );
    }
}

#[test]
fn what_no_gpu_has_is_refused() {
    let mut world = world(WHOLE, Mode::Fractional);
    let with_grace = LeaseAllocRequest {
        grace_secs: 1,
        ..asked(1, None, None)
    };
    let rotating = LeaseAllocRequest {
        rotate_on_renew: true,
        ..asked(1, None, None)
    };
    let over_rdma = LeaseAllocRequest {
        transport: Transport::Rdma,
        ..asked(1, None, None)
    };
    for (wanted, word) in [
        (with_grace, "no contents"),
        (rotating, "needs a key"),
        (over_rdma, "rdma is not offered"),
    ] {
        let refusal = refused(&mut world, wanted);
        assert_eq!(refusal.error, LeaseError::InvalidArgs);
        assert!(refusal.message.contains(word), "{refusal}");
    }
    let foreign = |terms: GpuTerms, word: &str| {
        let mut memory = World::new();
        let refusal = refused(&mut memory, request(PAGE, 10, 0).with_terms(terms));
        assert_eq!(refusal.error, LeaseError::InvalidArgs);
        assert!(refusal.message.contains(word), "{refusal}");
    };
    let (mut class, mut mode, mut slices) = <(GpuTerms, GpuTerms, GpuTerms)>::default();
    class.exclusivity = Some(Shared);
    mode.execution_mode = Some(GpuExecutionMode::OneShot);
    slices.compute_slices = Some(1);
    foreign(class, "gpu exclusivity shared");
    foreign(mode, "execution mode");
    foreign(slices, "compute slices");
}

/// An exclusive lease holds all of the device, however little it asks for.
#[test]
fn a_quota_counts_what_a_lease_gets() {
    let policy = Policy {
        tenant_capacity_max: [(ResourceType::Gpu, 79 * GIB)].into(),
        ..Policy::default()
    };
    let offer = gpu(WHOLE, Mode::Fractional);
    let mut world = World::of(ResourceType::Gpu, policy, offer);
    let refusal = refused(&mut world, asked(1, None, Some(DeviceExclusive)));
    let told = (refusal.error, refusal.class);
    assert_eq!(told, (LeaseError::CapacityExceeded, RefusalClass::Policy));
    for word in ["gpu-per-tenant-max", "all of resource"] {
        assert!(refusal.message.contains(word), "{refusal}");
    }
    granted(&mut world, asked(79, None, None));
}

#[test]
fn a_lease_that_could_not_be_cleaned_keeps_its_part_and_the_scope_says_who_else_gets_any() {
    for (scope, class, left) in [
        (FenceScope::Part, Shared, 60),
        (FenceScope::Separate, Shared, 60),
        (FenceScope::Whole, Shared, 0),
        (FenceScope::Part, DeviceExclusive, 0),
        (FenceScope::Whole, DeviceExclusive, 0),
    ] {
        let new = || {
            let offer = Offer {
                fence_scope: scope,
                ..gpu(WHOLE, Mode::Fractional)
            };
            World::of(ResourceType::Gpu, Policy::default(), offer)
        };
        let mut world = new();
        let (binding_id, part) = granted(&mut world, asked(20, Some(1), Some(class)));
        let before = free(&world);
        world.free(binding_id.lease_id);
        let cut = world.cut_order();
        world.cut_ok(cut);
        world.release_order();
        world.report(Report::Release(binding_id, Err(failed("scrub"))));
        for world in [&world, &restart_into(&world, new(), true)] {
            assert_eq!((free(world), available(world)[0]), (before.clone(), left));
        }
        world.operator(Request::FenceClear(ARENA));
        assert_eq!(world.order(), Order::Reset(ARENA, vec![(binding_id, part)]));
        world.report(Report::Reset(ARENA, Ok(())));
        assert_eq!(available(&world), [80; 4]);
    }
}

/// The operator sets the number of session slots; the next run may have fewer.
#[test]
fn a_lease_that_the_device_has_no_room_for_any_more_is_given_up() {
    let mut before = world(WHOLE, Mode::Fractional);
    let (goes, _) = granted(&mut before, asked(1, None, Some(DeviceExclusive)));
    let mut offer = gpu(WHOLE, Mode::Fractional);
    let AllocationMode::Device(dimensions) = &mut offer.allocation_mode else {
        panic!("{offer:?}")
    };
    dimensions[2].capacity = 2;
    let next = World::of(ResourceType::Gpu, Policy::default(), offer);
    let mut after = restart_into(&before, next, true);
    assert_eq!(after.phase(goes.lease_id), LeasePhase::Revoked);
}
