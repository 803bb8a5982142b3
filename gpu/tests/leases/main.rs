//! Tests of the store and the path without a node, with stand-ins for the vendors' libraries.

#![cfg(all(feature = "gpu-cuda", feature = "gpu-hip"))]
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

#[path = "../management/lab.rs"]
#[allow(
    dead_code,
    reason = "the tests of the management libraries use all of it"
)]
mod lab;
mod world;

use std::{
    cell::Cell,
    collections::BTreeSet,
    fs,
    io::Write,
    os::{
        fd::AsFd,
        unix::{
            fs::{MetadataExt, OpenOptionsExt},
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::mpsc,
    thread,
};

use fabricbios_contract::{Cdi, Edits, Store};
use fabricbios_gpu::{Device, Health, Node};
use fabricbios_lease::{BindError, BindOrder, BootTime, Condition};
use fabricbios_wire::{GpuRequest, LeaseError, LeaseId};
use nix::{
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    libc,
    pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt},
    sys::{
        signal::{Signal, kill},
        stat::{Mode, major, minor},
    },
    unistd::mkfifo,
};
use stand_in_device::{Knob, Vendor};

use lab::{Lab, MEMORY, MIB};
use world::{Session, World, lease_id, part, signal_worker, whole, worker_user};

#[test]
fn a_cut_ends_the_session_and_the_release_leaves_no_byte() {
    let world = World::new();
    let lease = whole(1);
    let binding = world.bound(&lease);
    assert_eq!(binding.uuid, world.machine.device.uuid);
    assert_eq!(binding.vram_bytes, MEMORY);
    let stranger = world.path.connect(lease_id(1), "blue", 0).unwrap_err();
    assert_eq!(stranger.error, LeaseError::NotFound);
    let mut session = world.filled(lease_id(1));
    let again = world.session(lease_id(1)).unwrap();
    assert_eq!(again.number, session.number);
    let proof = world.cut(&lease);
    assert!(session.is_over());
    let steps: Vec<&str> = proof.steps().iter().map(|it| it.step.as_str()).collect();
    assert_eq!(steps, ["kill worker", "look for processes"]);
    let refused = world.session(lease_id(1)).err().unwrap();
    assert_eq!(refused.error, LeaseError::Expired);
    assert!(world.has_pattern());
    let cleaned = world.release(&lease).unwrap().to_string();
    assert!(cleaned.contains("wipe device"), "{cleaned}");
    assert!(
        cleaned.contains("bytes overwritten with zeroes"),
        "{cleaned}"
    );
    assert!(!world.has_pattern());
}

#[test]
fn nothing_connects_after_the_deadline() {
    let world = World::new();
    let lease = whole(1);
    world.bound(&lease);
    world
        .provider
        .extend(lease.binding_id, BootTime(1))
        .unwrap();
    let refused = world.session(lease_id(1)).err().unwrap();
    assert_eq!(refused.error, LeaseError::Expired);
    assert!(refused.message.contains("deadline"), "{refused:?}");
}

#[test]
fn a_shared_lease_wipes_its_own_memory_beside_its_neighbour() {
    let world = World::new();
    let [one, two] = [part(1), part(2)];
    world.bound(&one);
    world.bound(&two);
    let _leaves = world.filled(lease_id(1));
    let mut stays = world.session(lease_id(2)).unwrap();
    world.cut(&one);
    let cleaned = world.release(&one).unwrap().to_string();
    assert!(cleaned.contains("overwritten by its worker"), "{cleaned}");
    assert!(!world.has_pattern());
    stays
        .ask(&GpuRequest::MemAlloc { bytes: MIB }, &[])
        .unwrap();
    let too_much = stays.ask(&GpuRequest::MemAlloc { bytes: 8 * MIB }, &[]);
    assert_eq!(too_much.unwrap_err().error, LeaseError::CapacityExceeded);
    world.cut(&two);
    world.release(&two).unwrap();
}

/// The tenant uses all queues of the session. The node closes the session in order nevertheless.
#[test]
fn a_shared_lease_with_all_queues_in_use_is_wiped() {
    let world = World::new();
    let [one, two] = [part(1), part(2)];
    world.bound(&one);
    world.bound(&two);
    let _first = world.filled(lease_id(1));
    let _others: Vec<Session> = (1..)
        .map_while(|_| world.session(lease_id(1)).ok())
        .collect();
    world.cut(&one);
    world.release(&one).unwrap();
    assert!(!world.has_pattern());
}

#[test]
fn a_device_that_cannot_be_wiped_is_reset_by_the_next_release() {
    let world = World::new();
    let lease = whole(1);
    world.bound(&lease);
    let _leaves = world.filled(lease_id(1));
    world.cut(&lease);
    let knobs = &world.machine.lab.directory;
    let half = (MEMORY / 2).to_string();
    knobs.set(Knob::ShortScrub, &half).unwrap();
    let knob = knobs.path().join("short-scrub");
    let reset = format!("rm {}", knob.display());
    world.machine.lab.script("nvidia-smi", &reset);
    let why = world.release(&lease).unwrap_err();
    assert!(why.detail.contains("could be wiped"), "{why}");
    assert!(knob.exists());
    world.release(&lease).unwrap();
    assert!(!world.has_pattern());
}

/// Only the operator's remediation resets a device that failed by itself, and never while it has a lease.
#[test]
fn a_device_that_failed_is_reset_when_it_has_no_lease() {
    let world = World::new();
    let resource = whole(1).binding_id.resource_id;
    let (tell, told) = mpsc::channel();
    world
        .store
        .tell_condition(Box::new(move |it| tell.send(it).unwrap()));
    // Without its library the device can have no lease; the device recovers when the library answers again.
    for (health, expected) in [
        (
            Health::Silent("NVML".into()),
            Condition::Unavailable("NVML".into()),
        ),
        (Health::Good, Condition::Good),
    ] {
        world.store.set_health(health);
        assert_eq!(told.recv().unwrap(), expected);
    }
    let lease = whole(1);
    world.bound(&lease);
    world.store.set_health(Health::Failed("XID 79".into()));
    let failed = Condition::Failed("XID 79".into());
    assert_eq!(told.recv().unwrap(), failed);
    // A new watching process does not know the error.
    world.store.set_health(Health::Good);
    assert!(told.try_recv().is_err());
    let reset = world.machine.lab.directory.path().join("was-reset");
    let script = format!("touch {}", reset.display());
    world.machine.lab.script("nvidia-smi", &script);
    let why = world.provider.reset(resource, &[]).unwrap_err();
    assert!(why.detail.contains("revoke"), "{why}");
    assert!(!reset.exists());
    world.cut(&lease);
    world.release(&lease).unwrap();
    // A grant also reads the failed health.
    let refused = world.provider.bind(&whole(2)).unwrap_err();
    assert!(matches!(refused, BindError::Failed(why) if why.detail.contains("XID 79")));
    world.provider.reset(resource, &[]).unwrap();
    assert!(reset.exists());
    assert_eq!(told.recv().unwrap(), Condition::Good);
    world.bound(&whole(3));
}

/// The libraries of the next daemon do not know the errors that the last daemon received.
#[test]
fn a_failure_outlives_the_daemon_until_the_device_is_reset() {
    let restarted = |world: World| World(world.0.restarted());
    let condition = |world: &World| {
        let (tell, told) = mpsc::channel();
        let tell = move |it| tell.send(it).unwrap_or_default();
        world.store.tell_condition(Box::new(tell));
        told.try_recv().unwrap_or(Condition::Good)
    };
    let world = World::new();
    world.store.set_health(Health::Failed("XID 79".into()));
    let world = restarted(restarted(world));
    // The libraries of the new daemon report no fault.
    assert_eq!(world.machine.device.health, Health::Good);
    let Condition::Failed(why) = condition(&world) else {
        panic!("the failure is forgotten")
    };
    assert!(why.starts_with("XID 79 (before this start"), "{why}");
    let refused = world.provider.bind(&whole(1)).unwrap_err();
    assert!(matches!(refused, BindError::Failed(why) if why.detail.contains("XID 79")));
    world.machine.lab.script("nvidia-smi", "exit 1");
    let resource = whole(1).binding_id.resource_id;
    world.provider.reset(resource, &[]).unwrap_err();
    let world = restarted(world);
    assert!(
        matches!(condition(&world), Condition::Failed(_)),
        "no reset"
    );
    world.machine.lab.script("nvidia-smi", "true");
    world.provider.reset(resource, &[]).unwrap();
    assert_eq!(condition(&world), Condition::Good);
    let world = restarted(world);
    assert_eq!(condition(&world), Condition::Good);
    world.bound(&whole(2));
}

/// A killed worker does not disturb its neighbours: the device is still leased, and wiped after the last of their
/// leases.
#[test]
fn a_worker_that_was_killed_leaves_a_shared_device_open() {
    let world = World::new();
    let [one, two] = [part(1), part(2)];
    world.bound(&one);
    world.bound(&two);
    let _leaves = world.filled(lease_id(1));
    let mut stays = world.session(lease_id(2)).unwrap();
    signal_worker(&world, lease_id(1), Signal::SIGSTOP);
    world.cut(&one);
    world.release(&one).unwrap();
    assert!(world.has_pattern());
    stays
        .ask(&GpuRequest::MemAlloc { bytes: MIB }, &[])
        .unwrap();
    // A later lease is a neighbour too.
    let three = part(3);
    world.bound(&three);
    world.cut(&two);
    world.release(&two).unwrap();
    let mut comes = world.session(lease_id(3)).unwrap();
    comes
        .ask(&GpuRequest::MemAlloc { bytes: 8 * MIB }, &[])
        .unwrap();
    world.cut(&three);
    world.release(&three).unwrap();
    assert!(!world.has_pattern());
    world.bound(&whole(4));
}

/// The daemon may die between the end of the last lease and the wipe.
#[test]
fn bytes_that_the_last_lease_left_are_wiped_before_an_exclusive_one() {
    let world = World::new();
    let [one, two] = [part(1), part(2)];
    world.bound(&one);
    let neighbour = part(5);
    world.bound(&neighbour);
    let _leaves = world.filled(lease_id(1));
    signal_worker(&world, lease_id(1), Signal::SIGSTOP);
    world.cut(&one);
    world.release(&one).unwrap();
    let placement = neighbour.placement.clone();
    world.cut(&neighbour);
    world
        .store
        .forget(neighbour.binding_id, &placement)
        .unwrap();
    assert!(world.has_pattern());
    let knobs = &world.machine.lab.directory;
    let half = (MEMORY / 2).to_string();
    knobs.set(Knob::ShortScrub, &half).unwrap();
    let error = world.store.prepare(&whole(3), &|| ()).unwrap_err();
    assert!(error.detail.contains("could be wiped"), "{error}");
    // A shared lease cannot read any of these bytes.
    world.bound(&two);
    knobs.set(Knob::ShortScrub, "0").unwrap();
    world.cut(&two);
    world.release(&two).unwrap();
    assert!(!world.has_pattern());
    world.store.prepare(&whole(3), &|| ()).unwrap();
    world.bound(&whole(3));
}

/// The driver returns the memory after the wipe, long after the end of the process.
#[test]
fn memory_that_comes_back_after_the_wipe_is_wiped_before_the_next_lease() {
    let world = World::new();
    let knobs = &world.machine.lab.directory;
    let lease = whole(1);
    world.bound_beside_another(&lease);
    let _leaves = world.filled(lease_id(1));
    knobs.set(Knob::Lingering, "3600000").unwrap();
    world.cut(&lease);
    world.release(&lease).unwrap();
    assert!(world.has_pattern());
    knobs.set(Knob::Lingering, "1").unwrap();
    world.settle();
    assert!(world.has_pattern());
    world.prepared(&whole(2)).unwrap();
    assert!(!world.has_pattern());
}

/// The memory comes back after the wipe and after the look before the next lease.
#[test]
fn memory_that_comes_back_beside_a_grant_refuses_it_once() {
    let world = World::new();
    let knobs = &world.machine.lab.directory;
    let lease = whole(1);
    world.bound_beside_another(&lease);
    let _leaves = world.filled(lease_id(1));
    knobs.set(Knob::Lingering, "3600000").unwrap();
    world.cut(&lease);
    world.release(&lease).unwrap();
    let next = whole(2);
    world.store.prepare(&next, &|| ()).unwrap();
    knobs.set(Knob::Lingering, "1").unwrap();
    world.settle();
    let refused = world.provider.bind(&next).unwrap_err();
    assert!(matches!(refused, BindError::Failed(why) if why.detail.contains("came back")));
    assert!(world.has_pattern());
    world.prepared(&next).unwrap();
    assert!(!world.has_pattern());
}

#[test]
fn memory_that_comes_back_during_a_wipe_is_wiped_too() {
    let world = World::new();
    let knobs = &world.machine.lab.directory;
    let lease = whole(1);
    world.bound_beside_another(&lease);
    let _leaves = world.filled(lease_id(1));
    knobs.set(Knob::Lingering, "3600000").unwrap();
    world.cut(&lease);
    world.write_pattern_at_the_end();
    let passes = Cell::new(0);
    let progress = || {
        if world.has_pattern_at_the_end() {
            return;
        }
        passes.set(passes.get() + 1);
        match passes.get() {
            1 => world.write_pattern_at_the_end(),
            // A wipe has two passes; the second ends here.
            2 => knobs.set(Knob::Lingering, "1").unwrap(),
            _ => {}
        }
    };
    let placement = lease.placement.clone();
    let released = world
        .provider
        .release(lease.binding_id, placement, &progress);
    released.unwrap();
    assert!(passes.get() >= 2);
    assert!(!world.has_pattern());
}

/// Kills the worker, and returns when the path has waited for its child.
fn kill_worker(world: &World, lease: LeaseId, session: &mut Session) {
    let worker = signal_worker(world, lease, Signal::SIGKILL);
    assert!(session.is_over());
    while kill(worker, None).is_ok() {
        thread::yield_now();
    }
}

/// The session of one lease dies beside a neighbour's session, before anybody ends the lease.
#[test]
fn the_memory_of_a_session_that_died_is_read_by_nobody() {
    let world = World::new();
    let [one, two] = [part(1), part(2)];
    world.bound(&one);
    world.bound(&two);
    let mut died = world.filled(lease_id(1));
    kill_worker(&world, lease_id(1), &mut died);
    assert!(world.has_pattern());
    // The stand-in allocates at the lowest free address.
    world.settle();
    let three = part(3);
    world.bound(&three);
    let mut comes = world.session(lease_id(3)).unwrap();
    comes
        .ask(&GpuRequest::MemAlloc { bytes: 4 * MIB }, &[])
        .unwrap();
    assert!(!world.has_pattern());
    for lease in [&one, &two, &three] {
        world.cut(lease);
        world.release(lease).unwrap();
    }
}

/// The worker writes into the file that says whether it closed its session; in this test the file never ends.
#[test]
fn of_what_a_worker_says_at_its_end_a_little_is_read() {
    let world = World::new();
    let lease = part(1);
    world.bound(&lease);
    let mut died = world.filled(lease_id(1));
    kill_worker(&world, lease_id(1), &mut died);
    let closed = world.machine.lab.place.path().join("records");
    let closed = closed.join(format!("{}.closed", lease_id(1)));
    fs::remove_file(&closed).unwrap();
    mkfifo(&closed, Mode::S_IRWXU).unwrap();
    let mut endless = fs::File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&closed)
        .unwrap();
    while endless.write(b"123456789\n").is_ok() {}
    world.cut(&lease);
    assert!(world.has_pattern());
    // The file does not say that the session was closed, so the device is wiped.
    world.release(&lease).unwrap();
    assert!(!world.has_pattern());
}

