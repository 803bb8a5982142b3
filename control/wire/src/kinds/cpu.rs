//! Leases of CPU cores: the terms of a request (0x0902, 0x0908–0x090A) and the coordinates in an answer
//! (0x0601–0x0605). Reserved bytes fail closed, and so does a wrong length
//! (docs/spec/cpu-isolation-wire-format.md §4).

use alloc::{format, string::String, vec::Vec};
use core::ops::RangeInclusive;

use super::{Coordinates, Terms};
use crate::{
    Effective,
    names::words,
    read::Decoded,
    structured::entry,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

/// The tags of the kind.
pub(crate) mod tag {
    crate::tag::tags! {
        /// `u16, u16`: first and last number of a range. Further ranges follow in the same value.
        CPU_CPUS = 0x0601, "logical CPUs";
        /// ASCII, 1 to 512 bytes.
        CPU_CGROUP = 0x0602, "cgroup";
        /// `u8`, [`crate::CpuPartition`].
        CPU_PARTITION = 0x0603, "cpuset partition";
        /// As [`CPU_CPUS`].
        CPU_MEMORY_NODES = 0x0604, "NUMA nodes of memory";
        /// `u32, u32`: microseconds of CPU time in a period, microseconds of the period.
        CPU_QUOTA = 0x0605, "CPU quota";
        /// `u8`, [`crate::CpuIsolationClass`].
        LEASE_CPU_ISOLATION = 0x0902, "CPU isolation";
        /// `u8`, [`crate::CpuExecutionMode`].
        LEASE_CPU_EXECUTION_MODE = 0x0908, "CPU execution mode";
        /// `u16`, threads.
        LEASE_CPU_EXECUTION_WIDTH = 0x0909, "CPU execution width";
        /// `u8`, [`crate::CpuPartition`].
        LEASE_CPU_PARTITION = 0x090A, "CPU partition";
    }
}

/// Ranges in a list of CPUs or NUMA nodes: every second one of the 8,192 CPUs that Linux can have.
pub const CPU_RANGES_MAX: usize = 4_096;
/// Longest path of a cgroup, bytes.
pub const CPU_CGROUP_BYTES_MAX: usize = 512;

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

entry! {
    /// CPU capacity and topology.
    pub struct CpuCap, "cpu_caps" {
        /// Physical core groups that can be leased under the current policy; 0 if none are offered.
        cores: u16,
        /// Online logical CPUs.
        threads: u16,
        /// Highest frequency, MHz; 0 if unknown.
        max_mhz: u32,
        /// [`cpu_flags`].
        flags: u32,
        /// [`crate::health`].
        health: u32,
    }
}

/// Bits of [`CpuCap::flags`]. Bits 24..26 hold the policy in force. The source leaves their numbers open; here they are
/// the class byte plus one (0 = not stated).
pub mod cpu_flags {
    /// Can host tasklets.
    pub const TASKLET_HOST: u32 = 1 << 0;
    /// ARM NEON.
    pub const NEON: u32 = 1 << 1;
    /// CRC32 instructions.
    pub const CRC32: u32 = 1 << 2;
    /// Leases are enforced with topology-aware placement.
    pub const TOPOLOGY_AWARE_LEASING: u32 = 1 << 3;
    /// Bits 16..23: architecture.
    pub const ARCH_SHIFT: u32 = 16;
    /// AArch64 (000).
    pub const ARCH_AARCH64: u32 = 0x01;
    /// `x86_64` (ours: the source lists only `AArch64`).
    pub const ARCH_X86_64: u32 = 0x02;
    /// Bits 24..26: isolation policy, class byte plus one.
    pub const ISOLATION_SHIFT: u32 = 24;
    /// Sibling topology was detected for all online CPUs.
    pub const TOPOLOGY_COMPLETE: u32 = 1 << 27;
    /// A lease of more cores than the execution width is refused: `CPU_REJECTS_WIDE_SINGLE_THREADED` (004 §5; the
    /// source leaves the bit open).
    pub const REJECTS_WIDE_SINGLE_THREADED: u32 = 1 << 28;
}

/// The terms of a lease of CPU cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CpuTerms {
    /// 0x0902 (002). Absent: the node's policy chooses the class.
    pub isolation: Option<CpuIsolationClass>,
    /// 0x0908.
    pub execution_mode: Option<CpuExecutionMode>,
    /// 0x0909: threads that run at once. Absent: 1.
    pub execution_width: Option<u16>,
    /// 0x090A. Absent: the node chooses.
    pub partition: Option<CpuPartition>,
}

