//! A resource that a node reports, as far as placement needs it: what admission sees of it ([`Offered`]).

use std::collections::BTreeMap;

use fabricbios_lease::{
    COMPUTE_SLICES, ClassOffer, ClassState, Holding, Need, Offered, OfferedClass, Quantity, When,
};
use fabricbios_wire::{
    Enforcement, InventoryExtension, ResourceId, ResourceInventory, ResourceType, Transport,
    admission_flags as flags, admission_most as ways, health,
};

/// A resource on offer. Amounts are in the unit of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its id.
    pub resource_id: ResourceId,
    /// Its kind.
    pub kind: ResourceType,
    /// [`fabricbios_wire::health`].
    pub health: u32,
    /// The most that one more lease of the default class can get.
    pub available: u64,
    /// Classes that a request may name.
    pub classes: Vec<u8>,
    /// The most that one more lease of each class can get.
    pub class_available: Vec<(u8, u64)>,
    /// Transports of its leases; none: its kind has no transports.
    pub transports: Vec<Transport>,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The class of a lease that names none.
    default: u8,
    /// The classes that a lease can have; `None`: it has no classes.
    enforcement: Option<Vec<(u8, Enforcement)>>,
    class_offer: Option<ClassOffer>,
    /// Why its health is not ok.
    reason: Option<String>,
    /// What else its node decides by; `None`: not known.
    admission: Option<Admission>,
    /// No lease can get more now, whatever it asks for.
    ceiling: u64,
}

/// See [`InventoryExtension::Admission`].
#[derive(Clone, Debug, PartialEq, Eq)]
struct Admission {
    flags: u8,
    forbidden: Vec<u8>,
    most: Vec<(u8, u64, u64)>,
}

impl Offer {
    /// The resources of an inventory that can be leased, ascending by id.
    #[must_use]
    pub fn all(inventory: &ResourceInventory) -> Vec<Self> {
        let mut offers = Vec::new();
        macro_rules! add {
            ($($list:ident: $kind:ident),*) => {
                $(for it in &inventory.$list {
                    offers.push(Self::new(it.resource_id, ResourceType::$kind, it.health));
                })*
            };
        }
        add!(mem_arenas: Mem, block_devs: Block, cpu_caps: Cpu, nics: Net, gpus: Gpu);
        offers.sort_by_key(|it| it.resource_id);
        let places = offers.iter().enumerate();
        let places: BTreeMap<ResourceId, usize> =
            places.map(|(at, it)| (it.resource_id, at)).collect();
        let mut is_offered = vec![false; offers.len()];
        for extension in &inventory.extensions {
            if let Some(&at) = places.get(&extension.resource_id()) {
                offers[at].extend(extension);
                // A resource that is detected and not on offer has no transports, not even an empty list.
                is_offered[at] |= matches!(extension, InventoryExtension::Transports(..));
            }
        }
        let mut is_offered = is_offered.into_iter();
        offers.retain(|_| is_offered.next() == Some(true));
        for offer in &mut offers {
            offer.class_offer = offer.class_offer();
            offer.ceiling = match &offer.admission {
                Some(admission) => { admission.most.iter() }
                    .map(|(_, now, _)| *now)
                    .max()
                    .unwrap_or(0),
                None => u64::MAX,
            };
        }
        offers
    }

    fn new(resource_id: ResourceId, kind: ResourceType, health: u32) -> Self {
        Self {
            resource_id,
            kind,
            health,
            available: 0,
            classes: Vec::new(),
            class_available: Vec::new(),
            transports: Vec::new(),
            name: None,
            default: 0,
            enforcement: None,
            class_offer: None,
            reason: None,
            admission: None,
            ceiling: u64::MAX,
        }
    }

    fn extend(&mut self, extension: &InventoryExtension) {
        match extension {
            InventoryExtension::Name(_, name) => self.name = Some(name.clone()),
            InventoryExtension::Available(_, units) => self.available = *units,
            InventoryExtension::Classes {
                default, supported, ..
            } => {
                self.default = *default;
                self.classes.clone_from(supported);
            }
            InventoryExtension::ClassEnforcement(_, all) => self.enforcement = Some(all.clone()),
            InventoryExtension::ClassAvailable(_, units) => self.class_available.clone_from(units),
            InventoryExtension::Transports(_, all) => self.transports.clone_from(all),
            InventoryExtension::HealthReason(_, why) => self.reason = Some(why.clone()),
            InventoryExtension::Admission {
                flags,
                forbidden,
                most,
                ..
            } => {
                self.admission = Some(Admission {
                    flags: *flags,
                    forbidden: forbidden.clone(),
                    most: most.clone(),
                });
            }
            _ => {}
        }
    }

