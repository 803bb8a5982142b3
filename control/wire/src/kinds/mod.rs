//! The kinds of resource that a node leases: one module each, with everything that only this kind has on the wire. A
//! new kind is a module here and a line at the end of [`kinds!`](crate::kinds).

use alloc::string::String;
use core::ops::RangeInclusive;

use crate::{Effective, read::Decoded, tlv::TlvArea, write::Writer};

pub(crate) mod block;
pub(crate) mod cpu;
pub(crate) mod gpu;
pub(crate) mod mem;
pub(crate) mod net;

/// Calls the macro `each` with the list of the kinds of resource, a line for each kind:
///
/// `{ code Variant "word" "name for people", (module: Terms), (accessor: Coordinates as Holder) }`
///
/// - `code`: that of the type in messages
/// - `Variant`: that of [`ResourceType`](crate::ResourceType), [`LeaseTerms`](crate::LeaseTerms) and
///   [`KindBinding`](crate::KindBinding)
/// - `word`: that which people type and JSON contains
/// - `module`: the module of the kind in this crate, and the accessor of its terms, whose type follows
/// - `accessor`: the accessor of the kind's coordinates, their type, and the type in which a binding holds them
///
/// A new kind comes last: the records of a node number the variants in the order in which the kinds came.
#[macro_export]
macro_rules! kinds {
    ($each:ident) => {
        $each! {
            { 0x0001 Cpu "cpu" "CPU cores", (cpu: CpuTerms), (cpu: CpuBinding as Box<CpuBinding>) }
            { 0x0002 Mem "mem" "memory", (mem: MemTerms), (rdma: RdmaBinding as RdmaBinding) }
            { 0x0003 Block "block" "block storage", (block: BlockTerms), (nvmeof: NvmeofBinding as Box<NvmeofBinding>) }
            { 0x0004 Net "net" "network functions", (net: NetTerms), (net: NetBinding as Box<NetBinding>) }
            { 0x0005 Gpu "gpu" "GPU memory", (gpu: GpuTerms), (gpu: GpuBinding as Box<GpuBinding>) }
        }
    };
}

macro_rules! reexport {
    ($({ $code:literal $variant:ident $word:literal $name:literal, ($module:ident: $terms:ty), $coordinates:tt })*) => {
        $(pub use $module::*;)*
    };
}

kinds!(reexport);

/// The terms of one kind: TLVs in the params of a request, and in an answer those that the node enforces.
pub(crate) trait Terms: Default {
    /// Reads the terms that a request states.
    fn find(params: &TlvArea<'_>) -> Decoded<Self>;

    /// Writes the terms. The caller puts the TLVs of all kinds in order.
    fn write(&self, w: &mut Writer);

    /// An amount of the kind, with its unit, as text for people.
    fn amount(amount: u64) -> String;

    /// Reads the kind's fields of `effective` from an answer.
    fn find_effective(_area: &TlvArea<'_>, _effective: &mut Effective) -> Decoded<()> {
        Ok(())
    }

    /// Writes the kind's fields of `effective`. The caller puts the TLVs of all kinds in order.
    fn write_effective(_effective: &Effective, _w: &mut Writer) {}
}

/// The coordinates of one kind: TLVs in an answer.
pub(crate) trait Coordinates: Sized {
    /// The tags of the coordinates. A lease without any of them has no coordinates.
    const TAGS: RangeInclusive<u16>;

    /// Reads the coordinates of a lease that has some.
    fn read(area: &TlvArea<'_>) -> Decoded<Self>;

    /// Writes the coordinates in ascending order of tags.
    fn write(&self, w: &mut Writer);

    /// Reads the coordinates; `None` if there are none.
    fn find(area: &TlvArea<'_>) -> Decoded<Option<Self>> {
        let has_any = area.iter().any(|tlv| Self::TAGS.contains(&tlv.tag));
        has_any.then(|| Self::read(area)).transpose()
    }
}
