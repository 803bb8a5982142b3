//! CPU cores.

use fabricbios_wire::{
    Binding, CpuBinding, CpuExecutionMode, CpuIsolationClass, CpuPartition, CpuRange, CpuTerms,
    Effective, LeaseInfo, ResourceInventory,
};

use super::{Kind as _, sealed::Sealed};
use crate::{
    Builder, Error, Lease,
    inventory::Entries,
    json::{Field, Object, field},
    unmet::Missing,
};

/// CPU cores, for processes that already run on the node.
#[derive(Clone, Copy, Debug)]
pub enum Cores {}

/// Requests a lease of CPU cores.
///
/// ```compile_fail,E0599
/// fabricbios_client::CpuBuilder::new().bytes(1);
/// ```
pub type CpuBuilder = Builder<Cores>;

/// A lease of CPU cores.
pub type CpuLease = Lease<Cores>;

impl Sealed for Cores {
    type Terms = CpuTerms;
    const SIZED_BY: &'static str = "cores()";

    fn check(terms: &CpuTerms) -> Result<(), Error> {
        match terms.execution_width {
            Some(0) => Err(Error::Usage("an execution width is at least 1".to_owned())),
            _ => Ok(()),
        }
    }

    fn unmet(terms: &CpuTerms, _capacity: u64, info: &LeaseInfo, missing: &mut Missing) {
        let effective = &info.effective;
        missing.asked("CPU isolation", terms.isolation, |class| {
            effective.cpu_isolation >= Some(class)
        });
        missing.asked("execution mode", terms.execution_mode, |mode| {
            effective.cpu_execution_mode == Some(mode)
        });
        missing.asked("execution width", terms.execution_width, |width| {
            effective.cpu_execution_width == Some(width)
        });
        missing.asked("cpuset partition", terms.partition, |partition| {
            effective.cpu_partition == Some(partition)
        });
    }

    fn entries(structured: &ResourceInventory, entries: &mut Entries) {
        for cores in &structured.cpu_caps {
            let entry = (cores.resource_id, cores.cores.into(), cores.health);
            entries.add(Self::TYPE, entry, |it| it.cpu = Some(*cores));
        }
    }

    fn terms_json(it: &Effective) -> Vec<Field<'static>> {
        let mode = it.cpu_execution_mode.map(CpuExecutionMode::name);
        vec![
            field(
                "cpu_isolation",
                it.cpu_isolation.map(CpuIsolationClass::name),
            ),
            field("cpu_execution_mode", mode),
            field("cpu_execution_width", it.cpu_execution_width),
            field("cpu_partition", it.cpu_partition.map(CpuPartition::name)),
        ]
    }

    fn binding_json(binding: &Binding) -> Vec<Field<'_>> {
        vec![field("cpu", binding.cpu().map(json))]
    }
}

impl CpuBuilder {
    /// Sets the number of cores. This or [`CpuBuilder::single_core`] is required.
    pub fn cores(mut self, cores: u16) -> Self {
        self.request.capacity = cores.into();
        self
    }

    /// One core. For one thread that nobody disturbs, add [`CpuBuilder::isolation`] and not further cores.
    pub fn single_core(self) -> Self {
        self.cores(1)
    }

    /// Sets the isolation from other leases; the policy of the node by default.
    pub fn isolation(mut self, policy: CpuIsolationClass) -> Self {
        self.terms.isolation = Some(policy);
        self
    }

    /// States whether one thread will run, or several that share memory.
    pub fn execution_mode(mut self, mode: CpuExecutionMode) -> Self {
        self.terms.execution_mode = Some(mode);
        self
    }

    /// States how many threads will run at once; 1 by default. A bare-metal node refuses any other number of cores.
    pub fn execution_width(mut self, threads: u16) -> Self {
        self.terms.execution_width = Some(threads);
        self
    }

    /// Sets the cpuset partition of a lease with CPUs of its own; the node chooses by default.
    pub fn partition(mut self, partition: CpuPartition) -> Self {
        self.terms.partition = Some(partition);
        self
    }
}

fn json(binding: &CpuBinding) -> Object<'_> {
    let nodes = Some(cpu_list(&binding.memory_nodes)).filter(|nodes| !nodes.is_empty());
    let quota = binding.quota.map(|it| {
        Object::from([
            field("quota_us", it.quota_us),
            field("period_us", it.period_us),
        ])
    });
    Object::from([
        field("cpus", cpu_list(&binding.cpus)),
        field("cgroup", &*binding.cgroup),
        field("partition", binding.partition.name()),
        field("memory_nodes", nodes),
        field("quota", quota),
    ])
}

/// The numbers as the kernel writes them: `2-3,6`.
#[must_use]
pub fn cpu_list(ranges: &[CpuRange]) -> String {
    let ranges: Vec<String> = ranges.iter().map(CpuRange::to_string).collect();
    ranges.join(",")
}
