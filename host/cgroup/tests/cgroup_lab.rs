//! Control groups on a real kernel: which devices their processes can open, and how containers of a lease end.
//!
//! Needs root and cgroup v2. In the lab: `FABRICBIOS_LAB=1 cgroup_lab --ignored --test-threads=1`. Elsewhere the tests
//! are ignored.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{
    fs::{self, OpenOptions},
    io::{BufRead, BufReader, Write},
    os::{fd::AsFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio, id},
    thread,
    time::Duration,
};

use fabricbios_cgroup::{Containers, DeviceNumber, LEASE, Root, allow_only, enter};
use fabricbios_contract::{Caller, Entered, LocalRefusal};
use fabricbios_helper::Pidfd;
use fabricbios_kernfs::Tree;
use fabricbios_wire::LeaseId;
use tempfile::TempDir;

const KMSG: DeviceNumber = (1, 11);
const PORT: DeviceNumber = (1, 4);
const PATIENCE: Duration = Duration::from_secs(60);
const STEPS: &[&str] = &[
    "take containers",
    "take no containers",
    "freeze",
    "kill",
    "end containers",
    "make caller",
    "limit caller",
    "enter",
];

/// A control group. A drop removes it, with the groups in it.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Self {
        let mounts = fabricbios_kernfs::mounts();
        let mount = mounts.iter().find(|mount| mount.kind == "cgroup2").unwrap();
        Self::at(mount.place.join(format!("{name}-{}", id())))
    }

    fn at(path: PathBuf) -> Self {
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn within(&self, name: &str) -> Self {
        Self::at(self.0.join(name))
    }

    /// Starts a program in the group.
    fn run(&self, command: &mut Command) -> Child {
        let procs = self.0.join("cgroup.procs");
        // SAFETY: only system calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let mut file = OpenOptions::new().write(true).open(&procs)?;
                file.write_all(b"0")
            });
        }
        command.spawn().unwrap()
    }

    fn sleep(&self) -> Child {
        self.run(Command::new("sleep").arg("1000"))
    }

    fn opens(&self, node: &str) -> bool {
        let mut shell = Command::new("sh");
        let shell = shell.arg("-c").arg(format!("exec 3<{node}"));
        let shell = shell.stderr(Stdio::null());
        self.run(shell).wait().unwrap().success()
    }

    fn members(&self) -> String {
        fs::read_to_string(self.0.join("cgroup.procs")).unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        fs::write(self.0.join("cgroup.kill"), "1").ok();
        // The killed processes end soon.
        while self.0.exists() && fs::remove_dir(&self.0).is_err() {
            thread::yield_now();
        }
    }
}

fn pid(child: &Child) -> i32 {
    i32::try_from(child.id()).unwrap()
}

/// Makes the directories of records that a node has: one for each kind.
fn records() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let records = place.path().join("gpu");
    fs::create_dir(&records).unwrap();
    (place, records)
}

fn containers(records: &Path, lease: u128) -> Containers {
    Containers::of(records, LeaseId(lease), STEPS)
}

