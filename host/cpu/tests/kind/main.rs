//! Store and path without a node, on an imitation of the kernel.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cut;
mod entry;
mod grant;
mod kernel;
mod suite;
mod watch;

use std::{
    collections::BTreeSet,
    ops::Deref,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

use fabricbios_cgroup::end_processes;
use fabricbios_contract::{
    Caller, DataPath, EndByName, Given, LocalAccess, LocalRefusal, Store,
    testing::{self, Calls, EndedByName, Entered, Faulty, Fixture, Watching, user_of},
};
use fabricbios_cpu::{CpuConfig, CpuEnd, CpuPath, CpuStore, Limits, Root, Topology, Wanted};
use fabricbios_lease::{
    BindError, BindOrder, BindingId, BootTime, Condition, Linger, Placement, StepError,
};
use fabricbios_wire::{
    Binding, CpuBinding, CpuIsolationClass, CpuPartition, CpuQuota, CpuTerms, Generation, LeaseId,
    ResourceId, Transport,
};
use kernel::{Kernel, Process};
use suite::Machine;

const CPUS: ResourceId = ResourceId(3);
const ROOT: &str = "nodes/fb";
const CONTROLLERS: &str = "cpuset cpu memory pids";
/// Limits per logical CPU of a lease.
const LIMITS: Limits = Limits {
    memory_bytes: 1 << 30,
    processes: 100,
};

mod exclusive {
    use super::*;
    fabricbios_contract::suites!(Machine: life, faults, adoption, by_name, entry);
}

mod shares {
    use super::*;
    fabricbios_contract::suites!(Machine<true>: life, faults, adoption, by_name);
}

struct World(testing::World<Machine>);

impl Deref for World {
    type Target = testing::World<Machine>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

fn caller(pid: i32, tenant: &str) -> Caller {
    Caller {
        pid,
        ..user_of(tenant)
    }
}

fn enter(
    path: &CpuPath,
    lease: LeaseId,
    process: &Process,
    tenant: &str,
) -> Result<String, LocalRefusal> {
    let given = Given::Process(pidfd(process.pid));
    let entered = path.enter(lease, &caller(process.pid, tenant), given);
    entered.map(|it| it.place)
}

fn root(kernel: &Arc<Kernel>) -> Root {
    Root::of(kernel.clone(), ROOT)
}

fn store(kernel: &Arc<Kernel>) -> Result<CpuStore, StepError> {
    let topology = Topology::read(&kernel.tree("sys")).unwrap();
    CpuStore::open(CpuConfig {
        root: root(kernel),
        groups: topology
            .select(&Wanted::All, &[], &BTreeSet::new())
            .unwrap(),
        sys: kernel.tree("sys"),
        proc: kernel.tree("proc"),
        limits: LIMITS,
    })
}

impl World {
    fn new() -> Self {
        Self(testing::World::new())
    }

    /// Starts a node on this kernel.
    fn on(kernel: Arc<Kernel>) -> Self {
        Self(testing::World::on(Machine { kernel }))
    }

    fn kernel(&self) -> &Arc<Kernel> {
        &self.machine.kernel
    }

    /// The conditions that the store tells from now on.
    fn told(&self) -> Arc<Mutex<Vec<Condition>>> {
        let told = Arc::new(Mutex::new(Vec::new()));
        let its = told.clone();
        self.store
            .tell_condition(Box::new(move |it| its.lock().unwrap().push(it)));
        told
    }

    fn text(&self, below: &str) -> String {
        self.kernel().text(&format!("{ROOT}/{below}"))
    }

    fn bound(&self, order: &BindOrder) -> CpuBinding {
        cpu(&self.0.bound(order))
    }

    fn enter(&self, lease: u128, process: &Process, tenant: &str) -> Result<String, LocalRefusal> {
        enter(&self.path, LeaseId(lease), process, tenant)
    }

    /// The processes in a cgroup and in those below it.
    fn members(&self, below: &str) -> Vec<i32> {
        root(self.kernel()).members("look", below).unwrap()
    }

    /// The callers' cgroups in the cgroup of a lease.
    fn callers(&self, below: &str) -> Vec<String> {
        root(self.kernel()).children("look", below).unwrap()
    }

    fn cut(&self, lease: u128) -> Vec<String> {
        let proof = self.provider.cut(binding_id(lease), Linger::None).unwrap();
        proof.steps().iter().map(|it| it.step.to_string()).collect()
    }
}

fn pidfd(pid: i32) -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: pidfd_open(2) takes two integers and returns a new descriptor, which nobody else has.
    unsafe {
        let fd = nix::libc::syscall(nix::libc::SYS_pidfd_open, pid, 0);
        OwnedFd::from_raw_fd(i32::try_from(fd).unwrap())
    }
}

fn cpu(binding: &Binding) -> CpuBinding {
    binding.cpu().unwrap().clone()
}

fn listed(cpus: &CpuBinding) -> String {
    let ranges = cpus.cpus.iter().map(ToString::to_string);
    ranges.collect::<Vec<_>>().join(",")
}

fn binding_id(lease: u128) -> BindingId {
    testing::binding_id(LeaseId(lease), 1, CPUS)
}

fn order(lease: u128, placement: Placement, terms: CpuTerms) -> BindOrder {
    BindOrder {
        tenant: "red".into(),
        terms: terms.into(),
        ..BindOrder::new(binding_id(lease), placement, Transport::Auto)
    }
}

fn cores(lease: u128, numbers: &[u32]) -> BindOrder {
    let placement = Placement::Cores(numbers.into());
    order(lease, placement, CpuTerms::default())
}

fn time(lease: u128, cpus: u64) -> BindOrder {
    order(lease, Placement::Amount(cpus), CpuTerms::default())
}

fn name(lease: u128) -> String {
    format!("lease-{}", LeaseId(lease))
}
