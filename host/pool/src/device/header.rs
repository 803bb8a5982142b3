//! The header of a raw device that is a pool: identity, node, the start of the unwritten bytes, and the number of the
//! latest grant.
//!
//! There are two copies, written in turns, each with a hash: a torn write leaves the other copy. The signatures that
//! tools look for on a disk are at other places; they are zeroed when the pool is made.
//!
//! | byte | what |
//! |---:|---|
//! | 0 | `FABRICBIOS POOL` and a zero |
//! | 16 | format, [`FORMAT`] |
//! | 24 | sequence: the copy with the higher one counts |
//! | 32 | identity |
//! | 48 | node |
//! | 80 | `unwritten_from` |
//! | 88 | `grants` |
//! | 96 | SHA-256 of the bytes before |
//!
//! Numbers are little-endian.

use fabricbios_lease::{FORMAT, OtherFormat};
use fabricbios_wire::NodeId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Size of a copy: at least a block of any supported device.
pub const BYTES: usize = 4096;
/// Offsets of the copies on the device.
pub const PLACES: [u64; 2] = [0, 512 << 10];

const MAGIC: &[u8; 16] = b"FABRICBIOS POOL\0";
const SUM_AT: usize = 96;
const SUM_BYTES: usize = 32;

/// Why a copy cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The hash does not match.
    #[error("the header of a pool is damaged")]
    Damaged,
    /// Another version of the node wrote it.
    #[error("the header of a pool: {0}")]
    OtherFormat(OtherFormat),
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The copy with the higher number counts.
    pub sequence: u64,
    /// Identity of the pool.
    pub identity: [u8; 16],
    /// The node that owns the pool.
    pub node: NodeId,
    /// Offset in the data area. Bytes from here on contain data from before the pool.
    pub unwritten_from: u64,
    /// Number of the latest grant of the node. A node whose own number is smaller has forgotten leases.
    pub grants: u64,
}