    /// The classes as the node offers them. Those that are not listed are refused there, whatever the reason.
    fn class_offer(&self) -> Option<ClassOffer> {
        let had: BTreeMap<u8, Enforcement> = match &self.enforcement {
            Some(all) => all.iter().copied().collect(),
            // A node that does not say how it enforces them.
            None if !self.classes.is_empty() => {
                let of = |it: &u8| (*it, Enforcement::BestEffort);
                self.classes.iter().map(of).collect()
            }
            None => return None,
        };
        let state = |(class, enforcement): (u8, Enforcement)| OfferedClass {
            class,
            state: match enforcement {
                _ if !self.classes.contains(&class) => {
                    ClassState::Implied("only a lease that names none has it".into())
                }
                Enforcement::Enforced => ClassState::Enforced,
                Enforcement::BestEffort => ClassState::BestEffort,
            },
        };
        let forbidden = self.admission.iter().flat_map(|it| &it.forbidden);
        let forbidden = forbidden.map(|class| OfferedClass {
            class: *class,
            state: ClassState::Forbidden("the settings of its node".into()),
        });
        Some(ClassOffer {
            default: self.default,
            classes: had.into_iter().map(state).chain(forbidden).collect(),
        })
    }

    /// The most that one more lease of this class can get; `None`: of the default class.
    #[must_use]
    pub fn available_of(&self, class: Option<u8>) -> u64 {
        let of_class = { self.class_available.iter() }.find(|(of, _)| Some(*of) == class);
        of_class.map_or(self.available, |(_, units)| *units)
    }

    /// Whether a lease of this amount may be had now; `false`: no lease of it can.
    pub(crate) fn may_have(&self, amount: u64) -> bool {
        self.ceiling >= amount
    }

    /// Whether it is usable without a known problem.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.health == health::OK
    }

    /// Whether its node has said all that it decides by.
    pub(crate) fn is_told_whole(&self) -> bool {
        self.admission.is_some()
    }

    fn has(&self, flag: u8) -> bool {
        self.admission
            .as_ref()
            .is_some_and(|it| it.flags & flag != 0)
    }

    /// A node that has not said it all: what it has said, else nothing that would refuse a request.
    fn most_as_far_as_known(&self, when: When, need: Need) -> u64 {
        let holds = |class: u8| Holding::of(self.kind, Some(class)) == need.holding;
        match (when, need.explicit) {
            (When::Now, None) => {
                let of_class = { self.class_available.iter() }.find(|(class, _)| holds(*class));
                of_class.map_or(self.available, |(_, units)| *units)
            }
            _ => u64::MAX,
        }
    }
}

impl Admission {
    fn of_way(&self, way: u8, when: When) -> Option<u64> {
        let (_, now, empty) = self.most.iter().find(|(of, ..)| *of == way)?;
        Some(match when {
            When::Now => *now,
            When::Empty => *empty,
        })
    }

    fn most(&self, when: When, need: Need) -> u64 {
        let is_device = self.flags & flags::DEVICE != 0;
        let way = match need.holding {
            Holding::Alone => ways::ALONE,
            Holding::AloneInOneNode => ways::ALONE_IN_ONE_NODE,
            Holding::Shared => ways::SHARED,
        };
        let slices = self.of_way(ways::SLICES, when);
        let way = match (need.explicit, slices) {
            (Some(named), Some(slices)) if named.amount > slices => return 0,
            (Some(_), Some(_)) if !is_device || way == ways::SHARED => ways::SLICES_NAMED,
            _ => way,
        };
        let most = self.of_way(way, when);
        most.or_else(|| self.of_way(ways::ALONE, when)).unwrap_or(0)
    }
}

impl Offered for Offer {
    fn id(&self) -> ResourceId {
        self.resource_id
    }

    fn kind(&self) -> ResourceType {
        self.kind
    }

    fn transports(&self) -> &[Transport] {
        &self.transports
    }

    fn is_read_only(&self) -> bool {
        self.has(flags::READ_ONLY)
    }

    fn classes(&self) -> Option<&ClassOffer> {
        self.class_offer.as_ref()
    }

    fn needs_vlan(&self) -> Option<&str> {
        let needs = self.has(flags::NEEDS_VLAN);
        needs.then_some("its tenants could tag frames themselves")
    }

    fn absence(&self) -> Option<&str> {
        let reason = self.reason.as_deref().unwrap_or("it is missing");
        self.has(flags::ABSENT).then_some(reason)
    }

    /// A resource that has failed is fenced.
    fn failure(&self) -> Option<&str> {
        None
    }

    fn is_fenced(&self) -> bool {
        self.health == health::FENCED
    }

    fn is_impaired(&self) -> bool {
        match self.admission {
            Some(_) => self.has(flags::IMPAIRED),
            None => self.health == health::DEGRADED,
        }
    }

    fn most(&self, when: When, need: Need) -> u64 {
        match &self.admission {
            Some(admission) => admission.most(when, need),
            None => self.most_as_far_as_known(when, need),
        }
    }

    /// The number of compute slices, which a request can name; other dimensions are not told.
    fn dimensions(&self, when: When) -> Vec<Quantity> {
        let slices = { self.admission.as_ref() }.and_then(|it| it.of_way(ways::SLICES, when));
        let slices = slices.map(|amount| Quantity {
            name: COMPUTE_SLICES.to_owned(),
            amount,
        });
        slices.into_iter().collect()
    }

    fn is_held_alone(&self) -> Option<bool> {
        let is_device = self.has(flags::DEVICE);
        is_device.then(|| self.has(flags::HELD_ALONE))
    }
}
