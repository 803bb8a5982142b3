//! Attach codes: whoever presents one through rdma_cm joins the lease, once.

use core::fmt;

use zeroize::{Zeroize, Zeroizing};

use super::tag;
use crate::{
    Endpoint,
    endpoint::{self, ENDPOINT_LEN},
    read::Decoded,
    tlv::Tlv,
    write::Writer,
};

/// 0x020E: `[u8; 16] code`, and the endpoint of the node's rdma_cm listener.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RdmaAttach {
    /// What the caller presents, as the first bytes of its private data.
    pub code: AttachCode,
    /// Where it calls.
    pub endpoint: Endpoint,
}

/// Lets one caller of the node's rdma_cm listener into a lease. Never printed, wiped when dropped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AttachCode(pub [u8; Self::BYTES]);

impl AttachCode {
    /// Bytes of a code.
    pub const BYTES: usize = 16;
}

impl fmt::Debug for AttachCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttachCode(..)")
    }
}

impl Drop for AttachCode {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

const LEN: usize = AttachCode::BYTES + ENDPOINT_LEN;

pub(super) fn read(tlv: &Tlv<'_>) -> Decoded<RdmaAttach> {
    let value = Zeroizing::new(tlv.fixed::<LEN>()?);
    let (mut code, mut place) = ([0; AttachCode::BYTES], [0; ENDPOINT_LEN]);
    code.copy_from_slice(&value[..AttachCode::BYTES]);
    place.copy_from_slice(&value[AttachCode::BYTES..]);
    let code = AttachCode(code);
    let endpoint = Endpoint::from_bytes(place).ok_or_else(|| {
        tlv.unknown_value(
            AttachCode::BYTES,
            "endpoint",
            endpoint::EXPECTED,
            "a wildcard or port 0",
        )
    })?;
    Ok(RdmaAttach { code, endpoint })
}

pub(super) fn write(w: &mut Writer, attach: Option<&RdmaAttach>) {
    let Some(RdmaAttach { code, endpoint }) = attach else {
        return;
    };
    let mut value = Zeroizing::new([0; LEN]);
    value[..AttachCode::BYTES].copy_from_slice(&code.0);
    value[AttachCode::BYTES..].copy_from_slice(&endpoint.bytes());
    w.tlv(tag::RDMA_ATTACH, &*value);
}

/// Writes the parameters of a LEASE_BIND that asks for an attach code.
pub(crate) fn write_question(w: &mut Writer) {
    w.tlv(tag::RDMA_ATTACH_CODE, &[]);
}
