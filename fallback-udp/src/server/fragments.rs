//! The socket option that forbids fragmentation.
#![allow(unsafe_code, reason = "an option without a wrapper")]

use std::{
    mem::size_of,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use nix::errno::Errno;

/// Level and name of the option.
const V4: (i32, i32) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
const V6: (i32, i32) = (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER);

/// Bytes of a value.
#[allow(clippy::cast_possible_truncation, reason = "4")]
const LENGTH: libc::socklen_t = size_of::<i32>() as libc::socklen_t;

/// Sets DF on every datagram of a socket and ignores the path MTU of the kernel's cache: with `PROBE` the limit is the MTU
/// of the interface (ip(7)). `DO` would obey the cache, and one forged ICMP message would keep long replies from a
/// client for 10 minutes. HELLO proves the length anyway.
pub(super) fn forbid(socket: BorrowedFd<'_>, is_v6: bool) -> Result<(), Errno> {
    set(socket, V4, libc::IP_PMTUDISC_PROBE)?;
    if is_v6 {
        set(socket, V6, libc::IPV6_PMTUDISC_PROBE)?;
    }
    Ok(())
}

fn set(socket: BorrowedFd<'_>, (level, option): (i32, i32), value: i32) -> Result<(), Errno> {
    // SAFETY: the kernel reads `LENGTH` bytes of `value`, which lives until the call returns.
    let result = unsafe {
        let value = ptr::from_ref(&value).cast();
        libc::setsockopt(socket.as_raw_fd(), level, option, value, LENGTH)
    };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv6Addr, os::fd::AsFd};

    use super::*;
    use crate::server::socket;

    fn get(socket: BorrowedFd<'_>, (level, option): (i32, i32)) -> i32 {
        let mut value = -1;
        let mut length = LENGTH;
        // SAFETY: the kernel writes at most `length` bytes to `value`, and both live until it returns.
        let result = unsafe {
            let value = ptr::from_mut(&mut value).cast();
            libc::getsockopt(socket.as_raw_fd(), level, option, value, &raw mut length)
        };
        assert_eq!(result, 0, "{}", Errno::last());
        value
    }

    /// IPv4 also on a socket of IPv6, which takes both.
    #[test]
    fn no_path_mtu_of_the_cache_is_believed() {
        let sockets = socket::open("a test", (Ipv6Addr::UNSPECIFIED, 0).into(), 2).unwrap();
        for it in &sockets {
            assert_eq!(get(it.as_fd(), V4), libc::IP_PMTUDISC_PROBE);
            assert_eq!(get(it.as_fd(), V6), libc::IPV6_PMTUDISC_PROBE);
        }
    }
}
