//! What a lease has, what is refused, and what an earlier run has left.

use super::*;

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
    assert_eq!(world.kernel().text("cpuset.cpus.effective"), "0-1,5");
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
    // Another cgroup in the root names a CPU of the lease.
    world.kernel().name_cpus("3");
    let Err(BindError::Failed(why)) = world.provider.bind(&cores(1, &[2])) else {
        panic!("granted as an invalid partition");
    };
    assert!(why.detail.contains("root invalid (Cpu list"), "{why}");
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
    world.kernel().put(&limit("memory.max"), "max");
    world.kernel().put(&limit("pids.max"), "7");
    world.store.open(&cores(1, &[2, 4])).unwrap();
    let of = |file: &str| world.text(&format!("{}/{file}", name(1)));
    assert_eq!(of("memory.max"), (3_u64 << 30).to_string());
    assert_eq!(of("pids.max"), "7");
}

#[test]
fn an_adoption_heals_the_partition_and_one_process_has_the_root_cgroup() {
    let before = World::new();
    let process = before.kernel().spawn();
    before.bound(&cores(1, &[2]));
    before.enter(1, &process, "red").unwrap();
    let kernel = before.kernel().clone();
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
        let process = before.kernel().spawn();
        before.enter(lease, &process, "red").unwrap();
        processes.push(process);
    }
    let kernel = before.kernel().clone();
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
