//! The resources of the simulated node: memory in a file, without one and in slots, two pools of blocks, CPU cores by
//! class, the functions of a network port, and a GPU in shared or exclusive leases.

use fabricbios_contract::Inline;
use fabricbios_lease::{
    AllocationMode, COMPUTE_SLICES, ClassOffer, ClassState, CoreGroup, Dimension, Durability,
    FenceScope, Offer, OfferedClass, Placement, Takes,
};
use fabricbios_wire::{
    CpuIsolationClass, CpuTerms, GpuExclusivityClass, GpuTerms, LeaseAllocRequest, ResourceId,
    ResourceType, Transport,
};

/// Bytes are counted in pages.
pub(super) const PAGE: u64 = 4096;
const PAGES: u64 = 10;
const PAGES_OF_A_SLOT: u64 = 2;
const CORES: u32 = 6;
const CPUS_OF_A_CORE: u32 = 2;
const LINK: u64 = 1_000_000_000;
const FUNCTIONS: u64 = 7;
const VRAM: u64 = 80;
const SLICES: u64 = 7;
const SESSIONS: u64 = 5;

/// A kind of resource on this machine.
pub(super) struct Kind {
    pub(super) resource_type: ResourceType,
    pub(super) offers: fn() -> Vec<Offer>,
    /// The paths to its parts, in the order in which a lease is bound. Those over UDP are in the daemon's process.
    pub(super) paths: &'static [(&'static str, Transport)],
    /// The most that the paths over UDP let the driver's thread call itself.
    pub(super) inline: Inline,
    /// Its parts are pages: bytes that clients write, and that are cleaned.
    pub(super) has_pages: bool,
    /// A new binding of a lease ends the older one first.
    pub(super) binds_anew: bool,
    /// The amount of a small lease.
    unit: u64,
    /// Gives a request terms of the kind.
    terms: fn(LeaseAllocRequest, &mut fastrand::Rng) -> LeaseAllocRequest,
    /// Whether leases may hold these amounts at the same time.
    pub(super) adds_up: fn(&[&Placement]) -> bool,
    /// Whether the kind's store can make a new part beside these parts: the limits that it looks at itself. Pages have a
    /// [`fabricbios_lease::Custody`].
    pub(super) has_room: fn(&[&Placement], &Placement) -> bool,
}

/// Every kind that a node leases.
pub(super) const KINDS: &[Kind] = &[
    Kind {
        resource_type: ResourceType::Mem,
        offers: || {
            let arena = |id, durability| Offer {
                transports: vec![Transport::Udp],
                ..offer(id, (PAGES, PAGE), durability, FenceScope::Whole)
            };
            vec![
                arena(1, Durability::Process),
                arena(2, Durability::Nothing),
                Offer {
                    align: PAGES_OF_A_SLOT * PAGE,
                    allocation_mode: AllocationMode::Slots,
                    ..arena(8, Durability::Process)
                },
            ]
        },
        paths: &[("FBMU", Transport::Udp)],
        inline: Inline::Everything,
        has_pages: true,
        binds_anew: false,
        unit: PAGE,
        terms: |request, _| request,
        adds_up: |_| true,
        has_room: |_, _| true,
    },
    Kind {
        resource_type: ResourceType::Block,
        offers: || {
            let pool = |id| Offer {
                transports: vec![Transport::NvmeTcp, Transport::Udp],
                ..offer(id, (PAGES, PAGE), Durability::Machine, FenceScope::Part)
            };
            vec![pool(3), pool(4)]
        },
        paths: &[("NVMe-oF", Transport::NvmeTcp), ("FBBU", Transport::Udp)],
        inline: Inline::Cut,
        has_pages: true,
        binds_anew: false,
        unit: PAGE,
        terms: |mut request, random| {
            let ways = [Transport::NvmeTcp, Transport::Udp, Transport::Both];
            request.transport = ways[random.usize(..3)];
            request
        },
        adds_up: |_| true,
        has_room: |_, _| true,
    },
    Kind {
        resource_type: ResourceType::Cpu,
        offers: || {
            let group = |number| CoreGroup {
                number,
                cpus: CPUS_OF_A_CORE,
                node: number / 3,
            };
            let groups = (0..CORES).map(group).collect();
            vec![Offer {
                classes: Some(classes(CpuIsolationClass::WholeCore as u8)),
                allocation_mode: AllocationMode::Cores { groups },
                ..offer(5, (CORES.into(), 1), Durability::Boot, FenceScope::Separate)
            }]
        },
        paths: &[("cgroup", Transport::Auto)],
        inline: Inline::Nothing,
        has_pages: false,
        binds_anew: false,
        unit: 1,
        terms: |request, random| {
            request.with_terms(CpuTerms {
                isolation: CpuIsolationClass::from_byte(random.u8(..4)),
                ..CpuTerms::default()
            })
        },
        adds_up: |held| held.iter().map(|it| cpus_of(it)).sum::<u64>() <= cpus_of_all(),
        // Shared leases have the time of the CPUs that no lease has alone.
        has_room: |held, new| {
            let whole = held.iter().filter(|it| matches!(it, Placement::Cores(_)));
            match new {
                Placement::Cores(_) => are_apart(&[held, &[new]].concat()),
                shared => {
                    let alone: u64 = whole.map(|it| cpus_of(it)).sum();
                    alone + shared.amount() <= cpus_of_all()
                }
            }
        },
    },
    Kind {
        resource_type: ResourceType::Net,
        offers: || {
            vec![Offer {
                allocation_mode: AllocationMode::Vector(of_a_port()),
                ..offer(6, (LINK, 1), Durability::Boot, FenceScope::Separate)
            }]
        },
        paths: &[("function", Transport::Auto)],
        inline: Inline::Nothing,
        has_pages: false,
        binds_anew: true,
        unit: LINK / 10,
        terms: |request, _| request,
        adds_up: |held| are_within(&of_a_port(), held),
        has_room: |held, _| (held.len() as u64) < FUNCTIONS,
    },
    Kind {
        resource_type: ResourceType::Gpu,
        offers: || {
            vec![Offer {
                classes: Some(classes(GpuExclusivityClass::Shared as u8)),
                allocation_mode: AllocationMode::Device(of_a_gpu()),
                // Memory that could not be wiped may be anywhere on the device.
                ..offer(7, (VRAM, 1), Durability::Boot, FenceScope::Whole)
            }]
        },
        paths: &[("worker", Transport::Auto)],
        inline: Inline::Nothing,
        has_pages: false,
        binds_anew: false,
        unit: VRAM / 10,
        // Most requests are for a shared lease.
        terms: |request, random| {
            request.with_terms(GpuTerms {
                exclusivity: match random.u8(..6) {
                    class @ 1..=2 => GpuExclusivityClass::from_byte(class),
                    _ => None,
                },
                compute_slices: Some(random.u16(..4)).filter(|slices| *slices > 0),
                ..GpuTerms::default()
            })
        },
        adds_up: |held| are_within(&of_a_gpu(), held),
        has_room: |_, _| true,
    },
];

