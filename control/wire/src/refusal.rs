//! Refusals of a node: the failure, its cause, and the remedy.

use crate::names::words;

use alloc::string::String;
use core::fmt;

words! {
    /// The code of the reason: the status word of a reply, in which 0 is success. The first four keep the names of the
    /// specification.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum LeaseError: u16, "status", from_code {
        /// An unknown class byte, a malformed length of a known tag (002 §3, 003 §3).
        InvalidIntent = 1, "InvalidIntent";
        /// Well-formed, but impossible here; always with the rejection-reason TLV.
        InvalidArgs = 2, "InvalidArgs";
        /// More than the resource has free, or an exclusive resource that is already held.
        CapacityExceeded = 3, "CapacityExceeded";
        /// Held at present in a way that excludes this request.
        ResourceBusy = 4, "ResourceBusy";
        /// The lease or resource does not exist, or belongs to another tenant: the answer is the same for both.
        NotFound = 5, "NotFound";
        /// The lease's term is over.
        Expired = 6, "Expired";
        /// The lease was taken back.
        Revoked = 7, "Revoked";
        /// The resource is fenced.
        Fenced = 8, "Fenced";
        /// The caller's role does not allow this.
        NotPermitted = 9, "NotPermitted";
        /// Renewal before the window; the refusal contains `renewable_at_unix_ms`.
        RenewTooEarly = 10, "RenewTooEarly";
        /// This node does not know the message, the version or the flag.
        Unsupported = 11, "Unsupported";
        /// Bytes that are not a message.
        Malformed = 12, "Malformed";
        /// The node failed, not the caller.
        Internal = 13, "Internal";
        /// The node is going down or is too busy; try again or elsewhere.
        Unavailable = 14, "Unavailable";
    }
}

words! {
    /// Whether a repeated request can succeed (001 §6.3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum RefusalClass: u8, "refusal class", from_byte {
        /// The request never succeeds here.
        Permanent = 0, "permanent";
        /// The request may succeed later.
        Transient = 1, "transient";
        /// The operator's policy forbids it.
        Policy = 2, "policy";
    }
}

/// A refusal: status, then TLVs 0x0A01 class, 0x0A02 message, 0x0A03 renewable-at, 0x0A04 retry-after.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct Refusal {
    /// The status word.
    pub error: LeaseError,
    /// 0x0A01.
    pub class: RefusalClass,
    /// 0x0A02: the rejection reason, one line: what failed, expected and got, what to do. At most
    /// 1,024 bytes of UTF-8; longer ones are cut at a character.
    pub message: String,
    /// 0x0A03.
    pub renewable_at_unix_ms: Option<u64>,
    /// 0x0A04: milliseconds after which the same request probably succeeds. An estimate.
    pub retry_after_ms: Option<u32>,
}

impl Refusal {
    /// A refusal without extras.
    pub fn new(error: LeaseError, class: RefusalClass, message: impl Into<String>) -> Self {
        Self {
            error,
            class,
            message: message.into(),
            renewable_at_unix_ms: None,
            retry_after_ms: None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.error, self.class, self.message)
    }
}

impl core::error::Error for Refusal {}
