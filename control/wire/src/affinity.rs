//! `TLV_LEASE_AFFINITY` (0x0910): a target that a lease wants to be near to, or far from. May repeat; all are kept, in
//! order.

use alloc::vec::Vec;

use crate::{
    AFFINITIES_MAX, AFFINITY_TARGET_BYTES_MAX, DecodeError, tag,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

/// 0x0910: `category u8, strength u8, target_type u8, target_len u16, target`. The sources give the
/// layout, five categories, three strengths and category 1 = Resource; the other names are ours.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Affinity {
    /// What the affinity compares: 1 resource, 2 node, 3 rack, 4 tenant, 5 data.
    pub category: u8,
    /// 1 required, 2 preferred, 3 avoid.
    pub strength: u8,
    /// The form of the target: 1 resource id (16 bytes), 2 lease id (16 bytes), 3 node id
    /// (32 bytes), 4 label (UTF-8).
    pub target_type: u8,
    /// At most 255 bytes.
    pub target: Vec<u8>,
}

/// Bytes before the target.
const FIXED_LEN: usize = 5;

pub(crate) fn find(params: &TlvArea<'_>) -> Result<Vec<Affinity>, DecodeError> {
    params
        .find_all(tag::LEASE_AFFINITY, AFFINITIES_MAX)?
        .iter()
        .map(read)
        .collect()
}

fn read(tlv: &Tlv<'_>) -> Result<Affinity, DecodeError> {
    let Some((&[category, strength, target_type, l0, l1], target)) = tlv.value.split_first_chunk()
    else {
        return Err(tlv.wrong_length("at least 5 bytes".into()));
    };
    if usize::from(u16::from_be_bytes([l0, l1])) != target.len() {
        let said = u16::from_be_bytes([l0, l1]);
        return Err(tlv.unknown_value(3, "target_len", "the rest of the value", said));
    }
    for (at, field, expected, most, got) in [
        (0, "category", "1 to 5", 5, category),
        (1, "strength", "1 to 3", 3, strength),
    ] {
        if !(1..=most).contains(&got) {
            return Err(tlv.unknown_value(at, field, expected, got));
        }
    }
    check_target(tlv, target_type, target)?;
    Ok(Affinity {
        category,
        strength,
        target_type,
        target: target.to_vec(),
    })
}

fn check_target(tlv: &Tlv<'_>, target_type: u8, target: &[u8]) -> Result<(), DecodeError> {
    let expected = match target_type {
        1 | 2 if target.len() == 16 && target != [0; 16] => return Ok(()),
        3 if target.len() == 32 => return Ok(()),
        4 if is_label(target) => return Ok(()),
        1 | 2 => "16 bytes of an id other than zero",
        3 => "32 bytes of a node id",
        4 => "1 to 255 bytes of UTF-8",
        other => return Err(tlv.unknown_value(2, "target_type", "1 to 4", other)),
    };
    Err(tlv.unknown_value(FIXED_LEN, "target", expected, "something else"))
}

fn is_label(target: &[u8]) -> bool {
    (1..=AFFINITY_TARGET_BYTES_MAX).contains(&target.len()) && core::str::from_utf8(target).is_ok()
}

pub(crate) fn write(w: &mut Writer, affinities: &[Affinity]) {
    for affinity in affinities {
        w.tlv(tag::LEASE_AFFINITY, &value(affinity));
    }
}

/// The value of the TLV. A target that is too long for its length field also makes the TLV too long; such a TLV is
/// never written.
fn value(affinity: &Affinity) -> Vec<u8> {
    let length = u16::try_from(affinity.target.len())
        .unwrap_or(u16::MAX)
        .to_be_bytes();
    let fixed = [affinity.category, affinity.strength, affinity.target_type];
    [&fixed[..], &length, &affinity.target].concat()
}
