//! The handler of an FBBU thread: it begins the I/O of each request and replies when the I/O has finished.

use std::{
    fs::File,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use nix::errno::Errno;

use super::{
    batch::{Exchange, Replies},
    blocks::{Blocks, IoInFlight},
    buffer::{Buffer, Buffers},
    clock,
    counters::{Counters, Tally},
    leases::Leases,
    responder::{Incoming, Responder},
    ring::{Finished, Ring},
    serving::Outcome,
    worker::{Handler, IDLE_MS, LogLimit},
};
use crate::{Begin, Io, Pending, Reply, Space, StoreFailed, begin, calls::Addresses, finish};

/// The handler of an FBBU thread.
pub(super) struct BlockServer {
    leases: Arc<Leases<Blocks>>,
    responder: Responder,
    storage: Storage,
}

/// The I/O of one thread.
struct Storage {
    ring: Ring<Waiting>,
    buffers: Buffers,
    /// I/O that the ring refused; it has failed.
    refused: Vec<Finished<Waiting>>,
    log_limit: LogLimit,
}

/// A request that waits for the storage, and the addresses for its reply.
struct Waiting {
    pending: Pending,
    in_flight: IoInFlight,
    addresses: Addresses,
}

/// A reply that was made after its batch.
struct LateReply {
    addresses: Addresses,
    buffer: Box<Buffer>,
    length: usize,
}

impl BlockServer {
    pub(super) fn new(
        leases: &Arc<Leases<Blocks>>,
        counters: &Arc<Counters>,
        hold: Option<Arc<OwnedFd>>,
    ) -> io::Result<Self> {
        Ok(Self {
            leases: Arc::clone(leases),
            responder: Responder::new(counters)?,
            storage: Storage {
                ring: Ring::new(hold)?,
                buffers: Buffers::default(),
                refused: Vec::new(),
                log_limit: LogLimit::new(),
            },
        })
    }
}

impl Handler for BlockServer {
    /// One system call submits all I/O of a batch.
    fn handle(&mut self, exchanges: &mut [Exchange]) {
        let (leases, storage) = (&self.leases, &mut self.storage);
        self.responder
            .answer(exchanges, |incoming| storage.handle(leases, incoming));
        if let Err(errno) = self.storage.ring.submit() {
            self.storage.log_failure("submit", errno);
        }
    }

    fn unsent(&mut self, replies: u64) {
        self.responder.counters.add_unsent(replies);
    }

    fn idle(&mut self) {
        self.leases.forget_old(clock::now());
    }

    fn wait(&mut self, inputs: [BorrowedFd<'_>; 2]) -> Result<bool, Errno> {
        let limit = Duration::from_millis(IDLE_MS.into());
        self.storage.ring.wait(inputs, limit)
    }

    fn late(&mut self, send: &mut dyn FnMut(Replies<'_>)) {
        let mut tally = Tally::default();
        let late = self.storage.late(&mut tally);
        self.responder.counters.add(&tally);
        let replies = late
            .iter()
            .map(|it| (&it.addresses, &it.buffer.reply[..it.length]));
        send(&replies.collect::<Vec<_>>());
        for it in late {
            self.storage.buffers.put_back(it.buffer);
        }
    }

    fn close(&mut self) {
        self.storage.ring.close();
    }
}

impl Storage {
    /// Handles a request. `Handled(None)`: its reply is made when the I/O has finished.
    fn handle(
        &mut self,
        leases: &Leases<Blocks>,
        incoming: Incoming<'_>,
    ) -> Outcome<Option<Reply>> {
        let mut buffer = self.buffers.take();
        let outcome = leases.dispatch(
            incoming.datagram,
            incoming.source,
            |entry, keys, request| {
                let has_room = entry.content.has_room(request.frame.header.op);
                let begun = begin(&**entry, keys, request, has_room, &mut buffer.reply)?;
                let io = match &begun {
                    Begin::Pending(pending) => Some(IoInFlight::begin(entry, pending.io())),
                    _ => None,
                };
                Some((begun, io))
            },
        );
        let outcome = match outcome {
            Outcome::Handled((Begin::Pending(pending), Some((in_flight, file)))) => {
                let mut addresses = incoming.addresses.clone();
                addresses.control.leave_interface_open();
                let waiting = Waiting {
                    pending,
                    in_flight,
                    addresses,
                };
                self.begin(waiting, file, buffer);
                return Outcome::Handled(None);
            }
            Outcome::Handled((Begin::Reply(reply), _)) => {
                let bytes = ..reply.length;
                incoming.reply[bytes].copy_from_slice(&buffer.reply[bytes]);
                Outcome::Handled(Some(reply))
            }
            Outcome::Handled(_) | Outcome::Nothing => Outcome::Nothing,
            Outcome::Unauthenticated(header) => Outcome::Unauthenticated(header),
        };
        self.buffers.put_back(buffer);
        outcome
    }

    fn begin(&mut self, waiting: Waiting, file: Option<Arc<File>>, buffer: Box<Buffer>) {
        let begun = match file {
            Some(file) => {
                let unit_bytes = waiting.in_flight.entry.content.unit_bytes();
                let io = waiting.pending.io().clone();
                self.ring.begin((&io, unit_bytes), file, buffer, waiting)
            }
            None => Err(Finished {
                user_data: waiting,
                buffer,
                result: -libc::EBADF,
            }),
        };
        self.refused.extend(begun.err());
    }

    fn late(&mut self, tally: &mut Tally) -> Vec<LateReply> {
        let mut late = Vec::new();
        while let Some(finished) = self.refused.pop().or_else(|| self.ring.finished()) {
            let Finished {
                user_data: waiting,
                mut buffer,
                result,
            } = finished;
            let result = self.judge(&waiting, result);
            if let Some(reply) = waiting.finish(result, &mut buffer) {
                tally.answered[reply.status as usize] += 1;
                let (addresses, length) = (waiting.addresses, reply.length);
                tally.sent_bytes += length as u64;
                late.push(LateReply {
                    addresses,
                    buffer,
                    length,
                });
            } else {
                tally.dropped += 1;
                self.buffers.put_back(buffer);
            }
        }
        late
    }

    /// The result of an I/O: a short I/O has failed.
    fn judge(&mut self, waiting: &Waiting, result: i32) -> Result<(), StoreFailed> {
        let whole = match *waiting.pending.io() {
            Io::Read { bytes, .. } | Io::Write { bytes, .. } => bytes,
            Io::Flush => 0,
        };
        if usize::try_from(result) == Ok(whole) {
            return Ok(());
        }
        if self.log_limit.may_log() {
            let (entry, io) = (&waiting.in_flight.entry, waiting.pending.io());
            let errno = Errno::from_raw(result.min(0).saturating_neg());
            tracing::warn!(lease = %entry.binding_id, ?io, result, %errno, "the storage failed");
        }
        Err(StoreFailed)
    }

    fn log_failure(&mut self, call: &str, errno: Errno) {
        if self.log_limit.may_log() {
            tracing::warn!(call, %errno, "io_uring");
        }
    }
}

impl Waiting {
    fn finish(&self, result: Result<(), StoreFailed>, buffer: &mut Buffer) -> Option<Reply> {
        let entry = &*self.in_flight.entry;
        let keys = entry.keys();
        let now = clock::now();
        finish(entry, &keys, &self.pending, result, now, &mut buffer.reply)
    }
}
