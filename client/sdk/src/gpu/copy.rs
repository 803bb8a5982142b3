//! Copies of any length: split, with several pieces on their way at once. The number of pieces ahead is bounded, and
//! each answer is progress.

use std::{
    num::NonZeroUsize,
    sync::atomic::{AtomicBool, Ordering},
};

use fabricbios_local::SharedMemory;
use fabricbios_wire::{GPU_COPY_BYTES_MAX, GpuReply, GpuRequest, GpuSharedCopy, Header};
use tokio::sync::{Semaphore, mpsc};

use super::stream::{Broken, Failed, Receiver, Sender, Stream};

/// Pieces of a copy that were sent and not answered.
const AHEAD: usize = 16;

/// Bytes of one piece in a stream.
pub(super) const PIECE_BYTES: usize = GPU_COPY_BYTES_MAX as usize;

/// Parts of shared memory that are used in turn: while the worker copies one, this side fills or reads others.
const SHARED_PARTS: usize = 4;

/// The local bytes of a copy.
#[derive(Debug)]
pub(super) enum Bytes<'a> {
    /// To the device.
    Out(&'a [u8]),
    /// From the device.
    In(&'a mut [u8]),
}

/// A copy between memory of the device and bytes here.
#[derive(Debug)]
pub(super) struct Copy<'a> {
    pub(super) memory: u64,
    /// Offset in the device memory, in bytes.
    pub(super) offset: u64,
    pub(super) bytes: Bytes<'a>,
    /// The memory through which the bytes go, if there is any; otherwise they go through the stream.
    pub(super) shared: Option<&'a SharedMemory>,
}

/// How a copy is split.
#[derive(Clone, Copy, Debug)]
struct Split {
    total: usize,
    piece: NonZeroUsize,
    ahead: usize,
}

impl Split {
    fn new(total: usize, shared: Option<&SharedMemory>) -> Self {
        let (piece, ahead) = match shared {
            None => (PIECE_BYTES, AHEAD),
            Some(memory) => {
                let part = (memory.bytes() / SHARED_PARTS).min(PIECE_BYTES);
                match part {
                    // Too small to be worth parts.
                    ..4096 => (memory.bytes(), 1),
                    _ => (part - part % 4096, memory.bytes() / part),
                }
            }
        };
        let piece = NonZeroUsize::new(piece).unwrap_or(NonZeroUsize::MIN);
        let ahead = ahead.min(AHEAD);
        Self {
            total,
            piece,
            ahead,
        }
    }

    /// Start and length of each piece, and its place in the shared memory.
    fn pieces(self) -> impl Iterator<Item = Piece> {
        let starts = (0..self.total).step_by(self.piece.get());
        starts.enumerate().map(move |(index, start)| Piece {
            start,
            length: self.piece.get().min(self.total - start),
            place: index % self.ahead * self.piece.get(),
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    start: usize,
    length: usize,
    place: usize,
}

impl Copy<'_> {
    /// Copies all bytes. `progress` gets the number of bytes that were copied. After a refusal the stream goes on.
    pub(super) async fn run<P: FnMut(u64)>(
        &mut self,
        stream: &mut Stream,
        progress: &mut P,
    ) -> Result<(), Failed> {
        let Self {
            memory,
            offset,
            ref mut bytes,
            shared,
        } = *self;
        let (from, into) = match bytes {
            Bytes::Out(from) => (Some(*from), None),
            Bytes::In(into) => (None, Some(&mut **into)),
        };
        let total = from.map_or(0, <[u8]>::len) + into.as_ref().map_or(0, |it| it.len());
        let split = Split::new(total, shared);
        let window = Semaphore::new(split.ahead);
        let refused = AtomicBool::new(false);
        let (sent, waiting) = mpsc::unbounded_channel();
        let Stream {
            sender,
            receiver,
            numbers,
            ..
        } = stream;
        let sending = Sending {
            memory,
            offset,
            from,
            shared,
            split,
            window: &window,
            refused: &refused,
            sent,
        };
        let receiving = Receiving {
            into,
            shared,
            window: &window,
            refused: &refused,
            waiting,
        };
        let sending = sending.run(sender, |request| numbers.frame(request));
        let receiving = receiving.run(receiver, progress);
        tokio::pin!(sending, receiving);
        let not_sent = tokio::select! {
            // All answers are there, or no more will come.
            received = &mut receiving => return received,
            sent = &mut sending => sent.err(),
        };
        // A worker that stopped reading may have sent the reason.
        match (receiving.await, not_sent) {
            (Err(Failed::Refused(refusal)), _) => Err(Failed::Refused(refusal)),
            (_, Some(broken)) => Err(Failed::Broken(broken)),
            (received, None) => received,
        }
    }
}

/// A piece that was sent, and the header of its request.
type Sent = (Header, Piece);

struct Sending<'a> {
    memory: u64,
    offset: u64,
    from: Option<&'a [u8]>,
    shared: Option<&'a SharedMemory>,
    split: Split,
    window: &'a Semaphore,
    refused: &'a AtomicBool,
    sent: mpsc::UnboundedSender<Sent>,
}

impl Sending<'_> {
    async fn run(
        self,
        sender: &mut Sender,
        mut frame: impl FnMut(&GpuRequest) -> (Header, Vec<u8>),
    ) -> Result<(), Broken> {
        for piece in self.split.pieces() {
            // The window is never closed.
            if let Ok(permit) = self.window.acquire().await {
                permit.forget();
            }
            if self.refused.load(Ordering::Relaxed) {
                return Ok(());
            }
            let bytes = self.from.and_then(|from| part_of(from, piece));
            if let (Some(shared), Some(bytes)) = (self.shared, bytes) {
                shared.write(piece.place, bytes).map_err(local)?;
            }
            let (header, request) = frame(&self.request(piece));
            self.sent.send((header, piece)).ok();
            sender.write(&request).await?;
            if let (None, Some(bytes)) = (self.shared, bytes) {
                sender.write(bytes).await?;
            }
        }
        Ok(())
    }

