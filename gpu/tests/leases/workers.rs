//! The worker of a lease.

use super::*;

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
    world.end(&next);
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
    world.end(&lease);
}
