//! The intent of a lease: advisory, but validated. `TLV_LEASE_INTENT_KV_CACHE` (0x0901), and the affinities (0x0910).

use alloc::vec::Vec;

use crate::{
    Affinity, DecodeError, affinity,
    names::words,
    tag,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

/// The use of its lease that a tenant states. The node keeps it with the lease and enforces nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LeaseIntent {
    /// 0x0901.
    pub kv_cache: Option<KvCacheIntent>,
    /// 0x0910, in the order of the request.
    pub affinities: Vec<Affinity>,
}

impl LeaseIntent {
    /// Whether nothing is stated.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// 0x0901: the use of memory by a KV cache. The sources leave the layout open; ours is 8 bytes:
/// `u8 version = 1`, `u8 tier`, `u16 reserved = 0`, `u32 block_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KvCacheIntent {
    /// How warm the cache is.
    pub tier: KvCacheTier,
    /// Bytes of one cache block, 0 if not stated.
    pub block_bytes: u32,
}

words! {
    /// How warm a KV cache is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum KvCacheTier: u8, "KV cache tier", from_byte {
        /// The cache is in use for decoding.
        Hot = 0, "hot";
        /// The cache is kept for reuse.
        Warm = 1, "warm";
        /// The cache is kept while memory is free.
        Cold = 2, "cold";
    }
}

const VERSION: u8 = 1;

pub(crate) fn find(area: &TlvArea<'_>) -> Result<LeaseIntent, DecodeError> {
    Ok(LeaseIntent {
        kv_cache: area.read(tag::LEASE_INTENT_KV_CACHE, read)?,
        affinities: affinity::find(area)?,
    })
}

fn read(tlv: &Tlv<'_>) -> Result<KvCacheIntent, DecodeError> {
    let [version, tier, r0, r1, b0, b1, b2, b3] = tlv.fixed()?;
    if version != VERSION {
        return Err(tlv.unknown_value(0, "version", "1", version));
    }
    if (r0, r1) != (0, 0) {
        return Err(tlv.unknown_value(2, "reserved", "0", u16::from_be_bytes([r0, r1])));
    }
    let tier =
        KvCacheTier::from_byte(tier).ok_or_else(|| tlv.unknown_value(1, "tier", "0 to 2", tier))?;
    Ok(KvCacheIntent {
        tier,
        block_bytes: u32::from_be_bytes([b0, b1, b2, b3]),
    })
}

pub(crate) fn write(w: &mut Writer, intent: &LeaseIntent) {
    w.tlv_if(tag::LEASE_INTENT_KV_CACHE, intent.kv_cache.map(value));
    affinity::write(w, &intent.affinities);
}

fn value(intent: KvCacheIntent) -> [u8; 8] {
    let [b0, b1, b2, b3] = intent.block_bytes.to_be_bytes();
    [VERSION, intent.tier as u8, 0, 0, b0, b1, b2, b3]
}