/// The worker's library is a pipe, so the worker waits until a process writes there. The worker is stopped too, as in a
/// frozen cgroup.
#[test]
fn a_cut_in_the_middle_of_a_workers_start_waits_for_nobody() {
    let mut lab = Lab::new();
    let [works] = &lab.libraries.cuda[..] else {
        panic!("one library");
    };
    let works = works.clone();
    let library = lab.place.path().join("libcuda.so");
    mkfifo(&library, Mode::S_IRWXU).unwrap();
    lab.libraries.cuda = vec![library.clone()];
    let world = World::of(lab.device(Vendor::Nvidia), lab, World::turn());
    let lease = whole(1);
    world.bound(&lease);
    let here = world.path.clone();
    let opening = thread::spawn(move || here.connect(lease_id(1), "red", 0));
    // This returns when the worker has opened the other end.
    let says_nothing = fs::File::options().write(true).open(&library).unwrap();
    let worker = signal_worker(&world, lease_id(1), Signal::SIGSTOP);
    world.cut(&lease);
    let refused = opening.join().unwrap().unwrap_err();
    assert_eq!(refused.error, LeaseError::Expired, "{refused:?}");
    // The start must not fail by its limit of 30 s.
    assert!(
        refused.message.contains("it ended before it served"),
        "{refused:?}"
    );
    while kill(worker, None).is_ok() {
        thread::yield_now();
    }
    drop(says_nothing);
    fs::remove_file(&library).unwrap();
    fs::copy(works, &library).unwrap();
    world.release(&lease).unwrap();
    let next = whole(2);
    world.bound(&next);
    world.session(lease_id(2)).unwrap();
    world.cut(&next);
    world.release(&next).unwrap();
}