impl CpuTerms {
    /// Threads that run at once: 1 if not stated.
    #[must_use]
    pub fn width(&self) -> u16 {
        self.execution_width.unwrap_or(1)
    }
}

/// 0x0601–0x0605: where a lease of CPU cores runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CpuBinding {
    /// 0x0601: the logical CPUs, in ascending ranges that do not touch.
    pub cpus: Vec<CpuRange>,
    /// 0x0602: the path of the cgroup on the node.
    pub cgroup: String,
    /// 0x0603.
    pub partition: CpuPartition,
    /// 0x0604: the NUMA nodes of its memory, in ranges like `cpus`; empty if memory is not bound.
    pub memory_nodes: Vec<CpuRange>,
    /// 0x0605: microseconds of CPU time in a period, and the period in microseconds; absent without a cap.
    pub quota: Option<CpuQuota>,
}

/// A range of CPU or node numbers: the first and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CpuRange {
    /// The first number.
    pub first: u16,
    /// The last number, not less than the first.
    pub last: u16,
}

impl CpuRange {
    /// The ranges of these numbers, which may come in any order.
    #[must_use]
    pub fn of(numbers: impl IntoIterator<Item = u16>) -> Vec<Self> {
        let mut numbers: Vec<u16> = numbers.into_iter().collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut ranges: Vec<Self> = Vec::new();
        for number in numbers {
            match ranges.last_mut() {
                Some(range) if range.last + 1 == number => range.last = number,
                _ => ranges.push(Self {
                    first: number,
                    last: number,
                }),
            }
        }
        ranges
    }

