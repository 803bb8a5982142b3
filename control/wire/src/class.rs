//! Classes of isolation from other workloads (002, 003). Reserved bytes fail closed: they decode to
//! an error, never to the nearest class.

/// CPU isolation, value of `TLV_LEASE_CPU_ISOLATION` (002 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CpuIsolationClass {
    /// No pinning beyond a quota; SMT siblings may be split.
    BestEffort = 0,
    /// Whole physical cores; no sibling is shared.
    WholeCore = 1,
    /// `WholeCore` plus topology and NUMA constraints.
    StrictIsolated = 2,
}

/// Whether a class or a rate is enforced. Value of 0x090B, and of each class in 0x0B06.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Enforcement {
    /// The node has asked its system for it and cannot prove that it is enforced.
    BestEffort = 0,
    /// The node enforces it.
    Enforced = 1,
}

/// How a workload runs on its cores (001, execution mode). Value of 0x0908.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CpuExecutionMode {
    /// One thread.
    SingleThreaded = 0,
    /// Several threads that share memory, as many as the execution width.
    SharedMemory = 1,
}

/// The cpuset partition of a lease (kernel, cgroup v2, `cpuset.cpus.partition`). Value of 0x0603 and 0x090A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CpuPartition {
    /// No partition: the CPUs are shared.
    Member = 0,
    /// A scheduling domain of its own, with load balancing.
    Root = 1,
    /// No load balancing: each thread stays on the CPU that it is on.
    Isolated = 2,
}

/// GPU exclusivity, value of `TLV_LEASE_GPU_EXCLUSIVITY` (003 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// How a lease of a GPU is used (001 §5.2). Value of 0x090C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum GpuExecutionMode {
    /// Everything that a stream has made is wiped and freed at its end.
    OneShot = 0,
    /// Memory and modules stay until the session is closed or the lease ends.
    Session = 1,
}

/// The maker of a GPU, whose libraries use it. Value of 0x0502.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum GpuVendor {
    /// NVIDIA: CUDA.
    Nvidia = 0,
    /// AMD: ROCm.
    Amd = 1,
}
