//! A child process isolates itself and tries everything that it must not be able to do.

use std::{
    collections::BTreeSet,
    env, fs, io,
    net::{TcpListener, UdpSocket},
    os::{
        fd::AsRawFd,
        unix::net::{UnixDatagram, UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::Command,
    ptr,
    sync::mpsc,
    thread,
};

use nix::{
    errno::Errno,
    libc::{self, c_long},
    sys::{
        prctl::get_dumpable,
        resource::{Resource, getrlimit},
        signal::{Signal, kill},
    },
    unistd::{Pid, geteuid, getgid, getgroups, getpid, getppid, getuid},
};

use super::{super::filter::DENIED, become_user, close, drop_capabilities, separate};

const MARK: &str = "FABRICBIOS_TEST_SANDBOX";
const UID: u32 = 0x4000_0001;

/// Runs the child's part of a test in a process of its own. `place`: a directory for it.
pub(in crate::worker) fn in_a_child(test: &str, place: &Path) {
    let ended = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--include-ignored", "--nocapture"])
        .arg(format!("worker::{test}"))
        .env(MARK, place)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        said.contains("1 passed"),
        "{said}\n{}",
        String::from_utf8_lossy(&ended.stderr)
    );
}

/// The directory for the child's part; `None`: this is no child.
pub(in crate::worker) fn place_of_child() -> Option<PathBuf> {
    env::var_os(MARK).map(PathBuf::from)
}

#[test]
fn a_worker_is_shut_in() {
    let place = tempfile::tempdir().unwrap();
    in_a_child("sandbox::tests::shut_in", place.path());
}

#[test]
fn a_worker_has_another_user_and_no_capabilities() {
    in_a_child("sandbox::tests::another_user", Path::new("/"));
}

/// The result of a system call.
fn call(number: c_long, arguments: [usize; 5]) -> Result<c_long, Errno> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: no call in this file can harm the process: the calls are denied, or their arguments are invalid.
    Errno::result(unsafe { libc::syscall(number, a, b, c, d, e) })
}

fn number(of: i32) -> usize {
    of.cast_unsigned() as usize
}

#[test]
#[ignore = "a process of another test"]
fn shut_in() {
    let Some(place) = place_of_child() else {
        return;
    };
    let listener = UnixListener::bind(place.join("socket")).unwrap();
    let _client = UnixStream::connect(place.join("socket")).unwrap();
    // The user stays the same here, so the denials below do not come from missing rights to other users' processes.
    drop_capabilities().unwrap();
    close().unwrap();

    let denied = Err(Errno::EPERM);
    for denied_call in DENIED {
        assert_eq!(
            call(*denied_call, [0; 5]),
            denied,
            "system call {denied_call}"
        );
    }
    let domains = [
        libc::AF_INET,
        libc::AF_INET6,
        libc::AF_NETLINK,
        libc::AF_PACKET,
        libc::AF_VSOCK,
    ];
    for domain in domains {
        let made = call(
            libc::SYS_socket,
            [number(domain), number(libc::SOCK_STREAM), 0, 0, 0],
        );
        assert_eq!(made, denied, "sockets of family {domain}");
    }
    for kind in [libc::SOCK_DGRAM, libc::SOCK_SEQPACKET, libc::SOCK_RAW] {
        let flags = number(kind | libc::SOCK_CLOEXEC);
        let made = call(libc::SYS_socket, [number(libc::AF_UNIX), flags, 0, 0, 0]);
        assert_eq!(made, denied, "sockets of type {kind}");
        let made = call(
            libc::SYS_socketpair,
            [number(libc::AF_UNIX), flags, 0, 0, 0],
        );
        assert_eq!(made, denied, "pairs of sockets of type {kind}");
    }
    let is_denied = |error: io::Error| assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    is_denied(TcpListener::bind("127.0.0.1:0").unwrap_err());
    is_denied(UdpSocket::bind("127.0.0.1:0").unwrap_err());
    is_denied(UnixStream::connect(place.join("socket")).unwrap_err());
    is_denied(UnixDatagram::unbound().unwrap_err());
    is_denied(Command::new("/bin/true").spawn().unwrap_err());

    // Files that give their user or group to a process that executes them, and input for a terminal.
    for mode in [0o4755, 0o2755] {
        let at = c"/tmp".as_ptr() as usize;
        let made = call(libc::SYS_mkdirat, [0, at, mode, 0, 0]);
        assert_eq!(made, denied, "a directory of mode {mode:o}");
        let flags = number(libc::O_CREAT | libc::O_WRONLY);
        let made = call(libc::SYS_openat, [0, at, flags, mode, 0]);
        assert_eq!(made, denied, "a file of mode {mode:o}");
    }
    assert_eq!(call(libc::SYS_openat2, [0; 5]), Err(Errno::ENOSYS));
    for request in [libc::TIOCSTI, libc::TIOCLINUX] {
        let request = usize::try_from(request).unwrap();
        assert_eq!(call(libc::SYS_ioctl, [0, request, 0, 0, 0]), denied);
    }
    let dumpable = [number(libc::PR_SET_DUMPABLE), 1, 0, 0, 0];
    assert_eq!(call(libc::SYS_prctl, dumpable), denied);
    let grows = tempfile::tempfile().unwrap();
    grows.set_len(1 << 20).unwrap();
    let too_large = grows.set_len(1 << 40).unwrap_err();
    assert_eq!(too_large.kind(), io::ErrorKind::FileTooLarge);

    let to_somebody = call(libc::SYS_sendto, [0, 0, 0, 0, 1]);
    assert_eq!(to_somebody, denied);

    // Processes: `clone3` does not exist here, and `clone` makes only threads.
    assert_eq!(call(libc::SYS_clone3, [0; 5]), Err(Errno::ENOSYS));
    assert_eq!(
        call(libc::SYS_clone, [number(libc::SIGCHLD), 0, 0, 0, 0]),
        denied
    );
    let (parent, own) = (getppid(), getpid());
    assert_eq!(kill(parent, None), Err(Errno::EPERM));
    assert_eq!(kill(Pid::from_raw(0), None), Err(Errno::EPERM));
    assert_eq!(kill(Pid::from_raw(-1), None), Err(Errno::EPERM));
    assert_eq!(kill(own, None), Ok(()));
    assert_eq!(kill(own, Signal::SIGURG), Ok(()));
    let others = [number(parent.as_raw()), number(parent.as_raw()), 0, 0, 0];
    for signal in [
        libc::SYS_tgkill,
        libc::SYS_rt_sigqueueinfo,
        libc::SYS_rt_tgsigqueueinfo,
    ] {
        assert_eq!(call(signal, others), denied, "system call {signal}");
    }
    // Calls of other kernel interfaces are denied or fatal; x32 has the same numbers, with one more bit.
    #[cfg(target_arch = "x86_64")]
    assert_eq!(call(0x4000_0000 | libc::SYS_getpid, [0; 5]), denied);

    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    for set in ["CapPrm", "CapEff", "CapInh"] {
        let none = format!("{set}:\t0000000000000000");
        assert!(status.contains(&none), "{set}: {status}");
    }

    // The calls that a worker needs still work.
    let (stream, _) = listener.accept().unwrap();
    let (one, other) = UnixStream::pair().unwrap();
    // SAFETY: the buffer has a byte.
    let sent = unsafe {
        libc::sendto(
            one.as_raw_fd(),
            [1_u8].as_ptr().cast(),
            1,
            0,
            ptr::null(),
            0,
        )
    };
    assert_eq!(sent, 1);
    drop((stream, other));
    assert_eq!(thread::spawn(|| 5).join().unwrap(), 5);
    assert!(!get_dumpable().unwrap());
}

