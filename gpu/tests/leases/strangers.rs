//! Processes that have the device open without a lease.

use super::*;

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

/// A process of the lease's user that opened the device outside of the lease's control group.
#[test]
fn who_has_opened_the_device_for_a_lease_has_ended_when_its_end_is_proved() {
    for by_watchdog in [false, true] {
        let terminal = Terminal::new();
        let world = terminal.world(false);
        let (lease, id) = (whole(1), lease_id(1));
        world.prepared(&lease).unwrap();
        world.admit_programs(id);
        let mut own = terminal.holder(worker_user(1));
        let mut stranger = terminal.holder(4722);
        if by_watchdog {
            let watchdog = world.machine.watchdog();
            while watchdog.end(id).is_err() {
                thread::yield_now();
            }
        } else {
            let proof = world.cut(&lease).to_string();
            let named = format!(
                "killed, had its node open or may hide it: pid {} of user",
                own.id()
            );
            assert!(proof.contains(&named), "{proof}");
        }
        let ended = own.try_wait().unwrap().expect("it has the device");
        assert_eq!(ended.signal(), Some(Signal::SIGKILL as i32));
        assert!(stranger.try_wait().unwrap().is_none());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        world.cut(&lease);
        world.release(&lease).unwrap();
    }
}
