//! A resource that a node reports, as far as placement needs it.

use std::collections::BTreeMap;

use fabricbios_wire::{
    InventoryExtension, ResourceId, ResourceInventory, ResourceType, Transport, health,
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
}

impl Offer {
    /// The resources of an inventory that can be leased.
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
        }
    }

    fn extend(&mut self, extension: &InventoryExtension) {
        match extension {
            InventoryExtension::Available(_, units) => self.available = *units,
            InventoryExtension::Classes { supported, .. } => self.classes.clone_from(supported),
            InventoryExtension::ClassAvailable(_, units) => self.class_available.clone_from(units),
            InventoryExtension::Transports(_, all) => self.transports.clone_from(all),
            _ => {}
        }
    }

    /// The most that one more lease of this class can get; `None`: of the default class.
    #[must_use]
    pub fn available_of(&self, class: Option<u8>) -> u64 {
        let of_class = { self.class_available.iter() }.find(|(of, _)| Some(*of) == class);
        of_class.map_or(self.available, |(_, units)| *units)
    }

    /// Whether it is usable without a known problem.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.health == health::OK
    }
}
