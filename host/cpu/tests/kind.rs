//! Store and path without a node, on an imitation of the kernel.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kernel;

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

const CPUS: ResourceId = ResourceId(3);
const ROOT: &str = "nodes/fb";
const CONTROLLERS: &str = "cpuset cpu memory pids";
/// Limits per logical CPU of a lease.
const LIMITS: Limits = Limits {
    memory_bytes: 1 << 30,
    processes: 100,
};

/// A machine whose leases have cores alone, or a share of the time of others.
struct Machine<const SHARE: bool = false> {
    kernel: Arc<Kernel>,
}

impl<const SHARE: bool> Fixture for Machine<SHARE> {
    type Store = CpuStore;
    type Path = CpuPath;
    type Client = (LeaseId, Process);

    fn new() -> Self {
        let kernel = Arc::new(Kernel::new(CONTROLLERS, true));
        Self { kernel }
    }

    fn start(&self, guard: Arc<Watching>) -> (Arc<CpuStore>, Arc<CpuPath>) {
        let store = Arc::new(store(&self.kernel).unwrap());
        let path = CpuPath::of(root(&self.kernel), self.kernel.tree("proc"), guard);
        (store, Arc::new(path))
    }

    fn order(lease: u128) -> BindOrder {
        match SHARE {
            true => time(lease, 1),
            false => cores(lease, &[u32::try_from(2 * lease).unwrap()]),
        }
    }

    /// A process that enters the lease.
    fn client(world: &testing::World<Self>, lease: LeaseId) -> Option<Self::Client> {
        let process = world.machine.kernel.spawn();
        enter(&world.path, lease, &process, "red").ok()?;
        Some((lease, process))
    }

    fn has_access(&self, (lease, process): &mut Self::Client) -> bool {
        let root = root(&self.kernel);
        let below = match SHARE {
            true => format!("shared/{}", name(lease.0)),
            false => name(lease.0),
        };
        root.exists("look", &below).unwrap()
            && root.members("look", &below).unwrap().contains(&process.pid)
            && self.kernel.text(&format!("{ROOT}/{below}/cgroup.freeze")) == "0"
    }

    fn left(&self) -> Vec<String> {
        let mut left = self.kernel.groups();
        left.retain(|it| !["nodes", ROOT, "nodes/fb/shared"].contains(&&**it));
        let shared = self.kernel.text(&format!("{ROOT}/shared/cpuset.cpus"));
        left.extend((shared != "2-5").then(|| format!("shares have {shared}")));
        left
    }
}

impl<const SHARE: bool> Faulty for Machine<SHARE> {
    fn calls(&self) -> &Calls {
        &self.kernel.calls
    }
}

impl<const SHARE: bool> EndedByName for Machine<SHARE> {
    fn watchdog(&self) -> Box<dyn EndByName> {
        let proc = self.kernel.tree("proc");
        Box::new(CpuEnd::of(root(&self.kernel), proc))
    }
}