#[test]
fn what_a_bind_that_failed_has_opened_goes_with_its_part() {
    let world = World::new();
    let order = whole(1);
    world.store.open(&order).unwrap();
    let cdi = Cdi::at(world.machine.lab.place.path().join("cdi"), "gpu");
    let edits = Edits {
        environment: &[],
        nodes: &[],
        hook: &[],
    };
    cdi.write(lease_id(1), &edits).unwrap();
    world
        .store
        .forget(order.binding_id, &order.placement)
        .unwrap();
    assert!(!cdi.exists(lease_id(1)));
    world.bound(&whole(2));
}

#[test]
fn a_worker_has_no_descriptor_variable_or_terminal_of_the_daemons() {
    let world = World::new();
    let of_daemon = fs::File::open("/dev/full").unwrap();
    // A program that is started would inherit this descriptor.
    fcntl(of_daemon.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let lease = whole(1);
    world.bound(&lease);
    world.session(lease_id(1)).unwrap();
    let worker = signal_worker(&world, lease_id(1), Signal::SIGCONT);
    let of_worker = |name: &str| Path::new("/proc").join(worker.to_string()).join(name);
    for entry in fs::read_dir(of_worker("fd")).unwrap() {
        // The worker may close a descriptor meanwhile.
        let file = fs::read_link(entry.unwrap().path());
        assert_ne!(file.ok().as_deref(), Some(Path::new("/dev/full")));
    }
    let environment = String::from_utf8(fs::read(of_worker("environ")).unwrap()).unwrap();
    let names = environment.split_terminator('\0');
    let names: BTreeSet<&str> = names.filter_map(|it| Some(it.split_once('=')?.0)).collect();
    let known = [
        "FABRICBIOS_STAND_IN_DIR",
        "HSA_OVERRIDE_GFX_VERSION",
        "LD_LIBRARY_PATH",
    ];
    assert!(names.is_subset(&known.into()), "{names:?}");
    let stat = fs::read_to_string(of_worker("stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let session = fields.split_whitespace().nth(3).unwrap();
    assert_eq!(session, worker.to_string());
    drop(of_daemon);
    world.cut(&lease);
    world.release(&lease).unwrap();
}

/// A new terminal stands for the device's node: as the device's own node, or as a node that programs on other devices
/// open too.
struct Terminal {
    _master: PtyMaster,
    path: PathBuf,
}

impl Terminal {
    fn new() -> Self {
        let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname_r(&master).unwrap().into();
        Self {
            _master: master,
            path,
        }
    }

    fn world(&self, is_shared: bool) -> World {
        let lab = Lab::new();
        let number = fs::metadata(&self.path).unwrap().rdev();
        let node = Node {
            path: self.path.clone(),
            major: u32::try_from(major(number)).unwrap(),
            minor: u32::try_from(minor(number)).unwrap(),
            is_shared,
        };
        let device = Device {
            nodes: vec![node],
            ..lab.device(Vendor::Nvidia)
        };
        World::of(device, lab, World::turn())
    }

    fn open(&self) -> fs::File {
        let mut options = fs::OpenOptions::new();
        let options = options.read(true).custom_flags(OFlag::O_NOCTTY.bits());
        options.open(&self.path).unwrap()
    }

    /// A process of another user that has the terminal open.
    fn holder(&self, uid: u32) -> Child {
        let mut command = Command::new("sleep");
        let command = command.arg("1000").stdin(self.open());
        command.uid(uid).gid(uid).spawn().unwrap()
    }
}

/// The node does not kill processes of root.
#[test]
fn only_a_holder_of_the_device_itself_fences_it() {
    for is_shared in [true, false] {
        let terminal = Terminal::new();
        let world = terminal.world(is_shared);
        let lease = whole(1);
        world.prepared(&lease).unwrap();
        let other = terminal.open();
        world.cut(&lease);
        let released = world.release(&lease);
        assert_eq!(released.is_ok(), is_shared, "{released:?}");
        drop(other);
        world.release(&lease).unwrap();
    }
}

/// The process of the lease's own user is killed. Another user may have received the device without his own doing, so
/// his process only fences the device.
#[test]
fn a_user_who_has_the_device_open_gets_no_lease_beside_him_and_ends_it_after_one() {
    let terminal = Terminal::new();
    let world = terminal.world(false);
    let lease = whole(1);
    let mut stranger = terminal.holder(4721);
    let named = |stranger: &Child| format!("pid {} ", stranger.id());
    let refused = world.prepared(&lease).unwrap_err();
    assert!(refused.contains(&named(&stranger)), "{refused}");
    assert!(refused.contains("user 4721"), "{refused}");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    world.prepared(&lease).unwrap();
    let mut own = terminal.holder(worker_user(1));
    let mut stranger = terminal.holder(4721);
    world.cut(&lease);
    let fenced = world.release(&lease).unwrap_err().to_string();
    assert!(fenced.contains(&named(&stranger)), "{fenced}");
    assert_eq!(own.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    world.release(&lease).unwrap();
}

#[test]
fn a_session_and_its_bytes_outlive_the_daemon() {
    let world = World::new();
    let lease = whole(1);
    world.bound(&lease);
    let session = world.filled(lease_id(1));
    let next = World(world.0.restarted());
    let adopted = BindOrder {
        adopts: true,
        ..whole(1)
    };
    next.bound(&adopted);
    assert_eq!(next.session(lease_id(1)).unwrap().number, session.number);
    assert!(next.has_pattern());
    next.cut(&adopted);
    next.release(&adopted).unwrap();
    assert!(!next.has_pattern());
}

mod suite {
    use crate::world::Machine;
    fabricbios_contract::suites!(Machine: life, adoption, by_name, entry);
}
