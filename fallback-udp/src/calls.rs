//! recvmmsg(2) and sendmmsg(2). The wrappers of nix do not fit (docs/decisions/0016).
#![allow(unsafe_code, reason = "recvmmsg and sendmmsg")]

use std::{
    mem::{offset_of, size_of},
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
    vec::Vec,
};

use nix::errno::Errno;

/// Room for a `sockaddr_in6`, the longer of the two kinds.
const NAME_LEN: usize = size_of::<libc::sockaddr_in6>();
/// Room for one `IPV6_PKTINFO` or `IP_PKTINFO`.
const CONTROL_LEN: usize = 64;

/// The addresses of one message: the peer's, and the local one as a control message (IP_PKTINFO).
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    pub(crate) name: Name,
    pub(crate) control: Control,
}

/// A `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Debug)]
#[repr(C, align(8))]
pub(crate) struct Name {
    pub(crate) bytes: [u8; NAME_LEN],
    pub(crate) length: usize,
}

/// Control messages.
#[derive(Clone, Debug)]
#[repr(C, align(8))]
pub(crate) struct Control {
    pub(crate) bytes: [u8; CONTROL_LEN],
    pub(crate) length: usize,
}

impl Addresses {
    pub(crate) fn empty() -> Self {
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
pub(crate) struct Headers {
    headers: Vec<libc::mmsghdr>,
    parts: Vec<libc::iovec>,
}

// SAFETY: the pointers are read only within the call that has set them.
unsafe impl Send for Headers {}

impl Headers {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            headers: Vec::with_capacity(room),
            parts: Vec::with_capacity(room),
        }
    }

    /// Receives the waiting messages, without blocking; `on_each` gets index and lengths of each.
    pub(crate) fn receive<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        into: impl Iterator<Item = (Option<&'a mut Addresses>, &'a mut [u8])>,
        mut on_each: impl FnMut(usize, Received),
    ) -> Result<usize, Errno> {
        self.clear();
        for (addresses, bytes) in into {
            self.push([(bytes.as_mut_ptr(), bytes.len())]);
            if let Some(Addresses { name, control }) = addresses {
                self.address((name.bytes.as_mut_ptr(), NAME_LEN));
                self.control((control.bytes.as_mut_ptr(), CONTROL_LEN));
            }
        }
        let room = self.link();
        // SAFETY: the headers were just made. Each header points to a name and a control buffer, or to none, and to one
        // part, with the lengths that it states. `into`'s items borrow what these point to for writing, their lifetime
        // 'a outlives this call, and they are distinct. `parts` is not moved before the call returns.
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

    /// Sends messages, each of `N` parts, and returns their number, at least one.
    pub(crate) fn send<'a, const N: usize>(
        &mut self,
        socket: BorrowedFd<'_>,
        flags: libc::c_int,
        from: impl Iterator<Item = (Option<&'a Addresses>, [&'a [u8]; N])>,
    ) -> Result<usize, Errno> {
        self.clear();
        for (addresses, parts) in from {
            self.push(parts.map(|part| (part.as_ptr().cast_mut(), part.len())));
            if let Some(Addresses { name, control }) = addresses {
                self.address((name.bytes.as_ptr().cast_mut(), name.length));
                self.control((control.bytes.as_ptr().cast_mut(), control.length));
            }
        }
        let count = self.link();
        // SAFETY: as in `receive`, with N parts for each header, but the kernel only reads what the headers point to, so
        // borrowing for reading is enough; it writes `msg_len` of the headers, which are ours.
        let sent =
            unsafe { libc::sendmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), count, flags) };
        usize::try_from(sent).map_err(|_negative| Errno::last())
    }

    fn clear(&mut self) {
        self.headers.clear();
        self.parts.clear();
    }

    /// Adds a message of these parts, without addresses.
    fn push<const N: usize>(&mut self, parts: [(*mut u8, usize); N]) {
        self.parts.extend(parts.map(|(bytes, length)| libc::iovec {
            iov_base: bytes.cast(),
            iov_len: length,
        }));
        // SAFETY: all zeros is a header without name, parts and control messages.
        let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        header.msg_hdr.msg_iovlen = N as _;
        self.headers.push(header);
    }

    /// Sets the peer's address of the last message.
    fn address(&mut self, (name, length): (*mut u8, usize)) {
        if let Some(header) = self.headers.last_mut() {
            header.msg_hdr.msg_name = name.cast();
            #[allow(clippy::cast_possible_truncation, reason = "at most NAME_LEN")]
            let length = length as libc::socklen_t;
            header.msg_hdr.msg_namelen = length;
        }
    }

    /// Sets the control messages of the last message, if there are any.
    fn control(&mut self, (control, length): (*mut u8, usize)) {
        if let Some(header) = self.headers.last_mut()
            && length > 0
        {
            header.msg_hdr.msg_control = control.cast();
            header.msg_hdr.msg_controllen = length as _;
        }
    }

    /// Sets the pointers from headers to parts, which do not move any more, and returns the number of headers.
    fn link(&mut self) -> u32 {
        let mut left = &mut self.parts[..];
        for header in &mut self.headers {
            #[allow(
                clippy::unnecessary_cast,
                reason = "the type of msg_iovlen differs between C libraries"
            )]
            let (parts, others) = left.split_at_mut(header.msg_hdr.msg_iovlen as usize);
            header.msg_hdr.msg_iov = parts.as_mut_ptr();
            left = others;
        }
        u32::try_from(self.headers.len()).unwrap_or(u32::MAX)
    }
}

/// The lengths that the kernel wrote into a header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// Whether the message was longer than the room for it.
    pub(crate) is_cut: bool,
    pub(crate) name: usize,
    pub(crate) control: usize,
}

impl Received {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the type of msg_controllen differs between C libraries"
    )]
    fn of(header: &libc::mmsghdr) -> Self {
        Self {
            bytes: header.msg_len as usize,
            is_cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            name: (header.msg_hdr.msg_namelen as usize).min(NAME_LEN),
            control: (header.msg_hdr.msg_controllen as usize).min(CONTROL_LEN),
        }
    }
}

impl Name {
    /// The bytes of the IP address; `None` for another address family.
    pub(crate) fn address_bytes(&self) -> Option<&[u8]> {
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
    pub(crate) fn leave_interface_open(&mut self) {
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
