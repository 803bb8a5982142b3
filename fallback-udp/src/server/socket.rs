//! The sockets of a service: one per thread, all on one port (SO_REUSEPORT). The kernel distributes the clients among
//! them.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::{AsRawFd, OwnedFd},
};

use fabricbios_lease::StepError;
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
    },
};

use crate::sockopt::{Ipv6MtuDiscover, MtuDiscover};

/// Large enough for some milliseconds of a fast network, while the threads get no processor.
const BUFFER_BYTES: usize = 8 << 20;

/// Opens `count` sockets of the service `name` on `listen`. With port 0 the system chooses one, the same
/// for all.
pub(super) fn open(
    name: &str,
    listen: SocketAddr,
    count: usize,
) -> Result<Vec<UdpSocket>, StepError> {
    let failed = |errno: Errno| {
        let why = explain(listen, errno);
        StepError::new("listen", format_args!("for {name}: {why}")).with_errno(errno as i32)
    };
    // The first socket does not share the port: it fails if another program has the port, even one that would share
    // it. After that the other sockets may join.
    let first = UdpSocket::from(bound(listen, false).map_err(failed)?);
    let address = first
        .local_addr()
        .map_err(|error| StepError::new("listen", format_args!("for {name}: {listen}: {error}")))?;
    setsockopt(&first, sockopt::ReusePort, &true).map_err(failed)?;
    let mut sockets = vec![first];
    for _ in 1..count {
        sockets.push(bound(address, true).map_err(failed)?.into());
    }
    Ok(sockets)
}

fn bound(listen: SocketAddr, join: bool) -> Result<OwnedFd, Errno> {
    let family = match listen.ip() {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Datagram, flags, None)?;
    let is_wildcard = listen.ip().is_unspecified();
    if listen.is_ipv6() {
        // The wildcard of IPv6 takes IPv4 too.
        setsockopt(&socket, sockopt::Ipv6V6Only, &!is_wildcard)?;
    }
    // The reply needs the local address of its request; on a wildcard socket the kernel reports it per datagram.
    match listen.ip() {
        IpAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &is_wildcard)?,
        IpAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4PacketInfo, &is_wildcard)?,
    }
    forbid_fragments(&socket, listen.is_ipv6())?;
    enlarge_buffers(&socket)?;
    setsockopt(&socket, sockopt::ReusePort, &join)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(listen))?;
    Ok(socket)
}

/// Sets DF on every datagram of a socket and ignores the path MTU of the kernel's cache: with `PROBE` the limit is the MTU
/// of the interface (ip(7)). `DO` would obey the cache, and one forged ICMP message would keep long replies from a
/// client for 10 minutes. HELLO proves the length anyway.
fn forbid_fragments(socket: &OwnedFd, is_v6: bool) -> Result<(), Errno> {
    setsockopt(socket, MtuDiscover, &libc::IP_PMTUDISC_PROBE)?;
    if is_v6 {
        setsockopt(socket, Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_PROBE)?;
    }
    Ok(())
}

/// Enlarges the buffers: above the system's limit if this process is permitted to, else up to the limit.
fn enlarge_buffers(socket: &OwnedFd) -> Result<(), Errno> {
    setsockopt(socket, sockopt::RcvBufForce, &BUFFER_BYTES)
        .or_else(|_not_permitted| setsockopt(socket, sockopt::RcvBuf, &BUFFER_BYTES))?;
    setsockopt(socket, sockopt::SndBufForce, &BUFFER_BYTES)
        .or_else(|_not_permitted| setsockopt(socket, sockopt::SndBuf, &BUFFER_BYTES))
}

fn explain(listen: SocketAddr, errno: Errno) -> String {
    let hint = match errno {
        Errno::EADDRINUSE => "; another program has the port: stop it or configure another port",
        Errno::EADDRNOTAVAIL => "; the address is on no interface of this machine",
        Errno::EACCES => "; ports below 1024 need CAP_NET_BIND_SERVICE",
        _ => "",
    };
    format!("UDP {listen}: {errno}{hint}")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use nix::sys::socket::getsockopt;

    use super::*;

    /// IPv4 is also tested on an IPv6 socket, which receives both.
    #[test]
    fn no_path_mtu_of_the_cache_is_believed() {
        let sockets = open("a test", (Ipv6Addr::UNSPECIFIED, 0).into(), 2).unwrap();
        for it in &sockets {
            assert_eq!(getsockopt(it, MtuDiscover), Ok(libc::IP_PMTUDISC_PROBE));
            assert_eq!(
                getsockopt(it, Ipv6MtuDiscover),
                Ok(libc::IPV6_PMTUDISC_PROBE)
            );
        }
    }
}
