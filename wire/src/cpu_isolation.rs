//! `TLV_LEASE_CPU_ISOLATION` (0x0902): one class byte. Reserved bytes fail closed, and so does a length
//! other than one (docs/spec/cpu-isolation-wire-format.md §3).

use crate::{CpuIsolationClass, DecodeError, tag, tlv::TlvArea, write::Writer};

/// The terms of a lease of CPU cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CpuTerms {
    /// 0x0902 (002).
    pub isolation: Option<CpuIsolationClass>,
}

/// `None`: the node's policy chooses the class.
pub(crate) fn find(params: &TlvArea<'_>) -> Result<Option<CpuIsolationClass>, DecodeError> {
    params.read(tag::LEASE_CPU_ISOLATION, |tlv| {
        tlv.byte_of("class", "0 to 2", CpuIsolationClass::from_byte)
    })
}

pub(crate) fn find_terms(params: &TlvArea<'_>) -> Result<CpuTerms, DecodeError> {
    find(params).map(|isolation| CpuTerms { isolation })
}

pub(crate) fn write(w: &mut Writer, class: Option<CpuIsolationClass>) {
    w.tlv_if(tag::LEASE_CPU_ISOLATION, class.map(|class| [class as u8]));
}
