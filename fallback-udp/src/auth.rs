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
    /// Makes a key ready.
    #[must_use]
    pub fn new(key: &DpKey) -> Self {
        // HMAC takes keys of any length; this one is never refused.
        let keyed = Hmac::new_from_slice(&key.0);
        Self(keyed.unwrap_or_else(|_| unreachable!("HMAC takes keys of any length")))
    }

    /// The tag of a frame: over the header, and over the payload where the header says so.
    #[must_use]
    pub fn tag(&self, header: &DataHeader, payload: &[u8]) -> [u8; DATA_TAG_LEN] {
        self.tag_of(&header.bytes(), header.has_payload_mac().then_some(payload))
    }

    /// Whether a frame was made by who holds the key, in constant time.
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
    todo!("{}", payload.len())
}
