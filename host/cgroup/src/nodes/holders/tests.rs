use std::{
    fs::{File, OpenOptions},
    io::IoSlice,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{MetadataExt, OpenOptionsExt},
            net::UnixStream,
            process::CommandExt,
        },
    },
    process::{Child, Command, id},
};

use nix::{
    fcntl::OFlag,
    pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt},
    sys::{
        socket::{ControlMessage, MsgFlags, sendmsg},
        stat::{major, minor},
    },
};

use super::*;

/// A terminal that nobody else has.
pub(super) fn terminal() -> (PtyMaster, String) {
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname_r(&master).unwrap();
    (master, path)
}

pub(super) fn open(path: &str) -> File {
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(OFlag::O_NOCTTY.bits());
    options.open(path).unwrap()
}

pub(super) fn number(path: &str) -> DeviceNumber {
    let number = fs::metadata(path).unwrap().rdev();
    [major(number), minor(number)]
        .map(|it| u32::try_from(it).unwrap())
        .into()
}

fn look(path: &str, without: &[u32]) -> Vec<Holder> {
    let call = Holders {
        devices: [number(path)].into(),
        without: without.iter().copied().collect(),
        is_complete: true,
    };
    call.look(USER_LOOK_MAX, REPORT_EVERY, &mut |_| Ok(()))
        .unwrap()
}

pub(super) fn child(uid: u32, stdin: OwnedFd) -> Child {
    let mut command = Command::new("sleep");
    let command = command.arg("1000").stdin(stdin);
    command.uid(uid).gid(uid).spawn().unwrap()
}

#[test]
fn who_opens_a_device_is_found_with_its_user_and_who_closes_it_is_not() {
    let (_master, path) = terminal();
    // A process of another container may have a terminal of the same number there.
    let own = [id().cast_signed()];
    let found = || -> Vec<(u32, u32)> {
        let holders = look(&path, &[]).into_iter();
        let of_test = holders.filter(|it| is_of(it.process.pid, &own));
        let found = of_test.map(|it| (it.process.pid.cast_unsigned(), it.user));
        found.collect()
    };
    let file = open(&path);
    let root = nix::unistd::geteuid().as_raw();
    assert_eq!(found(), [(id(), root)]);
    let mut child = child(4711, file.into());
    assert_eq!(found(), [(child.id(), 4711)]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found(), []);
    let nothing = Holders {
        devices: BTreeSet::new(),
        without: BTreeSet::new(),
        is_complete: true,
    };
    assert_eq!(
        nothing
            .look(USER_LOOK_MAX, REPORT_EVERY, &mut |_| Ok(()))
            .unwrap(),
        []
    );
}

#[test]
fn a_user_who_has_too_many_files_is_named_or_left_out() {
    let (_master, path) = terminal();
    let own = open(&path);
    // The time is compared with that of each file that is not the device.
    let mut child = child(4714, File::open("/dev/null").unwrap().into());
    let look = |is_complete| {
        let call = Holders {
            devices: [number(&path)].into(),
            without: BTreeSet::new(),
            is_complete,
        };
        call.look(Duration::ZERO, Duration::ZERO, &mut |_| Ok(()))
    };
    let error = look(true).unwrap_err().detail;
    assert!(error.contains("of user "), "{error}");
    // The files of root are searched whatever the time.
    let found = look(false).unwrap();
    assert!(
        found
            .iter()
            .any(|it| it.process.pid.cast_unsigned() == id())
    );
    drop(own);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn root_of_a_container_is_no_daemon_of_the_nodes_root() {
    let (_master, path) = terminal();
    let mut command = Command::new("unshare");
    let command = command.args(["--pid", "--fork", "--kill-child", "sleep", "1000"]);
    let mut child = command.stdin(open(&path)).spawn().unwrap();
    let found = || look(&path, &[]).into_iter().find(|it| !it.is_of_node);
    let holder = loop {
        if let Some(holder) = found() {
            break holder;
        }
    };
    assert!(holder.user == 0 && !holder.is_roots());
    assert!(holder.describe().contains("in a container"));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Tables of open files do not contain files that were sent and not received.
#[test]
fn a_socket_with_files_that_nobody_receives_counts() {
    let (_master, path) = terminal();
    let mut child = child(4712, in_flight(open(&path)));
    let found = |without: &[u32]| {
        let found = look(&path, without);
        found
            .into_iter()
            .find(|it| it.process.pid.cast_unsigned() == child.id())
    };
    let holder = found(&[]).unwrap();
    assert!(holder.user == 4712 && !holder.has_device);
    assert_eq!(found(&[4712]), None);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A socket to which the file was sent and not received.
pub(super) fn in_flight(file: File) -> OwnedFd {
    let (near, far) = UnixStream::pair().unwrap();
    let files = [file.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&files)];
    let bytes = [IoSlice::new(b"x")];
    sendmsg::<()>(near.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), None).unwrap();
    far.into()
}
