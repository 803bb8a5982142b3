//! The words for every value: for people and for JSON, with the number on the wire.

use alloc::string::String;
use core::{fmt, str::FromStr};

use crate::{
    CpuExecutionMode, CpuIsolationClass, CpuPartition, DataOp, DataStatus, EndCause, Enforcement,
    GpuExclusivityClass, GpuExecutionMode, GpuVendor, HandOver, InventoryForm, KvCacheTier,
    LeaseError, LeasePhase, LeaseStatus, MessageType, NvmeofTransport, RdmaStrategy, RefusalClass,
    RevokeOutcome, Role, Transport, readable::readable,
};

/// The error of a text that is no known word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseNameError {
    /// The kind of value that was expected.
    pub kind: &'static str,
    /// The known words.
    pub expected: &'static [&'static str],
    /// The text.
    pub got: String,
}

impl fmt::Display for ParseNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a {}: expected one of", self.got, self.kind)?;
        self.expected
            .iter()
            .try_for_each(|word| write!(f, " {word}"))
    }
}

impl core::error::Error for ParseNameError {}

/// Each line: number, variant, word, other accepted spellings.
macro_rules! words {
    ($type:ident, $kind:literal, $repr:ident, $from:ident:
     $($number:literal $variant:ident $word:literal $(| $alias:literal)*;)*) => {
        impl $type {
            /// All values, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The value of a number; `None` if the number is unknown.
            #[must_use]
            pub fn $from(number: $repr) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The word of the value.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = ParseNameError;

            fn from_str(text: &str) -> Result<Self, ParseNameError> {
                match text {
                    $($word $(| $alias)* => Ok(Self::$variant),)*
                    _ => Err(ParseNameError {
                        kind: $kind,
                        expected: &[$($word),*],
                        got: String::from(text),
                    }),
                }
            }
        }

        readable!($type, $repr, |it| *it as $repr, Self::$from);
    };
}

words! { CpuIsolationClass, "CPU isolation class", u8, from_byte:
    0 BestEffort "best_effort" | "BestEffort";
    1 WholeCore "whole_core" | "WholeCore";
    2 StrictIsolated "strict_isolated" | "strict" | "StrictIsolated";
}

words! { Enforcement, "enforcement", u8, from_byte:
    0 BestEffort "best_effort";
    1 Enforced "enforced";
}

words! { CpuExecutionMode, "CPU execution mode", u8, from_byte:
    0 SingleThreaded "single_threaded" | "SingleThreaded";
    1 SharedMemory "shared_memory" | "SharedMemory";
}

words! { CpuPartition, "cpuset partition", u8, from_byte:
    0 Member "member";
    1 Root "root";
    2 Isolated "isolated";
}

words! { HandOver, "hand-over", u8, from_byte:
    0 Interface "interface";
    1 Netns "netns";
    2 Vfio "vfio";
}

words! { GpuExclusivityClass, "GPU exclusivity class", u8, from_byte:
    0 Shared "shared" | "Shared";
    1 SessionExclusive "session" | "session_exclusive" | "SessionExclusive";
    2 DeviceExclusive "device" | "device_exclusive" | "DeviceExclusive";
    3 PartitionExclusive "partition" | "partition_exclusive" | "PartitionExclusive";
}

words! { GpuExecutionMode, "GPU execution mode", u8, from_byte:
    0 OneShot "one_shot" | "OneShot";
    1 Session "session" | "Session";
}

words! { GpuVendor, "GPU vendor", u8, from_byte:
    0 Nvidia "nvidia";
    1 Amd "amd";
}

words! { Transport, "transport", u8, from_byte:
    0 Auto "auto";
    1 Rdma "rdma";
    2 Udp "udp";
    3 Both "both";
    4 NvmeTcp "nvme-tcp";
    5 NvmeRdma "nvme-rdma";
}