impl Header {
    /// The bytes of a copy.
    #[must_use]
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16..24].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.identity);
        bytes[48..80].copy_from_slice(&self.node.0);
        bytes[80..88].copy_from_slice(&self.unwritten_from.to_le_bytes());
        bytes[88..96].copy_from_slice(&self.grants.to_le_bytes());
        let sum = Sha256::digest(&bytes[..SUM_AT]);
        bytes[SUM_AT..SUM_AT + SUM_BYTES].copy_from_slice(&sum);
        bytes
    }

    /// Parses a copy. `None`: the bytes contain no header.
    ///
    /// # Errors
    /// The copy is damaged, or another version of the node wrote it.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, Flaw> {
        if bytes.get(..16) != Some(MAGIC) {
            return Ok(None);
        }
        let part = |from: usize, length: usize| bytes.get(from..from + length).unwrap_or_default();
        let number = |from| u64::from_le_bytes(part(from, 8).try_into().unwrap_or_default());
        if part(SUM_AT, SUM_BYTES) != &Sha256::digest(part(0, SUM_AT))[..] {
            return Err(Flaw::Damaged);
        }
        OtherFormat::refuse(number(16)).map_err(Flaw::OtherFormat)?;
        Ok(Some(Self {
            sequence: number(24),
            identity: part(32, 16).try_into().unwrap_or_default(),
            node: NodeId(part(48, 32).try_into().unwrap_or_default()),
            unwritten_from: number(80),
            grants: number(88),
        }))
    }

    /// Returns the valid copy with the higher sequence. A torn write leaves one damaged copy. A copy with an unknown
    /// format is an error, since it may be the newer one.
    ///
    /// # Errors
    /// No copy is whole, or one has another format.
    pub fn newest(copies: [&[u8]; 2]) -> Result<Option<Self>, Flaw> {
        let [first, second] = copies.map(Self::decode);
        match (first, second) {
            (Ok(first), Ok(second)) => Ok([first, second]
                .into_iter()
                .flatten()
                .max_by_key(|header| header.sequence)),
            (Err(other @ Flaw::OtherFormat(_)), _) | (_, Err(other @ Flaw::OtherFormat(_))) => {
                Err(other)
            }
            (Ok(Some(whole)), Err(_)) | (Err(_), Ok(Some(whole))) => Ok(Some(whole)),
            (Err(damaged), _) | (_, Err(damaged)) => Err(damaged),
        }
    }

    /// Offset of the copy with this sequence. The previous sequence has the other place.
    #[must_use]
    pub fn place(&self) -> u64 {
        PLACES[usize::from(self.sequence % 2 == 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(sequence: u64) -> Header {
        Header {
            sequence,
            identity: [7; 16],
            node: NodeId([9; 32]),
            unwritten_from: sequence << 20,
            grants: sequence,
        }
    }

    #[test]
    fn the_newer_copy_counts_and_the_older_one_is_written_next() {
        let (old, new) = (header(4), header(5));
        let (old_bytes, new_bytes) = (old.encode(), new.encode());
        assert_eq!(
            Header::newest([&old_bytes, &new_bytes]).unwrap().unwrap(),
            new
        );
        assert_eq!(
            Header::newest([&new_bytes, &old_bytes]).unwrap().unwrap(),
            new
        );
        assert_ne!(old.place(), new.place());
    }

    #[test]
    fn no_header_is_not_a_damaged_one() {
        let nothing = [0; BYTES];
        assert_eq!(Header::newest([&nothing, &nothing]), Ok(None));
        assert_eq!(Header::newest([&[], &[]]), Ok(None));
        let mut torn = header(1).encode();
        torn[40] ^= 1;
        assert_eq!(Header::newest([&torn, &nothing]), Err(Flaw::Damaged));
    }

    #[test]
    fn a_copy_of_another_format_is_refused_with_both_numbers_also_beside_a_whole_or_a_torn_one() {
        let whole = header(1).encode();
        let mut other = header(2).encode();
        other[16..24].copy_from_slice(&99_u64.to_le_bytes());
        let sum = Sha256::digest(&other[..SUM_AT]);
        other[SUM_AT..SUM_AT + SUM_BYTES].copy_from_slice(&sum);
        let mut torn = whole;
        torn[40] ^= 1;
        for beside in [whole, torn, [0; BYTES]] {
            for copies in [[&beside[..], &other], [&other, &beside]] {
                let refused = Header::newest(copies).unwrap_err().to_string();
                let numbers =
                    format!("format 99, and this version of the node reads formats 8 to {FORMAT}");
                assert!(refused.contains(&numbers), "{refused}");
            }
        }
    }

    /// The layout is the same.
    #[test]
    fn a_copy_of_format_8_is_read() {
        let mut earlier = header(2).encode();
        earlier[16..24].copy_from_slice(&8_u64.to_le_bytes());
        let sum = Sha256::digest(&earlier[..SUM_AT]);
        earlier[SUM_AT..SUM_AT + SUM_BYTES].copy_from_slice(&sum);
        assert_eq!(Header::newest([&earlier, &[0; BYTES]]), Ok(Some(header(2))));
    }

    #[test]
    fn it_looks_like_no_disk_with_something_on_it() {
        let bytes = header(u64::MAX).encode();
        assert_ne!(&bytes[510..512], [0x55, 0xAA]);
        assert!(bytes[SUM_AT + SUM_BYTES..].iter().all(|&byte| byte == 0));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(sequence: u64, identity: [u8; 16], node: [u8; 32], unwritten_from: u64, grants: u64) {
            let header = Header { sequence, identity, node: NodeId(node), unwritten_from, grants };
            prop_assert_eq!(Header::decode(&header.encode()), Ok(Some(header)));
        }

        #[test]
        fn a_torn_write_leaves_the_other_copy(sequence in 1u64..u64::MAX, torn_at in 0usize..SUM_AT + SUM_BYTES) {
            let (whole, newer) = (header(sequence), header(sequence + 1));
            let mut torn = newer.encode();
            torn[torn_at..].iter_mut().for_each(|byte| *byte = !*byte);
            let found = Header::newest([&torn, &whole.encode()]).unwrap().unwrap();
            prop_assert_eq!(found, whole);
        }

        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>, rest: Vec<u8>) {
            let with_magic = [&MAGIC[..], &rest].concat();
            let _either = (Header::decode(&bytes), Header::decode(&with_magic));
        }
    }
}
