//! The sockets of one interface: of the group, where everybody listens, or of an asker alone, where its answers arrive.

use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket},
    os::fd::AsRawFd,
};

use fabricbios_wire::{
    DISCOVERY_BYTES_MAX, DISCOVERY_GROUP_V4, DISCOVERY_GROUP_V6, DISCOVERY_PORT,
};
use nix::{
    errno::Errno,
    ifaddrs::{InterfaceAddress, getifaddrs},
    net::if_::{InterfaceFlags, if_nametoindex},
    sys::socket::{
        AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrLike,
        SockaddrStorage, bind, recvmsg, setsockopt, socket, sockopt,
    },
};
use rustix::net::sockopt::{set_ip_add_membership_with_ifindex, set_ipv6_add_membership};
use tokio::io::Interest;

use crate::HOP_LIMIT;

/// A datagram as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its bytes; of one that is too long one byte more than is allowed.
    pub bytes: Vec<u8>,
    /// TTL or hop limit; 0: the kernel did not tell.
    pub hop_limit: u8,
    /// The index of the interface.
    pub interface: u32,
    /// Who has sent it, as it says.
    pub from: Option<SocketAddr>,
}

/// Why there is no socket on an interface.
#[derive(Debug, thiserror::Error)]
#[error("discovery on interface {interface}: {step}: {why}")]
pub struct LinkError {
    interface: String,
    step: &'static str,
    why: io::Error,
}

/// An interface, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    name: String,
    index: u32,
    v4: Option<Ipv4Addr>,
    /// Each IPv4 address with its mask.
    prefixes: Vec<(Ipv4Addr, Ipv4Addr)>,
    /// Of the link alone.
    v6: Option<Ipv6Addr>,
}

/// Which datagrams a socket gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hears {
    /// Those to the group.
    Group,
    /// Those to a port of its own.
    Own,
}

/// A socket of one interface and one family.
#[derive(Debug)]
pub struct Link {
    socket: tokio::net::UdpSocket,
    interface: u32,
    address: IpAddr,
    prefixes: Vec<(Ipv4Addr, Ipv4Addr)>,
    group: SocketAddr,
}

