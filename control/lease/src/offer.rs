//! The offer of a resource: everything that the table knows about it.

use alloc::{string::String, vec::Vec};
use core::time::Duration;

use fabricbios_wire::{Enforcement, ResourceId, Transport};

/// The offer of a provider, from the state of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The resource.
    pub resource_id: ResourceId,
    /// The capacity in the unit of its type.
    pub capacity: u64,
    /// Granularity of stretches and amounts.
    pub align: u64,
    /// Transports of its leases, best first. If empty, its leases have no transport; a kind that needs a transport gets
    /// no lease.
    pub transports: Vec<Transport>,
    /// What remains of the resource when the process ends.
    pub durability: Durability,
    /// What a failed release or cut fences.
    pub fence_scope: FenceScope,
    /// The time limit of its cuts, if they need longer than [`crate::Policy::cut_within`]: access ends at once, and the
    /// proof comes later. If the limit of the policy is longer, that limit counts.
    pub cut_within: Option<Duration>,
    /// The allocation mode.
    pub allocation_mode: AllocationMode,
    /// The resource cannot be written: every lease of it is read-only.
    pub read_only: bool,
    /// The classes of isolation of its leases. `None`: the kind has no classes.
    pub classes: Option<ClassOffer>,
    /// Whether the rate of a lease is enforced. `None`: its leases have no rate.
    pub rate: Option<Enforcement>,
    /// Why each of its leases needs a VLAN: a tenant without one could send frames with a tag of its choice. `None`: a
    /// lease may be untagged, or the kind has no VLANs.
    pub needs_vlan: Option<String>,
}

/// The classes that a resource knows. A class is its byte on the wire: [`fabricbios_wire::CpuIsolationClass`] for CPU
/// cores, [`fabricbios_wire::GpuExclusivityClass`] for a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassOffer {
    /// The class of a lease whose request names none.
    pub default: u8,
    /// Every class that the resource knows, each once, ascending.
    pub classes: Vec<OfferedClass>,
}

impl ClassOffer {
    /// Whether a lease can have the class: one that names it, or, if it is the default, one that names none.
    pub(crate) fn gives(&self, it: &OfferedClass) -> bool {
        match it.state {
            ClassState::Implied(_) => it.class == self.default,
            _ => it.state.can_be_named(),
        }
    }
}

/// A class that a resource knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedClass {
    /// The class.
    pub class: u8,
    /// Whether a lease can have it.
    pub state: ClassState,
}

/// Whether a lease can have a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClassState {
    /// The provider enforces it.
    Enforced,
    /// The provider tries to provide it and proves nothing.
    BestEffort,
    /// No lease gets it: the resource cannot enforce it. The text says why; the refusal contains it, after the name of
    /// the class.
    Refused(String),
    /// No lease gets it: the operator's policy forbids it. The text says what forbids it and is used as that of
    /// `Refused`.
    Forbidden(String),
    /// The provider enforces it for requests that name no class. A request that names it is refused with this text.
    Implied(String),
}

impl ClassState {
    /// Whether a request can name the class and have it.
    #[must_use]
    pub fn can_be_named(&self) -> bool {
        matches!(self, Self::Enforced | Self::BestEffort)
    }

    /// Whether some leases have the class.
    #[must_use]
    pub fn can_be_had(&self) -> bool {
        match self {
            Self::Enforced | Self::BestEffort | Self::Implied(_) => true,
            Self::Refused(_) | Self::Forbidden(_) => false,
        }
    }
}

/// What remains of a resource when the process has ended, see [`crate::LeaseTable::restore_lease`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: its leases end with the process.
    Nothing,
    /// Its bytes: a new process on the same boot adopts leases over transports that it can open again, and scrubs all
    /// parts that no lease holds at start.
    Process,
    /// The objects of each lease, until the machine is rebooted: on the same boot every old lease is adopted, or
    /// ended with a cut and a release of its own; after a reboot it is over.
    Boot,
    /// Its bytes and the objects of each lease, also across a reboot: every old lease is adopted, or ended with a cut
    /// and a release of its own, and keeps its part until then.
    Machine,
}

impl Durability {
    /// The durability of an arena: its bytes are in a file of their own or end with the process.
    #[must_use]
    pub fn arena(bytes_stay: bool) -> Self {
        if bytes_stay {
            Self::Process
        } else {
            Self::Nothing
        }
    }

    /// Whether objects of single leases survive the process. If so, each lease is cut and released by itself, a
    /// finished release is written down, and a failed one is tried again.
    #[must_use]
    pub fn leases_stay(self) -> bool {
        matches!(self, Self::Boot | Self::Machine)
    }
}

/// What a failed release or cut fences. Objects of a lease that is not on record count as the same failure of a lease
/// without a known part: if they could not be cut, they fence the whole resource; if they were cut and not removed,
/// they fence it only under `Whole`, and the store refuses what they hold. Mistakes in the table's own bookkeeping
/// fence the whole resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceScope {
    /// Hardware or kernel separates the parts: a failed release or cut fences the part of its lease alone. A client
    /// that still has access to that part reaches no other part.
    Separate,
    /// A failed release fences the part of its lease alone: the lease is cut, and no other part is in doubt. A failed
    /// cut fences the whole resource.
    Part,
    /// Both fence the whole resource.
    Whole,
}

/// How a resource is divided among leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationMode {
    /// In stretches that never overlap: bytes of an arena, blocks of a device.
    Stretches,
    /// In stretches of one [`Offer::align`] each: the slots of a static arena. A lease has one.
    Slots,
    /// By amount only: files of a directory.
    Amounts,
    /// By amounts of several things at once, such as rate and virtual functions. A request names its amount of the
    /// first one, and the capacity of the first one is the capacity of the offer.
    Vector(Vec<Dimension>),
    /// Like `Vector`, for a device that one lease can have alone, such as a GPU: a lease of an exclusive class needs
    /// the whole device to be free and takes all of every dimension, so that its capacity is that of the offer. Leases
    /// of the other classes share the device, each with its amounts.
    Device(Vec<Dimension>),
    /// In groups of CPUs that share a physical core, by class: `whole_core` and `strict_isolated` get whole groups
    /// (`strict_isolated` of one NUMA node), `best_effort` gets time of the CPUs in groups that no exclusive lease has.
    Cores {
        /// The groups that can be leased. Reserved CPUs are in none.
        groups: Vec<CoreGroup>,
    },
}

/// A physical core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreGroup {
    /// Its number, see [`crate::Placement::Cores`].
    pub number: u32,
    /// How many logical CPUs of it are online.
    pub cpus: u32,
    /// Its NUMA node.
    pub node: u32,
}

/// The name of the [`Dimension`] of which a request for a GPU can name an amount: the compute slices of the device. The
/// terms of a lease say how many it has.
pub const COMPUTE_SLICES: &str = "compute slices";

/// One of several things that a device has an amount of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dimension {
    /// The name.
    pub name: String,
    /// The whole amount.
    pub capacity: u64,
    /// How much of it a lease takes.
    pub takes: Takes,
}

/// How much of a [`Dimension`] a lease takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// The requested amount; for the first dimension.
    Asked,
    /// A fixed amount for each lease.
    Each(u64),
    /// The same share as of the first dimension, rounded up, unless the request names an amount.
    InProportion,
}
