//! A client of a session.

use std::{
    io::{IoSlice, Read, Write},
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use fabricbios_wire::{
    GpuLaunch, GpuReply, GpuRequest, HEADER_LEN, Header, LeaseError, Refusal, RefusalClass,
    decode_gpu_answer, encode_gpu_request,
};
use nix::libc;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// A worker that is silent for this time counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// The reply or the refusal.
pub(crate) type Answer = Result<GpuReply, Refusal>;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: UnixStream,
    id: u32,
}

impl Client {
    pub(crate) fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { socket, id: 0 }
    }

    /// Sends a request with its data behind it; returns the request's header.
    pub(crate) fn send(&mut self, request: &GpuRequest, data: &[u8]) -> Header {
        self.id += 1;
        let frame = encode_gpu_request(self.id, 7, request);
        self.socket.write_all(&frame).unwrap();
        self.socket.write_all(data).unwrap();
        header(&frame)
    }

    /// Sends a request with a descriptor beside it.
    pub(crate) fn send_with(&mut self, request: &GpuRequest, descriptor: BorrowedFd<'_>) -> Header {
        self.send_with_many(request, descriptor, 1)
    }

    /// Sends a request with this many copies of a descriptor beside it.
    pub(crate) fn send_with_many(
        &mut self,
        request: &GpuRequest,
        descriptor: BorrowedFd<'_>,
        count: usize,
    ) -> Header {
        self.id += 1;
        let frame = encode_gpu_request(self.id, 7, request);
        self.send_bytes_with(&frame, descriptor, count);
        header(&frame)
    }

    pub(crate) fn send_bytes_with(&self, bytes: &[u8], descriptor: BorrowedFd<'_>, count: usize) {
        let raw = vec![descriptor.as_raw_fd(); count];
        let rights = [ControlMessage::ScmRights(&raw)];
        let parts = [IoSlice::new(bytes)];
        let socket = self.socket.as_raw_fd();
        let sent = sendmsg::<()>(socket, &parts, &rights, MsgFlags::MSG_NOSIGNAL, None);
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// The answer to a request.
    pub(crate) fn answer(&mut self, asked: &Header) -> Answer {
        let mut frame = vec![0; HEADER_LEN];
        self.socket.read_exact(&mut frame).unwrap();
        let length = header(&frame).payload_len.try_into().unwrap();
        let mut payload = vec![0; length];
        self.socket.read_exact(&mut payload).unwrap();
        frame.extend(payload);
        decode_gpu_answer(asked, &frame).unwrap()
    }

    pub(crate) fn ask(&mut self, request: &GpuRequest) -> Answer {
        self.ask_with(request, &[])
    }

    pub(crate) fn ask_with(&mut self, request: &GpuRequest, data: &[u8]) -> Answer {
        let asked = self.send(request, data);
        self.answer(&asked)
    }

    pub(crate) fn done(&mut self, request: &GpuRequest, data: &[u8]) {
        assert_eq!(
            self.ask_with(request, data),
            Ok(GpuReply::Done),
            "{request:?}"
        );
    }

    /// Handle and address of new memory.
    pub(crate) fn allocate(&mut self, bytes: u64) -> (u64, u64) {
        match self.ask(&GpuRequest::MemAlloc { bytes }) {
            Ok(GpuReply::Memory { memory, address }) => (memory, address),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn write(&mut self, memory: u64, offset: u64, data: &[u8]) {
        self.done(&write(memory, offset, data.len()), data);
    }

    pub(crate) fn read(&mut self, memory: u64, offset: u64, length: u32) -> Vec<u8> {
        let answer = self.ask(&GpuRequest::MemRead {
            memory,
            offset,
            length,
        });
        assert_eq!(answer, Ok(GpuReply::Data { length }));
        let mut data = vec![0; length.try_into().unwrap()];
        self.socket.read_exact(&mut data).unwrap();
        data
    }

    pub(crate) fn load(&mut self, module: &[u8]) -> u64 {
        match self.try_load(module) {
            Ok(GpuReply::Module { module }) => module,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn try_load(&mut self, module: &[u8]) -> Answer {
        let length = module.len().try_into().unwrap();
        self.ask_with(&GpuRequest::ModuleLoad { length }, module)
    }

    pub(crate) fn sync(&mut self) {
        self.done(
            &GpuRequest::Sync {
                whole_session: false,
            },
            &[],
        );
    }

    pub(crate) fn close(&mut self) -> (u64, u64) {
        match self.ask(&GpuRequest::Close) {
            Ok(GpuReply::Closed {
                wiped_bytes,
                free_bytes,
            }) => (wiped_bytes, free_bytes),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the worker has read everything that was sent.
    pub(crate) fn taken(&self) {
        let mut left: libc::c_int = 1;
        while left > 0 {
            std::thread::yield_now();
            // SAFETY: the call writes one number.
            let asked = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &mut left) };
            assert_eq!(asked, 0);
        }
    }

    /// Waits for the end of the stream; fails if anything comes before.
    pub(crate) fn ended(&mut self) {
        let mut byte = [0];
        match self.socket.read(&mut byte) {
            Ok(0) => {}
            // The worker had not read everything.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("the stream goes on: {other:?}"),
        }
    }
}

pub(crate) fn write(memory: u64, offset: u64, length: usize) -> GpuRequest {
    let length = length.try_into().unwrap();
    GpuRequest::MemWrite {
        memory,
        offset,
        length,
    }
}

pub(crate) fn launch(
    module: u64,
    kernel: &str,
    sizes: (u32, u32),
    arguments: &[&[u8]],
) -> GpuLaunch {
    GpuLaunch {
        module,
        kernel: kernel.into(),
        grid: [sizes.0, sizes.0, 1],
        block: [sizes.1, sizes.1, 1],
        shared_bytes: 0,
        arguments: arguments.iter().map(|it| it.to_vec()).collect(),
    }
}

/// Checks that the answer is this refusal, with these texts.
pub(crate) fn refused(answer: &Answer, error: LeaseError, class: RefusalClass, says: &[&str]) {
    let refusal = answer.as_ref().expect_err("it is refused");
    assert_eq!((refusal.error, refusal.class), (error, class), "{refusal}");
    for part in says {
        assert!(refusal.message.contains(part), "{part:?}: {refusal}");
    }
}

pub(crate) fn header(frame: &[u8]) -> Header {
    Header::parse(frame[..HEADER_LEN].try_into().unwrap()).unwrap()
}
