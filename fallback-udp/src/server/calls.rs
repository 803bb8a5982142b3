//! recvmmsg(2) and sendmmsg(2). The wrappers of nix do not fit (docs/decisions/0016).
#![allow(unsafe_code, reason = "recvmmsg and sendmmsg")]

use std::{
    mem::{offset_of, size_of},
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use nix::errno::Errno;

/// Room for a `sockaddr_in6`, the longer of the two kinds.
const NAME_LEN: usize = size_of::<libc::sockaddr_in6>();
/// Room for one `IPV6_PKTINFO` or `IP_PKTINFO`.
const CONTROL_LEN: usize = 64;

/// The addresses of one message: the peer's, and the local one as a control message (IP_PKTINFO).
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    pub(super) name: Name,
    pub(super) control: Control,
}

/// A `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Debug)]
#[repr(C, align(8))]
pub(super) struct Name {
    pub(super) bytes: [u8; NAME_LEN],
    pub(super) length: usize,
}

/// Control messages.
#[derive(Clone, Debug)]
#[repr(C, align(8))]
pub(super) struct Control {
    pub(super) bytes: [u8; CONTROL_LEN],
    pub(super) length: usize,
}

impl Addresses {
    pub(super) fn empty() -> Self {
        Self {
            name: Name {
                bytes: [0; NAME_LEN],
                length: 0,
            },
            control: Control {
                bytes: [0; CONTROL_LEN],
                length: 0,
            },
        }
    }
}

/// Message headers, kept between calls only to reuse their memory: every call sets their pointers anew, and nothing reads
/// them after the call.
#[derive(Debug)]
pub(super) struct Headers {
    headers: Vec<libc::mmsghdr>,
    buffers: Vec<libc::iovec>,
}

impl Headers {
    pub(super) fn new(room: usize) -> Self {
        Self {
            headers: Vec::with_capacity(room),
            buffers: Vec::with_capacity(room),
        }
    }

    /// Receives the waiting messages, without blocking; `on_each` gets index and lengths of each.
    pub(super) fn receive<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        into: impl Iterator<Item = (&'a mut Addresses, &'a mut [u8])>,
        mut on_each: impl FnMut(usize, Received),
    ) -> Result<usize, Errno> {
        self.clear();
        for (addresses, bytes) in into {
            let name = (addresses.name.bytes.as_mut_ptr(), NAME_LEN);
            let control = (addresses.control.bytes.as_mut_ptr(), CONTROL_LEN);
            self.push(name, control, (bytes.as_mut_ptr(), bytes.len()));
        }
        let room = self.link();
        // SAFETY: the headers were just made. Each header points to a name, a control buffer and bytes, with the
        // lengths that it states. `into`'s items borrow all of them for writing, their lifetime 'a outlives this call,
        // and they are distinct. `buffers` is not moved before the call returns.
        let got = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                room,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let got = usize::try_from(got).map_err(|_negative| Errno::last())?;
        for (at, header) in self.headers.iter().take(got).enumerate() {
            on_each(at, Received::of(header));
        }
        Ok(got)
    }

    /// Sends without blocking and returns the number of messages sent, at least one.
    pub(super) fn send<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        from: impl Iterator<Item = (&'a Addresses, &'a [u8])>,
    ) -> Result<usize, Errno> {
        self.clear();
        for (addresses, bytes) in from {
            let name = (
                addresses.name.bytes.as_ptr().cast_mut(),
                addresses.name.length,
            );
            let control = &addresses.control;
            let control = (control.bytes.as_ptr().cast_mut(), control.length);
            self.push(name, control, (bytes.as_ptr().cast_mut(), bytes.len()));
        }
        let count = self.link();
        // SAFETY: as in `receive`, but the kernel only reads what the headers point to, so borrowing
        // for reading is enough; it writes `msg_len` of the headers, which are ours.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(sent).map_err(|_negative| Errno::last())
    }

    fn clear(&mut self) {
        self.headers.clear();
        self.buffers.clear();
    }

    fn push(&mut self, name: (*mut u8, usize), control: (*mut u8, usize), bytes: (*mut u8, usize)) {
        self.buffers.push(libc::iovec {
            iov_base: bytes.0.cast(),
            iov_len: bytes.1,
        });
        // SAFETY: all zeros is a header without name, buffers and control messages.
        let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        header.msg_hdr.msg_name = name.0.cast();
        #[allow(clippy::cast_possible_truncation, reason = "at most NAME_LEN")]
        let name_len = name.1 as libc::socklen_t;
        header.msg_hdr.msg_namelen = name_len;
        header.msg_hdr.msg_iovlen = 1;
        if control.1 > 0 {
            header.msg_hdr.msg_control = control.0.cast();
            header.msg_hdr.msg_controllen = control.1 as _;
        }
        self.headers.push(header);
    }

    /// Sets the pointers from headers to buffers, which do not move any more, and returns the number of headers.
    fn link(&mut self) -> u32 {
        for (header, buffer) in self.headers.iter_mut().zip(&mut self.buffers) {
            header.msg_hdr.msg_iov = buffer;
        }
        u32::try_from(self.headers.len()).unwrap_or(u32::MAX)
    }
}

