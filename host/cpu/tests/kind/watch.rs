//! What the store tells of partitions and CPUs that change while leases have them.

use super::*;

type Told = Mutex<Vec<Condition>>;

fn last(told: &Told) -> Option<Condition> {
    told.lock().unwrap().last().cloned()
}

/// Why leases were lost, and which.
fn lost(told: &Told) -> Option<(String, Vec<LeaseId>)> {
    let told = told.lock().unwrap();
    told.iter().find_map(|condition| match condition {
        Condition::Lost { why, leases } => Some((why.clone(), leases.clone())),
        _ => None,
    })
}

#[test]
fn a_partition_that_somebody_makes_invalid_is_told_and_healed() {
    let world = World::new();
    let (store, told) = (&world.store, world.told());
    world.bound(&cores(1, &[2]));
    world.kernel().name_cpus("0-5");
    store.check_partitions(Instant::now());
    let last = || last(&told);
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
    world.kernel().name_cpus("0");
    store.check_partitions(Instant::now());
    assert_eq!(last(), Some(Condition::Good));
    assert_eq!(
        world.text(&format!("{}/cpuset.cpus.partition", name(1))),
        "root"
    );
    // A CPU that goes offline changes no file whose change the kernel reports.
    world.kernel().put("sys/devices/system/cpu/online", "0-2,5");
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
    world.kernel().put(online, "0-4");
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
    world.kernel().put(online, "0-5");
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
    let (store, told) = (&world.store, world.told());
    let lost = || lost(&told);
    world.bound(&cores(1, &[2]));
    world.bound(&cores(2, &[4]));
    let began = Instant::now();
    world.kernel().name_cpus("2");
    store.check_partitions(Instant::now());
    assert_eq!(lost(), None, "it may be healed");
    store.check_partitions(began + Duration::from_secs(9));
    assert_eq!(lost(), None, "it may be healed");
    store.check_partitions(Instant::now() + Duration::from_secs(10));
    let (why, leases) = lost().unwrap();
    assert_eq!(leases, [LeaseId(1)], "no other lease is");
    assert!(why.contains("root invalid"), "{why}");
    // Nobody else gets a CPU that goes offline.
    world.kernel().name_cpus("");
    store.check_partitions(Instant::now());
    told.lock().unwrap().clear();
    world.kernel().put("sys/devices/system/cpu/online", "0-3,5");
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
    let kernel = before.kernel().clone();
    drop(before);
    kernel.name_cpus("2");
    let world = World::on(kernel.clone());
    let adopts = BindOrder {
        adopts: true,
        ..cores(1, &[2])
    };
    let Err(BindError::Failed(why)) = world.provider.bind(&adopts) else {
        panic!("others may run on its CPUs");
    };
    assert!(why.detail.contains("other/cpuset.cpus is `2`"), "{why}");
    world.store.check_partitions(Instant::now());
    let told = world.told();
    let later = Instant::now() + Duration::from_secs(10);
    world.store.check_partitions(later);
    // The watching thread checks by its own clock, also after this.
    let (_, leases) = lost(&told).unwrap();
    assert_eq!(leases, [LeaseId(1)], "{told:?}");
}

#[test]
fn a_strict_lease_needs_a_machine_without_a_second_thread_on_any_core() {
    let online = "sys/devices/system/cpu/online";
    let kernel = Arc::new(Kernel::new(CONTROLLERS, true));
    kernel.put(online, "0,2,4-5");
    let world = World::on(kernel);
    let (store, told) = (&world.store, world.told());
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
    world.kernel().put(online, "0-2,4-5");
    store.check_partitions(Instant::now());
    let last = || last(&told);
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
    world.kernel().put(online, "0,2,4-5");
    store.check_partitions(Instant::now());
    assert_eq!(last(), Some(Condition::Good));
}
