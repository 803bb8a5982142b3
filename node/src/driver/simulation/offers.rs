//! What the simulated node leases: blocks in stretches, CPU cores by class, or functions of a network port.

use fabricbios_lease::{
    AllocationMode, ClassOffer, ClassState, CoreGroup, Dimension, Durability, FenceScope, Offer,
    OfferedClass, Placement, Takes,
};
use fabricbios_wire::{
    CpuIsolationClass, CpuTerms, LeaseAllocRequest, LeaseTerms, ResourceType, Transport,
};

use super::POOL;

const PAGE: u64 = 4096;
const PAGES: u64 = 16;
const CORES: u32 = 6;
const CPUS_OF_A_CORE: u32 = 2;
const LINK: u64 = 1_000_000_000;
const FUNCTIONS: u64 = 7;

/// The only resource of the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offered {
    pub(super) kind: ResourceType,
}

impl Offered {
    /// Each kind in turn.
    pub(super) fn of(seed: u64) -> Self {
        let kinds = [ResourceType::Block, ResourceType::Cpu, ResourceType::Net];
        Self {
            kind: kinds[seed as usize % kinds.len()],
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
                let dimension = |name: &str, capacity, takes| Dimension {
                    name: name.to_owned(),
                    capacity,
                    takes,
                };
                let rate = dimension("rate", LINK, Takes::Asked);
                let functions = dimension("function", FUNCTIONS, Takes::Each(1));
                (LINK, AllocationMode::Vector(vec![rate, functions]))
            }
            _ => return blocks,
        };
        Offer {
            capacity,
            align: 1,
            transports: Vec::new(),
            durability: Durability::Boot,
            fence_scope: FenceScope::Separate,
            allocation_mode,
            classes: (self.kind == ResourceType::Cpu).then(classes),
            ..blocks
        }
    }

    /// A request that often fits.
    pub(super) fn request(self, secs: u32, mut below: impl FnMut(u64) -> u64) -> LeaseAllocRequest {
        let amount = below(5) + 1;
        let unit = match self.kind {
            ResourceType::Block => PAGE,
            ResourceType::Net => LINK / 10,
            _ => 1,
        };
        let request = LeaseAllocRequest::new(self.kind, amount * unit, secs);
        if self.kind != ResourceType::Cpu {
            return request;
        }
        let isolation = CpuIsolationClass::from_byte(below(4) as u8);
        let terms = CpuTerms {
            isolation,
            ..CpuTerms::default()
        };
        LeaseAllocRequest {
            terms: LeaseTerms::Cpu(terms),
            ..request
        }
    }

    /// Asserts that nobody has what another has, and all together no more than there is.
    pub(super) fn assert_apart(self, held: &[&Placement]) {
        let (mut amount, mut functions, mut taken) = (0, 0, Vec::new());
        for placement in held {
            match placement {
                Placement::Stretch(extent) => taken.push(extent.offset..extent.end()),
                Placement::Units { numbers, .. } => {
                    taken.extend(numbers.iter().map(|&it| it.into()..u64::from(it) + 1));
                }
                Placement::Amount(cpus) => amount += cpus,
                Placement::Vector(parts) => {
                    amount += parts[0].amount;
                    functions += parts[1].amount;
                }
            }
        }
        taken.sort_by_key(|range| range.start);
        let overlap = taken.windows(2).any(|two| two[0].end > two[1].start);
        let most = match self.kind {
            ResourceType::Cpu => {
                let exclusive = taken.len() as u64;
                (u64::from(CORES) - exclusive) * u64::from(CPUS_OF_A_CORE)
            }
            _ => LINK,
        };
        let fits = amount <= most && functions <= FUNCTIONS;
        assert!(!overlap && fits, "given out twice: {held:?}");
    }
}

fn classes() -> ClassOffer {
    let offered = |&class: &CpuIsolationClass| OfferedClass {
        class: class as u8,
        state: ClassState::Enforced,
    };
    ClassOffer {
        default: CpuIsolationClass::WholeCore as u8,
        classes: CpuIsolationClass::ALL.iter().map(offered).collect(),
    }
}
