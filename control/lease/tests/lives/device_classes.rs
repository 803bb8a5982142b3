//! Which request gets a GPU: each class, under each mode of the node, for each occupancy of the device.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::{restart::restart_into, support::*};

use GpuExclusivityClass::{DeviceExclusive, PartitionExclusive, SessionExclusive, Shared};

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const SESSIONS: u64 = 3;

/// A whole GPU, or a partition of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    pub(crate) gib: u64,
    pub(crate) slices: u16,
    is_partition: bool,
}

pub(crate) const WHOLE: Gpu = Gpu {
    gib: 80,
    slices: 7,
    is_partition: false,
};
pub(crate) const PARTITION: Gpu = Gpu {
    gib: 40,
    slices: 4,
    is_partition: true,
};

/// How the node leases its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Fractional,
}

const NOT_SHARED: &str = "this node runs with gpu-share-mode exclusive";
const LEAVE_OUT: &str = "leave the class out";

pub(crate) fn gpu(of: Gpu, mode: Mode) -> Offer {
    let dimension = |name: &str, capacity, takes| Dimension {
        name: name.into(),
        capacity,
        takes,
    };
    let class = |class: GpuExclusivityClass, state| OfferedClass {
        class: class as u8,
        state,
    };
    let default = match mode {
        Mode::Exclusive => DeviceExclusive,
        Mode::Fractional => Shared,
    };
    let shared = match mode {
        Mode::Exclusive => ClassState::Forbidden(NOT_SHARED.into()),
        Mode::Fractional => ClassState::Enforced,
    };
    let whole = match of.is_partition {
        true => ClassState::Implied(LEAVE_OUT.into()),
        false => ClassState::Enforced,
    };
    Offer {
        capacity: of.gib * GIB,
        align: 1,
        transports: vec![],
        durability: Durability::Boot,
        fence_scope: FenceScope::Separate,
        allocation_mode: AllocationMode::Device(vec![
            dimension("vram", of.gib * GIB, Takes::Asked),
            dimension(COMPUTE_SLICES, of.slices.into(), Takes::InProportion),
            dimension("sessions", SESSIONS, Takes::Each(1)),
        ]),
        classes: Some(ClassOffer {
            default: default as u8,
            classes: vec![
                class(Shared, shared),
                class(SessionExclusive, ClassState::Enforced),
                class(DeviceExclusive, whole),
                // No lease gets this class, even if an offer has it.
                class(PartitionExclusive, ClassState::Enforced),
            ],
        }),
        ..offer(ARENA, 0)
    }
}

pub(crate) fn world(of: Gpu, mode: Mode) -> World {
    World::of(ResourceType::Gpu, Policy::default(), gpu(of, mode))
}

pub(crate) fn asked(
    gib: u64,
    slices: Option<u16>,
    class: Option<GpuExclusivityClass>,
) -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Gpu, gib * GIB, 10).with_terms(GpuTerms {
        exclusivity: class,
        compute_slices: slices,
        ..GpuTerms::default()
    })
}

