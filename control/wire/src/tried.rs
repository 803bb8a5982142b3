//! `TLV_LEASE_TRIED` (0x0911): a node that was asked in this search, and what it said. May repeat; all are kept, in order.

use alloc::vec::Vec;

use crate::{
    DecodeError, LeaseError, NodeId, RefusalClass, TRIED_MAX, tag,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

/// 0x0911: `[u8; 32] node_id, u16 status, u8 class`. A scheduler names the other nodes first, in its answer to this request
/// alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct Tried {
    /// The node.
    pub node_id: NodeId,
    /// The status of its refusal; `None` (0 on the wire): it did not answer.
    pub refused: Option<LeaseError>,
    /// The class of its refusal. If it is not transient, the node is not named.
    pub class: RefusalClass,
}

impl Tried {
    /// A node that is not to be named, whatever it would say.
    #[must_use]
    pub fn avoided(node_id: NodeId) -> Self {
        Self {
            node_id,
            refused: None,
            class: RefusalClass::Policy,
        }
    }

    /// Whether the node is left out. What a node does not have may be a resource, and it may have another one.
    #[must_use]
    pub fn is_left_out(&self) -> bool {
        self.class != RefusalClass::Transient && self.refused != Some(LeaseError::NotFound)
    }
}

pub(crate) fn find(params: &TlvArea<'_>) -> Result<Vec<Tried>, DecodeError> {
    let all = params.find_all(tag::LEASE_TRIED, TRIED_MAX)?;
    all.iter().map(read).collect()
}

fn read(tlv: &Tlv<'_>) -> Result<Tried, DecodeError> {
    let value: [u8; 35] = tlv.fixed()?;
    let [node_id @ .., s0, s1, class] = value;
    let status = u16::from_be_bytes([s0, s1]);
    let refused = LeaseError::from_code(status);
    if refused.is_none() && status != 0 {
        return Err(tlv.unknown_value(32, "status", "0 to 14", status));
    }
    Ok(Tried {
        node_id: NodeId(node_id),
        refused,
        class: RefusalClass::from_byte(class)
            .ok_or_else(|| tlv.unknown_value(34, "class", "0 to 2", class))?,
    })
}

pub(crate) fn write(w: &mut Writer, tried: &[Tried]) {
    for it in tried {
        let [s0, s1] = it.refused.map_or(0, |it| it as u16).to_be_bytes();
        let value = [&it.node_id.0[..], &[s0, s1, it.class as u8]].concat();
        w.tlv(tag::LEASE_TRIED, &value);
    }
}
