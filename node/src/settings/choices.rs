//! Settings that are one of a few words.

use clap::ValueEnum;
use fabricbios_wire::CpuIsolationClass;

/// How RDMA access is given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RdmaStrategy {
    /// Windows where the device has them, else regions.
    #[default]
    Auto,
    /// A type 2B memory window per queue pair, all over one registered arena.
    Window,
    /// A protection domain and a memory region per lease, for devices without windows.
    Region,
}

/// Whether a GPU may be shared (000, "Share Modes").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum GpuShareMode {
    /// One lease a GPU.
    #[default]
    Exclusive,
    /// Several, by VRAM.
    Fractional,
}

/// The kind of node, for its rules of admission (004).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// A CPU lease may have more cores than threads.
    #[default]
    Linux,
    /// A CPU lease has exactly as many cores as its execution width.
    BareMetal,
}

impl From<Profile> for fabricbios_lease::Profile {
    fn from(profile: Profile) -> Self {
        match profile {
            Profile::Linux => Self::Linux,
            Profile::BareMetal => Self::BareMetal,
        }
    }
}

/// What a stop of the daemon does with leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnStop {
    /// Each is cut and over.
    #[default]
    End,
    /// Each that would outlive a crash of the daemon stays.
    Keep,
}

/// Isolation of CPU leases that ask for none (002).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum CpuIsolationPolicy {
    /// Shares CPUs.
    #[value(alias = "BestEffort")]
    BestEffort,
    /// Physical cores of its own.
    #[default]
    #[value(alias = "WholeCore")]
    WholeCore,
    /// The same of one NUMA node with its memory, on a machine without SMT.
    #[value(name = "strict_isolated", aliases = ["strict", "StrictIsolated"])]
    Strict,
}

impl From<CpuIsolationPolicy> for CpuIsolationClass {
    fn from(policy: CpuIsolationPolicy) -> Self {
        match policy {
            CpuIsolationPolicy::BestEffort => Self::BestEffort,
            CpuIsolationPolicy::WholeCore => Self::WholeCore,
            CpuIsolationPolicy::Strict => Self::StrictIsolated,
        }
    }
}