/// The names of the interfaces that are up and know multicast, without loopback.
///
/// # Errors
/// If the kernel does not list them.
pub fn multicast_interfaces() -> io::Result<Vec<String>> {
    let wanted = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_MULTICAST;
    let unwanted = InterfaceFlags::IFF_LOOPBACK;
    let suits = |it: &InterfaceAddress| it.flags.contains(wanted) && !it.flags.intersects(unwanted);
    let mut names: Vec<String> = { getifaddrs()?.filter(suits) }
        .filter(|it| v4(it).is_some() || v6(it).is_some())
        .map(|it| without_label(&it).to_owned())
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// An IPv4 address may have a label, such as `eth0:1`, which stands here for the name.
fn without_label(of: &InterfaceAddress) -> &str {
    let name = &of.interface_name;
    name.split_once(':').map_or(name, |(name, _)| name)
}

fn prefix(of: &InterfaceAddress) -> Option<(Ipv4Addr, Ipv4Addr)> {
    Some((v4(of)?, of.netmask?.as_sockaddr_in()?.ip()))
}

fn v4(of: &InterfaceAddress) -> Option<Ipv4Addr> {
    Some(of.address?.as_sockaddr_in()?.ip())
}

fn v6(of: &InterfaceAddress) -> Option<Ipv6Addr> {
    let ip = of.address?.as_sockaddr_in6()?.ip();
    ip.is_unicast_link_local().then_some(ip)
}

impl Interface {
    /// Reads index and addresses.
    pub(crate) fn read(name: &str) -> Result<Self, LinkError> {
        let bad = |step, why: Errno| error(name, step, why.into());
        let index = if_nametoindex(name).map_err(|why| bad("look for it", why))?;
        let all = getifaddrs().map_err(|why| bad("read its addresses", why))?;
        let ours: Vec<_> = all.filter(|it| without_label(it) == name).collect();
        let found = Self {
            name: name.to_owned(),
            index,
            v4: ours.iter().find_map(v4),
            prefixes: ours.iter().filter_map(prefix).collect(),
            v6: ours.iter().find_map(v6),
        };
        match (found.v4, found.v6) {
            (None, None) => {
                let why = io::Error::other(
                    "it has neither an IPv4 address nor a link-local IPv6 address; `ip address` shows them",
                );
                Err(error(name, "read its addresses", why))
            }
            _ => Ok(found),
        }
    }

    /// Opens a socket for each family of which the interface has an address. Must be called within a tokio runtime.
    pub(crate) fn open(&self, hears: Hears) -> Result<Vec<Link>, LinkError> {
        let v4 = self.v4.map(|it| self.open_v4(it, hears));
        let v6 = self.v6.map(|it| self.open_v6(it, hears));
        v4.into_iter().chain(v6).collect()
    }

    fn open_v4(&self, address: Ipv4Addr, hears: Hears) -> Result<Link, LinkError> {
        let socket = self.socket(AddressFamily::Inet)?;
        let limit = i32::from(HOP_LIMIT);
        self.set(&socket, "set IP_TTL", sockopt::Ipv4Ttl, &limit)?;
        self.set(
            &socket,
            "set IP_MULTICAST_TTL",
            sockopt::IpMulticastTtl,
            &HOP_LIMIT,
        )?;
        self.set(&socket, "set IP_RECVTTL", sockopt::Ipv4RecvTtl, &true)?;
        let group = SocketAddr::from((DISCOVERY_GROUP_V4, DISCOVERY_PORT));
        self.bind(
            &socket,
            hears,
            group,
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        )?;
        if hears == Hears::Group {
            let (group, any) = (&DISCOVERY_GROUP_V4, &Ipv4Addr::UNSPECIFIED);
            let joined = set_ip_add_membership_with_ifindex(&socket, group, any, self.index);
            joined.map_err(|why| error(&self.name, JOIN, why.into()))?;
        }
        self.link(socket, address.into(), group)
    }

    fn open_v6(&self, address: Ipv6Addr, hears: Hears) -> Result<Link, LinkError> {
        let socket = self.socket(AddressFamily::Inet6)?;
        let limit = i32::from(HOP_LIMIT);
        self.set(&socket, "set IPV6_V6ONLY", sockopt::Ipv6V6Only, &true)?;
        self.set(&socket, "set IPV6_UNICAST_HOPS", sockopt::Ipv6Ttl, &limit)?;
        self.set(
            &socket,
            "set IPV6_MULTICAST_HOPS",
            sockopt::Ipv6MulticastHops,
            &limit,
        )?;
        self.set(
            &socket,
            "set IPV6_RECVHOPLIMIT",
            sockopt::Ipv6RecvHopLimit,
            &true,
        )?;
        let group = SocketAddrV6::new(DISCOVERY_GROUP_V6, DISCOVERY_PORT, 0, self.index);
        self.bind(
            &socket,
            hears,
            group.into(),
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        )?;
        if hears == Hears::Group {
            let joined = set_ipv6_add_membership(&socket, &DISCOVERY_GROUP_V6, self.index);
            joined.map_err(|why| error(&self.name, JOIN, why.into()))?;
        }
        self.link(socket, address.into(), group.into())
    }

    /// A socket that sends and receives on this interface alone.
    fn socket(&self, family: AddressFamily) -> Result<UdpSocket, LinkError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let made = socket(family, SockType::Datagram, flags, None);
        let made = made.map_err(|why| error(&self.name, "make a socket", why.into()))?;
        let socket = UdpSocket::from(made);
        let name = self.name.clone().into();
        self.set(&socket, "set SO_BINDTODEVICE", sockopt::BindToDevice, &name)?;
        Ok(socket)
    }

    /// A socket of the group gets no datagram to an address of the machine.
    fn bind(
        &self,
        socket: &UdpSocket,
        hears: Hears,
        group: SocketAddr,
        own: SocketAddr,
    ) -> Result<(), LinkError> {
        let at = match hears {
            Hears::Group => {
                self.set(socket, "set SO_REUSEADDR", sockopt::ReuseAddr, &true)?;
                group
            }
            Hears::Own => own,
        };
        let bound = bind(socket.as_raw_fd(), &SockaddrStorage::from(at));
        let step = match hears {
            Hears::Group => "bind UDP port 5705, which another program may have (`ss -ulpn`)",
            Hears::Own => "bind a UDP socket",
        };
        bound.map_err(|why| error(&self.name, step, why.into()))
    }

    fn set<O: nix::sys::socket::SetSockOpt>(
        &self,
        socket: &UdpSocket,
        step: &'static str,
        option: O,
        value: &O::Val,
    ) -> Result<(), LinkError> {
        let done = setsockopt(socket, option, value);
        done.map_err(|why| error(&self.name, step, why.into()))
    }

    fn link(
        &self,
        socket: UdpSocket,
        address: IpAddr,
        group: SocketAddr,
    ) -> Result<Link, LinkError> {
        let socket = tokio::net::UdpSocket::from_std(socket);
        Ok(Link {
            socket: socket.map_err(|why| error(&self.name, "use its socket", why))?,
            interface: self.index,
            address,
            prefixes: self.prefixes.clone(),
            group,
        })
    }
}

