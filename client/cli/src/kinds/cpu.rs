//! CPU cores.

use clap::Args;
use fabricbios_client::{Node, Resource, cpu_list};
use fabricbios_wire::{
    CpuBinding, CpuCap, CpuExecutionMode, CpuIsolationClass, CpuPartition, CpuTerms, Effective,
    LeaseAllocRequest, LeaseInfo, cpu_flags,
};

use super::{Face, words};
use crate::{
    args::{NoGrace, Term},
    commands::request_of,
    failure::Failure,
    json::{Field, Object, field},
    lease_text::{named, row},
    output::one_line,
    values::{self, BadValue},
};

/// CPU cores of the node, for processes there
#[derive(Args, Debug)]
pub(crate) struct Alloc {
    /// The number of cores. For undisturbed cores ask for --isolation and not for more cores
    #[arg(long, value_name = "N", value_parser = values::count)]
    cores: u16,
    #[command(flatten)]
    term: Term,
    /// best_effort: shares CPUs; whole_core: physical cores of its own; strict_isolated: physical
    /// cores of one NUMA node, with memory of that node, on a machine without SMT. The node's policy if not given, see
    /// `fabricctl inventory`
    #[arg(long, value_name = "CLASS")]
    isolation: Option<CpuIsolationClass>,
    /// single_threaded or shared_memory
    #[arg(long, value_name = "MODE")]
    execution_mode: Option<CpuExecutionMode>,
    /// Threads that run at once, 1 if not given; on a bare-metal node, the number of cores
    #[arg(long, value_name = "N", value_parser = values::count)]
    execution_width: Option<u16>,
    /// root: the kernel balances load over the cores; isolated: each thread stays on its core.
    /// The node chooses if not given
    #[arg(long, value_name = "PARTITION", value_parser = partition)]
    partition: Option<CpuPartition>,
    #[command(flatten)]
    no_grace: NoGrace,
}

impl Alloc {
    pub(super) fn request(self, node: &Node) -> Result<LeaseAllocRequest, Failure> {
        let terms = CpuTerms {
            isolation: self.isolation,
            execution_mode: self.execution_mode,
            execution_width: self.execution_width,
            partition: self.partition,
        };
        request_of(node, terms, self.cores.into(), self.term)
    }
}

/// The partition of a lease with CPUs of its own.
fn partition(text: &str) -> Result<CpuPartition, BadValue> {
    let partition = text.parse().ok().filter(|it| *it != CpuPartition::Member);
    partition.ok_or_else(|| "write root or isolated".into())
}

pub(super) struct Cpu;

impl Face for Cpu {
    fn enforced(&self, effective: &Effective) -> Vec<Option<String>> {
        vec![
            named("cpu isolation", effective.cpu_isolation),
            named("execution mode", effective.cpu_execution_mode),
            named("execution width", effective.cpu_execution_width),
            named("cpuset partition", effective.cpu_partition),
        ]
    }

    fn rows(&self, info: &LeaseInfo) -> Vec<Vec<String>> {
        info.binding.cpu().map_or_else(Vec::new, rows)
    }

    fn how_to_use(&self, info: &LeaseInfo) -> Option<String> {
        info.binding.cpu()?;
        let lease_id = info.lease_id;
        Some(format!(
            "on the node, if it has a local socket: `fabricctl run --lease {lease_id} -- COMMAND`"
        ))
    }

    fn runs_commands(&self) -> bool {
        true
    }

    fn class(&self, byte: u8) -> Option<&'static str> {
        CpuIsolationClass::from_byte(byte).map(CpuIsolationClass::name)
    }

    fn flags(&self, resource: &Resource) -> Vec<&'static str> {
        const FLAGS: [(u32, &str); 6] = [
            (cpu_flags::TASKLET_HOST, "tasklet-host"),
            (cpu_flags::NEON, "neon"),
            (cpu_flags::CRC32, "crc32"),
            (cpu_flags::TOPOLOGY_COMPLETE, "topology-complete"),
            (cpu_flags::TOPOLOGY_AWARE_LEASING, "topology-aware-leasing"),
            (
                cpu_flags::REJECTS_WIDE_SINGLE_THREADED,
                "rejects-wide-single-threaded",
            ),
        ];
        words(resource.cpu.map_or(0, |cpu| cpu.flags), &FLAGS)
    }

    fn capacity(&self, resource: &Resource) -> Vec<String> {
        let Some(cpu) = resource.cpu else {
            return Vec::new();
        };
        let mut parts = vec![format!("{} threads online", cpu.threads)];
        parts.extend(arch(&cpu).map(str::to_owned));
        parts.extend(max_mhz(&cpu).map(|mhz| format!("up to {mhz} MHz")));
        parts
    }

    fn resource_json(&self, resource: &Resource) -> Vec<Field<'static>> {
        let cpu = resource.cpu.map(|cpu| {
            Object::from([
                field("threads", cpu.threads),
                field("max_mhz", max_mhz(&cpu)),
                field("arch", arch(&cpu)),
            ])
        });
        vec![field("cpu", cpu)]
    }
}

fn rows(cpu: &CpuBinding) -> Vec<Vec<String>> {
    let mut rows = vec![row("cpus", cpu_list(&cpu.cpus))];
    if let Some(quota) = cpu.quota {
        let cpus = f64::from(quota.quota_us) / f64::from(quota.period_us);
        rows.push(row(
            "",
            format!("shared; at most the time of {cpus:.2} CPUs"),
        ));
    }
    if !cpu.memory_nodes.is_empty() {
        rows.push(row(
            "",
            format!("memory of NUMA node {}", cpu_list(&cpu.memory_nodes)),
        ));
    }
    let cgroup = one_line(&cpu.cgroup);
    rows.push(row(
        "cgroup",
        format!("{cgroup}, partition {}", cpu.partition),
    ));
    rows
}

/// `None` if the node does not know it.
fn max_mhz(cpu: &CpuCap) -> Option<u32> {
    Some(cpu.max_mhz).filter(|mhz| *mhz != 0)
}

fn arch(cpu: &CpuCap) -> Option<&'static str> {
    match cpu.flags >> cpu_flags::ARCH_SHIFT & 0xff {
        cpu_flags::ARCH_AARCH64 => Some("aarch64"),
        cpu_flags::ARCH_X86_64 => Some("x86_64"),
        _ => None,
    }
}