    /// All numbers of the range.
    #[must_use]
    pub fn numbers(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl core::fmt::Display for CpuRange {
    /// The form of the kernel's lists: `3` or `4-7`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// 0x0605: a cap of CPU time (kernel, cgroup v2, `cpu.max`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CpuQuota {
    /// Microseconds of CPU time in each period.
    pub quota_us: u32,
    /// Length of a period, microseconds.
    pub period_us: u32,
}

impl Terms for CpuTerms {
    fn find(area: &TlvArea<'_>) -> Decoded<Self> {
        // `member` is refused in a request and in an answer: a lease that shares its CPUs has no partition.
        let own_partition =
            |byte| CpuPartition::from_byte(byte).filter(|it| *it != CpuPartition::Member);
        Ok(Self {
            isolation: area.read(tag::LEASE_CPU_ISOLATION, |tlv| {
                tlv.byte_of("class", "0 to 2", CpuIsolationClass::from_byte)
            })?,
            execution_mode: area.read(tag::LEASE_CPU_EXECUTION_MODE, |tlv| {
                tlv.byte_of("execution mode", "0 or 1", CpuExecutionMode::from_byte)
            })?,
            execution_width: area.read(tag::LEASE_CPU_EXECUTION_WIDTH, |tlv| {
                tlv.at_least_1("execution width")
            })?,
            partition: area.read(tag::LEASE_CPU_PARTITION, |tlv| {
                tlv.byte_of("partition", "1 or 2", own_partition)
            })?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.tlv_if(
            tag::LEASE_CPU_ISOLATION,
            self.isolation.map(|class| [class as u8]),
        );
        w.tlv_if(
            tag::LEASE_CPU_EXECUTION_MODE,
            self.execution_mode.map(|mode| [mode as u8]),
        );
        w.tlv_if(
            tag::LEASE_CPU_EXECUTION_WIDTH,
            self.execution_width.map(u16::to_be_bytes),
        );
        w.tlv_if(
            tag::LEASE_CPU_PARTITION,
            self.partition.map(|partition| [partition as u8]),
        );
    }

    fn amount(cores: u64) -> String {
        match cores {
            1 => "1 core".into(),
            _ => format!("{cores} cores"),
        }
    }

    fn find_effective(area: &TlvArea<'_>, effective: &mut Effective) -> Decoded<()> {
        let terms = Self::find(area)?;
        effective.cpu_isolation = terms.isolation;
        effective.cpu_execution_mode = terms.execution_mode;
        effective.cpu_execution_width = terms.execution_width;
        effective.cpu_partition = terms.partition;
        Ok(())
    }

    fn write_effective(effective: &Effective, w: &mut Writer) {
        let terms = Self {
            isolation: effective.cpu_isolation,
            execution_mode: effective.cpu_execution_mode,
            execution_width: effective.cpu_execution_width,
            partition: effective.cpu_partition,
        };
        terms.write(w);
    }
}

impl Coordinates for CpuBinding {
    const TAGS: RangeInclusive<u16> = tag::CPU_CPUS..=tag::CPU_QUOTA;

    fn read(area: &TlvArea<'_>) -> Decoded<Self> {
        Ok(Self {
            cpus: area.require(tag::CPU_CPUS, |tlv| match read_ranges(tlv)? {
                ranges if ranges.is_empty() => Err(tlv.wrong_length("at least 4 bytes".into())),
                ranges => Ok(ranges),
            })?,
            cgroup: area.require(tag::CPU_CGROUP, |tlv| {
                tlv.word(CPU_CGROUP_BYTES_MAX).map(String::from)
            })?,
            partition: area.require(tag::CPU_PARTITION, |tlv| {
                tlv.byte_of("partition", "0 to 2", CpuPartition::from_byte)
            })?,
            memory_nodes: area
                .read(tag::CPU_MEMORY_NODES, read_ranges)?
                .unwrap_or_default(),
            quota: area.read(tag::CPU_QUOTA, read_quota)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.tlv(tag::CPU_CPUS, &ranges_value(&self.cpus));
        w.tlv(tag::CPU_CGROUP, self.cgroup.as_bytes());
        w.tlv(tag::CPU_PARTITION, &[self.partition as u8]);
        if !self.memory_nodes.is_empty() {
            w.tlv(tag::CPU_MEMORY_NODES, &ranges_value(&self.memory_nodes));
        }
        w.tlv_if(
            tag::CPU_QUOTA,
            self.quota
                .map(|it| (u64::from(it.quota_us) << 32 | u64::from(it.period_us)).to_be_bytes()),
        );
    }
}

fn read_ranges(tlv: &Tlv<'_>) -> Decoded<Vec<CpuRange>> {
    let (ranges, rest) = tlv.value.as_chunks::<4>();
    if !rest.is_empty() || ranges.len() > CPU_RANGES_MAX {
        return Err(tlv.wrong_length("at most 4096 ranges of 4 bytes".into()));
    }
    let ranges: Vec<CpuRange> = ranges
        .iter()
        .map(|&[f0, f1, l0, l1]| CpuRange {
            first: u16::from_be_bytes([f0, f1]),
            last: u16::from_be_bytes([l0, l1]),
        })
        .collect();
    let is_a_range = |range: &CpuRange| range.first <= range.last;
    // A gap of at least one number between two ranges.
    let is_apart = |pair: &[CpuRange]| match pair {
        [one, two] => u32::from(one.last) + 1 < u32::from(two.first),
        _ => true,
    };
    if !ranges.iter().all(is_a_range) || !ranges.windows(2).all(is_apart) {
        return Err(tlv.unknown_value(0, "ranges", "ascending ranges that do not touch", "others"));
    }
    Ok(ranges)
}

fn read_quota(tlv: &Tlv<'_>) -> Decoded<CpuQuota> {
    let [q0, q1, q2, q3, p0, p1, p2, p3] = tlv.fixed()?;
    let quota = CpuQuota {
        quota_us: u32::from_be_bytes([q0, q1, q2, q3]),
        period_us: u32::from_be_bytes([p0, p1, p2, p3]),
    };
    match quota {
        CpuQuota { quota_us: 0, .. } => Err(tlv.unknown_value(0, "quota", "at least 1", 0)),
        CpuQuota { period_us: 0, .. } => Err(tlv.unknown_value(4, "period", "at least 1", 0)),
        quota => Ok(quota),
    }
}

fn ranges_value(ranges: &[CpuRange]) -> Vec<u8> {
    let value = |range: &CpuRange| [range.first.to_be_bytes(), range.last.to_be_bytes()].concat();
    ranges.iter().flat_map(value).collect()
}
