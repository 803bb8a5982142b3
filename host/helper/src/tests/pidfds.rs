//! Which process a pidfd is of.

use std::os::fd::AsFd;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::unistd::Pid;

use crate::pidfd::Pidfd;

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
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    for stranger in [file.as_fd(), pipe.as_fd(), socket.as_fd()] {
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
