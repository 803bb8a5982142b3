//! What caller and node tell each other in the private data of a connection.

use fabricbios_wire::{AttachCode, Binding, LeaseInfo};

/// Bytes of a descriptor of librpma 1: `u64` address, `u64` length and `u32` key, little-endian, and a byte of uses.
pub(super) const DESCRIPTOR_BYTES: usize = 21;

/// `RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST` of librpma.h: the caller may read from it and write to it.
const READ_AND_WRITTEN: u8 = 1 | 1 << 3;

/// A queue pair of the node for a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Joined {
    pub(super) qp_num: u32,
    pub(super) mtu_bytes: u16,
    /// The most reads and atomics that it answers at once.
    pub(super) responder_reads: u8,
    pub(super) descriptor: [u8; DESCRIPTOR_BYTES],
}

impl Joined {
    /// The queue pair that joined last.
    pub(super) fn last_of(info: &LeaseInfo) -> Option<Self> {
        let Binding { limits, .. } = info.binding;
        let rdma = info.binding.rdma()?;
        let (qp_num, rkey) = match rdma.further.last() {
            Some(last) => (last.qp_num, last.rkey),
            None => (rdma.qp_num, rdma.rkey?),
        };
        Some(Self {
            qp_num,
            mtu_bytes: rdma.path_mtu,
            responder_reads: rdma.max_rd_atomic,
            descriptor: descriptor(rdma.remote_addr, limits?.length, rkey),
        })
    }
}

fn descriptor(address: u64, length: u64, rkey: u32) -> [u8; DESCRIPTOR_BYTES] {
    let mut out = [0; DESCRIPTOR_BYTES];
    out[..8].copy_from_slice(&address.to_le_bytes());
    out[8..16].copy_from_slice(&length.to_le_bytes());
    out[16..20].copy_from_slice(&rkey.to_le_bytes());
    out[20] = READ_AND_WRITTEN;
    out
}

/// The code that a caller presents: the first bytes of its private data.
pub(super) fn presented(private_data: &[u8]) -> Option<AttachCode> {
    private_data.first_chunk().map(|code| AttachCode(*code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_is_that_of_librpma() {
        let expected = [
            8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11, 9,
        ];
        let made = descriptor(0x0102_0304_0506_0708, 65536, 0x1122_3344);
        assert_eq!(made, expected);
    }

    #[test]
    fn a_code_is_the_first_16_bytes_and_less_is_none() {
        let padded: Vec<u8> = (0..56).collect();
        let code = presented(&padded).unwrap();
        assert_eq!(code.0, core::array::from_fn(|n| u8::try_from(n).unwrap()));
        assert_eq!(presented(&[1; 16]), Some(AttachCode([1; 16])));
        assert_eq!(presented(&[1; 15]), None);
        assert_eq!(presented(&[]), None);
    }
}
