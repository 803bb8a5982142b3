//! Keys, tags and checksums of frames.

use core::fmt;

use fabricbios_wire::{DATA_HEADER_LEN, DATA_OVERHEAD, DATA_TAG_LEN, DataFrame, DataHeader, DpKey};
use hmac::{Hmac, KeyInit, Mac, block_api::HmacCore, digest::block_api::CoreProxy};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// A data-plane key, ready for use: the two halves of HMAC that depend only on the key are computed
/// once, which makes a tag several times cheaper. Each tag brings its own buffer. Never printed; wiped when dropped.
#[derive(Clone)]
pub struct DataKey(HmacCore<Sha256>);

impl DataKey {
    /// Computes the two HMAC halves of the key.
    #[must_use]
    pub fn new(key: &DpKey) -> Self {
        // HMAC takes keys of any length, so this cannot fail.
        let keyed = HmacCore::new_from_slice(&key.0);
        Self(keyed.unwrap_or_else(|_| unreachable!("HMAC takes keys of any length")))
    }

    /// The tag of a frame: over the header, and over the payload too if the header has PAYLOAD_MAC.
    #[must_use]
    pub fn tag(&self, header: &DataHeader, payload: &[u8]) -> [u8; DATA_TAG_LEN] {
        self.tag_of(&header.bytes(), header.has_payload_mac().then_some(payload))
    }

    /// Header and tag of a frame with this payload, whose length and checksum the header gets.
    #[must_use]
    pub fn seal(&self, header: DataHeader, payload: &[u8]) -> [u8; DATA_OVERHEAD] {
        #[allow(clippy::cast_possible_truncation, reason = "shorter than a datagram")]
        let payload_len = payload.len() as u32;
        let header = DataHeader {
            payload_crc: crc32c(payload),
            payload_len,
            ..header
        };
        let (bytes, covered) = (header.bytes(), header.has_payload_mac());
        let mut sealed = [0; DATA_OVERHEAD];
        let (head, tag) = sealed.split_at_mut(DATA_HEADER_LEN);
        head.copy_from_slice(&bytes);
        tag.copy_from_slice(&self.tag_of(&bytes, covered.then_some(payload)));
        sealed
    }

    /// Whether the frame was made with this key, in constant time.
    #[must_use]
    pub fn verifies(&self, frame: &DataFrame<'_>) -> bool {
        let payload = frame.header.has_payload_mac().then_some(frame.payload);
        self.tag_of(frame.header_bytes, payload)
            .ct_eq(frame.tag)
            .into()
    }

    fn tag_of(
        &self,
        header_bytes: &[u8; DATA_HEADER_LEN],
        payload: Option<&[u8]>,
    ) -> [u8; DATA_TAG_LEN] {
        let mut mac = Hmac::<Sha256>::compose(self.0.clone(), <_>::default());
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
            flags,
            ..DataHeader::request(DataService::Memory, DataOp::Write, LeaseId(7))
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
        for (sealed, covered) in [(plain, false), (whole, true)] {
            let mut bytes = [&key(0).seal(sealed, b"123456789")[..], b"123456789"].concat();
            let verifies =
                |bytes: &[u8], first| key(first).verifies(&DataFrame::parse(bytes).unwrap());
            assert!(verifies(&bytes, 0) && !verifies(&bytes, 1));
            bytes[DATA_OVERHEAD] ^= 1;
            assert_eq!(verifies(&bytes, 0), !covered);
        }
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