pub(crate) fn amounts(placement: &Placement) -> Vec<u64> {
    match placement {
        Placement::Vector(parts) => parts.iter().map(|it| it.amount).collect(),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn refused(world: &mut World, wanted: LeaseAllocRequest) -> Refusal {
    let ticket = world.ask(Request::LeaseAlloc(wanted));
    world.refusal(ticket).clone()
}

/// What leases hold of the device.
#[derive(Clone, Copy, Debug)]
enum Holds {
    Nothing,
    /// A lease shares the device, and some of every dimension is free.
    Some,
    /// One lease of an exclusive class.
    All,
    Memory,
    Slices,
    Sessions,
}

/// A world in this state. In exclusive mode, the sharing leases come from an earlier run in fractional mode.
fn holding(of: Gpu, mode: Mode, holds: Holds) -> World {
    let shared = |gib, slices| asked(gib, Some(slices), Some(Shared));
    let leases = match holds {
        Holds::Nothing => vec![],
        Holds::Some => vec![shared(10, 1)],
        Holds::All => vec![asked(1, None, Some(SessionExclusive))],
        Holds::Memory => vec![shared(of.gib, 1)],
        Holds::Slices => vec![shared(1, of.slices)],
        Holds::Sessions => vec![shared(1, 1); 3],
    };
    let mut before = world(of, Mode::Fractional);
    for wanted in leases {
        granted(&mut before, wanted);
    }
    match mode {
        Mode::Fractional => before,
        Mode::Exclusive => restart_into(&before, world(of, mode), true),
    }
}

/// The answer to a request for 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gets {
    /// The whole device.
    All,
    /// The requested amount.
    Part,
    /// InvalidArgs, by the operator's policy.
    Policy,
    /// InvalidArgs, for ever.
    Invalid,
    /// ResourceBusy, for now.
    Busy,
    /// CapacityExceeded, for now.
    Full,
}

fn gets(mut world: World, of: Gpu, wanted: LeaseAllocRequest) -> Gets {
    let ticket = world.ask(Request::LeaseAlloc(wanted));
    if let Some(Err(refusal)) = world.answer(ticket) {
        return match (refusal.error, refusal.class) {
            (LeaseError::InvalidArgs, RefusalClass::Policy) => Gets::Policy,
            (LeaseError::InvalidArgs, RefusalClass::Permanent) => Gets::Invalid,
            (LeaseError::ResourceBusy, RefusalClass::Transient) => Gets::Busy,
            (LeaseError::CapacityExceeded, RefusalClass::Transient) => Gets::Full,
            _ => panic!("{refusal}"),
        };
    }
    let Some(Order::Bind(order)) = world.orders.pop() else {
        panic!("{:?}", world.orders)
    };
    let taken = amounts(&order.placement);
    if taken == [of.gib * GIB, of.slices.into(), SESSIONS] {
        Gets::All
    } else {
        assert_eq!(taken, [GIB, 1, 1]);
        Gets::Part
    }
}

#[test]
fn each_class_under_each_mode_for_each_occupancy() {
    use Gets::{All, Busy, Full, Invalid, Part, Policy};
    use Mode::{Exclusive, Fractional};
    let states = [
        Holds::Nothing,
        Holds::Some,
        Holds::All,
        Holds::Memory,
        Holds::Slices,
        Holds::Sessions,
    ];
    #[rustfmt::skip]
    let table = [
        // The device, its mode and the class asked for | what leases hold of it:
        //                                               nothing  some     all      memory   slices   sessions
        (WHOLE,     Exclusive,  None,                     [All,     Full,    Full,    Full,    Full,    Full]),
        (WHOLE,     Exclusive,  Some(Shared),             [Policy,  Policy,  Policy,  Policy,  Policy,  Policy]),
        (WHOLE,     Exclusive,  Some(SessionExclusive),   [All,     Full,    Full,    Full,    Full,    Full]),
        (WHOLE,     Exclusive,  Some(DeviceExclusive),    [All,     Full,    Full,    Full,    Full,    Full]),
        (WHOLE,     Exclusive,  Some(PartitionExclusive), [Invalid, Invalid, Invalid, Invalid, Invalid, Invalid]),
        (WHOLE,     Fractional, None,                     [Part,    Part,    Busy,    Full,    Full,    Full]),
        (WHOLE,     Fractional, Some(Shared),             [Part,    Part,    Busy,    Full,    Full,    Full]),
        (WHOLE,     Fractional, Some(SessionExclusive),   [All,     Busy,    Busy,    Busy,    Busy,    Busy]),
        (WHOLE,     Fractional, Some(DeviceExclusive),    [All,     Busy,    Busy,    Busy,    Busy,    Busy]),
        (WHOLE,     Fractional, Some(PartitionExclusive), [Invalid, Invalid, Invalid, Invalid, Invalid, Invalid]),
        (PARTITION, Exclusive,  None,                     [All,     Full,    Full,    Full,    Full,    Full]),
        (PARTITION, Exclusive,  Some(Shared),             [Policy,  Policy,  Policy,  Policy,  Policy,  Policy]),
        (PARTITION, Exclusive,  Some(SessionExclusive),   [All,     Full,    Full,    Full,    Full,    Full]),
        (PARTITION, Exclusive,  Some(DeviceExclusive),    [Invalid, Invalid, Invalid, Invalid, Invalid, Invalid]),
        (PARTITION, Exclusive,  Some(PartitionExclusive), [Invalid, Invalid, Invalid, Invalid, Invalid, Invalid]),
        (PARTITION, Fractional, None,                     [Part,    Part,    Busy,    Full,    Full,    Full]),
        (PARTITION, Fractional, Some(Shared),             [Part,    Part,    Busy,    Full,    Full,    Full]),
        (PARTITION, Fractional, Some(SessionExclusive),   [All,     Busy,    Busy,    Busy,    Busy,    Busy]),
        (PARTITION, Fractional, Some(DeviceExclusive),    [Invalid, Invalid, Invalid, Invalid, Invalid, Invalid]),
        (PARTITION, Fractional, Some(PartitionExclusive), [Invalid, Invalid, Invalid, Invalid, Invalid, Invalid]),
    ];
    for (of, mode, class, expected) in table {
        for (holds, expected) in states.into_iter().zip(expected) {
            // The request names the GPU, or names no resource.
            for resource_id in [None, Some(ARENA)] {
                let wanted = LeaseAllocRequest {
                    resource_id,
                    ..asked(1, None, class)
                };
                let got = gets(holding(of, mode, holds), of, wanted);
                let case = format!("{of:?} {mode:?} {class:?} {holds:?} {resource_id:?}");
                assert_eq!(got, expected, "{case}");
            }
        }
    }
}

#[test]
fn refusals_of_a_class_say_why_and_what_to_do() {
    let refusal = |of, mode, class| refused(&mut world(of, mode), asked(1, None, Some(class)));
    let shared = refusal(WHOLE, Mode::Exclusive, Shared).message;
    assert!(shared.contains("gpu exclusivity shared"), "{shared}");
    assert!(shared.ends_with(NOT_SHARED), "{shared}");
    let whole = refusal(PARTITION, Mode::Exclusive, DeviceExclusive).message;
    assert!(
        whole.contains("gpu exclusivity device cannot be named"),
        "{whole}"
    );
    assert!(whole.ends_with(LEAVE_OUT), "{whole}");
    for of in [WHOLE, PARTITION] {
        let partition = refusal(of, Mode::Fractional, PartitionExclusive).message;
        for word in ["gpu exclusivity partition", "--resource", LEAVE_OUT] {
            assert!(partition.contains(word), "{partition}");
        }
    }
}

#[test]
fn refusals_for_lack_of_room_name_what_is_used_up_and_what_is_left() {
    let refusal = |holds, wanted| {
        let refusal = refused(&mut holding(WHOLE, Mode::Fractional, holds), wanted);
        assert_eq!(refusal.error, LeaseError::CapacityExceeded, "{refusal}");
        assert_eq!(refusal.class, RefusalClass::Transient, "{refusal}");
        refusal.message
    };
    let memory = refusal(Holds::Some, asked(71, Some(1), None));
    let used_up = "of its vram needed, 70 GiB (75161927680) of 80 GiB (85899345920) left";
    assert!(memory.contains(used_up), "{memory}");
    let slices = refusal(Holds::Some, asked(1, Some(7), None));
    let used_up = "7 of its compute slices needed, 6 of 7 left;";
    assert!(
        slices.contains(used_up) && !slices.contains("vram"),
        "{slices}"
    );
    let sessions = refusal(Holds::Sessions, asked(1, None, None));
    let used_up = "1 of its sessions needed, 0 of 3 left";
    assert!(sessions.contains(used_up), "{sessions}");
}

#[test]
fn what_no_lease_can_ever_have_is_refused_for_ever() {
    for (mode, class) in [
        (Mode::Fractional, Some(Shared)),
        (Mode::Fractional, Some(DeviceExclusive)),
        (Mode::Exclusive, None),
    ] {
        for holds in [Holds::Nothing, Holds::Some] {
            for (gib, slices, word) in [
                (81, None, "81 GiB"),
                (1, Some(8), "8 compute slices; any gpu here has 7"),
                (
                    u64::MAX / GIB,
                    Some(u16::MAX),
                    " compute slices; any gpu here has 7",
                ),
            ] {
                let mut world = holding(WHOLE, mode, holds);
                let refusal = refused(&mut world, asked(gib, slices, class));
                let told = (refusal.error, refusal.class);
                let never = (LeaseError::CapacityExceeded, RefusalClass::Permanent);
                assert_eq!(told, never, "{refusal}");
                assert!(refusal.message.contains(word), "{refusal}");
            }
        }
    }
}
