//! Errors of decoding: the place, the tag, the expected and the received value, and the fault as the specification
//! names it.

use alloc::{borrow::Cow, format, string::ToString};
use core::fmt;

use crate::{Header, LeaseError, Refusal, RefusalClass, tag};

/// The class of a decoding error. Decides the status word of the refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecodeFault {
    /// Not a message: truncated, too long, trailing bytes, or impossible lengths.
    Malformed,
    /// An unknown version, flag or message type.
    Unsupported,
    /// A known tag with a wrong length, an unknown value, or given twice (002 §3, 003 §3).
    InvalidIntent,
    /// A well-formed field with an impossible value, such as a lease id of zero.
    InvalidArgs,
}

/// One decoding error, with all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// The class of the error.
    pub fault: DecodeFault,
    /// Bytes from the start of the frame, or of the part that was decoded by itself.
    pub offset: usize,
    /// The tag of the TLV, if the error is in one.
    pub tag: Option<u16>,
    /// The field.
    pub field: &'static str,
    /// The expected value.
    pub expected: Cow<'static, str>,
    /// The received value.
    pub got: Cow<'static, str>,
}

impl DecodeError {
    /// The status that a node answers with.
    #[must_use]
    pub fn lease_error(&self) -> LeaseError {
        match self.fault {
            DecodeFault::Malformed => LeaseError::Malformed,
            DecodeFault::Unsupported => LeaseError::Unsupported,
            DecodeFault::InvalidIntent => LeaseError::InvalidIntent,
            DecodeFault::InvalidArgs => LeaseError::InvalidArgs,
        }
    }

    fn advice(&self) -> &'static str {
        match self.fault {
            DecodeFault::Malformed => "send a frame as fabricbios-wire-encoding-v0 lays it out",
            DecodeFault::Unsupported => "use protocol version 0 and a message that it defines",
            DecodeFault::InvalidIntent => "leave the tag out or give it a defined value once",
            DecodeFault::InvalidArgs => "correct the field",
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}", self.offset)?;
        if let Some(tag) = self.tag {
            write!(
                f,
                ", tag 0x{tag:04x} ({})",
                tag::name(tag).unwrap_or("unknown")
            )?;
        }
        write!(
            f,
            ", {}: expected {}, got {}",
            self.field, self.expected, self.got
        )
    }
}

impl core::error::Error for DecodeError {}

/// A refused frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The header of the frame, for the answer. Absent if the frame has fewer than 20 bytes. The header of
    /// an unknown version is read like one of version 0.
    pub header: Option<Header>,
    /// The error.
    pub error: DecodeError,
}

impl Rejected {
    /// The refusal that a node sends. It is permanent: the same bytes never become valid.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        let message = format!("{}; {}", self.error, self.error.advice());
        Refusal::new(self.error.lease_error(), RefusalClass::Permanent, message)
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.error.lease_error(), self.error)
    }
}

impl core::error::Error for Rejected {}

/// Text such as "4 bytes", for an error.
pub(crate) fn bytes(count: usize) -> Cow<'static, str> {
    Cow::Owned(format!("{count} bytes"))
}

/// The text of a received number, for an error.
pub(crate) fn number(value: impl ToString) -> Cow<'static, str> {
    Cow::Owned(value.to_string())
}
