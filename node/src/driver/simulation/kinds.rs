//! The resources of the simulated node: memory in a file and without one, two pools of blocks, CPU cores by class, the
//! functions of a network port, and a GPU in shared or exclusive leases.

use std::collections::BTreeMap;

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
const CORES: u32 = 6;
const CPUS_OF_A_CORE: u32 = 2;
const LINK: u64 = 1_000_000_000;
const FUNCTIONS: u64 = 7;
const VRAM: u64 = 80;
const SLICES: u64 = 7;
const SESSIONS: u64 = 5;

pub(super) const KINDS: [ResourceType; 5] = [
    ResourceType::Mem,
    ResourceType::Block,
    ResourceType::Cpu,
    ResourceType::Net,
    ResourceType::Gpu,
];

/// The resources of a kind.
pub(super) fn offers(kind: ResourceType) -> Vec<Offer> {
    let stretches = |id, transports: &[Transport], durability, fence_scope| Offer {
        resource_id: ResourceId(id),
        capacity: PAGES * PAGE,
        align: PAGE,
        transports: transports.to_vec(),
        durability,
        fence_scope,
        cut_within: None,
        allocation_mode: AllocationMode::Stretches,
        read_only: false,
        classes: None,
        rate: None,
        needs_vlan: None,
    };
    let arena = |id, durability| stretches(id, &[Transport::Udp], durability, FenceScope::Whole);
    let ways = [Transport::NvmeTcp, Transport::Udp];
    let pool = |id| stretches(id, &ways, Durability::Machine, FenceScope::Part);
    let device = |id, capacity, allocation_mode| Offer {
        capacity,
        align: 1,
        transports: Vec::new(),
        allocation_mode,
        ..stretches(id, &[], Durability::Boot, FenceScope::Separate)
    };
    match kind {
        ResourceType::Mem => vec![arena(1, Durability::Process), arena(2, Durability::Nothing)],
        ResourceType::Block => vec![pool(3), pool(4)],
        ResourceType::Cpu => {
            let group = |number| CoreGroup {
                number,
                cpus: CPUS_OF_A_CORE,
                node: number / 3,
            };
            let groups = (0..CORES).map(group).collect();
            vec![Offer {
                classes: Some(classes(CpuIsolationClass::WholeCore as u8)),
                ..device(5, CORES.into(), AllocationMode::Cores { groups })
            }]
        }
        ResourceType::Net => {
            let rate = dimension("rate", LINK, Takes::Asked);
            let functions = dimension("function", FUNCTIONS, Takes::Each(1));
            vec![device(
                6,
                LINK,
                AllocationMode::Vector(vec![rate, functions]),
            )]
        }
        _ => {
            let memory = dimension("vram", VRAM, Takes::Asked);
            let slices = dimension(COMPUTE_SLICES, SLICES, Takes::InProportion);
            let sessions = dimension("sessions", SESSIONS, Takes::Each(1));
            vec![Offer {
                classes: Some(classes(GpuExclusivityClass::Shared as u8)),
                // Memory that could not be wiped may be anywhere on the device.
                fence_scope: FenceScope::Whole,
                ..device(
                    7,
                    VRAM,
                    AllocationMode::Device(vec![memory, slices, sessions]),
                )
            }]
        }
    }
}

/// Whether leases of the kind have pages.
pub(super) fn has_pages(kind: ResourceType) -> bool {
    matches!(kind, ResourceType::Mem | ResourceType::Block)
}

/// A request that often fits.
pub(super) fn request(kind: ResourceType, random: &mut fastrand::Rng) -> LeaseAllocRequest {
    let amount = random.u64(1..=5);
    let unit = match kind {
        ResourceType::Mem | ResourceType::Block => PAGE,
        ResourceType::Net => LINK / 10,
        ResourceType::Gpu => VRAM / 10,
        _ => 1,
    };
    let secs = random.u32(1..=6);
    let mut request = LeaseAllocRequest::new(kind, amount * unit, secs);
    if random.u8(..4) == 0 {
        request.grace_secs = random.u32(1..=3);
    }
    match kind {
        ResourceType::Block => {
            let ways = [Transport::NvmeTcp, Transport::Udp, Transport::Both];
            request.transport = ways[random.usize(..3)];
            request
        }
        ResourceType::Cpu => request.with_terms(CpuTerms {
            isolation: CpuIsolationClass::from_byte(random.u8(..4)),
            ..CpuTerms::default()
        }),
        // Most requests are for a shared lease.
        ResourceType::Gpu => request.with_terms(GpuTerms {
            exclusivity: match random.u8(..6) {
                class @ 1..=2 => GpuExclusivityClass::from_byte(class),
                _ => None,
            },
            compute_slices: Some(random.u16(..4)).filter(|slices| *slices > 0),
            ..GpuTerms::default()
        }),
        _ => request,
    }
}

/// Whether no two leases hold the same part, and all together no more than the capacity.
pub(super) fn are_apart(offer: &Offer, held: &[&Placement]) -> bool {
    let (mut cpus, mut taken) = (0, Vec::new());
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for placement in held {
        match placement {
            Placement::Stretch(extent) => taken.push(extent.offset..extent.end()),
            Placement::Cores(numbers) => {
                taken.extend(numbers.iter().map(|&it| it.into()..u64::from(it) + 1));
            }
            Placement::Amount(shared) => cpus += shared,
            Placement::Vector(parts) => {
                let amounts = parts.iter().map(|it| (&*it.name, it.amount));
                amounts.for_each(|(name, amount)| *sums.entry(name).or_default() += amount);
            }
        }
    }
    taken.sort_by_key(|range| range.start);
    let overlap = taken.windows(2).any(|two| two[0].end > two[1].start);
    let fits = match &offer.allocation_mode {
        AllocationMode::Cores { .. } => {
            let exclusive = taken.len() as u64;
            cpus <= u64::from(CORES).saturating_sub(exclusive) * u64::from(CPUS_OF_A_CORE)
        }
        AllocationMode::Vector(dimensions) | AllocationMode::Device(dimensions) => {
            let sum = |it: &Dimension| sums.get(&*it.name).copied().unwrap_or(0);
            dimensions.iter().all(|it| sum(it) <= it.capacity)
        }
        _ => true,
    };
    !overlap && fits
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
