//! Copies bytes between a stream of a client and the socket of a worker, both ways, unchanged. Backpressure both ways:
//! if one side does not read, the other side stops after the buffers here and in the kernel are full.

use std::{io, os::unix::net::UnixStream as StdUnixStream};

use bytes::{Bytes, BytesMut};
use nix::sys::socket::{
    setsockopt,
    sockopt::{SndBuf, SndBufForce},
};
use quinn::{RecvStream, SendStream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// Bytes that may wait in the socket for the worker. A Unix socket counts them at its sender, so the worker sets this
/// limit for the other direction.
const SOCKET_BYTES: usize = 512 << 10;

/// Most bytes of one read from the worker.
const READ_BYTES: usize = 256 << 10;

/// Most pieces of the client's data that are written at once. A piece is the data of one packet.
const PIECES: usize = 256;

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The worker has closed its end, and all that it sent is in the stream.
    ByWorker,
    /// The client has cancelled its stream, or its connection is lost.
    ByClient,
}

/// Copies until the worker closes its end or the client is gone. After a client has finished its side, it still
/// receives the worker's bytes.
pub(crate) async fn relay(
    send: &mut SendStream,
    recv: &mut RecvStream,
    worker: UnixStream,
) -> Ended {
    let (mut from_worker, to_worker) = worker.into_split();
    let down = down(&mut from_worker, send);
    tokio::pin!(down);
    tokio::select! {
        ended = &mut down => return ended,
        sent = up(recv, to_worker) => if let Err(ended) = sent {
            return ended;
        },
    }
    down.await
}

/// Prepares the socket of a worker for [`relay`].
pub(crate) fn prepare(worker: StdUnixStream) -> io::Result<UnixStream> {
    // Without CAP_NET_ADMIN the limit of the kernel holds; a small buffer is only slower.
    if setsockopt(&worker, SndBufForce, &SOCKET_BYTES).is_err() {
        setsockopt(&worker, SndBuf, &SOCKET_BYTES).ok();
    }
    worker.set_nonblocking(true)?;
    UnixStream::from_std(worker)
}

/// Copies from the client to the worker. `Ok`: the client has finished or the worker reads no more; the worker sees the
/// end.
async fn up(recv: &mut RecvStream, mut to_worker: OwnedWriteHalf) -> Result<(), Ended> {
    let mut pieces = vec![Bytes::new(); PIECES];
    loop {
        let count = match recv.read_chunks(&mut pieces).await {
            Ok(Some(count)) => count,
            Ok(None) => return Ok(()),
            Err(_) => return Err(Ended::ByClient),
        };
        let pieces = pieces.get_mut(..count).unwrap_or_default();
        // A worker that reads no more may still send an answer.
        if write_all(&mut to_worker, pieces).await.is_err() {
            return Ok(());
        }
        pieces.fill(Bytes::new());
    }
}

async fn write_all(to: &mut OwnedWriteHalf, pieces: &[Bytes]) -> io::Result<()> {
    let mut slices: Vec<io::IoSlice<'_>> = pieces.iter().map(|it| io::IoSlice::new(it)).collect();
    let mut left = &mut slices[..];
    // Skips empty pieces at the front.
    io::IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match to.write_vectored(left).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => io::IoSlice::advance_slices(&mut left, written),
        }
    }
    Ok(())
}

/// Copies from the worker to the client.
async fn down(from_worker: &mut OwnedReadHalf, send: &mut SendStream) -> Ended {
    let mut buffer = BytesMut::new();
    loop {
        // Short answers share a buffer.
        if buffer.capacity() - buffer.len() < READ_BYTES / 4 {
            buffer.reserve(READ_BYTES);
        }
        // An error is an end too, such as a reset by a killed worker. Data before the error was read already.
        if !matches!(from_worker.read_buf(&mut buffer).await, Ok(1..)) {
            return Ended::ByWorker;
        }
        if send.write_chunk(buffer.split().freeze()).await.is_err() {
            return Ended::ByClient;
        }
    }
}
