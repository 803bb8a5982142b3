//! Refusals of a node: the failure, its cause, and the remedy.

use alloc::string::String;
use core::fmt;

/// The reason's code; the first four keep the specification's names. The status word of a reply:
/// 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum LeaseError {
    /// An unknown class byte, a malformed length of a known tag (002 §3, 003 §3).
    InvalidIntent = 1,
    /// Well-formed and impossible here; always with the rejection-reason TLV.
    InvalidArgs = 2,
    /// More than the resource has, or an exclusive resource already held.
    CapacityExceeded = 3,
    /// Held in a way that excludes this request, for now.
    ResourceBusy = 4,
    /// The lease or resource does not exist or is not the caller's: the answer is the same.
    NotFound = 5,
    /// The lease's term is over.
    Expired = 6,
    /// The lease was taken back.
    Revoked = 7,
    /// The resource is fenced.
    Fenced = 8,
    /// The caller's role does not allow this.
    NotPermitted = 9,
    /// Renewal before the window; carries `renewable_at_unix_ms`.
    RenewTooEarly = 10,
    /// A message, version or flag that this node does not speak.
    Unsupported = 11,
    /// Bytes that are not a message.
    Malformed = 12,
    /// The node failed, not the caller.
    Internal = 13,
    /// The node is going down or is too busy; try again or elsewhere.
    Unavailable = 14,
}

/// Whether asking again can help (001 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RefusalClass {
    /// Asking again never helps here.
    Permanent = 0,
    /// Asking again later can help.
    Transient = 1,
    /// The operator's policy forbids it.
    Policy = 2,
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
    /// 0x0A04: when the same request probably works, in milliseconds from now. An estimate.
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
