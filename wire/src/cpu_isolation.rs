//! `TLV_LEASE_CPU_ISOLATION` (0x0902): one class byte. Reserved bytes fail closed, and so does a length
//! other than one (docs/spec/cpu-isolation-wire-format.md §3).

use crate::{
    CpuIsolationClass, DecodeError, tag,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

/// The class of a params blob. `None` is not a class: it leaves the choice to the node's policy.
pub fn parse_cpu_isolation(params: &[u8]) -> Result<Option<CpuIsolationClass>, DecodeError> {
    find(&TlvArea::parse(params, 0)?)
}

pub(crate) fn find(params: &TlvArea<'_>) -> Result<Option<CpuIsolationClass>, DecodeError> {
    params.read(tag::LEASE_CPU_ISOLATION, read)
}

fn read(tlv: &Tlv<'_>) -> Result<CpuIsolationClass, DecodeError> {
    tlv.byte_of("class", "0 to 2", |byte| {
        CpuIsolationClass::try_from(byte).ok()
    })
}

pub(crate) fn write(w: &mut Writer, class: Option<CpuIsolationClass>) {
    w.tlv_if(tag::LEASE_CPU_ISOLATION, class.map(|class| [class as u8]));
}
