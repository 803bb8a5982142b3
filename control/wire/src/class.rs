//! Classes of isolation from other workloads (002, 003). Reserved bytes fail closed: they decode to
//! an error, never to the nearest class.

use crate::names::words;

words! {
    /// CPU isolation, value of `TLV_LEASE_CPU_ISOLATION` (002 §2.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum CpuIsolationClass: u8, "CPU isolation class", from_byte {
        /// No pinning beyond a quota; SMT siblings may be split.
        BestEffort = 0, "best_effort" | "BestEffort";
        /// Whole physical cores; no sibling is shared.
        WholeCore = 1, "whole_core" | "WholeCore";
        /// `WholeCore` plus topology and NUMA constraints.
        StrictIsolated = 2, "strict_isolated" | "strict" | "StrictIsolated";
    }
}

words! {
    /// Whether a class or a rate is enforced. Value of 0x090B, and of each class in 0x0B06.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Enforcement: u8, "enforcement", from_byte {
        /// The node has asked its system for it and cannot prove that it is enforced.
        BestEffort = 0, "best_effort";
        /// The node enforces it.
        Enforced = 1, "enforced";
    }
}

words! {
    /// How a workload runs on its cores (001, execution mode). Value of 0x0908.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum CpuExecutionMode: u8, "CPU execution mode", from_byte {
        /// One thread.
        SingleThreaded = 0, "single_threaded" | "SingleThreaded";
        /// Several threads that share memory, as many as the execution width.
        SharedMemory = 1, "shared_memory" | "SharedMemory";
    }
}

words! {
    /// The cpuset partition of a lease (kernel, cgroup v2, `cpuset.cpus.partition`). Value of 0x0603 and 0x090A.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum CpuPartition: u8, "cpuset partition", from_byte {
        /// No partition: the CPUs are shared.
        Member = 0, "member";
        /// A scheduling domain of its own, with load balancing.
        Root = 1, "root";
        /// No load balancing: each thread stays on the CPU that it is on.
        Isolated = 2, "isolated";
    }
}

words! {
    /// GPU exclusivity, value of `TLV_LEASE_GPU_EXCLUSIVITY` (003 §2.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum GpuExclusivityClass: u8, "GPU exclusivity class", from_byte {
        /// The device may multiplex other tenants.
        Shared = 0, "shared" | "Shared";
        /// Exclusive residency for the life of a session.
        SessionExclusive = 1, "session" | "session_exclusive" | "SessionExclusive";
        /// The whole device for the life of the lease.
        DeviceExclusive = 2, "device" | "device_exclusive" | "DeviceExclusive";
        /// Reserved by the specification for partition mode.
        PartitionExclusive = 3, "partition" | "partition_exclusive" | "PartitionExclusive";
    }
}

words! {
    /// How a lease of a GPU is used (001 §5.2). Value of 0x090C.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum GpuExecutionMode: u8, "GPU execution mode", from_byte {
        /// Everything that a stream has made is wiped and freed at its end.
        OneShot = 0, "one_shot" | "OneShot";
        /// Memory and modules stay until the session is closed or the lease ends.
        Session = 1, "session" | "Session";
    }
}

words! {
    /// The maker of a GPU, whose libraries use it. Value of 0x0502.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum GpuVendor: u8, "GPU vendor", from_byte {
        /// NVIDIA: CUDA.
        Nvidia = 0, "nvidia";
        /// AMD: ROCm.
        Amd = 1, "amd";
    }
}
