//! Socket options about fragmentation that nix has no type for (ip(7), ipv6(7)).

use nix::{getsockopt_impl, setsockopt_impl, sockopt_impl};

sockopt_impl!(
    /// Whether datagrams of IPv4 are fragmented, also on a socket of IPv6 that takes both.
    MtuDiscover,
    Both,
    libc::IPPROTO_IP,
    libc::IP_MTU_DISCOVER,
    libc::c_int
);

sockopt_impl!(
    /// Whether datagrams of IPv6 are fragmented.
    Ipv6MtuDiscover,
    Both,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU_DISCOVER,
    libc::c_int
);

#[cfg(feature = "client")]
sockopt_impl!(
    /// MTU of the route of a connected socket, as the kernel knows it.
    Ipv6Mtu,
    GetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU,
    libc::c_int
);
