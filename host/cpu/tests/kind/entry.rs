//! Processes that enter a lease.

use super::*;

/// A write that hangs in the kernel delays neither a renewal nor the end of the processes in the lease.
#[test]
fn an_entry_that_waits_in_the_kernel_does_not_delay_the_cut() {
    let patience = Duration::from_secs(20);
    let world = World::new();
    let (inside, late) = (world.kernel().spawn(), world.kernel().spawn());
    world.bound(&cores(1, &[2]));
    world.enter(1, &inside, "red").unwrap();
    let (entering, enter) = world.kernel().hold("cgroup.procs");
    let (killing, kill) = world.kernel().hold("cgroup.kill");
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
        assert_eq!(steps, ["freeze", "freeze", "kill", "read cgroup"]);
    });
    assert_eq!(world.members(&name(1)), [0; 0]);
    assert_eq!(world.text(&format!("{}/cgroup.freeze", name(1))), "1");
}

#[test]
fn only_the_callers_own_live_process_enters_a_lease() {
    let world = World::new();
    let (mut process, other) = (world.kernel().spawn(), world.kernel().spawn());
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
            .kernel()
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
fn what_limits_a_caller_limits_it_in_the_lease_too() {
    let world = World::new();
    let kernel = world.kernel();
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
    let kernel = world.kernel();
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
