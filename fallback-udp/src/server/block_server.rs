//! What a thread of FBBU does: it has the storage begin what is asked, and answers when that is over.

use std::{
    fs::File,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use nix::errno::Errno;

use super::{
    batch::{Letter, Replies},
    blocks::{Blocks, UnderWay},
    buffer::{Buffer, Buffers},
    calls::Envelope,
    clock,
    counters::{Counters, Tally},
    front::{Front, Guest},
    ring::{Finished, Ring, Transfer},
    serving::{Outcome, Serving},
    worker::{Clerk, Complaints, IDLE_MS},
};
use crate::{Begin, Io, Pending, Reply, Space, StoreFailed, begin, finish};

/// See the module.
pub(super) struct BlockServer {
    serving: Arc<Serving<Blocks>>,
    front: Front,
    storage: Storage,
}

/// The part of it that is for what takes time.
struct Storage {
    ring: Ring<Waiting>,
    buffers: Buffers,
    /// Refused by the ring; over before they began.
    refused: Vec<Finished<Waiting>>,
    complaints: Complaints,
}

/// A request that waits for the storage, and who it is from.
struct Waiting {
    pending: Pending,
    under_way: UnderWay,
    envelope: Envelope,
}

/// What a lease makes of a request.
enum Met {
    Reply(Reply),
    Nothing,
    Io(Pending, UnderWay, Option<Arc<File>>),
}

/// A reply on its way out.
struct Late {
    envelope: Envelope,
    buffer: Box<Buffer>,
    length: usize,
}

impl BlockServer {
    pub(super) fn new(
        serving: &Arc<Serving<Blocks>>,
        counters: &Arc<Counters>,
        hold: Option<Arc<OwnedFd>>,
    ) -> io::Result<Self> {
        Ok(Self {
            serving: Arc::clone(serving),
            front: Front::new(counters)?,
            storage: Storage {
                ring: Ring::new(hold)?,
                buffers: Buffers::default(),
                refused: Vec::new(),
                complaints: Complaints::new(),
            },
        })
    }
}

impl Clerk for BlockServer {
    /// What a batch asks of the storage is handed over by one system call.
    fn handle(&mut self, letters: &mut [Letter]) {
        let (serving, storage) = (&self.serving, &mut self.storage);
        self.front
            .answer(letters, |guest| storage.meet(serving, guest));
        if let Err(errno) = self.storage.ring.submit() {
            self.storage.complain("submit", errno);
        }
    }

    fn unsent(&mut self, replies: u64) {
        self.front.unsent(replies);
    }

    fn idle(&mut self) {
        self.serving.leases.forget_old(clock::now());
    }

    fn wait(&mut self, inputs: [BorrowedFd<'_>; 2]) -> Result<bool, Errno> {
        let limit = Duration::from_millis(IDLE_MS.into());
        self.storage.ring.wait(inputs, limit)
    }

    fn late(&mut self, send: &mut dyn FnMut(Replies<'_>)) {
        let mut tally = Tally::default();
        let late = self.storage.late(&mut tally);
        self.front.count(&tally);
        let replies = late
            .iter()
            .map(|it| (&it.envelope, &it.buffer.reply[..it.length]));
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
    /// `Met(None)`: the answer comes later.
    fn meet(&mut self, serving: &Serving<Blocks>, guest: Guest<'_>) -> Outcome<Option<Reply>> {
        let mut buffer = self.buffers.take();
        let outcome = serving.serve(guest.datagram, guest.source, |entry, keys, asked| {
            let has_room = entry.content.has_room(asked.frame.header.op);
            let begun = begin(&**entry, keys, asked, has_room, &mut buffer.reply)?;
            Some(match begun {
                Begin::Reply(reply) => Met::Reply(reply),
                Begin::Nothing => Met::Nothing,
                Begin::Pending(pending) => {
                    let (under_way, file) = UnderWay::begin(entry, pending.io());
                    Met::Io(pending, under_way, file)
                }
            })
        });
        let outcome = match outcome {
            Outcome::Met(Met::Io(pending, under_way, file)) => {
                let mut envelope = guest.envelope.clone();
                envelope.control.leave_interface_open();
                let waiting = Waiting {
                    pending,
                    under_way,
                    envelope,
                };
                self.begin(waiting, file, buffer);
                return Outcome::Met(None);
            }
            Outcome::Met(Met::Reply(reply)) => {
                let bytes = ..reply.length;
                guest.reply[bytes].copy_from_slice(&buffer.reply[bytes]);
                Outcome::Met(Some(reply))
            }
            Outcome::Met(Met::Nothing) | Outcome::Nothing => Outcome::Nothing,
            Outcome::Unauthenticated(header) => Outcome::Unauthenticated(header),
        };
        self.buffers.put_back(buffer);
        outcome
    }

    fn begin(&mut self, waiting: Waiting, file: Option<Arc<File>>, buffer: Box<Buffer>) {
        let begun = match file {
            Some(file) => self.ring.begin(waiting.transfer(), file, buffer, waiting),
            None => Err(Finished {
                guest: waiting,
                buffer,
                result: -libc::EBADF,
            }),
        };
        self.refused.extend(begun.err());
    }

    fn late(&mut self, tally: &mut Tally) -> Vec<Late> {
        let mut late = Vec::new();
        while let Some(finished) = self.refused.pop().or_else(|| self.ring.finished()) {
            let Finished {
                guest,
                mut buffer,
                result,
            } = finished;
            let result = self.judge(&guest, result);
            if let Some(reply) = guest.finish(result, &mut buffer) {
                tally.answered[reply.status as usize] += 1;
                let (envelope, length) = (guest.envelope, reply.length);
                late.push(Late {
                    envelope,
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

    /// Anything but all of it is a failure.
    fn judge(&mut self, waiting: &Waiting, result: i32) -> Result<(), StoreFailed> {
        let whole = match *waiting.pending.io() {
            Io::Read { bytes, .. } | Io::Write { bytes, .. } => bytes,
            Io::Flush => 0,
        };
        if usize::try_from(result) == Ok(whole) {
            return Ok(());
        }
        if self.complaints.may_speak() {
            let (entry, io) = (&waiting.under_way.entry, waiting.pending.io());
            let errno = Errno::from_raw(result.min(0).saturating_neg());
            tracing::warn!(lease = %entry.tag, ?io, result, %errno, "the storage failed");
        }
        Err(StoreFailed)
    }

    fn complain(&mut self, call: &str, errno: Errno) {
        if self.complaints.may_speak() {
            tracing::warn!(call, %errno, "io_uring");
        }
    }
}

impl Waiting {
    fn transfer(&self) -> Transfer {
        let unit = u64::from(self.under_way.entry.content.unit_bytes());
        #[allow(clippy::cast_possible_truncation, reason = "it fits a datagram")]
        match *self.pending.io() {
            Io::Read { offset, bytes } => Transfer::Read {
                at: offset * unit,
                bytes: bytes as u32,
            },
            Io::Write { offset, bytes } => Transfer::Write {
                at: offset * unit,
                bytes: bytes as u32,
            },
            Io::Flush => Transfer::Flush,
        }
    }

    fn finish(&self, result: Result<(), StoreFailed>, buffer: &mut Buffer) -> Option<Reply> {
        let entry = &*self.under_way.entry;
        let keys = entry.keys();
        let now = clock::now();
        finish(entry, &keys, &self.pending, result, now, &mut buffer.reply)
    }
}
