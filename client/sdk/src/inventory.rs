//! The inventory of a node: its resources, each joined from the flat and the structured form.

use std::{collections::BTreeMap, fmt};

use fabricbios_wire::{
    BlockDev, CpuCap, Enforcement, Epoch, FlatEntry, GpuInfo, InventoryExtension, InventoryForm,
    MemArena, NicInfo, NodeId, Reply, Request, ResourceId, ResourceInventory, ResourceType,
    Transport, health, resource_flags,
};

use crate::{Error, GpuSlots, Node, VirtualFunctions, kinds, runtime::wait};

/// What a node has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inventory {
    /// The node.
    pub node_id: NodeId,
    /// Counts the starts of the daemon.
    pub epoch: Epoch,
    /// The worst health of the resources and of the node itself.
    pub health: ResourceHealth,
    /// Why the node itself is not well, for people.
    pub health_reason: Option<String>,
    /// In the order of the node.
    pub resources: Vec<Resource>,
}

/// One resource. Amounts are in the unit of its kind ([`ResourceType::amount`]). `None` or an empty list: the node did
/// not report it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resource {
    /// Its id, for [`crate::Builder::resource`].
    pub id: ResourceId,
    /// Its kind.
    pub kind: ResourceType,
    /// Its name, for people.
    pub name: Option<String>,
    /// Its health; `None`: the resource is not on offer, and the node has not looked at it.
    pub health: Option<ResourceHealth>,
    /// Why the health is not [`ResourceHealth::Ok`], for people.
    pub health_reason: Option<String>,
    /// [`fabricbios_wire::resource_flags`].
    pub flags: u16,
    /// The total amount.
    pub capacity: u64,
    /// The amount that a lease could still get; 0 if the resource is not on offer.
    pub available: u64,
    /// The fenced amount, if only a part is fenced.
    pub fenced_part: Option<u64>,
    /// Transports of its leases.
    pub transports: Vec<Transport>,
    /// Classes of its leases.
    pub classes: Option<Classes>,
    /// A memory arena.
    pub mem: Option<MemArena>,
    /// A pool of blocks.
    pub blocks: Option<BlockDev>,
    /// CPU cores.
    pub cpu: Option<CpuCap>,
    /// A network interface.
    pub nic: Option<NicInfo>,
    /// The virtual functions of a network interface.
    pub virtual_functions: Option<VirtualFunctions>,
    /// A GPU, or a part of one.
    pub gpu: Option<GpuInfo>,
    /// The slots of a GPU.
    pub gpu_slots: Option<GpuSlots>,
}

/// The health of a resource or node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceHealth {
    /// Healthy.
    Ok,
    /// Usable, with a problem.
    Degraded,
    /// Not leased until an operator or the node has cleaned it.
    Fenced,
    /// A value of a newer node.
    Unknown(u32),
}

/// The classes of a resource, as bytes: [`fabricbios_wire::CpuIsolationClass`] or [`fabricbios_wire::GpuExclusivityClass`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Classes {
    /// The class of a request without one; meaningless if no class is supported.
    pub default: u8,
    /// Classes that a request may name; empty if leases of this kind have no classes.
    pub supported: Vec<u8>,
    /// Whether the node enforces each class.
    pub enforcement: Vec<(u8, Enforcement)>,
    /// The amount that a lease of each class could still get.
    pub available: Vec<(u8, u64)>,
}

impl Node {
    /// Asks for both forms of the inventory and joins them. A resource that only the structured form has is left out: it
    /// appeared between the two requests.
    pub async fn inventory_async(&self) -> Result<Inventory, Error> {
        let ask = |form| self.call_async(Request::GetInventory(form));
        let entries = match ask(InventoryForm::Flat).await? {
            Reply::FlatInventory(entries) => entries,
            other => return Err(self.unexpected("a flat inventory", &other)),
        };
        match ask(InventoryForm::Structured).await? {
            Reply::Inventory(structured) => Ok(Inventory::join(&entries, &structured)),
            other => Err(self.unexpected("a structured inventory", &other)),
        }
    }

    /// Asks for the inventory, blocking; see [`Node::inventory_async`].
    pub fn inventory(&self) -> Result<Inventory, Error> {
        wait(self.inventory_async())
    }
}

impl Inventory {
    fn join(entries: &[FlatEntry], structured: &ResourceInventory) -> Self {
        let resources = entries.iter().map(|it| (it.resource_id, it.into()));
        let mut joined = Entries {
            resources: resources.collect(),
            adds: None,
        };
        kinds::entries(structured, &mut joined);
        let mut resources = extended(joined, structured);
        let resources = { entries.iter() }.filter_map(|it| resources.remove(&it.resource_id));
        Self::of_node(structured, resources.collect())
    }

    /// An inventory of the structured form alone, as a scheduler has it. Resources of vendors are in the flat form only.
    pub(crate) fn from_structured(structured: &ResourceInventory) -> Self {
        let available = structured.extensions.iter().filter_map(|it| match it {
            InventoryExtension::Available(id, units) => Some((*id, *units)),
            _ => None,
        });
        let mut found = Entries {
            resources: BTreeMap::new(),
            adds: Some(available.collect()),
        };
        kinds::entries(structured, &mut found);
        let mut resources: Vec<_> = extended(found, structured).into_values().collect();
        resources.sort_by_key(|it| (it.kind, it.id));
        Self::of_node(structured, resources)
    }

