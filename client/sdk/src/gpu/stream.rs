//! One stream of a session: frames out, answers in. It leads over QUIC to the node, which copies it to the session's worker,
//! or over a Unix socket to the worker itself.

use std::{
    io,
    os::unix::net::UnixStream as StdUnixStream,
    sync::Arc,
    time::{Duration, Instant},
};

use fabricbios_local::SharedMemory;
use fabricbios_wire::{
    GpuReply, GpuRequest, HEADER_LEN, Header, Refusal, decode_gpu_answer, encode_gpu_request,
};
use quinn::{Connection, ReadError, ReadExactError, RecvStream, SendStream, VarInt, WriteError};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader, Interest},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::ahead::{AHEAD_MAX, Kept, Unanswered, What};
use crate::{Error, link, runtime};

/// The code with which a node resets a stream whose client's certificate has expired.
const EXPIRED: VarInt = VarInt::from_u32(4);

/// A launch or a copy ahead this soon after a write waits for more: each write wakes several threads.
const CLOSELY: Duration = Duration::from_micros(20);

/// Most bytes of launches and copies ahead that wait to be written.
const UNWRITTEN_MAX: usize = 16 << 10;

/// Why an operation has no result.
#[derive(Debug)]
pub(super) enum Failed {
    /// The worker or the node refused it. The stream goes on.
    Refused(Refusal),
    /// The stream cannot be used any more.
    Broken(Broken),
}

/// Why a stream cannot be used any more.
#[derive(Debug)]
pub(super) enum Broken {
    /// The worker's end is closed.
    Ended(String),
    /// The way to the worker is lost; the session may go on.
    Lost(String),
    /// The answer was invalid.
    Protocol(String),
}

/// Both directions of a stream. They are used at the same time during copies.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) numbers: Numbers,
    /// The memory that the worker has mapped for this stream.
    pub(super) shared: Option<Arc<SharedMemory>>,
    unanswered: Unanswered,
    /// What was sent ahead and is not written yet.
    unwritten: Vec<u8>,
    written_at: Option<Instant>,
    /// The connection under a stream of QUIC.
    connection: Option<Connection>,
}

#[derive(Debug)]
pub(super) enum Sender {
    Quic(SendStream),
    Unix(OwnedWriteHalf),
}

#[derive(Debug)]
pub(super) enum Receiver {
    Quic(RecvStream),
    /// Short answers come several at a time.
    Unix(BufReader<OwnedReadHalf>),
}

/// The numbers of the requests of one stream.
#[derive(Debug)]
pub(super) struct Numbers {
    next_request_id: u32,
    nonce: u64,
}

impl Stream {
    pub(super) fn over_quic(stream: link::Stream) -> Result<Self, Error> {
        Ok(Self {
            sender: Sender::Quic(stream.send),
            receiver: Receiver::Quic(stream.recv),
            numbers: Numbers::new()?,
            shared: None,
            unanswered: Unanswered::default(),
            unwritten: Vec::new(),
            written_at: None,
            connection: Some(stream.connection),
        })
    }

    pub(super) fn over_socket(socket: StdUnixStream) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::Local {
            what: "use a Unix socket",
            why: error.to_string(),
        };
        socket.set_nonblocking(true).map_err(failed)?;
        // Inside the runtime: its background thread reports when the socket is ready.
        let _entered = runtime::background()?.enter();
        let socket = UnixStream::from_std(socket).map_err(failed)?;
        let (receiver, sender) = socket.into_split();
        Ok(Self {
            sender: Sender::Unix(sender),
            receiver: Receiver::Unix(BufReader::new(receiver)),
            numbers: Numbers::new()?,
            shared: None,
            unanswered: Unanswered::default(),
            unwritten: Vec::new(),
            written_at: None,
            connection: None,
        })
    }

    /// Whether the connection under the stream is known to be lost.
    pub(super) fn is_lost(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|it| it.close_reason().is_some())
    }

    /// Lets a queue remember what is sent ahead on this stream.
    pub(super) fn keep_in(&mut self, kept: &Arc<Kept>) {
        self.unanswered = Unanswered::new(Arc::clone(kept));
    }

    /// Sends a request with the data that follows it, and returns its reply.
    pub(super) async fn ask(
        &mut self,
        request: &GpuRequest,
        data: &[u8],
    ) -> Result<GpuReply, Failed> {
        let (header, frame) = self.numbers.frame(request);
        let sent = async {
            self.unwritten.extend(frame);
            self.write().await?;
            self.sender.write(data).await
        };
        let sent = sent.await;
        self.answer(&header, sent).await
    }

    /// Sends a request with the data that follows it, and does not wait for its answer. Short ones that follow each other closely
    /// are written together.
    pub(super) async fn ask_ahead(
        &mut self,
        request: &GpuRequest,
        data: &[u8],
        what: What,
    ) -> Result<(), Broken> {
        self.settle(AHEAD_MAX - 1).await?;
        let (header, frame) = self.numbers.frame(request);
        self.unanswered.push(header, what);
        self.unwritten.extend(frame);
        if data.len() > UNWRITTEN_MAX {
            self.write().await?;
            return self.sender.write(data).await;
        }
        self.unwritten.extend_from_slice(data);
        let is_close = self.written_at.is_some_and(|it| it.elapsed() < CLOSELY);
        if is_close && self.unwritten.len() < UNWRITTEN_MAX {
            return Ok(());
        }
        self.write().await
    }

    /// Whether something that was sent ahead is not written.
    pub(super) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Writes what was sent ahead.
    pub(super) async fn write(&mut self) -> Result<(), Broken> {
        self.sender.write(&self.unwritten).await?;
        self.unwritten.clear();
        self.written_at = Some(Instant::now());
        Ok(())
    }

    /// Takes answers of what was sent ahead until at most this many are left.
    pub(super) async fn settle(&mut self, left: usize) -> Result<(), Broken> {
        if self.unanswered.len() > left && self.has_unwritten() {
            self.write().await?;
        }
        while self.unanswered.len() > left
            && let Some(next) = self.unanswered.next()
        {
            match self.receiver.answer(&next).await? {
                Ok(GpuReply::Done) => self.unanswered.answered(None),
                Ok(other) => {
                    let why = format!("a launch or a copy was answered with {other:?}");
                    return Err(Broken::Protocol(why));
                }
                Err(refusal) => self.unanswered.answered(Some(refusal)),
            }
        }
        Ok(())
    }

    /// Sends a request with a file beside it, and returns its reply.
    pub(super) async fn ask_sharing(
        &mut self,
        request: &GpuRequest,
        memory: &SharedMemory,
    ) -> Result<GpuReply, Failed> {
        let (header, frame) = self.numbers.frame(request);
        let sent = self.sender.share(&frame, memory).await;
        self.answer(&header, sent).await
    }

    /// Reads the answer even after a failed send: a worker that stopped reading may have sent the reason.
    async fn answer(&mut self, to: &Header, sent: Result<(), Broken>) -> Result<GpuReply, Failed> {
        let received = async {
            self.settle(0).await?;
            self.receiver.answer(to).await
        };
        match (received.await, sent) {
            (Ok(answer), _) => answer.map_err(Failed::Refused),
            (Err(_), Err(broken)) | (Err(broken), Ok(())) => Err(Failed::Broken(broken)),
        }
    }
}