fn end(containers: &Containers) -> String {
    let proof = containers.end(&Tree::new("/proc"), PATIENCE).unwrap();
    format!("{proof:?}")
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and cgroup v2"]
fn the_kernel_opens_the_listed_devices_alone() {
    let group = Group::new("devices");
    assert!(group.opens("/dev/kmsg") && group.opens("/dev/port"));
    allow_only("test", &group.0, &[KMSG]).unwrap();
    assert!(group.opens("/dev/null") && group.opens("/dev/kmsg"));
    assert!(!group.opens("/dev/port"));
    allow_only("test", &group.0, &[]).unwrap();
    assert!(group.opens("/dev/null"));
    assert!(!group.opens("/dev/kmsg") && !group.opens("/dev/port"));
}

/// The kernel attaches at most 64 programs to a group.
#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and cgroup v2"]
fn an_end_that_is_tried_again_and_again_attaches_one_program() {
    let group = Group::new("again");
    for _ in 0..100 {
        allow_only("test", &group.0, &[KMSG, PORT]).unwrap();
        allow_only("test", &group.0, &[]).unwrap();
        allow_only("test", &group.0, &[]).unwrap();
    }
    assert!(!group.opens("/dev/kmsg"));
    allow_only("test", &group.0, &[KMSG]).unwrap();
    assert!(group.opens("/dev/kmsg") && !group.opens("/dev/port"));
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and cgroup v2"]
fn a_group_below_opens_no_more_than_the_one_above() {
    let above = Group::new("above");
    let below = above.within("below");
    allow_only("test", &below.0, &[KMSG, PORT]).unwrap();
    allow_only("test", &above.0, &[KMSG]).unwrap();
    assert!(below.opens("/dev/kmsg") && !below.opens("/dev/port"));
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and cgroup v2"]
fn registered_containers_end_with_the_lease_and_no_later_one_is_registered() {
    let (_place, records) = records();
    let lease = containers(&records, 1);
    lease.open().unwrap();
    let (one, two, other) = (Group::new("one"), Group::new("two"), Group::new("other"));
    let mut children = [one.sleep(), two.sleep(), other.sleep()];
    lease.register(pid(&children[0])).unwrap();
    // An engine may call its hook twice.
    lease.register(pid(&children[0])).unwrap();
    lease.register(pid(&children[1])).unwrap();
    // Processes that start later, also in groups that the container makes.
    let within = one.within("within");
    let mut later = within.sleep();
    lease.check_ended("verify").unwrap_err();
    // The end of another lease of the kind sees the container.
    let seen = containers(&records, 2).others().unwrap();
    assert_eq!(seen.len(), 1);
    assert!(seen[0].has(pid(&children[0])) && seen[0].has(pid(&later)));
    assert!(!seen[0].has(pid(&children[2])));
    assert!(lease.others().unwrap().is_empty());
    let proof = end(&lease);
    assert!(proof.contains("one") && proof.contains("two"), "{proof}");
    lease.check_ended("verify").unwrap();
    assert_eq!(one.members() + &within.members() + &two.members(), "");
    assert_eq!(other.members().trim(), children[2].id().to_string());
    fs::write(one.0.join("cgroup.freeze"), "0").unwrap();
    assert!(!one.opens("/dev/kmsg"));
    let refused = lease.register(pid(&children[2])).unwrap_err();
    assert!(refused.contains("over"), "{refused}");
    // The next daemon or the watchdog ends the lease again.
    end(&lease);
    // The lease is bound again.
    lease.open().unwrap();
    lease.register(pid(&children[2])).unwrap();
    end(&lease);
    assert_eq!(other.members(), "");
    lease.remove().unwrap();
    let refused = lease.register(pid(&children[2])).unwrap_err();
    assert!(refused.contains("over"), "{refused}");
    for child in children.iter_mut().chain([&mut later]) {
        child.wait().unwrap();
    }
}

/// Moves a process into a lease whose cgroup is in `node`.
fn entered(node: &Group, lease: LeaseId, pid: i32) -> Result<Entered, LocalRefusal> {
    let root = Root::at(&node.0).unwrap().with_steps(STEPS);
    let caller = Caller {
        uid: 0,
        pid,
        tenants: Vec::new(),
        is_root: true,
    };
    let process = Pidfd::open(nix::unistd::Pid::from_raw(pid)).unwrap();
    let process = process.as_fd().try_clone_to_owned().unwrap();
    enter(
        &root,
        &Tree::new("/proc"),
        &format!("{LEASE}{lease}"),
        &caller,
        &process,
    )
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and cgroup v2"]
fn who_enters_a_lease_opens_no_more_and_a_container_with_a_leased_device_does_not_enter() {
    let (_place, records) = records();
    let gpu = containers(&records, 1);
    gpu.open().unwrap();
    let (container, plain, node) = (
        Group::new("container"),
        Group::new("plain"),
        Group::new("node"),
    );
    let lease = LeaseId(2);
    let _cores = node.within(&format!("{LEASE}{lease}"));
    allow_only("test", &plain.0, &[KMSG]).unwrap();
    let mut children = [plain.sleep(), plain.sleep(), container.sleep()];
    gpu.register(pid(&children[2])).unwrap();
    let place = entered(&node, lease, pid(&children[0])).unwrap().place;
    let group = Group(place.into());
    assert_eq!(group.members().trim(), children[0].id().to_string());
    assert!(group.opens("/dev/kmsg") && !group.opens("/dev/port"));
    // A second caller from the same group: the program is attached already.
    assert_eq!(
        Path::new(&entered(&node, lease, pid(&children[1])).unwrap().place),
        group.0
    );
    let within = container.within("within");
    let mut deeper = within.sleep();
    for child in [&children[2], &deeper] {
        let refused = entered(&node, lease, pid(child)).unwrap_err().to_string();
        assert!(refused.contains("ends with that lease"), "{refused}");
    }
    end(&gpu);
    drop((within, group));
    for child in children.iter_mut().chain([&mut deeper]) {
        child.wait().unwrap();
    }
}

/// Hidden processes: one whose first thread ends while another waits, and one at the end of a chain in which each
/// process starts the next and ends.
#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and cgroup v2"]
fn processes_that_hide_end_with_the_lease() {
    let without_first_thread = "import ctypes, sys, threading\n\
         threading.Thread(target=sys.stdin.read).start()\n\
         print(flush=True)\n\
         ctypes.CDLL(None).syscall(60, 0)\n";
    let chain = "import os, time\n\
         print(flush=True)\n\
         while os.fork() == 0 or os._exit(0):\n    time.sleep(0.002)\n";
    for script in [without_first_thread, chain] {
        let (_place, records) = records();
        let lease = containers(&records, 1);
        lease.open().unwrap();
        let group = Group::new("hides");
        // The container's first process waits until the container is registered.
        let waits = format!("import sys\nsys.stdin.readline()\n{script}");
        let mut command = Command::new("python3");
        command.arg("-c").arg(waits);
        let mut child = group.run(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        lease.register(pid(&child)).unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"\n").unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        end(&lease);
        let events = fs::read_to_string(group.0.join("cgroup.events")).unwrap();
        assert!(events.contains("populated 0"), "{events}");
        child.wait().unwrap();
    }
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1, root and cgroup v2"]
fn a_group_that_is_not_the_containers_alone_is_refused() {
    let (place, records) = records();
    let lease = containers(&records, 1);
    lease.open().unwrap();
    let refused = |pid: i32, expected: &str| {
        let why = lease.register(pid).unwrap_err();
        assert!(why.contains(expected), "{why}");
    };
    let group = Group::new("shared");
    let mut first = group.sleep();
    let within = group.within("within");
    let mut stranger = within.sleep();
    refused(pid(&first), "which is not the container's");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    lease.register(pid(&first)).unwrap();
    // Two leases, also of different kinds: the group of one is inside the group of the other.
    let other = place.path().join("net");
    fs::create_dir(&other).unwrap();
    let other = containers(&other, 2);
    other.open().unwrap();
    let refused_by_other = |pid: i32| {
        let why = other.register(pid).unwrap_err();
        assert!(why.contains("another lease"), "{why}");
    };
    refused_by_other(pid(&first));
    let mut nested = within.sleep();
    refused_by_other(pid(&nested));
    let leases = Group::new("lease");
    let leased = leases.within("lease-00000000000000000000000000000001");
    let mut of_lease = leased.sleep();
    refused(pid(&of_lease), "that of a lease");
    // Process 1 is in the root of the hierarchy, or its group has other processes too.
    lease.register(1).unwrap_err();
    refused(i32::MAX, "No such file");
    for child in [&mut first, &mut nested, &mut of_lease] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // The group vanishes, and another group gets its name.
    let at = within.0.clone();
    drop(within);
    let at_group = group.0.clone();
    drop(group);
    let again = Group::at(at_group);
    let mut next = again.sleep();
    end(&lease);
    assert_eq!(again.members().trim(), next.id().to_string());
    assert!(!at.exists());
    next.kill().unwrap();
    next.wait().unwrap();
}
