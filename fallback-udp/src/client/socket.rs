//! One connected UDP socket that never fragments, and many datagrams with one call.
#![allow(
    unsafe_code,
    reason = "sendmmsg and recvmmsg have no safe form that fits"
)]

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
    time::Duration,
    vec::Vec,
};

use fabricbios_wire::DATAGRAM_MAX;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{getsockopt, setsockopt, sockopt},
};

use crate::{
    sockopt::{Ipv6Mtu, Ipv6MtuDiscover, MtuDiscover},
    transfer::Transmit,
};

/// Most datagrams of one call.
pub(super) const BATCH: usize = 32;
#[allow(clippy::cast_possible_truncation, reason = "small constants")]
const BATCH_COUNT: libc::c_uint = BATCH as libc::c_uint;
/// Room for the answers to a whole window, if the system allows it.
const RECEIVE_BUFFER: usize = 2 << 20;

/// The result of sending or receiving.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Number of datagrams received.
    pub(super) came: usize,
    /// Whether a datagram was too long for the route.
    pub(super) too_long: bool,
    /// A temporary error, such as a closed port or no route. The datagram counts as lost.
    pub(super) trouble: Option<io::Error>,
}

/// Buffers for received datagrams.
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: Vec<[u8; DATAGRAM_MAX]>,
    lengths: [usize; BATCH],
}

#[derive(Debug)]
pub(super) struct Socket {
    socket: UdpSocket,
    peer: SocketAddr,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            bytes: std::vec![[0; DATAGRAM_MAX]; BATCH],
            lengths: [0; BATCH],
        }
    }

    /// The first `came` datagrams received.
    pub(super) fn datagrams(&self, came: usize) -> impl Iterator<Item = &[u8]> {
        let lengths = self.lengths.iter().take(came);
        self.bytes
            .iter()
            .zip(lengths)
            .map(|(bytes, length)| &bytes[..*length])
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Socket {
    /// A socket that receives from `peer` only and sets DF.
    pub(super) fn connect(peer: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = match peer {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        match peer {
            SocketAddr::V4(_) => setsockopt(&socket, MtuDiscover, &libc::IP_PMTUDISC_DO)?,
            SocketAddr::V6(_) => setsockopt(&socket, Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_DO)?,
        }
        // Above the system's limit if this process is permitted to, else up to the limit.
        setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)
            .or_else(|_not_permitted| setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER))?;
        socket.connect(peer)?;
        Ok(Self { socket, peer })
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Length of the IP header in bytes.
    pub(super) fn ip_header(&self) -> usize {
        if self.peer.is_ipv4() { 20 } else { 40 }
    }

    /// MTU of the route as the kernel knows it now, in bytes, IP header included.
    pub(super) fn mtu(&self) -> io::Result<usize> {
        let mtu = match self.peer {
            SocketAddr::V4(_) => getsockopt(&self.socket, sockopt::IpMtu)?,
            SocketAddr::V6(_) => getsockopt(&self.socket, Ipv6Mtu)?,
        };
        // An MTU is never negative.
        Ok(usize::try_from(mtu).unwrap_or_default())
    }

    /// Sends up to [`BATCH`] datagrams; one that cannot be sent counts as lost.
    pub(super) fn send(&self, datagrams: &[Transmit<'_>]) -> io::Result<Seen> {
        let mut seen = Seen::default();
        let mut left = datagrams;
        while !left.is_empty() {
            match self.send_some(left) {
                Ok(sent) => left = &left[sent..],
                Err(error) => {
                    // The kernel may report the error of an earlier datagram for a later one, which was then not sent.
                    let belated =
                        error.kind() == io::ErrorKind::ConnectionRefused && seen.trouble.is_none();
                    if seen.pass(error)? && !belated {
                        left = &left[1..];
                    }
                }
            }
        }
        Ok(seen)
    }

    fn send_some(&self, datagrams: &[Transmit<'_>]) -> io::Result<usize> {
        let mut parts = [[io_slice(&[]); 2]; BATCH];
        let mut headers = [EMPTY; BATCH];
        let filled = parts.iter_mut().zip(&mut headers).zip(datagrams);
        let mut count = 0;
        for ((parts, header), datagram) in filled {
            *parts = [io_slice(&datagram.prefix), io_slice(datagram.payload)];
            header.msg_hdr.msg_iov = parts.as_mut_ptr();
            header.msg_hdr.msg_iovlen = parts.len();
            count += 1;
        }
        // SAFETY: the first `count` headers point to parts which point to datagrams; all of them outlive
        // the call, and the kernel only reads what the parts point to.
        let sent =
            unsafe { libc::sendmmsg(self.socket.as_raw_fd(), headers.as_mut_ptr(), count, 0) };
        counted(sent)
    }

    /// Waits for at most `timeout` and receives datagrams.
    pub(super) fn receive(&self, inbox: &mut Inbox, timeout: Duration) -> io::Result<Seen> {
        let mut seen = Seen::default();
        // Rounded up, so that the time-out is due when this returns.
        let timeout = i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut wanted = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut wanted, timeout) {
            Ok(0) | Err(Errno::EINTR) => return Ok(seen),
            Ok(_) => (),
            Err(error) => return Err(error.into()),
        }
        match self.receive_some(inbox) {
            Ok(came) => seen.came = came,
            Err(error) => {
                seen.pass(error)?;
            }
        }
        Ok(seen)
    }

    fn receive_some(&self, inbox: &mut Inbox) -> io::Result<usize> {
        let mut parts = [io_slice(&[]); BATCH];
        let mut headers = [EMPTY; BATCH];
        for ((part, header), bytes) in parts.iter_mut().zip(&mut headers).zip(&mut inbox.bytes) {
            part.iov_base = bytes.as_mut_ptr().cast();
            part.iov_len = bytes.len();
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: every header points to one part, and the part points to as many bytes as it states, used for one
        // datagram only; all of them outlive the call. No time-out is given.
        let came = unsafe {
            let flags = libc::MSG_DONTWAIT;
            let (fd, headers) = (self.socket.as_raw_fd(), headers.as_mut_ptr());
            libc::recvmmsg(fd, headers, BATCH_COUNT, flags, ptr::null_mut())
        };
        let came = counted(came)?;
        for (length, header) in inbox.lengths.iter_mut().zip(&headers).take(came) {
            // A truncated datagram is dropped.
            let cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            *length = if cut { 0 } else { header.msg_len as usize };
        }
        Ok(came)
    }
}

impl Seen {
    /// Whether an error is temporary and cost the datagram; other errors are returned.
    fn pass(&mut self, error: io::Error) -> io::Result<bool> {
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => return Ok(false),
            Some(libc::EMSGSIZE) => self.too_long = true,
            Some(
                libc::ECONNREFUSED
                | libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::ENETDOWN
                | libc::EHOSTDOWN
                | libc::ENOBUFS
                | libc::EPERM
                | libc::EACCES,
            ) => self.trouble = Some(error),
            _ => return Err(error),
        }
        Ok(true)
    }
}

/// The count that a system call returned, or its error.
fn counted(result: libc::c_int) -> io::Result<usize> {
    let count = Errno::result(result)?;
    Ok(usize::try_from(count).unwrap_or_default())
}

fn io_slice(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

const EMPTY: libc::mmsghdr = libc::mmsghdr {
    msg_hdr: libc::msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: ptr::null_mut(),
        msg_iovlen: 0,
        msg_control: ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    },
    msg_len: 0,
};