impl<const SHARE: bool> Entered for Machine<SHARE> {
    fn caller(&self, tenant: &str) -> (Caller, Given) {
        let own = i32::try_from(std::process::id()).unwrap();
        (caller(own, tenant), Given::Process(pidfd(own)))
    }
}

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

    fn text(&self, below: &str) -> String {
        self.machine.kernel.text(&format!("{ROOT}/{below}"))
    }

    fn bound(&self, order: &BindOrder) -> CpuBinding {
        cpu(&self.0.bound(order))
    }

    fn enter(&self, lease: u128, process: &Process, tenant: &str) -> Result<String, LocalRefusal> {
        enter(&self.path, LeaseId(lease), process, tenant)
    }

    /// The processes in a cgroup and in those below it.
    fn members(&self, below: &str) -> Vec<i32> {
        root(&self.machine.kernel).members("look", below).unwrap()
    }

    /// The callers' cgroups in the cgroup of a lease.
    fn callers(&self, below: &str) -> Vec<String> {
        root(&self.machine.kernel).children("look", below).unwrap()
    }

    fn cut(&self, lease: u128) -> Vec<String> {
        let proof = self.provider.cut(binding_id(lease), Linger::None).unwrap();
        proof.steps().iter().map(|it| it.step.clone()).collect()
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

#[test]
fn an_exclusive_lease_is_a_partition_of_its_cores_and_their_memory_and_the_others_leave_them() {
    let world = World::new();
    assert_eq!(world.text("cpuset.cpus.exclusive"), "2-5");
    assert_eq!(world.text("shared/cpuset.cpus"), "2-5");
    let binding = world.bound(&cores(1, &[2, 4]));
    assert_eq!(listed(&binding), "2-4");
    assert_eq!(binding.partition, CpuPartition::Root);
    assert_eq!(binding.memory_nodes.len(), 1);
    assert_eq!(binding.quota, None);
    assert!(
        binding.cgroup.ends_with(&format!("{ROOT}/{}", name(1))),
        "{}",
        binding.cgroup
    );
    assert_eq!(world.text("shared/cpuset.cpus"), "5");
    assert_eq!(world.machine.kernel.text("cpuset.cpus.effective"), "0-1,5");
    // A lease of one CPU needs no load balancing.
    let one = world.bound(&cores(2, &[5]));
    assert_eq!(
        (listed(&one), one.partition),
        ("5".into(), CpuPartition::Isolated)
    );
}

#[test]
fn the_partition_is_the_one_that_was_asked_for() {
    for (number, partition) in [(2, CpuPartition::Isolated), (4, CpuPartition::Root)] {
        let world = World::new();
        let terms = CpuTerms {
            partition: Some(partition),
            ..CpuTerms::default()
        };
        let placement = cores(1, &[number]).placement;
        let binding = world.bound(&order(1, placement, terms));
        assert_eq!(binding.partition, partition);
    }
}

#[test]
fn a_best_effort_lease_is_a_cap_on_the_cpus_that_nobody_has_alone() {
    let world = World::new();
    let binding = world.bound(&time(1, 2));
    assert_eq!(
        (listed(&binding), binding.partition),
        ("2-5".into(), CpuPartition::Member)
    );
    let quota = CpuQuota {
        quota_us: 200_000,
        period_us: 100_000,
    };
    assert_eq!(binding.quota, Some(quota));
    let exclusive = cores(2, &[2]);
    world.bound(&exclusive);
    assert_eq!(world.text("shared/cpuset.cpus.effective"), "4-5");
    world.cut(2);
    world.release(&exclusive).unwrap();
    assert_eq!(world.text("shared/cpuset.cpus.effective"), "2-5");
}

#[test]
fn cores_of_another_lease_or_that_are_not_on_offer_are_refused_and_nothing_stays() {
    let world = World::new();
    world.bound(&cores(1, &[2]));
    for (numbers, text) in [
        (&[2, 4][..], "CPUs 2-3 are those of another"),
        (&[0], "core 0 is not on offer"),
    ] {
        let refused = world.provider.bind(&cores(9, numbers));
        let Err(BindError::Failed(why)) = refused else {
            panic!("{refused:?}")
        };
        assert!(why.detail.contains(text), "{why}");
    }
    assert_eq!(world.store.leases().unwrap(), [LeaseId(1)]);
    assert_eq!(world.text("shared/cpuset.cpus"), "4-5");
}

#[test]
fn a_partition_that_the_kernel_calls_invalid_is_no_lease() {
    let world = World::new();
    world
        .machine
        .kernel
        .refuse_writes(Some("cpuset.cpus.exclusive"));
    let Err(BindError::Failed(_)) = world.provider.bind(&cores(1, &[2])) else {
        panic!("granted without exclusive CPUs");
    };
    world.machine.kernel.refuse_writes(None);
    // Another cgroup in the root names a CPU of the lease.
    let other = format!("{ROOT}/other");
    let fs: &dyn fabricbios_cpu::Cgroupfs = &*world.machine.kernel;
    fs.mkdir(&other).unwrap();
    fs.write(&format!("{other}/cpuset.cpus"), "3").unwrap();
    let Err(BindError::Failed(why)) = world.provider.bind(&cores(1, &[2])) else {
        panic!("granted as an invalid partition");
    };
    assert!(why.detail.contains("root invalid (Cpu list"), "{why}");
    assert_eq!(world.store.leases().unwrap(), []);
    assert_eq!(world.text("shared/cpuset.cpus"), "2-5");
}

#[test]
fn a_cut_ends_the_processes_of_a_lease_and_freezes_it() {
    let world = World::new();
    let first = world.machine.kernel.spawn();
    let lease = cores(1, &[2]);
    world.bound(&lease);
    let place = world.enter(1, &first, "red").unwrap();
    assert!(place.contains(&format!("{}/caller-", name(1))), "{place}");
    assert_eq!(world.members(&name(1)), [first.pid]);
    let open = world.path.verify(binding_id(1), None).unwrap_err();
    assert!(open.detail.contains(&first.pid.to_string()), "{open}");
    assert_eq!(world.cut(1), ["freeze", "kill", "read cgroup"]);
    assert_eq!(world.members(&name(1)), [0; 0]);
    assert_eq!(world.text(&format!("{}/cgroup.freeze", name(1))), "1");
    let cleaned = world.release(&lease).unwrap().to_string();
    assert!(cleaned.contains("nothing to clean"), "{cleaned}");
    assert_eq!(
        world.machine.kernel.groups(),
        ["nodes", ROOT, "nodes/fb/shared"]
    );
    assert_eq!(world.machine.kernel.text("cpuset.cpus.effective"), "0-5");
}

/// A write that hangs in the kernel delays neither a renewal nor the end of the processes in the lease.
#[test]
fn an_entry_that_waits_in_the_kernel_does_not_delay_the_cut() {
    let patience = Duration::from_secs(20);
    let world = World::new();
    let (inside, late) = (world.machine.kernel.spawn(), world.machine.kernel.spawn());
    world.bound(&cores(1, &[2]));
    world.enter(1, &inside, "red").unwrap();
    let (entering, enter) = world.machine.kernel.hold("cgroup.procs");
    let (killing, kill) = world.machine.kernel.hold("cgroup.kill");
    thread::scope(|scope| {
        // Both writes continue when the test ends.
        let (enter, kill) = (enter, kill);
        scope.spawn(|| world.enter(1, &late, "red"));
        entering.recv_timeout(patience).unwrap();
        let cut = scope.spawn(|| world.cut(1));
        killing
            .recv_timeout(patience)
            .expect("the cut waits for the entry");
        let extended = world.path.extend(binding_id(1), BootTime(9));
        assert!(extended.is_err(), "extended behind its cut");
        drop(kill);
        let until = Instant::now() + patience;
        while !world.members(&name(1)).is_empty() {
            assert!(Instant::now() < until, "a process is left");
            thread::yield_now();
        }
        drop(enter);
        let steps = cut.join().unwrap();
        assert_eq!(steps, ["freeze", "kill", "freeze", "kill", "read cgroup"]);
    });
    assert_eq!(world.members(&name(1)), [0; 0]);
    assert_eq!(world.text(&format!("{}/cgroup.freeze", name(1))), "1");
}

#[test]
fn a_new_binding_keeps_the_processes_and_one_after_a_cut_thaws_the_cgroup() {
    let world = World::new();
    let mut lease = cores(1, &[2]);
    let mut client = world.used(&lease);
    lease.binding_id.generation = Generation(2);
    world.bound(&lease);
    assert!(world.machine.has_access(&mut client));
    world.0.cut(&lease).unwrap();
    lease.binding_id.generation = Generation(3);
    world.bound(&lease);
    assert_eq!(world.text(&format!("{}/cgroup.freeze", name(1))), "0");
    world
        .enter(1, &world.machine.kernel.spawn(), "red")
        .unwrap();
}

#[test]
fn only_the_callers_own_live_process_enters_a_lease() {
    let world = World::new();
    let (mut process, other) = (world.machine.kernel.spawn(), world.machine.kernel.spawn());
    world.bound(&cores(1, &[2]));
    let enter = |pid, given| world.path.enter(LeaseId(1), &caller(pid, "red"), given);
    let strange = enter(other.pid, Given::Process(pidfd(process.pid)));
    assert!(
        matches!(strange, Err(LocalRefusal::Unsupported(_))),
        "{strange:?}"
    );
    let no_process = std::fs::File::open("/dev/null").unwrap().into();
    let none = enter(other.pid, Given::Process(no_process));
    assert!(none.unwrap_err().to_string().contains("no pidfd"));
    let namespace = std::fs::File::open("/proc/self/ns/net").unwrap().into();
    let none = enter(other.pid, Given::NetworkNamespace(namespace));
    assert!(
        none.unwrap_err()
            .to_string()
            .contains("no network namespace")
    );
    let status = |state: &str, leader: i32| {
        let text = format!("State:\t{state}\nTgid:\t{leader}\n");
        world
            .machine
            .kernel
            .put(&format!("proc/{}/status", process.pid), &text);
    };
    let refused = || world.enter(1, &process, "red").unwrap_err().to_string();
    status("R (running)", 1);
    assert!(refused().contains("is a thread"));
    status("Z (zombie)", process.pid);
    assert!(refused().contains("has ended"));
    status("R (running)", process.pid);
    // The number could be another process's by now.
    let ended = pidfd(process.pid);
    process.end();
    let late = enter(process.pid, Given::Process(ended));
    assert!(late.unwrap_err().to_string().contains("has ended"));
    assert_eq!(world.callers(&name(1)), [""; 0]);
    enter(other.pid, Given::Process(pidfd(other.pid))).unwrap();
}

#[test]
fn a_lease_has_limits_of_memory_and_processes_for_each_of_its_cpus_and_keeps_them() {
    let world = World::new();
    for (order, below, cpus) in [
        (cores(1, &[2, 4]), name(1), 3_u64),
        (time(2, 1), format!("shared/{}", name(2)), 1),
    ] {
        world.bound(&order);
        let of = |file: &str| world.text(&format!("{below}/{file}"));
        assert_eq!(of("memory.max"), (cpus << 30).to_string());
        assert_eq!(of("memory.swap.max"), "0");
        assert_eq!(of("pids.max"), (cpus * 100).to_string());
    }
    // One daemon died before it limited the lease; another one has other settings.
    let limit = |file: &str| format!("cgroup/{ROOT}/{}/{file}", name(1));
    world.machine.kernel.put(&limit("memory.max"), "max");
    world.machine.kernel.put(&limit("pids.max"), "7");
    world.store.open(&cores(1, &[2, 4])).unwrap();
    let of = |file: &str| world.text(&format!("{}/{file}", name(1)));
    assert_eq!(of("memory.max"), (3_u64 << 30).to_string());
    assert_eq!(of("pids.max"), "7");
}

#[test]
fn what_limits_a_caller_limits_it_in_the_lease_too() {
    let world = World::new();
    let kernel = &world.machine.kernel;
    let fs: &dyn fabricbios_cpu::Cgroupfs = &**kernel;
    kernel.limited("machine", &[("memory.max", "1000")], &["no packets"]);
    let limits = [("memory.max", "2000"), ("pids.max", "20")];
    kernel.limited("machine/box", &limits, &["no devices"]);
    kernel.limited("machine/other", &[], &[]);
    let processes: Vec<Process> = (0..4).map(|_| kernel.spawn()).collect();
    let places = ["machine/box", "machine/box", "machine/other", ""];
    for (process, at) in processes.iter().zip(places) {
        let procs = format!("{at}/cgroup.procs");
        fs.write(procs.trim_start_matches('/'), &process.pid.to_string())
            .unwrap();
    }
    for (order, below) in [
        (cores(1, &[2]), name(1)),
        (time(2, 1), format!("shared/{}", name(2))),
    ] {
        world.bound(&order);
        let lease = order.binding_id.lease_id.0;
        let entered: Vec<String> = processes
            .iter()
            .map(|process| {
                let place = world.enter(lease, process, "red").unwrap();
                let (_, group) = place.split_once("/caller-").unwrap();
                format!("{below}/caller-{group}")
            })
            .collect();
        assert_eq!(entered[0], entered[1], "their limits are one");
        let of = |at: &str, file: &str| world.text(&format!("{at}/{file}"));
        let limits = |at: &str| (of(at, "memory.max"), of(at, "pids.max"));
        assert_eq!(limits(&entered[0]), ("1000".into(), "20".into()));
        assert_eq!(limits(&entered[2]), ("1000".into(), "max".into()));
        assert_eq!(limits(&entered[3]), ("max".into(), "max".into()));
        let programs = |at: &str| kernel.programs(&format!("{ROOT}/{at}"));
        assert_eq!(programs(&entered[0]), ["no devices", "no packets"]);
        assert_eq!(programs(&entered[2]), ["no packets"]);
        assert_eq!(programs(&entered[3]), [""; 0]);
        // Entering again changes nothing.
        let again = world.enter(lease, &processes[0], "red").unwrap();
        assert!(again.ends_with(&entered[0]), "{again}");
        assert_eq!(world.members(&below).len(), 4);
        for (process, at) in processes.iter().zip(places) {
            let procs = format!("{at}/cgroup.procs");
            fs.write(procs.trim_start_matches('/'), &process.pid.to_string())
                .unwrap();
        }
    }
    // The next entry removes the callers' cgroups without processes.
    assert_eq!(world.callers(&name(1)).len(), 3);
    world.enter(1, &processes[3], "red").unwrap();
    assert_eq!(world.callers(&name(1)).len(), 1);
}

#[test]
fn who_would_lose_a_limit_does_not_enter_and_stays_where_it_was() {
    let world = World::new();
    let kernel = &world.machine.kernel;
    let fs: &dyn fabricbios_cpu::Cgroupfs = &**kernel;
    kernel.limited("box", &[("pids.max", "20")], &["no devices"]);
    let process = kernel.spawn();
    fs.write("box/cgroup.procs", &process.pid.to_string())
        .unwrap();
    world.bound(&cores(1, &[2]));
    world.bound(&cores(2, &[4]));
    world.bound(&cores(3, &[5]));
    let refused = |lease| world.enter(lease, &process, "red").unwrap_err().to_string();
    for refusal in ["programs", "pids.max"] {
        kernel.refuse_writes(Some(refusal));
        let why = refused(1);
        assert!(why.contains("would end with its entry"), "{why}");
        assert!(why.contains("/box"), "{why}");
        assert_eq!(world.callers(&name(1)), [""; 0]);
    }
    kernel.refuse_writes(None);
    // Root has put a process into the lease's own cgroup, which can then enable no controllers for its children.
    let by_hand = kernel.spawn();
    let procs = format!("{ROOT}/{}/cgroup.procs", name(3));
    fs.write(&procs, &by_hand.pid.to_string()).unwrap();
    let why = refused(3);
    assert!(why.contains("would end with its entry"), "{why}");
    assert_eq!(kernel.text("box/cgroup.procs"), process.pid.to_string());
    kernel.put(&format!("proc/{}/cgroup", process.pid), "0::/../box");
    let why = refused(2);
    assert!(why.contains("does not see that cgroup"), "{why}");
    kernel.put(&format!("proc/{}/cgroup", process.pid), "0::/box");
    world.enter(2, &process, "red").unwrap();
    // The process would leave its lease.
    let why = refused(1);
    assert!(why.contains("another lease"), "{why}");
    assert_eq!(world.members(&name(2)), [process.pid]);
}

#[test]
fn an_adoption_heals_the_partition_and_one_process_has_the_root_cgroup() {
    let before = World::new();
    let process = before.machine.kernel.spawn();
    before.bound(&cores(1, &[2]));
    before.enter(1, &process, "red").unwrap();
    let kernel = before.machine.kernel.clone();
    let refused = store(&kernel).unwrap_err();
    assert!(refused.detail.contains("another process"), "{refused}");
    drop(before);
    // The partition became invalid while no node watched it.
    kernel.put(
        &format!("cgroup/{ROOT}/{}/cpuset.cpus.partition", name(1)),
        "root invalid",
    );
    let world = World::on(kernel);
    assert_eq!(world.text("shared/cpuset.cpus"), "4-5");
    let adopts = BindOrder {
        adopts: true,
        ..cores(1, &[2])
    };
    assert_eq!(listed(&world.bound(&adopts)), "2-3");
    assert_eq!(world.members(&name(1)), [process.pid]);
    assert_eq!(
        world.text(&format!("{}/cpuset.cpus.partition", name(1))),
        "root"
    );
}

#[test]
fn a_start_with_fewer_cpus_succeeds_and_best_effort_leases_without_any_can_be_released() {
    let before = World::new();
    before.bound(&cores(1, &[2]));
    let mut processes = Vec::new();
    for lease in [2, 3] {
        before.bound(&time(lease, 1));
        let process = before.machine.kernel.spawn();
        before.enter(lease, &process, "red").unwrap();
        processes.push(process);
    }
    let kernel = before.machine.kernel.clone();
    drop(before);
    let topology = Topology::read(&kernel.tree("sys")).unwrap();
    let fewer = Wanted::These("2-3".parse().unwrap());
    let store = CpuStore::open(CpuConfig {
        root: root(&kernel),
        groups: topology.select(&fewer, &[], &BTreeSet::new()).unwrap(),
        sys: kernel.tree("sys"),
        proc: kernel.tree("proc"),
        limits: LIMITS,
    })
    .unwrap();
    let shared = format!("{ROOT}/shared/cpuset.cpus");
    assert_eq!(kernel.text(&shared), "4-5", "they are there still");
    for lease in [2, 3] {
        let order = time(lease, 1);
        let released = store.release(order.binding_id, Some(&order.placement), &|| ());
        released.unwrap();
    }
    assert_eq!(kernel.text(&shared).trim(), "");
    assert_eq!(store.leases().unwrap(), [LeaseId(1)]);
}

#[test]
fn a_process_that_cannot_die_is_moved_aside_and_keeps_only_its_cores_from_others() {
    let world = World::new();
    let process = world.machine.kernel.spawn();
    let lease = cores(1, &[2]);
    world.bound(&lease);
    world.enter(1, &process, "red").unwrap();
    world.machine.kernel.make_immortal(process.pid);
    let proof = world.provider.cut(binding_id(1), Linger::None).unwrap();
    let aside = format!("moved aside: pid {} (worker", process.pid);
    assert!(proof.steps()[1].found.contains(&aside), "{proof}");
    let stuck = world.release(&lease).unwrap_err();
    let expected = format!("pid {} (worker, state S", process.pid);
    assert!(stuck.detail.contains(&expected), "{stuck}");
    assert_eq!(world.store.leases().unwrap(), [LeaseId(1)]);
    let taken = world.provider.bind(&cores(2, &[2]));
    assert!(matches!(taken, Err(BindError::Failed(_))), "{taken:?}");
    world.bound(&cores(3, &[4]));
    assert_eq!(world.text("shared/cpuset.cpus"), "5");
    world.machine.kernel.let_die();
    let leases = [(binding_id(1), lease.placement.clone())];
    world.provider.reset(CPUS, &leases).unwrap();
    world.bound(&cores(4, &[2]));
}

#[test]
fn a_process_that_is_exiting_is_waited_for_and_not_moved() {
    let world = World::new();
    let process = world.machine.kernel.spawn();
    world.bound(&cores(1, &[2]));
    world.enter(1, &process, "red").unwrap();
    world.machine.kernel.make_exiting(process.pid);
    let root = root(&world.machine.kernel).with_steps(fabricbios_cpu::STEPS);
    let proc = world.machine.kernel.tree("proc");
    let below = name(1);
    let end = |patience| end_processes(&root, &proc, &below, Some("stuck"), patience);
    // Longer than the first wait for killed processes.
    let error = end(Duration::from_secs(1)).unwrap_err();
    let expected = format!("pid {} (worker", process.pid);
    assert!(
        error.detail.contains(&expected) && error.detail.contains("not ended within 1000 ms"),
        "{error}"
    );
    assert!(!root.exists("look", "stuck").unwrap());
    world.machine.kernel.let_die();
    end(Duration::ZERO).unwrap();
}

#[test]
fn a_tracer_that_keeps_a_killed_process_is_killed_unless_it_is_root_and_the_process_is_not() {
    for (users, is_killed) in [
        ((7, 7), true),
        ((7, 8), true),
        ((0, 0), true),
        ((7, 0), false),
    ] {
        let world = World::new();
        let process = world.machine.kernel.spawn();
        let mut tracer = world.machine.kernel.spawn();
        let lease = cores(1, &[2]);
        world.bound(&lease);
        world.enter(1, &process, "red").unwrap();
        world.machine.kernel.make_immortal(process.pid);
        world.machine.kernel.trace(&process, &tracer, users);
        let proof = world.provider.cut(binding_id(1), Linger::None).unwrap();
        let named = format!("killed tracers: pid {} (gdb", tracer.pid);
        let found = &proof.steps()[1].found;
        assert_eq!(found.contains(&named), is_killed, "{found}");
        let stuck = world.release(&lease).unwrap_err();
        let named = format!("traced by pid {}", tracer.pid);
        assert!(stuck.detail.contains(&named), "{stuck}");
        // The cut has waited after the kill.
        assert_eq!(tracer.has_ended(), is_killed);
    }
}

#[test]
fn a_partition_that_somebody_makes_invalid_is_told_and_healed() {
    let world = World::new();
    let (store, told) = (&world.store, Arc::new(Mutex::new(Vec::new())));
    let its = told.clone();
    store.tell_condition(Box::new(move |condition| {
        its.lock().unwrap().push(condition);
    }));
    world.bound(&cores(1, &[2]));
    let fs: &dyn fabricbios_cpu::Cgroupfs = &*world.machine.kernel;
    let other = format!("{ROOT}/other");
    fs.mkdir(&other).unwrap();
    fs.write(&format!("{other}/cpuset.cpus"), "0-5").unwrap();
    store.check_partitions(Instant::now());
    let last = || told.lock().unwrap().last().cloned();
    let Some(Condition::Degraded(why)) = last() else {
        panic!("{told:?}");
    };
    for text in [
        &*name(1),
        "root invalid",
        "nodes/fb/other/cpuset.cpus is `0-5`",
    ] {
        assert!(why.contains(text), "{why}");
    }
    fs.write(&format!("{other}/cpuset.cpus"), "0").unwrap();
    store.check_partitions(Instant::now());
    assert_eq!(last(), Some(Condition::Good));
    assert_eq!(
        world.text(&format!("{}/cpuset.cpus.partition", name(1))),
        "root"
    );
    // A CPU that goes offline changes no file whose change the kernel reports.
    world
        .machine
        .kernel
        .put("sys/devices/system/cpu/online", "0-2,5");
    store.check_partitions(Instant::now());
    let Some(Condition::Partial { why, missing }) = last() else {
        panic!("{told:?}");
    };
    let of_lease = format!(
        "lease {}: core 2 has changed since the start of the node: cpu3 is offline now",
        LeaseId(1)
    );
    for text in [
        &*of_lease,
        "; core 4 has changed since the start of the node: cpu4 is offline now",
    ] {
        assert!(why.contains(text), "{why}");
    }
    assert_eq!(missing, [2, 4]);
}

/// An offline CPU is reported whether or not a lease has it.
#[test]
fn a_cpu_that_is_offline_is_told_without_a_lease_and_in_the_refusal() {
    let world = World::new();
    let (tell, told) = channel();
    world
        .store
        .tell_condition(Box::new(move |it| drop(tell.send(it))));
    let online = "sys/devices/system/cpu/online";
    world.machine.kernel.put(online, "0-4");
    world.store.check_partitions(Instant::now());
    let Condition::Partial { why, missing } = told.recv().unwrap() else {
        panic!("not told");
    };
    assert!(why.contains("cpu5 is offline now"), "{why}");
    assert_eq!(missing, [5]);
    for (lease, text) in [
        (cores(1, &[4, 5]), "cpu5 is offline now"),
        (time(1, 4), "only the CPUs `2-4`"),
    ] {
        let Err(BindError::Unavailable(why)) = world.provider.bind(&lease) else {
            panic!("granted without its CPU");
        };
        assert!(why.detail.contains(text), "{why}");
    }
    assert_eq!(world.store.leases().unwrap(), []);
    world.machine.kernel.put(online, "0-5");
    assert_eq!(
        told.recv().unwrap(),
        Condition::Good,
        "the store looks by itself"
    );
    world.bound(&cores(2, &[4, 5]));
}

/// Beside a cgroup that names the CPUs, the kernel does not make the partition valid again.
#[test]
fn a_lease_whose_partition_stays_invalid_is_lost() {
    let world = World::new();
    let (store, told) = (&world.store, Arc::new(Mutex::new(Vec::new())));
    let its = told.clone();
    store.tell_condition(Box::new(move |condition| {
        its.lock().unwrap().push(condition);
    }));
    let lost = || {
        let told = told.lock().unwrap();
        told.iter().find_map(|condition| match condition {
            Condition::Lost { why, leases } => Some((why.clone(), leases.clone())),
            _ => None,
        })
    };
    world.bound(&cores(1, &[2]));
    world.bound(&cores(2, &[4]));
    let fs: &dyn fabricbios_cpu::Cgroupfs = &*world.machine.kernel;
    let other = format!("{ROOT}/other");
    fs.mkdir(&other).unwrap();
    let began = Instant::now();
    fs.write(&format!("{other}/cpuset.cpus"), "2").unwrap();
    store.check_partitions(Instant::now());
    assert_eq!(lost(), None, "it may be healed");
    store.check_partitions(began + Duration::from_secs(9));
    assert_eq!(lost(), None, "it may be healed");
    store.check_partitions(Instant::now() + Duration::from_secs(10));
    let (why, leases) = lost().unwrap();
    assert_eq!(leases, [LeaseId(1)], "no other lease is");
    assert!(why.contains("root invalid"), "{why}");
    // Nobody else gets a CPU that goes offline.
    fs.write(&format!("{other}/cpuset.cpus"), "").unwrap();
    store.check_partitions(Instant::now());
    told.lock().unwrap().clear();
    world
        .machine
        .kernel
        .put("sys/devices/system/cpu/online", "0-3,5");
    for secs in [0, 10] {
        store.check_partitions(Instant::now() + Duration::from_secs(secs));
    }
    assert!(
        matches!(told.lock().unwrap().last(), Some(Condition::Partial { .. })),
        "{told:?}"
    );
    assert_eq!(lost(), None);
}

/// A failed bind leaves a lease of an earlier run active.
#[test]
fn a_lease_whose_partition_is_invalid_at_a_restart_is_lost_too() {
    let before = World::new();
    before.bound(&cores(1, &[2]));
    let kernel = before.machine.kernel.clone();
    drop(before);
    let fs: &dyn fabricbios_cpu::Cgroupfs = &*kernel;
    let other = format!("{ROOT}/other");
    fs.mkdir(&other).unwrap();
    fs.write(&format!("{other}/cpuset.cpus"), "2").unwrap();
    let world = World::on(kernel.clone());
    let adopts = BindOrder {
        adopts: true,
        ..cores(1, &[2])
    };
    let Err(BindError::Failed(why)) = world.provider.bind(&adopts) else {
        panic!("others may run on its CPUs");
    };
    assert!(why.detail.contains("other/cpuset.cpus is `2`"), "{why}");
    let told = Arc::new(Mutex::new(Vec::new()));
    let (store, its) = (&world.store, told.clone());
    store.check_partitions(Instant::now());
    store.tell_condition(Box::new(move |condition| {
        its.lock().unwrap().push(condition);
    }));
    store.check_partitions(Instant::now() + Duration::from_secs(10));
    // The watching thread checks by its own clock, also after this.
    let told = told.lock().unwrap();
    let lost = told.iter().find_map(|condition| match condition {
        Condition::Lost { leases, .. } => Some(leases),
        _ => None,
    });
    assert_eq!(lost, Some(&vec![LeaseId(1)]), "{told:?}");
}

#[test]
fn a_strict_lease_needs_a_machine_without_a_second_thread_on_any_core() {
    let online = "sys/devices/system/cpu/online";
    let kernel = Arc::new(Kernel::new(CONTROLLERS, true));
    kernel.put(online, "0,2,4-5");
    let world = World::on(kernel);
    let (store, told) = (&world.store, Arc::new(Mutex::new(Vec::new())));
    let its = told.clone();
    store.tell_condition(Box::new(move |condition| {
        its.lock().unwrap().push(condition);
    }));
    let strict = |lease, numbers: &[u32]| {
        let class = Some(CpuIsolationClass::StrictIsolated);
        let terms = CpuTerms {
            isolation: class,
            ..CpuTerms::default()
        };
        BindOrder {
            terms: terms.into(),
            ..cores(lease, numbers)
        }
    };
    world.bound(&strict(1, &[4]));
    // The boot core, which no lease has.
    world.machine.kernel.put(online, "0-2,4-5");
    store.check_partitions(Instant::now());
    let last = || told.lock().unwrap().last().cloned();
    let Some(Condition::Degraded(why)) = last() else {
        panic!("{told:?}");
    };
    let text = "the CPUs 0-1 of one core are online: take cpu1 offline";
    let lease = LeaseId(1).to_string();
    assert!(why.contains(&lease) && why.contains(text), "{why}");
    let Err(BindError::Unavailable(why)) = world.provider.bind(&strict(2, &[5])) else {
        panic!("granted beside a core with two threads");
    };
    assert!(why.detail.contains(text), "{why}");
    assert_eq!(world.store.leases().unwrap(), [LeaseId(1)]);
    world.bound(&cores(3, &[5]));
    world.machine.kernel.put(online, "0,2,4-5");
    store.check_partitions(Instant::now());
    assert_eq!(last(), Some(Condition::Good));
}

#[test]
fn leases_in_a_root_cgroup_of_before_are_ended_with_their_processes() {
    let kernel = Arc::new(Kernel::new(CONTROLLERS, true));
    let world = World::on(kernel.clone());
    let processes = [kernel.spawn(), kernel.spawn()];
    for (lease, process) in [cores(1, &[2]), time(2, 1)].iter().zip(&processes) {
        world.bound(lease);
        let id = lease.binding_id.lease_id;
        world.enter(id.0, process, "red").unwrap();
    }
    let end_all = || CpuStore::end_all(&root(&kernel), kernel.tree("sys"), kernel.tree("proc"));
    let locked = end_all().unwrap_err();
    assert!(locked.detail.contains("another process"), "{locked}");
    drop(world);
    end_all().unwrap();
    assert_eq!(kernel.groups(), ["nodes", ROOT, "nodes/fb/shared"]);
    let refused = "cgroup.kill";
    let world = World::on(kernel.clone());
    world.bound(&cores(1, &[2]));
    drop(world);
    kernel.refuse_writes(Some(refused));
    let left = end_all().unwrap_err();
    assert!(left.detail.contains(refused), "{left}");
}

#[test]
fn the_watchdog_kills_a_lease_while_the_process_of_another_does_not_die() {
    let world = World::new();
    let processes = [world.machine.kernel.spawn(), world.machine.kernel.spawn()];
    for (lease, process) in [time(1, 1), time(2, 1)].iter().zip(&processes) {
        world.bound(lease);
        let id = lease.binding_id.lease_id;
        world.enter(id.0, process, "red").unwrap();
    }
    world.machine.kernel.make_immortal(processes[0].pid);
    let end = CpuEnd::of(
        root(&world.machine.kernel),
        world.machine.kernel.tree("proc"),
    );
    thread::scope(|scope| {
        let (_moves, go_on) = world
            .machine
            .kernel
            .hold(&format!("stuck-{}/cgroup.procs", LeaseId(1)));
        let (is_killed, kill) = world
            .machine
            .kernel
            .hold(&format!("{}/cgroup.kill", name(2)));
        scope.spawn(|| {
            end.end(LeaseId(1)).unwrap_err();
            end.end(LeaseId(2)).unwrap();
        });
        let killed = is_killed.recv_timeout(Duration::from_secs(60));
        killed.expect("the other lease waits for the first one's process");
        drop((kill, go_on));
    });
    // The process is moved aside.
    while end.end(LeaseId(1)).is_err() {
        thread::yield_now();
    }
    assert_eq!(world.members(&format!("shared/{}", name(1))), [0; 0]);
}

#[test]
fn a_host_that_cannot_do_it_is_told_what_is_missing() {
    for missing in ["cpuset", "memory", "pids"] {
        let others: Vec<&str> = CONTROLLERS.split(' ').filter(|it| *it != missing).collect();
        let error = store(&Arc::new(Kernel::new(&others.join(" "), true))).unwrap_err();
        let expected = format!("no controller `{missing}`");
        assert!(error.detail.contains(&expected), "{error}");
    }
    let old = Arc::new(Kernel::new(CONTROLLERS, false));
    let world = World::on(old);
    let why = world.store.not_exclusive().unwrap();
    assert!(why.contains("Linux 6.7"), "{why}");
    assert!(matches!(
        world.provider.bind(&cores(1, &[2])),
        Err(BindError::Failed(_))
    ));
    world.bound(&time(2, 1));
    let kernel = Arc::new(Kernel::new(CONTROLLERS, true));
    drop(store(&kernel).unwrap());
    let kill = root(&kernel).path("shared/cgroup.kill");
    std::fs::rename(&kill, kill.with_extension("none")).unwrap();
    let error = store(&kernel).unwrap_err();
    assert!(error.detail.contains("Linux 5.14"), "{error}");
    // Another cgroup has CPUs of the offer.
    let kernel = Arc::new(Kernel::new(CONTROLLERS, true));
    drop(store(&kernel).unwrap());
    kernel.put(&format!("cgroup/{ROOT}/cpuset.cpus.exclusive"), "");
    let fs: &dyn fabricbios_cpu::Cgroupfs = &*kernel;
    fs.mkdir("nodes/other").unwrap();
    fs.write("nodes/other/cpuset.cpus", "3").unwrap();
    kernel.refuse_writes(Some("fb/cpuset.cpus.exclusive"));
    let store = store(&kernel).unwrap();
    let why = store.not_exclusive().unwrap();
    assert!(why.contains("nodes/other/cpuset.cpus is 3"), "{why}");
}
