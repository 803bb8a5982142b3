//! Classes of isolation from other workloads (002, 003). Reserved bytes fail closed: they decode to
//! an error, never to the nearest class.

/// CPU isolation, value of `TLV_LEASE_CPU_ISOLATION` (002 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum CpuIsolationClass {
    /// No pinning beyond a quota; SMT siblings may be split.
    BestEffort = 0,
    /// Whole physical cores; no sibling is shared.
    WholeCore = 1,
    /// `WholeCore` plus topology and NUMA constraints.
    StrictIsolated = 2,
}

/// GPU exclusivity, value of `TLV_LEASE_GPU_EXCLUSIVITY` (003 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum GpuExclusivityClass {
    /// The device may multiplex other tenants.
    Shared = 0,
    /// Exclusive residency for the life of a session.
    SessionExclusive = 1,
    /// The whole device for the life of the lease.
    DeviceExclusive = 2,
    /// Reserved by the specification for partition mode.
    PartitionExclusive = 3,
}
