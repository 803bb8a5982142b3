//! The end of the processes of a lease.

use super::*;

#[test]
fn a_cut_ends_the_processes_of_a_lease_and_freezes_it() {
    let world = World::new();
    let first = world.kernel().spawn();
    let lease = cores(1, &[2]);
    world.bound(&lease);
    let place = world.enter(1, &first, "red").unwrap();
    assert!(place.contains(&format!("{}/caller-", name(1))), "{place}");
    let open = world.path.verify(binding_id(1), None).unwrap_err();
    assert!(open.detail.contains(&first.pid.to_string()), "{open}");
    assert_eq!(world.cut(1), ["freeze", "kill", "read cgroup"]);
    assert_eq!(world.text(&format!("{}/cgroup.freeze", name(1))), "1");
    let cleaned = world.release(&lease).unwrap().to_string();
    assert!(cleaned.contains("nothing to clean"), "{cleaned}");
}

#[test]
fn a_binding_after_a_cut_thaws_the_cgroup() {
    let world = World::new();
    let mut lease = cores(1, &[2]);
    world.bound(&lease);
    world.0.cut(&lease).unwrap();
    lease.binding_id.generation = Generation(2);
    let mut client = world.used(&lease);
    assert!(world.machine.has_access(&mut client));
}

#[test]
fn a_process_that_cannot_die_is_moved_aside_and_keeps_only_its_cores_from_others() {
    let world = World::new();
    let process = world.kernel().spawn();
    let lease = cores(1, &[2]);
    world.bound(&lease);
    world.enter(1, &process, "red").unwrap();
    world.kernel().make_immortal(process.pid);
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
    world.kernel().let_die();
    let leases = [(binding_id(1), lease.placement.clone())];
    world.provider.reset(CPUS, &leases).unwrap();
    world.bound(&cores(4, &[2]));
}

#[test]
fn a_cut_waits_for_no_process_and_leaves_none_that_runs() {
    let world = World::new();
    let lease = cores(1, &[2]);
    let (id, mut client) = (lease.binding_id, world.used(&lease));
    world.kernel().make_exiting(client.1.pid);
    let revoked = world.path.revoke(id, Linger::None).unwrap();
    assert!(!world.machine.has_access(&mut client));
    assert!(!revoked.is_proved, "it is there");
    world.kernel().let_die();
    world.path.verify(id, Some(&revoked)).unwrap();
}

#[test]
fn a_process_that_is_exiting_is_waited_for_and_not_moved() {
    let world = World::new();
    let process = world.kernel().spawn();
    world.bound(&cores(1, &[2]));
    world.enter(1, &process, "red").unwrap();
    world.kernel().make_exiting(process.pid);
    let root = root(world.kernel()).with_steps(fabricbios_cpu::STEPS);
    let proc = world.kernel().tree("proc");
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
    world.kernel().let_die();
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
        let process = world.kernel().spawn();
        let mut tracer = world.kernel().spawn();
        let lease = cores(1, &[2]);
        world.bound(&lease);
        world.enter(1, &process, "red").unwrap();
        world.kernel().make_immortal(process.pid);
        world.kernel().trace(&process, &tracer, users);
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
fn the_watchdog_kills_a_lease_while_the_process_of_another_does_not_die() {
    let world = World::new();
    let processes = [world.kernel().spawn(), world.kernel().spawn()];
    for (lease, process) in [time(1, 1), time(2, 1)].iter().zip(&processes) {
        world.bound(lease);
        let id = lease.binding_id.lease_id;
        world.enter(id.0, process, "red").unwrap();
    }
    world.kernel().make_immortal(processes[0].pid);
    let end = CpuEnd::of(root(world.kernel()), world.kernel().tree("proc"));
    thread::scope(|scope| {
        let (_moves, go_on) = world
            .kernel()
            .hold(&format!("stuck-{}/cgroup.procs", LeaseId(1)));
        let (is_killed, kill) = world.kernel().hold(&format!("{}/cgroup.kill", name(2)));
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
