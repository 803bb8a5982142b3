//! Descriptors that a peer sends.

use std::fs::{self, File};
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::catch_unwind;

use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::BadDescriptors;
use crate::line::Line;
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
                        Err(BadDescriptors::NoRoom(had)) => assert!(had == room && room < count),
                        Err(why) => {
                            assert_eq!(why, BadDescriptors::Several(count));
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