impl Sender {
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        match self {
            Self::Quic(send) => send.write_all(bytes).await.map_err(of_write),
            Self::Unix(half) => half.write_all(bytes).await.map_err(|it| of_io(&it)),
        }
    }

    async fn share(&mut self, frame: &[u8], memory: &SharedMemory) -> Result<(), Broken> {
        let Self::Unix(half) = self else {
            return Err(Broken::Protocol("QUIC carries no files".to_owned()));
        };
        let socket: &UnixStream = half.as_ref();
        let send = || memory.send(socket, frame);
        let sent = socket.async_io(Interest::WRITABLE, send).await;
        sent.map_err(|it| of_io(&it))
    }
}

impl Receiver {
    pub(super) async fn fill(&mut self, into: &mut [u8]) -> Result<(), Broken> {
        match self {
            Self::Quic(recv) => recv.read_exact(into).await.map_err(of_read),
            Self::Unix(half) => half
                .read_exact(into)
                .await
                .map(drop)
                .map_err(|it| of_io(&it)),
        }
    }

    /// The answer to the next request, without the data that follows it.
    pub(super) async fn answer(
        &mut self,
        asked: &Header,
    ) -> Result<Result<GpuReply, Refusal>, Broken> {
        let protocol = |why: fabricbios_wire::Rejected| Broken::Protocol(why.to_string());
        let mut head = [0; HEADER_LEN];
        self.fill(&mut head).await?;
        let header = Header::parse(&head).map_err(protocol)?;
        let length = usize::try_from(header.payload_len).unwrap_or_default();
        let mut frame = vec![0; HEADER_LEN + length];
        frame[..HEADER_LEN].copy_from_slice(&head);
        self.fill(&mut frame[HEADER_LEN..]).await?;
        decode_gpu_answer(asked, &frame).map_err(protocol)
    }
}

impl Numbers {
    fn new() -> Result<Self, Error> {
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(|error| Error::Local {
            what: "get random bytes",
            why: error.to_string(),
        })?;
        Ok(Self {
            next_request_id: 1,
            nonce: u64::from_ne_bytes(nonce),
        })
    }

    /// The next frame, and its header for the answer.
    pub(super) fn frame(&mut self, request: &GpuRequest) -> (Header, Vec<u8>) {
        let header = Header {
            flags: 0,
            msg_type: request.message_type() as u16,
            request_id: self.next_request_id,
            nonce: self.nonce,
            payload_len: 0,
        };
        self.next_request_id = self.next_request_id.wrapping_add(1);
        let frame = encode_gpu_request(header.request_id, header.nonce, request);
        (header, frame)
    }
}

fn of_write(error: WriteError) -> Broken {
    match error {
        WriteError::ConnectionLost(error) => Broken::Lost(error.to_string()),
        WriteError::Stopped(EXPIRED) => ended_by_certificate(),
        other => Broken::Ended(other.to_string()),
    }
}

fn of_read(error: ReadExactError) -> Broken {
    match error {
        ReadExactError::ReadError(ReadError::ConnectionLost(error)) => {
            Broken::Lost(error.to_string())
        }
        ReadExactError::ReadError(ReadError::Reset(EXPIRED)) => ended_by_certificate(),
        ReadExactError::ReadError(other) => Broken::Ended(other.to_string()),
        ReadExactError::FinishedEarly(_) => ended_by_worker(),
    }
}

fn of_io(error: &io::Error) -> Broken {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => ended_by_worker(),
        _ => Broken::Lost(error.to_string()),
    }
}

fn ended_by_worker() -> Broken {
    Broken::Ended("the session's process on the node has ended".to_owned())
}

fn ended_by_certificate() -> Broken {
    Broken::Lost("the certificate of this identity has expired".to_owned())
}
