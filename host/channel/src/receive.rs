//! Receives from a socket whose other end may send descriptors.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg as receive_message,
};

use crate::BadDescriptors;

/// `SCM_MAX_FD` of include/net/scm.h: largest number of descriptors in one message.
const DESCRIPTORS_MAX: usize = 253;

/// The result of one recvmsg(2).
#[derive(Debug)]
pub struct Received {
    /// Number of bytes; 0 at the end of the stream.
    pub length: usize,
    /// The descriptor beside the bytes. `Err`: there were several, or not all of them could be received.
    pub descriptor: Result<Option<OwnedFd>, BadDescriptors>,
}

/// Receives bytes and at most one descriptor. All other descriptors that the peer has sent are closed, even if this
/// process has no room for all of them.
///
/// # Errors
/// The error of recvmsg(2), except `EINTR`. Then nothing was received.
pub fn receive(socket: impl AsFd, into: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(into)];
    let received = loop {
        match receive_message(
            socket.as_fd(),
            &mut parts,
            &mut beside,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let messages = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut descriptors: Vec<OwnedFd> = messages.flatten().collect();
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    let descriptor = match descriptors.len() {
        had_room if is_cut => Err(BadDescriptors::NoRoom(had_room)),
        0 | 1 => Ok(descriptors.pop()),
        count => Err(BadDescriptors::Several(count)),
    };
    Ok(Received {
        length: received.bytes,
        descriptor,
    })
}

/// Waits until the descriptor is readable, for some weeks at most. An interrupted wait starts again.
///
/// # Errors
/// poll(2) fails.
pub fn is_readable_within(descriptor: BorrowedFd<'_>, patience: Duration) -> io::Result<bool> {
    let milliseconds = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    let mut waited_for = [PollFd::new(descriptor, PollFlags::POLLIN)];
    loop {
        match poll(&mut waited_for, milliseconds) {
            Err(nix::errno::Errno::EINTR) => {}
            polled => return Ok(polled? > 0),
        }
    }
}