/// A field of each thread's status.
fn of_all_threads(field: &str) -> BTreeSet<String> {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let statuses = threads.map(|it| fs::read_to_string(it.unwrap().path().join("status")).unwrap());
    statuses
        .map(|status| {
            let mut lines = status.lines().filter_map(|line| line.split_once(":\t"));
            lines
                .find(|(key, _)| *key == field)
                .unwrap()
                .1
                .trim()
                .to_owned()
        })
        .collect()
}

#[test]
#[ignore = "a process of another test"]
fn another_user() {
    if place_of_child().is_none() {
        return;
    }
    let is_root = geteuid().is_root();
    let before = fs::read_link("/proc/self/ns/net").unwrap();
    let lacks = separate();
    // A thread such as those of drivers.
    let (end, waits) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel();
    let driver = thread::spawn(move || {
        begin
            .send(fs::read_link("/proc/thread-self/ns/net").unwrap())
            .unwrap();
        waits.recv().unwrap_err();
        // The filter applies to this thread too.
        call(libc::SYS_execve, [0; 5])
    });
    let network = begun.recv().unwrap();
    assert_eq!(
        network == before,
        lacks.iter().any(|lack| lack.contains("network namespace"))
    );
    let became = become_user(UID, &[UID + 1, UID + 2]);
    if !is_root {
        drop(end);
        driver.join().unwrap().unwrap_err();
        let why = became.unwrap_err();
        assert!(why.to_string().contains("not started by root"), "{why}");
        return;
    }
    assert_eq!(became.unwrap(), Vec::<String>::new());
    assert_eq!(getrlimit(Resource::RLIMIT_CORE), Ok((0, 0)));
    // The process can read its own files in /proc, which drivers read when they open a device.
    fs::read("/proc/self/maps").unwrap();
    close().unwrap();
    assert_eq!(
        of_all_threads("NoNewPrivs"),
        BTreeSet::from(["1".to_owned()])
    );
    assert_eq!(of_all_threads("Seccomp"), BTreeSet::from(["2".to_owned()]));
    let none = BTreeSet::from(["0000000000000000".to_owned()]);
    for set in ["CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(of_all_threads(set), none, "{set}");
    }
    assert_eq!((getuid().as_raw(), getgid().as_raw()), (UID, UID));
    let groups: BTreeSet<u32> = getgroups()
        .unwrap()
        .into_iter()
        .map(nix::unistd::Gid::as_raw)
        .collect();
    assert_eq!(groups, BTreeSet::from([UID + 1, UID + 2]));
    assert_eq!(
        of_all_threads("Uid"),
        BTreeSet::from([[UID; 4].map(|it| it.to_string()).join("\t")])
    );
    // This thread starts the threads of the queues.
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    for set in ["CapBnd:\t0000000000000000", "CapInh:\t0000000000000000"] {
        assert!(status.contains(set), "{set}: {status}");
    }
    drop(end);
    assert_eq!(driver.join().unwrap(), Err(Errno::EPERM));
}
