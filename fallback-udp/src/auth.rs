//! Keys, tags and checksums of frames.

use core::fmt;

use fabricbios_wire::{DATA_HEADER_LEN, DATA_TAG_LEN, DataHeader, DpKey};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// A data-plane key, ready for use: the two halves of HMAC that depend only on the key are computed
/// once, which makes a tag several times cheaper. Never printed; wiped when dropped.
#[derive(Clone)]
pub struct DataKey(Hmac<Sha256>);

impl DataKey {
    /// Computes the two HMAC halves of the key.
    #[must_use]
    pub fn new(key: &DpKey) -> Self {
        // HMAC takes keys of any length, so this cannot fail.
        let keyed = Hmac::new_from_slice(&key.0);
        Self(keyed.unwrap_or_else(|_| unreachable!("HMAC takes keys of any length")))
    }

    /// The tag of a frame: over the header, and over the payload too if the header has PAYLOAD_MAC.
    #[must_use]
    pub fn tag(&self, header: &DataHeader, payload: &[u8]) -> [u8; DATA_TAG_LEN] {
        self.tag_of(&header.bytes(), header.has_payload_mac().then_some(payload))
    }

    /// Whether the frame was made with this key, in constant time.
    #[must_use]
    pub fn verifies(
        &self,
        header_bytes: &[u8; DATA_HEADER_LEN],
        payload: Option<&[u8]>,
        tag: &[u8; DATA_TAG_LEN],
    ) -> bool {
        self.tag_of(header_bytes, payload).ct_eq(tag).into()
    }

    fn tag_of(
        &self,
        header_bytes: &[u8; DATA_HEADER_LEN],
        payload: Option<&[u8]>,
    ) -> [u8; DATA_TAG_LEN] {
        let mut mac = self.0.clone();
        mac.update(header_bytes);
        if let Some(payload) = payload {
            mac.update(payload);
        }
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(..)")
    }
}

/// CRC-32C of a payload; 0 for none.
#[must_use]
pub fn crc32c(payload: &[u8]) -> u32 {
    #[cfg(any(feature = "server", feature = "client"))]
    return crc32c::crc32c(payload);
    #[cfg(not(any(feature = "server", feature = "client")))]
    return by_table(payload);
}

#[cfg(any(test, not(any(feature = "server", feature = "client"))))]
fn by_table(payload: &[u8]) -> u32 {
    const CASTAGNOLI: crc::Crc<u32, crc::Table<16>> =
        crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISCSI);
    static TABLES: crc::Crc<u32, crc::Table<16>> = CASTAGNOLI;
    TABLES.checksum(payload)
}

#[cfg(test)]
mod tests {
    use alloc::{format, vec::Vec};

    use fabricbios_wire::{DataOp, DataService, LeaseId, data_flags};
    use hmac::digest::zeroize::ZeroizeOnDrop;

    use super::*;

    fn key(first: u8) -> DataKey {
        DataKey::new(&DpKey(core::array::from_fn(|i| {
            first.wrapping_add(u8::try_from(i).unwrap())
        })))
    }

    fn header(flags: u8) -> DataHeader {
        DataHeader {
            service: DataService::Memory,
            op: DataOp::Write as u8,
            flags,
            status: 0,
            lease_id: LeaseId(7),
            nonce: 1 << 32 | 1,
            offset: 0,
            length: 9,
            payload_crc: 0xE306_9283,
            payload_len: 9,
            reserved: 0,
        }
    }

    #[test]
    fn the_checksum_is_castagnolis() {
        for check in [crc32c, by_table] {
            assert_eq!(check(b"123456789"), 0xE306_9283);
            assert_eq!(check(b""), 0);
        }
        // RFC 3720 B.4: 32 bytes of zeros, of ones, counting up.
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        let up: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&up), 0x46DD_794E);
    }

    #[test]
    fn hardware_and_tables_agree_at_every_length() {
        let bytes: Vec<u8> = (0..=255).cycle().take(9_128).collect();
        for length in (0..300).chain([1384, 8884, 9128]) {
            assert_eq!(crc32c(&bytes[..length]), by_table(&bytes[..length]));
        }
    }

    #[test]
    fn a_tag_covers_the_payload_only_where_the_header_says_so() {
        let (plain, whole) = (header(0), header(data_flags::PAYLOAD_MAC));
        assert_eq!(
            key(0).tag(&plain, b"123456789"),
            key(0).tag(&plain, b"other")
        );
        assert_ne!(
            key(0).tag(&whole, b"123456789"),
            key(0).tag(&whole, b"other")
        );
        assert_ne!(key(0).tag(&plain, b""), key(1).tag(&plain, b""));
        let tag = key(0).tag(&whole, b"123456789");
        assert!(key(0).verifies(&whole.bytes(), Some(b"123456789"), &tag));
        assert!(!key(0).verifies(&whole.bytes(), None, &tag));
        assert!(!key(1).verifies(&whole.bytes(), Some(b"123456789"), &tag));
    }

    #[test]
    fn a_key_is_wiped_and_not_printed() {
        // HMAC holds two states of SHA-256 only, and each wipes itself.
        fn wiped<T: ZeroizeOnDrop>() {}
        wiped::<sha2::block_api::Sha256VarCore>();
        let key = key(0x41);
        assert_eq!(format!("{key:?}"), "DataKey(..)");
    }
}
