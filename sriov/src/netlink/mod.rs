//! A blocking socket of rtnetlink(7): requests that the kernel acknowledges, and dumps.
//!
//! A socket works in the network namespace in which it was opened, even if its thread changes its namespace later.

mod link;
mod namespace;
mod tc;
mod vf;

use std::{
    fmt, io,
    sync::{Mutex, PoisonError},
};

use fabricbios_lease::StepError;
use netlink_packet_core::{
    ErrorMessage, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

pub use link::{By, Link};
pub use namespace::{NotANamespace, is_own_network_namespace, require_network_namespace};
pub use tc::{Action, Frames, Rule, TAGS, Tag};
pub use vf::{VfSetting, VfState};

/// How often a dump is repeated if changes have torn it.
const DUMPS_MAX: u32 = 16;

/// `struct nlmsghdr`, before the attributes of an error.
const HEADER_BYTES: usize = 16;

/// `NLMSGERR_ATTR_MSG`: the kernel's text about an error.
const ERROR_TEXT: u16 = 1;

/// A socket of rtnetlink. Calls from several threads take turns.
#[derive(Debug)]
pub struct Netlink {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    socket: Socket,
    sequence: u32,
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    step: &'static str,
    about: String,
    errno: Option<i32>,
    detail: String,
}

impl Error {
    fn new(step: &'static str, about: &dyn fmt::Display, detail: impl fmt::Display) -> Self {
        Self {
            step,
            about: about.to_string(),
            errno: None,
            detail: detail.to_string(),
        }
    }

    fn of_system(step: &'static str, about: &dyn fmt::Display, error: &io::Error) -> Self {
        let errno = error.raw_os_error();
        Self {
            errno,
            ..Self::new(step, about, error)
        }
    }

    /// The error of a request that the kernel refused with this error number.
    #[must_use]
    pub fn refused(step: &'static str, about: &dyn fmt::Display, errno: i32) -> Self {
        Self::of_system(step, about, &io::Error::from_raw_os_error(errno))
    }

    /// The error number, if the kernel refused the request or a system call failed.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }

    /// Whether the interface does not exist.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.errno == Some(libc::ENODEV)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.step, self.about, self.detail)
    }
}

impl std::error::Error for Error {}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        let detail = format_args!("{}: {}", error.about, error.detail);
        Self::new(error.step, detail).with_errno(error.errno)
    }
}

impl Netlink {
    /// Opens a socket in the network namespace of this thread.
    ///
    /// # Errors
    /// A socket cannot be opened or set up.
    pub fn open() -> Result<Self, Error> {
        let opened = open_socket();
        let socket = opened.map_err(|error| Error::of_system("open", &"rtnetlink", &error))?;
        let inner = Inner {
            socket,
            sequence: 0,
        };
        Ok(Self {
            inner: Mutex::new(inner),
        })
    }

    /// Sends a request and waits for the acknowledgement. Returns the messages before it. `about` names the interface,
    /// for errors.
    pub(crate) fn request(
        &self,
        step: &'static str,
        about: &dyn fmt::Display,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, Error> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = inner.send(message, flags | NLM_F_ACK);
        sent.map_err(|error| Error::of_system(step, about, &error))?;
        inner.answer(step, about).map(|(found, _)| found)
    }

    /// Requests a list of all objects.
    pub(crate) fn dump(
        &self,
        step: &'static str,
        about: &dyn fmt::Display,
        message: &RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, Error> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..DUMPS_MAX {
            let sent = inner.send(message.clone(), NLM_F_DUMP);
            sent.map_err(|error| Error::of_system(step, about, &error))?;
            let (found, is_torn) = inner.answer(step, about)?;
            if !is_torn {
                return Ok(found);
            }
        }
        let why = format!("it changed during each of {DUMPS_MAX} dumps");
        Err(Error::new(step, about, why))
    }
}

fn open_socket() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    // Errors then contain the kernel's text and not the request.
    socket.set_ext_ack(true)?;
    socket.set_cap_ack(true)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

impl Inner {
    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(|_| ())
    }

    /// Reads up to the acknowledgement of the last request. `true`: the kernel reports that the dump is torn.
    fn answer(
        &self,
        step: &'static str,
        about: &dyn fmt::Display,
    ) -> Result<(Vec<RouteNetlinkMessage>, bool), Error> {
        let unreadable = |why: &dyn fmt::Display| {
            Error::new(step, about, format_args!("unreadable answer: {why}"))
        };
        let mut found = Vec::new();
        let mut is_torn = false;
        loop {
            let received = self.socket.recv_from_full();
            let (bytes, _) = received.map_err(|error| Error::of_system(step, about, &error))?;
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let buffer = NetlinkBuffer::new_checked(rest).map_err(|why| unreadable(&why))?;
                let length = buffer.length() as usize;
                let (flags, sequence) = (buffer.flags(), buffer.sequence_number());
                let message = &rest[..length];
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                if sequence != self.sequence {
                    // A message of an earlier answer that was not read to its end.
                    continue;
                }
                is_torn |= flags & NLM_F_DUMP_INTR != 0;
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message);
                match message.map_err(|why| unreadable(&why))?.payload {
                    NetlinkPayload::InnerMessage(message) => found.push(message),
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        let error = io::Error::from_raw_os_error(-done.code);
                        return Err(Error::of_system(step, about, &error));
                    }
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(refused(step, about, &error));
                    }
                    NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => {
                        return Ok((found, is_torn));
                    }
                    _ => {}
                }
            }
        }
    }
}

fn refused(step: &'static str, about: &dyn fmt::Display, message: &ErrorMessage) -> Error {
    let mut error = Error::of_system(step, about, &message.to_io());
    let attributes = message.header.get(HEADER_BYTES..).unwrap_or_default();
    let text = NlasIterator::new(attributes)
        .filter_map(Result::ok)
        .find(|it| it.kind() == ERROR_TEXT);
    if let Some(text) = text {
        let text = String::from_utf8_lossy(text.value());
        error.detail = format!("{} ({})", error.detail, text.trim_end_matches('\0'));
    }
    error
}
