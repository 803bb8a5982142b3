//! Descriptors that a peer sends.

use std::fs::{self, File};
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::catch_unwind;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::line::Line;
use crate::pidfd::Pidfd;
use crate::receive::receive;

/// Runs `act` in its own process, since other tests have descriptors and limits too.
fn alone(act: impl FnOnce() + std::panic::UnwindSafe) {
    // SAFETY: the child makes system calls and allocates memory, which glibc allows after a fork of threads.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let failed = catch_unwind(act).is_err();
            // SAFETY: _exit(2) takes an integer.
            unsafe { libc::_exit(failed.into()) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn send(end: &OwnedFd, count: usize) {
    let null = File::open("/dev/null").unwrap();
    let (copies, bytes) = (vec![null.as_raw_fd(); count], [IoSlice::new(b"x")]);
    let rights = [ControlMessage::ScmRights(&copies)];
    let sent = sendmsg::<()>(end.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), None);
    assert_eq!(sent, Ok(1));
}

/// Runs `act` while at most `room` more descriptors can be opened.
fn with_room<T>(room: usize, act: impl FnOnce() -> T) -> T {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let lower = |limit| setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
    lower(soft.min(1024));
    let null = File::open("/dev/null").unwrap();
    let mut taken: Vec<_> = std::iter::from_fn(|| null.try_clone().ok()).collect();
    taken.truncate(taken.len() - room);
    let outcome = act();
    drop(taken);
    lower(soft);
    outcome
}

#[test]
fn whatever_a_peer_sends_nothing_of_it_stays_open() {
    alone(|| {
        for kind in [SockType::SeqPacket, SockType::Stream] {
            let flags = SockFlag::SOCK_CLOEXEC;
            let (here, there) = socketpair(AddressFamily::Unix, kind, None, flags).unwrap();
            let before = open_files();
            for room in [0, 1, 2, 60, 400] {
                for count in [1, 2, 3, 100, 253].repeat(3) {
                    send(&there, count);
                    let mut bytes = [0; 8];
                    let received = with_room(room, || receive(&here, &mut bytes)).unwrap();
                    assert_eq!((received.length, bytes[0]), (1, b'x'));
                    match received.descriptor {
                        Ok(descriptor) => {
                            assert!(count == 1 && room > 0 && descriptor.is_some(), "{count}");
                        }
                        Err(why) if room < count => assert!(why.contains("had room for"), "{why}"),
                        Err(why) => {
                            assert!(why.starts_with(&format!("{count} descriptors")), "{why}");
                            assert!(count > 1, "{why}");
                        }
                    }
                    assert_eq!(open_files(), before, "{count} descriptors, room for {room}");
                }
            }
        }
    });
}

#[test]
fn bytes_without_a_descriptor_need_no_room_for_one() {
    alone(|| {
        let (here, there) = Line::pair().unwrap();
        there.send(b"x", None, MsgFlags::empty()).unwrap();
        let message = with_room(0, || here.receive()).unwrap().unwrap();
        assert!(message.descriptor.is_none());
    });
}

#[test]
fn a_message_with_several_descriptors_is_refused_and_the_next_is_received() {
    let (here, there) = Line::pair().unwrap();
    let there = OwnedFd::from(there);
    send(&there, 2);
    send(&there, 1);
    let error = here.receive().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert!(error.to_string().starts_with("2 descriptors"), "{error}");
    assert!(here.receive().unwrap().unwrap().descriptor.is_some());
}

#[test]
fn a_pidfd_is_told_from_other_descriptors_and_from_that_of_another_process() {
    let this = || Pidfd::open(Pid::this()).unwrap();
    let (one, other) = (this(), this());
    assert_eq!(
        Pidfd::number_of(one.as_fd()).unwrap(),
        Some(Pid::this().as_raw())
    );
    assert!(one.is_same(other.as_fd()).unwrap());
    let parent = Pidfd::open(Pid::parent()).unwrap();
    assert!(!one.is_same(parent.as_fd()).unwrap());
    let file = tempfile::tempfile().unwrap();
    let (pipe, _) = std::io::pipe().unwrap();
    let (line, _) = Line::pair().unwrap();
    for stranger in [file.as_fd(), pipe.as_fd(), line.as_fd()] {
        assert_eq!(Pidfd::number_of(stranger).unwrap(), None);
        assert!(!one.is_same(stranger).unwrap());
    }
}

/// The locks come before the number in fdinfo, and only the beginning of fdinfo is read: the number may be cut off
/// there.
#[test]
fn locks_of_a_pidfd_hide_its_number_and_never_change_it() {
    let number = Pid::this().as_raw();
    for locks in [1, 40, 60, 65, 70, 75, 20_000] {
        let pidfd = Pidfd::open(Pid::this()).unwrap();
        for at in 0..locks {
            lock(&pidfd, at * 2);
        }
        // Each further digit makes the lines one byte longer.
        for digits in 6..18 {
            let found = Pidfd::number_of(pidfd.as_fd()).unwrap();
            assert!(found.is_none_or(|it| it == number), "{found:?}");
            assert!(locks != 1 || found.is_some());
            assert!(locks != 20_000 || found.is_none());
            lock(&pidfd, 10_i64.pow(digits));
        }
    }
}

/// Locks a byte of the open file itself (F_OFD_SETLK of fcntl(2)).
fn lock(pidfd: &Pidfd, start: i64) {
    let lock = libc::flock {
        l_type: libc::F_WRLCK.try_into().unwrap(),
        l_whence: libc::SEEK_SET.try_into().unwrap(),
        l_start: start,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(pidfd, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
}
