//! One connected UDP socket that never fragments, and many datagrams with one call.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
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
    calls::{Headers, Received},
    sockopt::{Ipv6Mtu, Ipv6MtuDiscover, MtuDiscover},
    transfer::Transmit,
};

/// Most datagrams of one call.
pub(super) const BATCH: usize = 32;
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
    headers: Headers,
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
        Ok(Self {
            socket,
            peer,
            headers: Headers::new(BATCH),
        })
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
    pub(super) fn send(&mut self, datagrams: &[Transmit<'_>]) -> io::Result<Seen> {
        let mut seen = Seen::default();
        let mut left = datagrams;
        while !left.is_empty() {
            let batch = left.iter().take(BATCH);
            let from = batch.map(|it| (None, [&it.prefix[..], it.payload]));
            match self.headers.send(self.socket.as_fd(), 0, from) {
                Ok(sent) => left = &left[sent..],
                Err(errno) => {
                    let error = io::Error::from(errno);
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

    /// Waits for at most `timeout` and receives datagrams.
    pub(super) fn receive(&mut self, inbox: &mut Inbox, timeout: Duration) -> io::Result<Seen> {
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
        let Inbox { bytes, lengths } = inbox;
        let into = bytes.iter_mut().map(|bytes| (None, &mut bytes[..]));
        // A truncated datagram is dropped.
        let note = |at: usize, it: Received| lengths[at] = if it.is_cut { 0 } else { it.bytes };
        match self.headers.receive(self.socket.as_fd(), into, note) {
            Ok(came) => seen.came = came,
            Err(errno) => {
                seen.pass(errno.into())?;
            }
        }
        Ok(seen)
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
