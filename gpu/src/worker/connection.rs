//! A client's stream: frames, each with its data behind it.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use fabricbios_channel::{Received, receive};
use fabricbios_wire::{
    DecodeError, DecodeFault, GpuMessageType, GpuReply, GpuRequest, HEADER_LEN, Header,
    MAX_PAYLOAD, Refusal, Rejected, decode_gpu_request, encode_gpu_answer,
};
use nix::{errno::Errno, libc};

/// Unwanted data is read in parts of this size, bytes.
const DISCARD_BYTES: usize = 64 << 10;

/// A client's stream.
#[derive(Debug)]
pub(super) struct Connection {
    socket: UnixStream,
    /// At least this many bytes have arrived and were not read.
    arrived: usize,
}

/// An operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) header: Header,
    pub(super) request: GpuRequest,
    /// The descriptor beside the frame, if the request takes one.
    pub(super) descriptor: Option<OwnedFd>,
}

impl Connection {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self { socket, arrived: 0 }
    }

    /// Whether this many bytes can be read without waiting.
    pub(super) fn has(&mut self, bytes: usize) -> io::Result<bool> {
        if self.arrived < bytes {
            let mut arrived: libc::c_int = 0;
            // SAFETY: the call writes one number.
            let asked =
                unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::FIONREAD, &raw mut arrived) };
            Errno::result(asked)?;
            self.arrived = usize::try_from(arrived).unwrap_or(0);
        }
        Ok(self.arrived >= bytes)
    }

    /// Limits how long the client may be silent. `None`: without a limit.
    pub(super) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(patience)
    }

    /// Waits for the first bytes of the next frame. `None`: the client has closed its stream.
    pub(super) fn next(&mut self) -> io::Result<Option<Start>> {
        let mut start = Start {
            bytes: [0; HEADER_LEN],
            length: 0,
            descriptor: Ok(None),
        };
        self.receive(&mut start)?;
        Ok((start.length > 0).then_some(start))
    }

    /// Reads the rest of a frame.
    pub(super) fn operation(&mut self, start: Start) -> io::Result<Result<Operation, Rejected>> {
        match self.head(start)? {
            Ok(head) => self.rest(head),
            Err(rejected) => Ok(Err(rejected)),
        }
    }

    /// Reads the rest of a header.
    pub(super) fn head(&mut self, mut start: Start) -> io::Result<Result<Head, Rejected>> {
        while start.length < HEADER_LEN {
            let before = start.length;
            self.receive(&mut start)?;
            if start.length == before {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let header = match Header::parse(&start.bytes) {
            Ok(header) => header,
            Err(rejected) => return Ok(Err(rejected)),
        };
        let takes_one = header.msg_type == GpuMessageType::MemShare as u16;
        let descriptor = match start.descriptor {
            Ok(descriptor) => descriptor.filter(|_| takes_one),
            Err(got) => return Ok(Err(with_descriptors(header, got))),
        };
        Ok(Ok(Head {
            bytes: start.bytes,
            // A parsed header allows at most the largest payload.
            payload: usize::try_from(header.payload_len).unwrap_or(MAX_PAYLOAD),
            descriptor,
        }))
    }

    /// Reads the payload of a frame.
    pub(super) fn rest(&mut self, head: Head) -> io::Result<Result<Operation, Rejected>> {
        let mut frame = head.bytes.to_vec();
        frame.resize(HEADER_LEN + head.payload, 0);
        self.read(&mut frame[HEADER_LEN..])?;
        Ok(
            decode_gpu_request(&frame).map(|(header, request)| Operation {
                header,
                request,
                descriptor: head.descriptor,
            }),
        )
    }

    /// Reads a part of a header, and a descriptor beside it.
    fn receive(&mut self, start: &mut Start) -> io::Result<()> {
        let Received { length, descriptor } =
            receive(&self.socket, &mut start.bytes[start.length..])?;
        start.length += length;
        self.arrived = self.arrived.saturating_sub(length);
        if !matches!(descriptor, Ok(None)) {
            start.descriptor = match &start.descriptor {
                Ok(None) => descriptor.map_err(|why| why.to_string()),
                _ => Err("descriptors came with several parts of the header".into()),
            };
        }
        Ok(())
    }

    /// Reads data until `to` is full.
    pub(super) fn read(&mut self, to: &mut [u8]) -> io::Result<()> {
        self.socket.read_exact(to)?;
        self.arrived = self.arrived.saturating_sub(to.len());
        Ok(())
    }

    /// Reads `length` bytes of unwanted data.
    pub(super) fn discard(&mut self, length: usize) -> io::Result<()> {
        let mut bytes = vec![0; DISCARD_BYTES.min(length)];
        let mut left = length;
        while left > 0 {
            let part = left.min(bytes.len());
            self.read(&mut bytes[..part])?;
            left -= part;
        }
        Ok(())
    }

    /// Sends an answer.
    pub(super) fn answer(
        &mut self,
        to: &Header,
        answer: &Result<GpuReply, Refusal>,
    ) -> io::Result<()> {
        self.send(&encode_gpu_answer(to, answer))
    }

    /// Sends answers, or the data of a read.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// Answers bytes that are no valid frame. Without a header the answer is to operation 0.
    pub(super) fn reject(&mut self, rejected: &Rejected) -> io::Result<()> {
        let header = rejected.header.unwrap_or_default();
        self.answer(&header, &Err(rejected.refusal()))
    }
}

/// The header of a frame whose payload is next.
#[derive(Debug)]
pub(super) struct Head {
    bytes: [u8; HEADER_LEN],
    pub(super) payload: usize,
    descriptor: Option<OwnedFd>,
}

/// The first bytes of a frame.
#[derive(Debug)]
pub(super) struct Start {
    bytes: [u8; HEADER_LEN],
    length: usize,
    /// The descriptor as in [`Received`].
    descriptor: Result<Option<OwnedFd>, String>,
}

fn with_descriptors(header: Header, got: String) -> Rejected {
    Rejected {
        header: Some(header),
        error: DecodeError {
            fault: DecodeFault::Malformed,
            offset: 0,
            tag: None,
            field: "descriptors",
            expected: "one at most".into(),
            got: got.into(),
        },
    }
}
