//! The resources of the simulated node: blocks in stretches, CPU cores by class, functions of a network port, or a GPU
//! in shared or exclusive leases.

use std::collections::BTreeMap;

use fabricbios_lease::{
    AllocationMode, COMPUTE_SLICES, ClassOffer, ClassState, CoreGroup, Dimension, Durability,
    FenceScope, Offer, OfferedClass, Placement, Takes,
};
use fabricbios_wire::{
    CpuIsolationClass, CpuTerms, GpuExclusivityClass, GpuTerms, LeaseAllocRequest, ResourceType,
    Transport,
};

use super::POOL;

const PAGE: u64 = 4096;
const PAGES: u64 = 16;
const CORES: u32 = 6;
const CPUS_OF_A_CORE: u32 = 2;
const LINK: u64 = 1_000_000_000;
const FUNCTIONS: u64 = 7;
const VRAM: u64 = 80;
const SLICES: u64 = 7;
const SESSIONS: u64 = 5;

const KINDS: [ResourceType; 4] = [
    ResourceType::Block,
    ResourceType::Cpu,
    ResourceType::Net,
    ResourceType::Gpu,
];

/// After this many consecutive seeds, each kind occurred once.
pub(super) const SEEDS_OF_EACH_KIND: usize = KINDS.len();

/// The only resource of the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offered {
    pub(super) kind: ResourceType,
}

impl Offered {
    /// The kinds take turns from seed to seed.
    pub(super) fn of(seed: u64) -> Self {
        Self {
            kind: KINDS[seed as usize % KINDS.len()],
        }
    }

    pub(super) fn offer(self) -> Offer {
        let blocks = Offer {
            resource_id: POOL,
            capacity: PAGES * PAGE,
            align: PAGE,
            transports: vec![Transport::NvmeTcp],
            durability: Durability::Machine,
            fence_scope: FenceScope::Part,
            cut_within: None,
            allocation_mode: AllocationMode::Stretches,
            read_only: false,
            classes: None,
            rate: None,
            needs_vlan: None,
        };
        let (capacity, allocation_mode) = match self.kind {
            ResourceType::Cpu => {
                let group = |number| CoreGroup {
                    number,
                    cpus: CPUS_OF_A_CORE,
                    node: number / 3,
                };
                let groups = (0..CORES).map(group).collect();
                (CORES.into(), AllocationMode::Cores { groups })
            }
            ResourceType::Net => {
                let rate = dimension("rate", LINK, Takes::Asked);
                let functions = dimension("function", FUNCTIONS, Takes::Each(1));
                (LINK, AllocationMode::Vector(vec![rate, functions]))
            }
            ResourceType::Gpu => {
                let memory = dimension("vram", VRAM, Takes::Asked);
                let slices = dimension(COMPUTE_SLICES, SLICES, Takes::InProportion);
                let sessions = dimension("sessions", SESSIONS, Takes::Each(1));
                let dimensions = vec![memory, slices, sessions];
                (VRAM, AllocationMode::Device(dimensions))
            }
            _ => return blocks,
        };
        Offer {
            capacity,
            align: 1,
            transports: Vec::new(),
            durability: Durability::Boot,
            fence_scope: match self.kind {
                // Memory that could not be wiped may be anywhere on the device.
                ResourceType::Gpu => FenceScope::Whole,
                _ => FenceScope::Separate,
            },
            allocation_mode,
            classes: match self.kind {
                ResourceType::Cpu => Some(classes(CpuIsolationClass::WholeCore as u8)),
                ResourceType::Gpu => Some(classes(GpuExclusivityClass::Shared as u8)),
                _ => None,
            },
            ..blocks
        }
    }

    /// A request that often fits.
    pub(super) fn request(self, secs: u32, mut below: impl FnMut(u64) -> u64) -> LeaseAllocRequest {
        let amount = below(5) + 1;
        let unit = match self.kind {
            ResourceType::Block => PAGE,
            ResourceType::Net => LINK / 10,
            ResourceType::Gpu => VRAM / 10,
            _ => 1,
        };
        let request = LeaseAllocRequest::new(self.kind, amount * unit, secs);
        match self.kind {
            ResourceType::Cpu => request.with_terms(CpuTerms {
                isolation: CpuIsolationClass::from_byte(below(4) as u8),
                ..CpuTerms::default()
            }),
            // Most requests are for a shared lease.
            ResourceType::Gpu => request.with_terms(GpuTerms {
                exclusivity: match below(6) {
                    class @ 1..=2 => GpuExclusivityClass::from_byte(class as u8),
                    _ => None,
                },
                compute_slices: Some(below(4) as u16).filter(|slices| *slices > 0),
                ..GpuTerms::default()
            }),
            _ => request,
        }
    }

    /// Asserts that no two leases hold the same part, and that all leases together hold no more than the capacity.
    pub(super) fn assert_apart(self, held: &[&Placement]) {
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
        let fits = match self.offer().allocation_mode {
            AllocationMode::Cores { .. } => {
                let exclusive = taken.len() as u64;
                cpus <= (u64::from(CORES) - exclusive) * u64::from(CPUS_OF_A_CORE)
            }
            AllocationMode::Vector(dimensions) | AllocationMode::Device(dimensions) => {
                let sum = |it: &Dimension| sums.get(&*it.name).copied().unwrap_or(0);
                dimensions.iter().all(|it| sum(it) <= it.capacity)
            }
            _ => true,
        };
        assert!(!overlap && fits, "given out twice: {held:?}");
    }
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
