//! Resource types and the two forms of inventory (000, "Wire Encoding").

use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use core::{fmt, str::FromStr};

use crate::{
    BlockDev, CpuCap, Epoch, GpuInfo, MemArena, NicInfo, NodeId, ParseNameError, ResourceId, kinds,
};

/// Records number the variants in this order: kinds after the fifth came after `Unknown`.
macro_rules! declare {
    ($cpu:tt $mem:tt $block:tt $net:tt $gpu:tt $($later:tt)*) => {
        declare! { [$cpu $mem $block $net $gpu] [$($later)*] }
    };
    (
        [$({ $code:literal $variant:ident $word:literal $name:literal, $($rest:tt)* })*]
        [$({ $later_code:literal $later:ident $w:literal $later_name:literal, $($r:tt)* })*]
    ) => {
        /// The kind of a resource. An unknown code is kept and printed; such a resource is never leased.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
        pub enum ResourceType {
            $(#[doc = concat!(stringify!($code), ": ", $name, ".")] $variant,)*
            /// 0x0010, advertised, never leased. The capacity is an HTTP port.
            Scheduler,
            /// 0x00FF, vendor space; advertised, never leased.
            Vendor,
            /// Any other code.
            Unknown(u16),
            $(#[doc = concat!(stringify!($later_code), ": ", $later_name, ".")] $later,)*
        }
    };
}

macro_rules! implement {
    ($({ $code:literal $variant:ident $word:literal $name:literal, ($module:ident: $terms:ident), $($rest:tt)* })*) => {
        const KNOWN: &[(u16, ResourceType, &str)] = &[
            $(($code, ResourceType::$variant, $word),)*
            (0x0010, ResourceType::Scheduler, "scheduler"),
            (0x00FF, ResourceType::Vendor, "vendor"),
        ];

        const WORDS: &[&str] = &[$($word,)* "scheduler", "vendor"];

        impl ResourceType {
            /// The code on the wire.
            #[must_use]
            pub fn code(self) -> u16 {
                match self {
                    $(Self::$variant => $code,)*
                    Self::Scheduler => 0x0010,
                    Self::Vendor => 0x00FF,
                    Self::Unknown(code) => code,
                }
            }

            /// `amount`, in the unit of the type, as text for people.
            #[must_use]
            pub fn amount(self, amount: u64) -> String {
                match self {
                    $(Self::$variant => <crate::$terms as kinds::Terms>::amount(amount),)*
                    _ => amount.to_string(),
                }
            }
        }
    };
}

kinds!(declare);
kinds!(implement);

impl ResourceType {
    /// The kind of a code.
    #[must_use]
    pub fn from_code(code: u16) -> Self {
        let known = KNOWN.iter().find(|(known, ..)| *known == code);
        known.map_or(Self::Unknown(code), |(_, resource_type, _)| *resource_type)
    }
}

impl From<u16> for ResourceType {
    fn from(code: u16) -> Self {
        Self::from_code(code)
    }
}

impl From<ResourceType> for u16 {
    fn from(resource_type: ResourceType) -> Self {
        resource_type.code()
    }
}

impl fmt::Display for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match KNOWN.iter().find(|(_, known, _)| known == self) {
            Some((_, _, word)) => f.pad(word),
            None => write!(f, "unknown(0x{:04x})", self.code()),
        }
    }
}

impl FromStr for ResourceType {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        let known = KNOWN.iter().find(|(_, _, word)| *word == text);
        known
            .map(|(_, resource_type, _)| *resource_type)
            .ok_or_else(|| ParseNameError {
                kind: "resource type",
                expected: WORDS,
                got: String::from(text),
            })
    }
}

/// Bits of [`FlatEntry::flags`].
pub mod resource_flags {
    /// The resource is fenced; no new leases are granted.
    pub const FENCED: u16 = 1 << 0;
    /// The resource is usable with reduced guarantees.
    pub const DEGRADED: u16 = 1 << 1;
}

/// Health constants of the structured form.
pub mod health {
    /// Healthy.
    pub const OK: u32 = 0x00;
    /// Degraded but usable.
    pub const DEGRADED: u32 = 0x01;
    /// Fenced, not leasable.
    pub const FENCED: u32 = 0x02;
}

/// One 36-byte entry of the flat form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct FlatEntry {
    /// The id of the resource.
    pub resource_id: ResourceId,
    /// The kind of the resource.
    pub resource_type: ResourceType,
    /// [`resource_flags`].
    pub flags: u16,
    /// The whole amount, in the unit of the type.
    pub capacity: u64,
    /// The amount that a lease could still get. 0 if the operator does not offer the resource.
    pub available: u64,
}

/// The structured form: typed fields per kind, then TLVs for later additions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct ResourceInventory {
    /// The node.
    pub node_id: NodeId,
    /// The number of starts of the daemon.
    pub epoch: Epoch,
    /// The worst health of all resources.
    pub health: u32,
    /// The arenas of memory.
    pub mem_arenas: Vec<MemArena>,
    /// The devices and pools of block storage.
    pub block_devs: Vec<BlockDev>,
    /// The CPU resources.
    pub cpu_caps: Vec<CpuCap>,
    /// The network interfaces.
    pub nics: Vec<NicInfo>,
    /// The GPUs.
    pub gpus: Vec<GpuInfo>,
    /// Later additions; unknown tags are skipped.
    pub extensions: Vec<InventoryExtension>,
}

