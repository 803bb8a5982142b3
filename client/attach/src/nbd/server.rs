//! Answers the requests on the socket of a device with the blocks of a lease.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    time::Duration,
};

use fabricbios_client::{BlockClient, ClientError, Completion, Operation};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::protocol::{Command, Decoder, NbdRequest, reply};

/// Most requests in progress; further requests wait in the socket.
const OUTSTANDING_MAX: usize = 64;
/// Longest read from the socket.
const PIECE_BYTES: usize = 256 << 10;

/// Why the server ended.
#[derive(Debug)]
pub(crate) enum End {
    /// It was stopped; `Ok`: all writes are durable.
    Stopped(Result<(), ClientError>),
    /// The kernel closed its end.
    Disconnected,
    /// The lease is over, or the node does not answer any more.
    Lost(ClientError),
}

pub(crate) struct Server {
    client: BlockClient,
    socket: UnixStream,
    decoder: Decoder,
    piece: Vec<u8>,
    /// Cookies of unanswered requests, by the id of the operation.
    waiting: HashMap<u64, u64>,
    replies: VecDeque<u8>,
    end: Option<End>,
}

impl Server {
    pub(crate) fn new(client: BlockClient, socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            client,
            socket,
            decoder: Decoder::default(),
            piece: vec![0; PIECE_BYTES],
            waiting: HashMap::new(),
            replies: VecDeque::new(),
            end: None,
        })
    }

    /// Serves until `stop` is readable or closed, the kernel disconnects, or the lease is lost. Then all requests have been
    /// answered.
    pub(crate) fn run(mut self, stop: impl AsFd) -> io::Result<End> {
        loop {
            let (stops, has_requests) = self.wait(&stop)?;
            if stops {
                return self.stop();
            }
            if has_requests && self.has_room() {
                self.take()?;
            }
            self.exchange()?;
            if let Some(end) = self.end.take() {
                self.fail_the_rest();
                return Ok(end);
            }
        }
    }

    fn has_room(&self) -> bool {
        self.waiting.len() < OUTSTANDING_MAX && self.replies.is_empty()
    }

    /// Waits for something to do; returns whether `stop` and the socket are ready.
    fn wait(&self, stop: &impl AsFd) -> io::Result<(bool, bool)> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::POLLIN, self.has_room());
        wanted.set(PollFlags::POLLOUT, !self.replies.is_empty());
        let mut sources = [
            PollFd::new(stop.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.socket.as_fd(), wanted),
            PollFd::new(self.client.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut sources, timeout(self.client.next_timeout())) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => (),
            Err(error) => return Err(error.into()),
        }
        let [stop, socket, _] = sources.map(|source| source.any().unwrap_or(false));
        Ok((stop, socket))
    }

    /// Reads requests of the kernel and begins them.
    fn take(&mut self) -> io::Result<()> {
        match self.socket.read(&mut self.piece) {
            Ok(0) => self.end = Some(End::Disconnected),
            Ok(bytes) => self.decoder.feed(&self.piece[..bytes]),
            Err(error) if is_momentary(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
        loop {
            match self.decoder.next() {
                Ok(Some(request)) => self.begin(request),
                Ok(None) => return Ok(()),
                Err(_not_nbd) => return Err(io::Error::other("the device does not speak NBD")),
            }
        }
    }

    fn begin(&mut self, request: NbdRequest) {
        let NbdRequest {
            cookie,
            offset,
            command,
        } = request;
        let unit = u64::from(self.client.geometry().block_bytes);
        let block = offset / unit;
        let operation = match command {
            Command::Disconnect => {
                self.end = Some(End::Disconnected);
                return;
            }
            Command::Flush => Operation::Flush,
            Command::Read(length) if offset % unit == 0 => Operation::Read {
                block,
                into: vec![0; length as usize],
            },
            Command::Write(from) if offset % unit == 0 => Operation::Write { block, from },
            Command::Read(_) | Command::Write(_) | Command::Other => {
                self.replies.extend(reply(cookie, errno(libc::EINVAL)));
                return;
            }
        };
        let id = self.client.submit(operation);
        self.waiting.insert(id, cookie);
    }

    /// Exchanges datagrams with the node and sends replies to the kernel.
    fn exchange(&mut self) -> io::Result<()> {
        self.client.exchange();
        while let Some(completion) = self.client.next_completion() {
            self.answer(completion);
        }
        self.send()
    }

    fn answer(&mut self, completion: Completion) {
        let Completion {
            id,
            operation,
            outcome,
        } = completion;
        let Some(cookie) = self.waiting.remove(&id) else {
            return;
        };
        match (outcome, operation) {
            (Ok(()), Operation::Read { into, .. }) => {
                self.replies.extend(reply(cookie, 0));
                self.replies.extend(into);
            }
            (Ok(()), _) => self.replies.extend(reply(cookie, 0)),
            (Err(error), _) => {
                self.replies.extend(reply(cookie, errno_of(&error)));
                if is_over(&error) {
                    self.end.get_or_insert(End::Lost(error));
                }
            }
        }
    }

    /// Sends replies, as far as the socket accepts them.
    fn send(&mut self) -> io::Result<()> {
        while !self.replies.is_empty() {
            let (bytes, _) = self.replies.as_slices();
            match self.socket.write(bytes) {
                Ok(sent) => drop(self.replies.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_momentary(&error) => return Ok(()),
                // The kernel does not read replies any more.
                Err(_closed) => {
                    self.replies.clear();
                    self.end.get_or_insert(End::Disconnected);
                }
            }
        }
        Ok(())
    }

    /// Finishes all requests and makes the writes durable.
    fn stop(mut self) -> io::Result<End> {
        while let Some(completion) = self.client.wait() {
            self.answer(completion);
        }
        let flushed = match self.end.take() {
            Some(End::Lost(error)) => Err(error),
            _ => self.client.flush(),
        };
        self.send()?;
        Ok(End::Stopped(flushed))
    }

    /// Answers all other requests with an error. The kernel fails the rest when the socket is closed.
    fn fail_the_rest(&mut self) {
        for (_, cookie) in self.waiting.drain() {
            self.replies.extend(reply(cookie, errno(libc::EIO)));
        }
        self.send().ok();
    }
}

fn timeout(after: Option<Duration>) -> PollTimeout {
    // Rounded up, so that it does not wake too early.
    let millis = after.map(|after| i32::try_from(after.as_micros().div_ceil(1000)));
    millis.map_or(PollTimeout::NONE, |millis| {
        PollTimeout::try_from(millis.unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX)
    })
}

fn is_momentary(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// The errno of an error.
fn errno_of(error: &ClientError) -> u32 {
    errno(match error {
        ClientError::ReadOnly { .. } => libc::EPERM,
        ClientError::OutOfRange { .. } => libc::EINVAL,
        _ => libc::EIO,
    })
}

/// Whether all later operations would fail too.
fn is_over(error: &ClientError) -> bool {
    !matches!(
        error,
        ClientError::ReadOnly { .. }
            | ClientError::OutOfRange { .. }
            | ClientError::Storage { .. }
            | ClientError::WritesLost { .. }
            | ClientError::Refused { .. }
    )
}

fn errno(number: i32) -> u32 {
    number.unsigned_abs()
}
