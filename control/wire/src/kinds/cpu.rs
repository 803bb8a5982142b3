//! Leases of CPU cores: the terms of a request (0x0902, 0x0908–0x090A) and the coordinates in an answer
//! (0x0601–0x0605). Reserved bytes fail closed, and so does a wrong length
//! (docs/spec/cpu-isolation-wire-format.md §4).

use alloc::{string::String, vec::Vec};
use core::ops::RangeInclusive;

use super::{Coordinates, Terms};
use crate::{
    CPU_CGROUP_BYTES_MAX, CPU_RANGES_MAX, CpuExecutionMode, CpuIsolationClass, CpuPartition,
    Effective,
    read::Decoded,
    tag,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

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