/// One TLV of the structured inventory's last area. Each names its resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
#[cfg_attr(feature = "vectors", serde(rename_all = "snake_case"))]
pub enum InventoryExtension {
    /// 0x0B01: a name for people, such as `rxe0`, `eth0`, `nvme0n1` (UTF-8, at most 255 bytes).
    Name(ResourceId, String),
    /// 0x0B02: bytes or units that a lease could still get.
    Available(ResourceId, u64),
    /// 0x0B03: class bytes that the node can enforce for the resource, and the default (001 §6.1).
    Classes {
        /// The resource.
        resource_id: ResourceId,
        /// The class of a request without a class; 0 if the resource has no classes.
        default: u8,
        /// The classes that a request may name; empty if the resource has no classes.
        supported: Vec<u8>,
    },
    /// 0x0B04: transports over which a lease of this resource can be used.
    Transports(ResourceId, Vec<crate::Transport>),
    /// 0x0B05: the fenced amount, if only parts of the resource are fenced.
    FencedPart(ResourceId, u64),
    /// 0x0B06: class bytes of 0x0B03, ascending, and whether each is enforced.
    ClassEnforcement(ResourceId, Vec<(u8, crate::Enforcement)>),
    /// 0x0B07: class bytes of 0x0B03, ascending, and the units that a lease of each could still get.
    ClassAvailable(ResourceId, Vec<(u8, u64)>),
    /// 0x0B08: virtual functions of a network interface.
    VirtualFunctions {
        /// The resource.
        resource_id: ResourceId,
        /// The number of functions that can be leased.
        total: u32,
        /// The number of free functions.
        free: u32,
    },
    /// 0x0B09: slots of a GPU (001 §5.1).
    GpuSlots {
        /// The resource.
        resource_id: ResourceId,
        /// The number of parts into which its computing power is divided.
        compute_slices: u16,
        /// The number of free compute slices.
        compute_slices_free: u16,
        /// The number of leases, each with one session, that it can have at once.
        session_slots: u16,
        /// The number of free session slots.
        session_slots_free: u16,
        /// Streams that a session can have at once.
        queue_slots: u16,
    },
    /// 0x0B0A: why the health of a resource is not [`health::OK`], for people. Resource 0 stands for the node itself.
    HealthReason(ResourceId, String),
    /// 0x0B0B: the limits of the node for every request. Its resource is 0, the node itself.
    Limits {
        /// The longest term, seconds.
        lease_secs_max: u32,
        /// The longest grace time, seconds.
        grace_secs_max: u32,
        /// A lease of CPUs has exactly its execution width (004).
        bare_metal: bool,
    },
    /// 0x0B0C: what else decides whether a lease of the resource can be had.
    Admission {
        /// The resource.
        resource_id: ResourceId,
        /// [`admission_flags`].
        flags: u8,
        /// The classes that the operator forbids, ascending.
        forbidden: Vec<u8>,
        /// Ascending by [`admission_most`]: the most that one lease could get now, and when no lease has anything of the
        /// resource.
        most: Vec<(u8, u64, u64)>,
    },
}

/// Bits of [`InventoryExtension::Admission`].
pub mod admission_flags {
    /// The resource is missing at the moment.
    pub const ABSENT: u8 = 1 << 0;
    /// Leases of it may fail, or a part of it is missing.
    pub const IMPAIRED: u8 = 1 << 1;
    /// Every lease of it is read-only.
    pub const READ_ONLY: u8 = 1 << 2;
    /// Each lease of it needs a VLAN.
    pub const NEEDS_VLAN: u8 = 1 << 3;
    /// One lease can have it alone, although others share it.
    pub const DEVICE: u8 = 1 << 4;
    /// A lease has it alone now.
    pub const HELD_ALONE: u8 = 1 << 5;
}

/// For which leases an amount of [`InventoryExtension::Admission`] holds. One that is not listed is as [`ALONE`].
///
/// [`ALONE`]: admission_most::ALONE
pub mod admission_most {
    /// A lease that has its part alone.
    pub const ALONE: u8 = 0;
    /// Likewise, with cores of one NUMA node.
    pub const ALONE_IN_ONE_NODE: u8 = 1;
    /// A lease that shares cores or a device.
    pub const SHARED: u8 = 2;
    /// A lease that shares a device and names its number of compute slices, if that many are there.
    pub const SLICES_NAMED: u8 = 3;
    /// The compute slices themselves.
    pub const SLICES: u8 = 4;
}

impl InventoryExtension {
    /// The resource that it is about.
    #[must_use]
    pub fn resource_id(&self) -> ResourceId {
        match self {
            Self::Name(id, _)
            | Self::Available(id, _)
            | Self::Transports(id, _)
            | Self::FencedPart(id, _)
            | Self::HealthReason(id, _)
            | Self::ClassEnforcement(id, _)
            | Self::ClassAvailable(id, _)
            | Self::Classes {
                resource_id: id, ..
            }
            | Self::VirtualFunctions {
                resource_id: id, ..
            }
            | Self::GpuSlots {
                resource_id: id, ..
            }
            | Self::Admission {
                resource_id: id, ..
            } => *id,
            Self::Limits { .. } => ResourceId(0),
        }
    }
}
