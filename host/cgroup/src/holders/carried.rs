//! Open files that are in no process's table: sent to a socket and not received yet, or registered with a ring
//! (io_uring).

use std::{
    fs::File,
    io::{IoSliceMut, Read},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
};

use fabricbios_helper::Pidfd;
use nix::{getsockopt_impl, libc, sockopt_impl, sys::socket::getsockopt, unistd::Pid};
use rustix::{
    cmsg_space,
    fs::{AtFlags, FileType, StatxFlags, statx},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
    process::{PidfdGetfdFlags, pidfd_getfd},
};

use super::{OpenFile, Table};
use crate::devices::DeviceNumber;

/// Largest part of the kernel's text about a socket or a ring that is read.
const TOLD_BYTES_MAX: u64 = 256 << 10;

/// `SCM_MAX_FD` of include/net/scm.h: largest number of descriptors in one message.
const DESCRIPTORS_MAX: usize = 253;

sockopt_impl!(
    /// Where the next peek at a socket's queue begins; -1: at its first byte.
    PeekOffset,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_PEEK_OFF,
    i32
);

impl OpenFile {
    /// Whether the file is a socket or a ring that may carry one of these devices. Of a socket, the first message is
    /// peeked at and stays in the queue. The kernel does not show the files of later messages or of a ring, so they
    /// count as such a device.
    #[must_use]
    pub fn may_carry(&self, table: Table, devices: &[DeviceNumber]) -> bool {
        if !self.is_ring() && !self.is_socket() {
            return false;
        }
        let count = self.count();
        if count == 0 || self.is_ring() {
            return count > 0;
        }
        let Some(first) = self.first_message(table) else {
            return true;
        };
        let known = first.len() as u64;
        known < count || first.iter().any(|it| may_be_one_of(it, devices))
    }

    /// Number of carried files, from the kernel's text.
    fn count(&self) -> u64 {
        let mut told = String::new();
        let at = self.at.to_string_lossy().replace("/fd/", "/fdinfo/");
        let read = File::open(at).and_then(|it| it.take(TOLD_BYTES_MAX).read_to_string(&mut told));
        let count = |line: &str| {
            let count = ["scm_fds:", "UserFiles:"]
                .iter()
                .find_map(|it| line.strip_prefix(it))?;
            count.trim().parse::<u64>().ok()
        };
        match read {
            // A text so long that the count is cut off counts as one that hides files.
            Ok(length) if length as u64 == TOLD_BYTES_MAX => u64::MAX,
            Ok(_) => told.lines().filter_map(count).max().unwrap_or(0),
            Err(_) => 0,
        }
    }

    /// The files of the first message in a socket's queue. `None`: they cannot be read.
    fn first_message(&self, table: Table) -> Option<Vec<OwnedFd>> {
        let number = self.at.file_name()?.to_str()?.parse().ok()?;
        let thread = Pid::from_raw(table.thread);
        let process = match table.thread == table.pid {
            true => Pidfd::open(thread),
            false => Pidfd::open_thread(thread),
        };
        let process = process.ok()?;
        let socket = pidfd_getfd(process.as_fd(), number, PidfdGetfdFlags::empty()).ok()?;
        // With an offset set by the socket's owner, a peek would move the offset.
        if getsockopt(&socket, PeekOffset).is_ok_and(|it| it >= 0) {
            return None;
        }
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut [0])],
            &mut beside,
            flags,
        )
        .ok()?;
        let messages = beside.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        Some(messages.flatten().collect())
    }
}

/// Whether the file is one of the devices, or may carry files itself.
fn may_be_one_of(file: &OwnedFd, devices: &[DeviceNumber]) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, "", flags, StatxFlags::TYPE).map_or(true, |found| {
        match FileType::from_raw_mode(found.stx_mode.into()) {
            FileType::CharacterDevice => {
                devices.contains(&(found.stx_rdev_major, found.stx_rdev_minor))
            }
            // A ring has no file type.
            FileType::Socket | FileType::Unknown => true,
            _ => false,
        }
    })
}
