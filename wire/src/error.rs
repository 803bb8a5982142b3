//! What was wrong with bytes: where, which tag, what was expected, what came, and whose word the
//! specification has for it.

use alloc::{borrow::Cow, format, string::ToString};
use core::fmt;

use crate::{Header, LeaseError, Refusal, RefusalClass, tag};

/// Why bytes were not taken. Decides the status word of the refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecodeFault {
    /// Not a message: truncated, over-long, trailing bytes, lengths that cannot be.
    Malformed,
    /// A version, flag or message type that is not spoken here.
    Unsupported,
    /// A known tag with a wrong length, an unknown value, or given twice (002 §3, 003 §3).
    InvalidIntent,
    /// A field that is well-formed and cannot be meant, such as a lease id of zero.
    InvalidArgs,
}

/// One reason, as precise as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Whose word the specification has for it.
    pub fault: DecodeFault,
    /// Bytes from the start of the frame, or of the form when it was decoded by itself.
    pub offset: usize,
    /// Of which TLV, if of one.
    pub tag: Option<u16>,
    /// Which field.
    pub field: &'static str,
    /// What would have been taken.
    pub expected: Cow<'static, str>,
    /// What came.
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

/// A frame that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The frame's header, to answer to. Absent when fewer than 20 bytes came. With an unknown
    /// version it holds what version 0 has at those places.
    pub header: Option<Header>,
    /// Why.
    pub error: DecodeError,
}

impl Rejected {
    /// What a node answers. The same bytes never become right, so it is permanent.
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

/// "4 bytes", for the two sides of an error.
pub(crate) fn bytes(count: usize) -> Cow<'static, str> {
    Cow::Owned(format!("{count} bytes"))
}

/// A number, for the side of an error that says what came.
pub(crate) fn number(value: impl ToString) -> Cow<'static, str> {
    Cow::Owned(value.to_string())
}
