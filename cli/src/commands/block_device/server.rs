//! Serves one end of a device's socket from a lease's blocks.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    time::Duration,
};

use fabricbios_client::{BlockClient, ClientError, Completion, Operation};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::protocol::{Decoder, Request, What, reply};

/// Requests that are not answered, at most; the others wait in the socket.
const OUTSTANDING_MAX: usize = 64;
/// Bytes that are taken from the socket at once.
const PIECE_BYTES: usize = 256 << 10;

/// How it came to an end.
#[derive(Debug)]
pub(super) enum End {
    /// On request; whether what was written before survives a power cut of the node.
    Stopped(Result<(), ClientError>),
    /// The kernel's side was closed.
    Disconnected,
    /// The lease is over, or its node does not answer any more.
    Lost(ClientError),
}

pub(super) struct Server {
    client: BlockClient,
    socket: UnixStream,
    decoder: Decoder,
    piece: Vec<u8>,
    /// Cookies of what is not answered, by the operation's id.
    waiting: HashMap<u64, u64>,
    replies: VecDeque<u8>,
    end: Option<End>,
}

impl Server {
    pub(super) fn new(client: BlockClient, socket: UnixStream) -> io::Result<Self> {
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

    /// Until `stop` is readable or closed, or there is no point in going on. Then everything that was asked
    /// was answered.
    pub(super) fn run(mut self, stop: impl AsFd) -> io::Result<End> {
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

    /// What the kernel asks.
    fn take(&mut self) -> io::Result<()> {
        match self.socket.read(&mut self.piece) {
            Ok(0) => self.end = Some(End::Disconnected),
            Ok(bytes) => self.decoder.feed(&self.piece[..bytes]),
            Err(error) if may_pass(&error) => return Ok(()),
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

    fn begin(&mut self, request: Request) {
        let Request {
            cookie,
            offset,
            what,
        } = request;
        let unit = u64::from(self.client.geometry().block_bytes);
        let block = offset / unit;
        let operation = match what {
            What::Disconnect => {
                self.end = Some(End::Disconnected);
                return;
            }
            What::Flush => Operation::Flush,
            What::Read(length) if offset % unit == 0 => Operation::Read {
                block,
                into: vec![0; length as usize],
            },
            What::Write(from) if offset % unit == 0 => Operation::Write { block, from },
            What::Read(_) | What::Write(_) | What::Other => {
                self.replies.extend(reply(cookie, errno(libc::EINVAL)));
                return;
            }
        };
        let id = self.client.submit(operation);
        self.waiting.insert(id, cookie);
    }

    /// Both ways between the operations, the network and the kernel.
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
                self.replies.extend(reply(cookie, meaning(&error)));
                if is_over(&error) {
                    self.end.get_or_insert(End::Lost(error));
                }
            }
        }
    }

    /// As much as the socket takes.
    fn send(&mut self) -> io::Result<()> {
        while !self.replies.is_empty() {
            let (bytes, _) = self.replies.as_slices();
            match self.socket.write(bytes) {
                Ok(sent) => drop(self.replies.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if may_pass(&error) => return Ok(()),
                // Nobody is left who waits for an answer.
                Err(_closed) => {
                    self.replies.clear();
                    self.end.get_or_insert(End::Disconnected);
                }
            }
        }
        Ok(())
    }

    /// What was asked before is done, and made durable.
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

    /// Whoever still waits is told. What the socket does not take now the kernel fails by itself, when the
    /// socket is closed.
    fn fail_the_rest(&mut self) {
        for (_, cookie) in self.waiting.drain() {
            self.replies.extend(reply(cookie, errno(libc::EIO)));
        }
        self.send().ok();
    }
}

fn timeout(after: Option<Duration>) -> PollTimeout {
    // Rounded up: earlier there would be nothing to do.
    let millis = after.map(|after| i32::try_from(after.as_micros().div_ceil(1000)));
    millis.map_or(PollTimeout::NONE, |millis| {
        PollTimeout::try_from(millis.unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX)
    })
}

fn may_pass(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// What it is for the kernel.
fn meaning(error: &ClientError) -> u32 {
    errno(match error {
        ClientError::ReadOnly { .. } => libc::EPERM,
        ClientError::OutOfRange { .. } => libc::EINVAL,
        _ => libc::EIO,
    })
}

/// Whether nothing that is asked later would go better.
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
