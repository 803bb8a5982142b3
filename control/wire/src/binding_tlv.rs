//! The TLVs of a binding: 0x0102–0x0104, and the coordinates of its kind.

use crate::{
    Binding, DpKey, KindBinding, Limits, ResourceType, endpoint,
    read::Decoded,
    tag,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

/// Reads the coordinates of `kind`.
pub(crate) fn read(area: &TlvArea<'_>, kind: ResourceType) -> Decoded<Binding> {
    Ok(Binding {
        dp_key: area.read(tag::DP_KEY, |tlv| tlv.fixed().map(DpKey))?,
        udp_endpoint: area.read(tag::UDP_ENDPOINT, endpoint::read_tlv)?,
        limits: area.read(tag::LIMITS, read_limits)?,
        kind: KindBinding::read(area, kind)?,
    })
}

fn read_limits(tlv: &Tlv<'_>) -> Decoded<Limits> {
    let (offset, length) = split_u64(tlv.fixed()?);
    match offset.checked_add(length) {
        Some(_) => Ok(Limits { offset, length }),
        None => Err(tlv.unknown_value(8, "length", "an end that fits 64 bits", length)),
    }
}

fn split_u64(value: [u8; 16]) -> (u64, u64) {
    let both = u128::from_be_bytes(value);
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the two halves of 128 bits"
    )]
    ((both >> 64) as u64, both as u64)
}

pub(crate) fn write(w: &mut Writer, binding: &Binding) {
    if let Some(key) = &binding.dp_key {
        w.tlv(tag::DP_KEY, &key.0);
    }
    w.tlv_if(
        tag::UDP_ENDPOINT,
        binding.udp_endpoint.map(|endpoint| endpoint.bytes()),
    );
    w.tlv_if(tag::LIMITS, binding.limits.map(limits_value));
    binding.kind.write(w);
}

fn limits_value(limits: Limits) -> [u8; 16] {
    (u128::from(limits.offset) << 64 | u128::from(limits.length)).to_be_bytes()
}