    fn request(&self, piece: Piece) -> GpuRequest {
        let (memory, offset) = (self.memory, self.offset + piece.start as u64);
        // A piece of a stream has at most `PIECE_BYTES`.
        let length = u32::try_from(piece.length).unwrap_or(GPU_COPY_BYTES_MAX);
        let copy = GpuSharedCopy {
            memory,
            offset,
            shared_offset: piece.place as u64,
            length: piece.length as u64,
        };
        match (self.shared, self.from) {
            (None, Some(_)) => GpuRequest::MemWrite {
                memory,
                offset,
                length,
            },
            (None, None) => GpuRequest::MemRead {
                memory,
                offset,
                length,
            },
            (Some(_), Some(_)) => GpuRequest::MemWriteShared(copy),
            (Some(_), None) => GpuRequest::MemReadShared(copy),
        }
    }
}

struct Receiving<'a> {
    into: Option<&'a mut [u8]>,
    shared: Option<&'a SharedMemory>,
    window: &'a Semaphore,
    refused: &'a AtomicBool,
    waiting: mpsc::UnboundedReceiver<Sent>,
}

impl Receiving<'_> {
    /// Takes the answer to each piece that was sent, also after a refusal, so that the stream can go on.
    async fn run<P: FnMut(u64)>(
        mut self,
        receiver: &mut Receiver,
        progress: &mut P,
    ) -> Result<(), Failed> {
        let (mut done, mut refusal) = (0, None);
        while let Some((header, piece)) = self.waiting.recv().await {
            match receiver.answer(&header).await.map_err(Failed::Broken)? {
                Ok(reply) => {
                    let taken = self.take(receiver, piece, &reply).await;
                    taken.map_err(Failed::Broken)?;
                    done += piece.length as u64;
                    progress(done);
                }
                Err(refused) => {
                    self.refused.store(true, Ordering::Relaxed);
                    refusal.get_or_insert(refused);
                }
            }
            self.window.add_permits(1);
        }
        refusal.map_or(Ok(()), |refusal| Err(Failed::Refused(refusal)))
    }

    async fn take(
        &mut self,
        receiver: &mut Receiver,
        piece: Piece,
        reply: &GpuReply,
    ) -> Result<(), Broken> {
        let bytes = self.into.as_deref_mut();
        let bytes = bytes.and_then(|it| it.get_mut(piece.start..)?.get_mut(..piece.length));
        match (reply, self.shared, bytes) {
            (GpuReply::Data { length }, None, Some(bytes))
                if usize::try_from(*length) == Ok(piece.length) =>
            {
                receiver.fill(bytes).await
            }
            (GpuReply::Done, Some(shared), Some(bytes)) => {
                shared.read(piece.place, bytes).map_err(local)
            }
            (GpuReply::Done, _, None) => Ok(()),
            (other, ..) => Err(Broken::Protocol(format!(
                "a copy of {} bytes was answered with {other:?}",
                piece.length
            ))),
        }
    }
}

fn part_of(bytes: &[u8], piece: Piece) -> Option<&[u8]> {
    bytes.get(piece.start..)?.get(..piece.length)
}

fn local(error: std::io::Error) -> Broken {
    Broken::Lost(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(total: usize, shared: Option<usize>) -> Vec<(usize, usize, usize)> {
        let shared = shared.map(|bytes| SharedMemory::new(bytes).unwrap());
        let split = Split::new(total, shared.as_ref());
        let pieces = split.pieces().map(|it| (it.start, it.length, it.place));
        pieces.collect()
    }

    #[test]
    fn a_copy_is_split_where_a_stream_allows_no_more() {
        const MAX: usize = PIECE_BYTES;
        assert_eq!(pieces(0, None), []);
        let starts = |total| pieces(total, None).into_iter().map(|it| (it.0, it.1));
        assert!(starts(MAX).eq([(0, MAX)]));
        assert!(starts(2 * MAX + 1).eq([(0, MAX), (MAX, MAX), (2 * MAX, 1)]));
    }

    #[test]
    fn parts_of_shared_memory_are_used_in_turn_and_never_two_at_once() {
        for bytes in [1, 4_095, 4_096, 20_000, 65_536, 1 << 20, 100 << 20] {
            let memory = SharedMemory::new(bytes).unwrap();
            let split = Split::new(bytes * 3, Some(&memory));
            let pieces: Vec<Piece> = split.pieces().collect();
            assert_eq!(pieces.iter().map(|it| it.length).sum::<usize>(), bytes * 3);
            for window in pieces.windows(split.ahead) {
                let mut places: Vec<_> = window.iter().map(|it| it.place).collect();
                places.sort_unstable();
                places.dedup();
                assert_eq!(places.len(), split.ahead, "{bytes}: {window:?}");
            }
            for piece in pieces {
                assert!(piece.place + piece.length <= bytes, "{bytes}: {piece:?}");
            }
        }
    }
}