const JOIN: &str = "join the group";

fn error(interface: &str, step: &'static str, why: io::Error) -> LinkError {
    LinkError {
        interface: interface.to_owned(),
        step,
        why,
    }
}

impl Link {
    /// The address of the interface.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether a machine on this link may have this address.
    #[must_use]
    pub fn is_on_link(&self, ip: IpAddr) -> bool {
        match ip {
            // Who asks there has any address of this machine.
            _ if self.address.is_loopback() => true,
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
            IpAddr::V4(ip) => { self.prefixes.iter() }
                .any(|(own, mask)| ip.to_bits() & mask.to_bits() == own.to_bits() & mask.to_bits()),
        }
    }

    /// Sends to everybody who listens to the group on this link.
    ///
    /// # Errors
    /// Those of sendto(2).
    pub async fn send_to_group(&self, datagram: &[u8]) -> io::Result<()> {
        self.send(datagram, self.group).await
    }

    /// Sends to one address.
    ///
    /// # Errors
    /// Those of sendto(2).
    pub async fn send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        self.socket.send_to(datagram, to).await.map(drop)
    }

    /// The next datagram.
    ///
    /// # Errors
    /// Those of recvmsg(2).
    pub async fn receive(&self) -> io::Result<Arrived> {
        let ready = Interest::READABLE;
        self.socket.async_io(ready, || self.receive_now()).await
    }

    fn receive_now(&self) -> io::Result<Arrived> {
        let mut bytes = vec![0; DISCOVERY_BYTES_MAX + 1];
        let mut control = nix::cmsg_space!(i32);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let message = recvmsg::<SockaddrStorage>(
            self.socket.as_raw_fd(),
            &mut into,
            Some(&mut control),
            MsgFlags::empty(),
        )?;
        let mut hop_limit = 0;
        for item in message.cmsgs()? {
            if let ControlMessageOwned::Ipv4Ttl(limit) | ControlMessageOwned::Ipv6HopLimit(limit) =
                item
            {
                hop_limit = u8::try_from(limit).unwrap_or(0);
            }
        }
        let (length, from) = (message.bytes, message.address.as_ref().and_then(sender));
        bytes.truncate(length);
        Ok(Arrived {
            bytes,
            hop_limit,
            interface: self.interface,
            from,
        })
    }
}

fn sender(address: &SockaddrStorage) -> Option<SocketAddr> {
    match address.family()? {
        AddressFamily::Inet => Some((*address.as_sockaddr_in()?).into()),
        AddressFamily::Inet6 => Some((*address.as_sockaddr_in6()?).into()),
        _ => None,
    }
}

#[cfg(test)]
impl Link {
    /// A link with this address, and no prefixes.
    pub(crate) fn of_address(address: &str) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        Self {
            socket: tokio::net::UdpSocket::from_std(socket).unwrap(),
            interface: 1,
            address: address.parse().unwrap(),
            prefixes: Vec::new(),
            group: SocketAddr::from((DISCOVERY_GROUP_V4, DISCOVERY_PORT)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_question_from_elsewhere_is_not_of_the_link() {
        let link = |address: &str, prefixes: &[(&str, &str)]| {
            let parsed = prefixes.iter();
            let parsed = parsed.map(|(ip, mask)| (ip.parse().unwrap(), mask.parse().unwrap()));
            Link {
                prefixes: parsed.collect(),
                ..Link::of_address(address)
            }
        };
        let two = [("192.0.2.9", "255.255.255.0"), ("10.1.0.1", "255.255.0.0")];
        let of = link("192.0.2.9", &two);
        for (ip, is_on_link) in [
            ("192.0.2.200", true),
            ("10.1.255.1", true),
            ("10.2.0.1", false),
            ("203.0.113.5", false),
            ("fe80::1", true),
            ("2001:db8::1", false),
        ] {
            assert_eq!(of.is_on_link(ip.parse().unwrap()), is_on_link, "{ip}");
        }
        assert!(link("127.0.0.1", &[]).is_on_link("192.0.2.1".parse().unwrap()));
    }
}