/// The lengths that the kernel wrote into a header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) bytes: usize,
    pub(super) name: usize,
    pub(super) control: usize,
}

impl Received {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the type of msg_controllen differs between C libraries"
    )]
    fn of(header: &libc::mmsghdr) -> Self {
        Self {
            bytes: header.msg_len as usize,
            name: (header.msg_hdr.msg_namelen as usize).min(NAME_LEN),
            control: (header.msg_hdr.msg_controllen as usize).min(CONTROL_LEN),
        }
    }
}

impl Name {
    /// The bytes of the IP address; `None` for another address family.
    pub(super) fn address_bytes(&self) -> Option<&[u8]> {
        let family = u16::from_ne_bytes([self.bytes[0], self.bytes[1]]);
        let (at, length) = match i32::from(family) {
            libc::AF_INET => (offset_of!(libc::sockaddr_in, sin_addr), 4),
            libc::AF_INET6 => (offset_of!(libc::sockaddr_in6, sin6_addr), 16),
            _ => return None,
        };
        self.bytes
            .get(at..at + length)
            .filter(|_| at + length <= self.length)
    }
}

impl Control {
    /// Clears the interface index. The reply must have the local address that the request was sent to, but the routing
    /// table chooses its interface.
    pub(super) fn leave_interface_open(&mut self) {
        let data = size_of::<libc::cmsghdr>();
        let level = self.int_at(offset_of!(libc::cmsghdr, cmsg_level));
        let within = match level {
            libc::IPPROTO_IP => offset_of!(libc::in_pktinfo, ipi_ifindex),
            libc::IPPROTO_IPV6 => offset_of!(libc::in6_pktinfo, ipi6_ifindex),
            _ => return,
        };
        let at = data + within;
        if at + 4 <= self.length {
            self.bytes[at..at + 4].fill(0);
        }
    }

    fn int_at(&self, at: usize) -> i32 {
        i32::from_ne_bytes(std::array::from_fn(|i| self.bytes[at + i]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A control message as the kernel lays it out, its data counting up from 1.
    fn control(level: i32, kind: i32, data: usize) -> Control {
        let mut control = Addresses::empty().control;
        let mut put = |at: usize, bytes: &[u8]| {
            control.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        };
        let start = size_of::<libc::cmsghdr>();
        put(0, &(start + data).to_ne_bytes());
        put(offset_of!(libc::cmsghdr, cmsg_level), &level.to_ne_bytes());
        put(offset_of!(libc::cmsghdr, cmsg_type), &kind.to_ne_bytes());
        put(start, &(1..).take(data).collect::<Vec<u8>>());
        control.length = start + data;
        control
    }

    #[test]
    fn only_the_interface_is_left_to_the_routes() {
        let start = size_of::<libc::cmsghdr>();
        let mut v4 = control(libc::IPPROTO_IP, libc::IP_PKTINFO, 12);
        v4.leave_interface_open();
        let expected = [0, 0, 0, 0, 5, 6, 7, 8, 9, 10, 11, 12];
        assert_eq!(v4.bytes[start..start + 12], expected);
        let mut v6 = control(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 20);
        v6.leave_interface_open();
        assert_eq!(v6.bytes[start + 15..start + 20], [16, 0, 0, 0, 0]);
    }

    #[test]
    fn an_address_that_is_not_whole_is_none() {
        let mut name = Addresses::empty().name;
        name.bytes[..2].copy_from_slice(&2u16.to_ne_bytes());
        name.bytes[4..8].copy_from_slice(&[10, 0, 0, 1]);
        name.length = 7;
        assert_eq!(name.address_bytes(), None);
        name.length = 16;
        assert_eq!(name.address_bytes(), Some(&[10, 0, 0, 1][..]));
        name.bytes[..2].copy_from_slice(&77u16.to_ne_bytes());
        assert_eq!(name.address_bytes(), None);
    }
}
