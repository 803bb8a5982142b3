//! A stream of a client: frames with the data behind them.

use std::{
    io::{self, IoSliceMut, Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use fabricbios_wire::{
    GpuReply, GpuRequest, HEADER_LEN, Header, MAX_PAYLOAD, Refusal, Rejected, decode_gpu_request,
    encode_gpu_answer,
};
use nix::{
    cmsg_space,
    errno::Errno,
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg},
};

/// Data that nobody wants is read in parts of this size.
const DISCARD_BYTES: usize = 64 << 10;

/// A client's stream.
#[derive(Debug)]
pub(super) struct Connection {
    socket: UnixStream,
}

/// An operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) header: Header,
    pub(super) request: GpuRequest,
    /// The first descriptor that came with the frame.
    pub(super) descriptor: Option<OwnedFd>,
}

impl Connection {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self { socket }
    }

    /// Limits how long the client may be silent. None: for ever.
    pub(super) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(patience)
    }

    /// Waits for the first bytes of the next frame. None: the client has finished.
    pub(super) fn next(&mut self) -> io::Result<Option<Start>> {
        let mut start = Start {
            bytes: [0; HEADER_LEN],
            length: 0,
            descriptor: None,
        };
        self.receive(&mut start)?;
        Ok((start.length > 0).then_some(start))
    }

    /// Reads the rest of a frame.
    pub(super) fn operation(
        &mut self,
        mut start: Start,
    ) -> io::Result<Result<Operation, Rejected>> {
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
        // A parsed header has at most the largest payload.
        let payload = usize::try_from(header.payload_len).unwrap_or(MAX_PAYLOAD);
        let mut frame = start.bytes.to_vec();
        frame.resize(HEADER_LEN + payload, 0);
        self.read(&mut frame[HEADER_LEN..])?;
        Ok(
            decode_gpu_request(&frame).map(|(header, request)| Operation {
                header,
                request,
                descriptor: start.descriptor,
            }),
        )
    }

    /// Reads a part of a header, and what came beside it.
    fn receive(&self, start: &mut Start) -> io::Result<()> {
        let mut space = cmsg_space!([RawFd; 1]);
        let mut parts = [IoSliceMut::new(&mut start.bytes[start.length..])];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        loop {
            match recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), flags) {
                Ok(message) => {
                    for descriptor in descriptors(message.cmsgs()?) {
                        start.descriptor.get_or_insert(descriptor);
                    }
                    start.length += message.bytes;
                    return Ok(());
                }
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Reads so much data.
    pub(super) fn read(&mut self, to: &mut [u8]) -> io::Result<()> {
        self.socket.read_exact(to)
    }

    /// Reads so much data that nobody wants.
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

    /// Sends an answer, and the data of a read behind it.
    pub(super) fn answer(
        &mut self,
        to: &Header,
        answer: &Result<GpuReply, Refusal>,
        data: &[u8],
    ) -> io::Result<()> {
        self.socket.write_all(&encode_gpu_answer(to, answer))?;
        self.socket.write_all(data)
    }

    /// Answers a frame that is none. Without a header the answer is to operation 0.
    pub(super) fn reject(&mut self, rejected: &Rejected) -> io::Result<()> {
        let header = rejected.header.unwrap_or_default();
        self.answer(&header, &Err(rejected.refusal()), &[])
    }
}

/// The first bytes of a frame.
#[derive(Debug)]
pub(super) struct Start {
    bytes: [u8; HEADER_LEN],
    length: usize,
    descriptor: Option<OwnedFd>,
}

/// All descriptors of a message: those that are not wanted are closed.
fn descriptors(messages: impl Iterator<Item = ControlMessageOwned>) -> Vec<OwnedFd> {
    let all = messages.flat_map(|message| match message {
        ControlMessageOwned::ScmRights(descriptors) => descriptors,
        _ => Vec::new(),
    });
    // SAFETY: the kernel has just made these descriptors for this process, and nobody else knows them.
    all.map(|raw| unsafe { OwnedFd::from_raw_fd(raw) })
        .collect()
}
