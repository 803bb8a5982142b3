//! `TLV_LEASE_GPU_EXCLUSIVITY` (0x0903): one class byte. Reserved bytes fail closed, and so does a length
//! other than one (docs/spec/gpu-exclusivity-wire-format.md §3).

use crate::{DecodeError, GpuExclusivityClass, tag, tlv::TlvArea, write::Writer};

/// The terms of a lease of GPU memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GpuTerms {
    /// 0x0903 (003).
    pub exclusivity: Option<GpuExclusivityClass>,
}

/// `None`: the node's policy chooses the class.
pub(crate) fn find(params: &TlvArea<'_>) -> Result<Option<GpuExclusivityClass>, DecodeError> {
    params.read(tag::LEASE_GPU_EXCLUSIVITY, |tlv| {
        tlv.byte_of("class", "0 to 3", GpuExclusivityClass::from_byte)
    })
}

pub(crate) fn find_terms(params: &TlvArea<'_>) -> Result<GpuTerms, DecodeError> {
    find(params).map(|exclusivity| GpuTerms { exclusivity })
}

pub(crate) fn write(w: &mut Writer, class: Option<GpuExclusivityClass>) {
    w.tlv_if(tag::LEASE_GPU_EXCLUSIVITY, class.map(|class| [class as u8]));
}
