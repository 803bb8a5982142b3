//! Every tag by name. 0x0101–0x0104, 0x0201–0x0205, 0x0901–0x0903 and 0x0910 come from the sources. The others are ours
//! and extend by family: 0x02xx RDMA, 0x03xx NVMe-oF, 0x04xx NET, 0x05xx GPU, 0x06xx CPU, 0x09xx terms of a request,
//! 0x0Axx refusals, 0x0Bxx inventory, 0x0Cxx tenant and end of a lease. The tags of one kind are in its module.

use crate::kinds;

/// Each line: tag, number, words for people.
macro_rules! tags {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $words:literal;)*) => {
        $($(#[$doc])* pub const $name: u16 = $code;)*

        /// The tags of this list with their words.
        pub(crate) const NAMED: &[(u16, &str)] = &[$(($name, $words)),*];
    };
}

pub(crate) use tags;

macro_rules! of_kinds {
    ($({ $code:literal $variant:ident $word:literal $name:literal, ($module:ident: $terms:ty), $coordinates:tt })*) => {
        $(pub use kinds::$module::tag::*;)*

        /// The words for a known tag; `None`: the tag is unknown.
        #[must_use]
        pub fn name(tag: u16) -> Option<&'static str> {
            let lists = [NAMED, $(kinds::$module::tag::NAMED),*];
            let mut known = lists.into_iter().flatten();
            known.find(|(known, _)| *known == tag).map(|(_, words)| *words)
        }
    };
}

kinds!(of_kinds);

tags! {
    /// `u128`.
    LEASE_ID = 0x0101, "lease id";
    /// `[u8; 32]`.
    DP_KEY = 0x0102, "data-plane key";
    /// `[u8; 16], u16`.
    UDP_ENDPOINT = 0x0103, "UDP endpoint";
    /// `u64, u64`.
    LIMITS = 0x0104, "limits";
    /// [`crate::KvCacheIntent`].
    LEASE_INTENT_KV_CACHE = 0x0901, "KV cache intent";
    /// `u8`, [`crate::Transport`].
    LEASE_TRANSPORT = 0x0904, "transport";
    /// `u8`, 0 or 1.
    LEASE_ROTATE_ON_RENEW = 0x0905, "rotate on renew";
    /// `u128`, not zero.
    LEASE_REQUEST_TOKEN = 0x090E, "request token";
    /// `u8`, 0 or 1.
    LEASE_REDIRECT = 0x090F, "redirect";
    /// [`crate::Affinity`]; may repeat.
    LEASE_AFFINITY = 0x0910, "affinity";
    /// [`crate::Tried`]; may repeat.
    LEASE_TRIED = 0x0911, "tried node";
    /// `u8`, 0 or 1.
    LEASE_EXPLAIN = 0x0912, "explain";
    /// `u8`, [`crate::RefusalClass`].
    REFUSAL_CLASS = 0x0A01, "refusal class";
    /// UTF-8.
    REFUSAL_MESSAGE = 0x0A02, "rejection reason";
    /// `u64`, milliseconds of wall clock.
    REFUSAL_RENEWABLE_AT = 0x0A03, "renewable at";
    /// `u32`, milliseconds.
    REFUSAL_RETRY_AFTER = 0x0A04, "retry after";
    /// `u128`, UTF-8; may repeat.
    INVENTORY_NAME = 0x0B01, "resource name";
    /// `u128, u64`; may repeat.
    INVENTORY_AVAILABLE = 0x0B02, "available";
    /// `u128, u8, u8…`; may repeat.
    INVENTORY_CLASSES = 0x0B03, "classes";
    /// `u128, u8…`; may repeat.
    INVENTORY_TRANSPORTS = 0x0B04, "transports";
    /// `u128, u64`; may repeat.
    INVENTORY_FENCED_PART = 0x0B05, "fenced part";
    /// `u128`, then `u8` class and `u8` [`crate::Enforcement`] for each class, ascending; may repeat.
    INVENTORY_CLASS_ENFORCEMENT = 0x0B06, "enforcement of classes";
    /// `u128`, then `u8` class and `u64` units for each class, ascending; may repeat.
    INVENTORY_CLASS_AVAILABLE = 0x0B07, "available by class";
    /// `u128, u32, u32`: the number of all functions and of the free ones; may repeat.
    INVENTORY_VIRTUAL_FUNCTIONS = 0x0B08, "virtual functions";
    /// `u128`, then five `u16`: all compute slices, the free ones, all session slots, the free ones, the queue slots of
    /// a session; may repeat.
    INVENTORY_GPU_SLOTS = 0x0B09, "slots of a GPU";
    /// `u128`, UTF-8; may repeat.
    INVENTORY_HEALTH_REASON = 0x0B0A, "reason of a health";
    /// `u128` 0, `u32, u32`, `u8` 0 or 1.
    INVENTORY_LIMITS = 0x0B0B, "limits of the node";
    /// `u128, u8` flags, `u8` n, n class bytes, then `u8, u64, u64` for each way to hold a part, ascending; may repeat.
    INVENTORY_ADMISSION = 0x0B0C, "admission";
    /// UTF-8.
    LEASE_TENANT = 0x0C01, "tenant";
    /// `u64, u8`, UTF-8, [`crate::LeaseEnd`].
    LEASE_END = 0x0C02, "end";
    /// `u32, u8`, UTF-8, UTF-8, [`crate::ProofStep`]; may repeat.
    LEASE_PROOF_STEP = 0x0C03, "step of the proof";
    /// As [`LEASE_PROOF_STEP`]; may repeat.
    LEASE_CLEANING_STEP = 0x0C04, "step of the cleaning";
}