    fn of_node(structured: &ResourceInventory, resources: Vec<Resource>) -> Self {
        Self {
            node_id: structured.node_id,
            epoch: structured.epoch,
            health: structured.health.into(),
            health_reason: { structured.extensions.iter() }.find_map(|it| match it {
                InventoryExtension::HealthReason(ResourceId(0), why) => Some(why.clone()),
                _ => None,
            }),
            resources,
        }
    }
}

/// The resources with their extensions.
fn extended(entries: Entries, structured: &ResourceInventory) -> BTreeMap<ResourceId, Resource> {
    let mut resources = entries.resources;
    for extension in &structured.extensions {
        if let Some(resource) = resources.get_mut(&extension.resource_id()) {
            resource.extend(extension);
        }
    }
    resources
}

/// The resources of an inventory, while they are joined.
#[derive(Debug)]
pub struct Entries {
    resources: BTreeMap<ResourceId, Resource>,
    /// Where there is no flat form: resources are added, with these amounts available.
    adds: Option<BTreeMap<ResourceId, u64>>,
}

impl Entries {
    /// Adds an entry of the structured form, with its health, to its resource.
    pub(crate) fn add(
        &mut self,
        kind: ResourceType,
        (id, capacity, health): (ResourceId, u64, u32),
        add: impl FnOnce(&mut Resource),
    ) {
        if let Some(available) = &self.adds {
            let available = available.get(&id).copied().unwrap_or(0);
            let entry = FlatEntry {
                resource_id: id,
                resource_type: kind,
                flags: ResourceHealth::from(health).flags(),
                // The structured form counts cores; leases of some classes are of logical CPUs, which are more.
                capacity: capacity.max(available),
                available,
            };
            self.resources.insert(id, (&entry).into());
        }
        if let Some(resource) = self.resources.get_mut(&id) {
            resource.health = Some(health.into());
            add(resource);
        }
    }
}

impl From<&FlatEntry> for Resource {
    fn from(entry: &FlatEntry) -> Self {
        Self {
            id: entry.resource_id,
            kind: entry.resource_type,
            name: None,
            health: None,
            health_reason: None,
            flags: entry.flags,
            capacity: entry.capacity,
            available: entry.available,
            fenced_part: None,
            transports: Vec::new(),
            classes: None,
            mem: None,
            blocks: None,
            cpu: None,
            nic: None,
            virtual_functions: None,
            gpu: None,
            gpu_slots: None,
        }
    }
}

impl Resource {
    /// The amount that a lease of this class could still get, by its byte; `None`: of the default class.
    pub fn available_of(&self, class: Option<u8>) -> u64 {
        let amounts = self.classes.as_ref().map_or(&[][..], |it| &it.available);
        let amount = amounts.iter().find(|(of, _)| Some(*of) == class);
        amount.map_or(self.available, |(_, units)| *units)
    }

    fn extend(&mut self, extension: &InventoryExtension) {
        let classes = |it: &mut Self| it.classes.take().unwrap_or_default();
        match extension {
            InventoryExtension::Name(_, name) => self.name = Some(name.clone()),
            InventoryExtension::HealthReason(_, why) => self.health_reason = Some(why.clone()),
            InventoryExtension::Transports(_, transports) => self.transports.clone_from(transports),
            InventoryExtension::FencedPart(_, units) => self.fenced_part = Some(*units),
            InventoryExtension::Classes {
                default, supported, ..
            } => {
                self.classes = Some(Classes {
                    default: *default,
                    supported: supported.clone(),
                    ..classes(self)
                });
            }
            InventoryExtension::ClassEnforcement(_, enforcement) => {
                self.classes = Some(Classes {
                    enforcement: enforcement.clone(),
                    ..classes(self)
                });
            }
            InventoryExtension::ClassAvailable(_, available) => {
                self.classes = Some(Classes {
                    available: available.clone(),
                    ..classes(self)
                });
            }
            // The flat form has the amount, too. Only resources on offer have this extension: the node knows their
            // health, also where the structured form has no list for their kind.
            InventoryExtension::Available(..) => {
                let of_flags = ResourceHealth::of_flags(self.flags);
                self.health.get_or_insert(of_flags);
            }
            of_one_kind => kinds::extend(self, of_one_kind),
        }
    }
}

impl ResourceHealth {
    fn of_flags(flags: u16) -> Self {
        match flags {
            it if it & resource_flags::FENCED != 0 => Self::Fenced,
            it if it & resource_flags::DEGRADED != 0 => Self::Degraded,
            _ => Self::Ok,
        }
    }

    fn flags(self) -> u16 {
        match self {
            Self::Fenced => resource_flags::FENCED,
            Self::Degraded => resource_flags::DEGRADED,
            Self::Ok | Self::Unknown(_) => 0,
        }
    }
}

impl From<u32> for ResourceHealth {
    fn from(number: u32) -> Self {
        match number {
            health::OK => Self::Ok,
            health::DEGRADED => Self::Degraded,
            health::FENCED => Self::Fenced,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for ResourceHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("ok"),
            Self::Degraded => f.write_str("degraded"),
            Self::Fenced => f.write_str("fenced"),
            Self::Unknown(other) => write!(f, "unknown(0x{other:x})"),
        }
    }
}
