//! Requests the state of a queue pair from the kernel's resource tracker.
//!
//! NETLINK_RDMA, client NLDEV, as in `include/uapi/rdma/rdma_netlink.h`. The tracker is the kernel's own list: it has a
//! queue pair even if libibverbs no longer knows it.

use std::{
    io::{IoSlice, IoSliceMut},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use fabricbios_lease::StepError;
use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recvmsg,
            sendmsg, setsockopt, socket, sockopt::ReceiveTimeout,
        },
        time::TimeVal,
    },
};

/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_RES_QP_GET)`.
const GET_QUEUE_PAIR: u16 = (5 << 10) | 10;
/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET)`.
const GET_DEVICES: u16 = (5 << 10) | 1;
const ATTR_DEV_INDEX: u16 = 1;
const ATTR_DEV_NAME: u16 = 2;
const ATTR_PORT_INDEX: u16 = 3;
const ATTR_RES_LQPN: u16 = 21;
const ATTR_RES_RQPN: u16 = 22;
const ATTR_RES_STATE: u16 = 27;
const ATTR_RES_PID: u16 = 28;
/// `enum ib_qp_state` of include/rdma/ib_verbs.h.
const STATE_ERR: u8 = 6;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER_BYTES: usize = 16;

/// Time limit of one answer. The kernel answers from memory, at once.
const ANSWER_SECS: i64 = 5;

/// The facts that the kernel reports about a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// The thread that made the queue pair, as long as that thread lives.
    pub maker: Option<u32>,
    /// Number of the peer's queue pair.
    pub peer: Option<u32>,
    /// Whether the queue pair is in ERR.
    pub is_in_error: bool,
}

impl Tracked {
    /// Whether the queue pair may belong to this process: its maker is a thread of the process, or has ended, perhaps
    /// after the kernel named it.
    #[must_use]
    pub fn may_be_of(&self, process: u32) -> bool {
        let is_there = |at: String| Path::new(&at).exists();
        self.maker.is_none_or(|maker| {
            is_there(format!("/proc/{process}/task/{maker}")) || !is_there(format!("/proc/{maker}"))
        })
    }
}

/// The kernel's index of a device.
///
/// # Errors
/// There is no such device (`ENODEV`), or the kernel does not answer.
pub fn device_index(name: &str) -> Result<u32, StepError> {
    let failed = |errno: Errno| {
        StepError::new("restrack", format_args!("device {name}: {errno}")).with_errno(errno as i32)
    };
    let socket = ask(&request(GET_DEVICES, NLM_F_DUMP, &[])).map_err(failed)?;
    loop {
        let answer = receive(&socket).map_err(failed)?;
        for message in messages(&answer) {
            if let Some(index) = index_of(message, name).map_err(failed)? {
                return Ok(index);
            }
        }
    }
}

/// Looks for queue pair `number` on a port of a device; `None`: there is none.
///
/// # Errors
/// The kernel does not answer.
pub fn queue_pair(device_index: u32, port: u8, number: u32) -> Result<Option<Tracked>, StepError> {
    let failed = |errno: Errno| {
        StepError::new("restrack", format_args!("queue pair {number}: {errno}"))
            .with_errno(errno as i32)
    };
    let attributes = [
        (ATTR_DEV_INDEX, device_index),
        (ATTR_PORT_INDEX, port.into()),
        (ATTR_RES_LQPN, number),
    ];
    let answer = ask(&request(GET_QUEUE_PAIR, 0, &attributes)).and_then(|it| receive(&it));
    answer.and_then(|it| parse(&it)).map_err(failed)
}

/// Sends a request. Returns the socket on which the kernel answers.
fn ask(request: &[u8]) -> Result<OwnedFd, Errno> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRDMA,
    )?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::new(ANSWER_SECS, 0))?;
    let kernel = NetlinkAddr::new(0, 0);
    let pieces = [IoSlice::new(request)];
    sendmsg(
        socket.as_raw_fd(),
        &pieces,
        &[],
        MsgFlags::empty(),
        Some(&kernel),
    )?;
    Ok(socket)
}

fn receive(socket: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut answer = vec![0; 32 * 1024];
    let mut pieces = [IoSliceMut::new(&mut answer)];
    let received =
        recvmsg::<NetlinkAddr>(socket.as_raw_fd(), &mut pieces, None, MsgFlags::empty())?.bytes;
    answer.truncate(received);
    Ok(answer)
}

fn request(kind: u16, flags: u16, attributes: &[(u16, u32)]) -> Vec<u8> {
    let mut message = vec![0; HEADER_BYTES];
    for (attribute, value) in attributes {
        message.extend(8u16.to_ne_bytes());
        message.extend(attribute.to_ne_bytes());
        message.extend(value.to_ne_bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    message
}

/// The messages of one datagram, except a truncated one.
fn messages(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(rest, 0)?).ok()?.max(HEADER_BYTES);
        let message = rest.get(..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(message)
    })
}

/// The index in a message. `None`: the message is about another device. `ENODEV`: the message ends the list.
fn index_of(message: &[u8], name: &str) -> Result<Option<u32>, Errno> {
    match u16_at(message, 4).ok_or(Errno::EBADMSG)? {
        NLMSG_DONE => return Err(Errno::ENODEV),
        NLMSG_ERROR => return Err(error_code(message)?),
        _ => {}
    }
    let attributes = message.get(HEADER_BYTES..).unwrap_or(&[]);
    let text = attribute(attributes, ATTR_DEV_NAME).unwrap_or(&[]);
    let same = text.strip_suffix(&[0]).unwrap_or(text) == name.as_bytes();
    Ok(number(attributes, ATTR_DEV_INDEX).filter(|_| same))
}

/// Decodes an answer. `ENOENT`: there is no such queue pair. `EAGAIN`: it exists, but on no port yet or on another one.
fn parse(answer: &[u8]) -> Result<Option<Tracked>, Errno> {
    let kind = u16_at(answer, 4).ok_or(Errno::EBADMSG)?;
    if kind != NLMSG_ERROR {
        let attributes = answer.get(HEADER_BYTES..).unwrap_or(&[]);
        return Ok(Some(Tracked {
            maker: number(attributes, ATTR_RES_PID),
            peer: number(attributes, ATTR_RES_RQPN),
            is_in_error: attribute(attributes, ATTR_RES_STATE) == Some(&[STATE_ERR]),
        }));
    }
    match error_code(answer)? {
        Errno::ENOENT => Ok(None),
        Errno::EAGAIN => Ok(Some(Tracked::default())),
        Errno::UnknownErrno => Err(Errno::EBADMSG),
        errno => Err(errno),
    }
}

fn error_code(message: &[u8]) -> Result<Errno, Errno> {
    let code = u32_at(message, HEADER_BYTES)
        .ok_or(Errno::EBADMSG)?
        .cast_signed();
    Ok(Errno::from_raw(code.saturating_neg()))
}

fn number(attributes: &[u8], wanted: u16) -> Option<u32> {
    attribute(attributes, wanted)?
        .try_into()
        .ok()
        .map(u32::from_ne_bytes)
}

/// The value of the first attribute of this kind.
fn attribute(mut rest: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & 0x3fff;
        if kind == wanted {
            return rest.get(4..length);
        }
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..at + 2)?
        .try_into()
        .ok()
        .map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..at + 4)?
        .try_into()
        .ok()
        .map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests;