impl Kind {
    /// A request that often fits.
    pub(super) fn request(&self, random: &mut fastrand::Rng) -> LeaseAllocRequest {
        let amount = random.u64(1..=5) * self.unit;
        let mut request = LeaseAllocRequest::new(self.resource_type, amount, random.u32(1..=6));
        if random.u8(..4) == 0 {
            request.grace_secs = random.u32(1..=3);
        }
        (self.terms)(request, random)
    }
}

/// The most that one lease can have of a resource that is free.
pub(super) fn most(offer: &Offer) -> u64 {
    match offer.allocation_mode {
        AllocationMode::Slots => offer.align,
        _ => offer.capacity,
    }
}

/// A resource that gives out stretches of this unit.
fn offer(
    id: u128,
    (units, unit): (u64, u64),
    durability: Durability,
    fence_scope: FenceScope,
) -> Offer {
    Offer {
        resource_id: ResourceId(id),
        capacity: units * unit,
        align: unit,
        transports: Vec::new(),
        durability,
        fence_scope,
        cut_within: None,
        allocation_mode: AllocationMode::Stretches,
        read_only: false,
        classes: None,
        rate: None,
        needs_vlan: None,
    }
}

fn of_a_port() -> Vec<Dimension> {
    vec![
        dimension("rate", LINK, Takes::Asked),
        dimension("function", FUNCTIONS, Takes::Each(1)),
    ]
}

fn of_a_gpu() -> Vec<Dimension> {
    vec![
        dimension("vram", VRAM, Takes::Asked),
        dimension(COMPUTE_SLICES, SLICES, Takes::InProportion),
        dimension("sessions", SESSIONS, Takes::Each(1)),
    ]
}

fn cpus_of_all() -> u64 {
    (CORES * CPUS_OF_A_CORE).into()
}

fn cpus_of(part: &Placement) -> u64 {
    match part {
        Placement::Cores(numbers) => numbers.len() as u64 * u64::from(CPUS_OF_A_CORE),
        shared => shared.amount(),
    }
}

/// Whether no two leases hold the same pages or cores.
pub(super) fn are_apart(held: &[&Placement]) -> bool {
    let taken = |it: &&Placement| match it {
        Placement::Stretch(extent) => vec![(extent.offset, extent.end())],
        Placement::Cores(numbers) => {
            let core = |it: &u32| (u64::from(*it), u64::from(*it) + 1);
            numbers.iter().map(core).collect()
        }
        Placement::Amount(_) | Placement::Vector(_) => Vec::new(),
    };
    let mut taken: Vec<_> = held.iter().flat_map(taken).collect();
    taken.sort_unstable();
    taken.windows(2).all(|two| two[0].1 <= two[1].0)
}

/// Whether all leases together hold no more than there is.
fn are_within(dimensions: &[Dimension], held: &[&Placement]) -> bool {
    let amount = |it: &&Placement, name: &str| match it {
        Placement::Vector(parts) => parts
            .iter()
            .filter(|it| it.name == name)
            .map(|it| it.amount)
            .sum(),
        _ => 0,
    };
    let sum = |name| held.iter().map(|it| amount(it, name)).sum::<u64>();
    dimensions.iter().all(|it| sum(&*it.name) <= it.capacity)
}

fn dimension(name: &str, capacity: u64, takes: Takes) -> Dimension {
    Dimension {
        name: name.to_owned(),
        capacity,
        takes,
    }
}

/// The first three classes of either kind, all enforced.
fn classes(default: u8) -> ClassOffer {
    let offered = |class| OfferedClass {
        class,
        state: ClassState::Enforced,
    };
    ClassOffer {
        default,
        classes: (0..3).map(offered).collect(),
    }
}