words! { NvmeofTransport, "NVMe-oF transport", u8, from_trtype:
    1 Rdma "rdma";
    3 Tcp "tcp";
}

words! { KvCacheTier, "KV cache tier", u8, from_byte:
    0 Hot "hot";
    1 Warm "warm";
    2 Cold "cold";
}

words! { LeaseStatus, "lease status", u8, from_byte:
    0 Active "active";
    1 Expired "expired";
    2 Revoked "revoked";
}

words! { LeasePhase, "lease phase", u8, from_byte:
    0 Binding "binding";
    1 Active "active";
    2 Grace "grace";
    3 Expired "expired";
    4 Revoked "revoked";
    5 Freed "freed";
    6 Fenced "fenced";
}

words! { EndCause, "cause of an end", u8, from_byte:
    0 Expired "expired";
    1 Freed "freed";
    2 Revoked "revoked";
    3 NodeStopped "node_stopped";
    4 NodeRestarted "node_restarted";
    5 KeyNotRetired "key_not_retired";
    6 BindingFailed "binding_failed";
    7 Displaced "displaced";
}

words! { RdmaStrategy, "RDMA strategy", u8, from_byte:
    0 Window "window";
    1 Region "region";
}

words! { DataOp, "data-plane operation", u8, from_byte:
    1 Hello "hello";
    2 Read "read";
    3 Write "write";
    4 Ping "ping";
    5 Flush "flush";
}

words! { DataStatus, "data-plane status", u8, from_byte:
    0 Ok "OK";
    1 NoLease "NO_LEASE";
    2 Invalid "INVALID";
    3 Range "RANGE";
    4 Replay "REPLAY";
    5 Fenced "FENCED";
    6 TooOld "TOO_OLD";
    7 Busy "BUSY";
    8 ReadOnly "BLOCK_RO";
    9 Io "IO";
}

words! { RefusalClass, "refusal class", u8, from_byte:
    0 Permanent "permanent";
    1 Transient "transient";
    2 Policy "policy";
}

words! { RevokeOutcome, "revoke outcome", u8, from_byte:
    0 TornDown "torn_down";
    1 Fenced "fenced";
    2 NotFound "not_found";
}

words! { Role, "role", u8, from_byte:
    0 Tenant "tenant";
    1 Operator "operator";
}

words! { InventoryForm, "inventory form", u8, from_byte:
    0 Flat "flat";
    1 Structured "structured";
}

words! { LeaseError, "status", u16, from_code:
    1 InvalidIntent "InvalidIntent";
    2 InvalidArgs "InvalidArgs";
    3 CapacityExceeded "CapacityExceeded";
    4 ResourceBusy "ResourceBusy";
    5 NotFound "NotFound";
    6 Expired "Expired";
    7 Revoked "Revoked";
    8 Fenced "Fenced";
    9 NotPermitted "NotPermitted";
    10 RenewTooEarly "RenewTooEarly";
    11 Unsupported "Unsupported";
    12 Malformed "Malformed";
    13 Internal "Internal";
    14 Unavailable "Unavailable";
}

words! { MessageType, "message type", u16, from_code:
    0x0001 Ping "PING";
    0x0002 GetIdentity "GET_IDENTITY";
    0x0100 GetInventory "GET_INVENTORY";
    0x0200 LeaseAlloc "LEASE_ALLOC";
    0x0201 LeaseRenew "LEASE_RENEW";
    0x0202 LeaseQuery "LEASE_QUERY";
    0x0203 LeaseFree "LEASE_FREE";
    0x0204 LeaseList "LEASE_LIST";
    0x0205 LeaseBind "LEASE_BIND";
    0x0206 LeaseRotate "LEASE_ROTATE";
    0x020A LeaseRevoke "LEASE_REVOKE";
    0x0300 FenceList "FENCE_LIST";
    0x0301 FenceClear "FENCE_CLEAR";
    0x0400 IdentityIssue "IDENTITY_ISSUE";
}
