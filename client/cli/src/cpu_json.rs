//! The JSON of the binding of CPU cores.

use fabricbios_wire::{CpuBinding, CpuRange};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct CpuJson<'a> {
    cpus: String,
    cgroup: &'a str,
    partition: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    memory_nodes: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<QuotaJson>,
}

#[derive(Debug, Serialize)]
struct QuotaJson {
    quota_us: u32,
    period_us: u32,
}

impl<'a> From<&'a CpuBinding> for CpuJson<'a> {
    fn from(binding: &'a CpuBinding) -> Self {
        Self {
            cpus: list(&binding.cpus),
            cgroup: &binding.cgroup,
            partition: binding.partition.name(),
            memory_nodes: list(&binding.memory_nodes),
            quota: binding.quota.map(|it| QuotaJson {
                quota_us: it.quota_us,
                period_us: it.period_us,
            }),
        }
    }
}

/// The numbers as the kernel writes them: `2-3,6`.
pub(crate) fn list(ranges: &[CpuRange]) -> String {
    let ranges: Vec<String> = ranges.iter().map(CpuRange::to_string).collect();
    ranges.join(",")
}
