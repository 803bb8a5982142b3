//! One datagram in, at most one out: section 2 of the specification, in its order.
//!
//! ```text
//! open ──► Frame ──► answer: key, checksum, sense, state of the lease ──► SessionState: session, window, room, range
//!   │                                                            (under the lease's lock)
//!   │      where the storage takes its time, instead of answer:
//!   │                begin: the same ─► Pending ─► finish: SessionState, state of the lease, key
//!   ├────► Refused ─► unauthenticated
//!   └────► Nothing
//! ```
//!
//! Pure: no socket, no lock, no clock. The caller brings the lease and a buffer. Only HELLO and the parts of blocks
//! allocate memory.

use core::{net::IpAddr, time::Duration};

use fabricbios_wire::{
    DATA_OVERHEAD, DATAGRAM_MAX, DataFrame, DataHeader, DataOp, DataService, DataStatus, NotAFrame,
    data_flags,
};

use crate::{
    Broken, DataKey, Invariant, Keys, SessionState, crc32c,
    executor::{Deferred, DeferredIo, Executor, Immediate, Io, Served, bring_forward},
    replay::{Mark, mark},
    space::{Space, Store, StoreFailed},
};

/// Room for the longest datagram.
pub type ReplyBuffer = [u8; DATAGRAM_MAX];

/// Whether a lease gives access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AccessState {
    /// Gives access until its deadline.
    Live,
    /// Ended.
    Over,
    /// Its end could not be proved.
    Fenced,
}

/// A lease, as the engine sees it.
pub trait ServedLease {
    /// The memory or blocks of the lease.
    type Space: Space;

    /// Whether the lease gives access.
    fn state(&self) -> AccessState;

    /// When access ends, as time since boot. Zero: access has not begun.
    fn deadline(&self) -> Duration;

    /// The memory or blocks of the lease.
    fn space(&self) -> &Self::Space;

    /// Runs `work` with exclusive access to the sessions of the lease.
    fn with_sessions<R>(&self, work: impl FnOnce(&mut SessionState) -> R) -> R;

    /// An invariant of the lease failed: it must give no more access.
    fn broken(&self, broken: Broken);
}

/// The kind of a datagram.
#[derive(Clone, Copy, Debug)]
pub enum Opened<'a> {
    /// Not for this service: no reply.
    Nothing,
    /// Not a whole frame: [`unauthenticated`] makes the reply, if there is one.
    Refused(DataHeader),
    /// A request whose key is not checked yet.
    Frame(DataFrame<'a>),
}

/// A request with its source address and the time.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The frame of the request.
    pub frame: &'a DataFrame<'a>,
    /// Source address.
    pub source: IpAddr,
    /// Time since boot, suspended time included (CLOCK_BOOTTIME).
    pub now: Duration,
}

/// A reply with a valid tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The result of the request.
    pub status: DataStatus,
    /// Length in the buffer, in bytes.
    pub length: usize,
}

/// The result of a request that may have to wait for the storage.
#[derive(Debug)]
pub enum Begin {
    /// A reply at once.
    Reply(Reply),
    /// No reply: the same request is in flight.
    Nothing,
    /// A reply as soon as the storage has finished.
    Pending(Pending),
}

/// A request that waits for the storage; [`finish`] takes the result of its I/O.
#[derive(Debug)]
pub struct Pending {
    header: DataHeader,
    mark: Mark,
    key: u64,
    deferred: DeferredIo,
}

impl Pending {
    /// The I/O to do, with the payload of the buffer that was given to [`begin`].
    #[must_use]
    pub fn io(&self) -> &Io {
        &self.deferred.io
    }
}

/// Parses a datagram.
#[must_use]
pub fn open(service: DataService, datagram: &[u8]) -> Opened<'_> {
    let is_ours = |header: &DataHeader| header.service == service && !header.is_reply();
    match DataFrame::parse(datagram) {
        Ok(frame) if is_ours(&frame.header) => Opened::Frame(frame),
        Err(NotAFrame::WrongLength(header)) if is_ours(&header) => Opened::Refused(header),
        _ => Opened::Nothing,
    }
}

/// The INVALID reply to a sender who did not prove a key: 88 bytes, with a tag of zeros.
#[must_use]
pub fn unauthenticated(header: &DataHeader, reply: &mut ReplyBuffer) -> usize {
    let header = header.answered(DataStatus::Invalid).bytes();
    reply[..header.len()].copy_from_slice(&header);
    reply[header.len()..DATA_OVERHEAD].fill(0);
    DATA_OVERHEAD
}

/// Answers a request. `None`: the request was not made with a key of the lease, or its bytes were damaged; nothing
/// was done.
///
/// The caller holds the keys for reading until this returns. So a key that was removed before the call has no effect,
/// and a thread that removes a key under the write lock knows that no request with this key is being served.
pub fn answer<L>(
    lease: &L,
    keys: &Keys,
    request: Request<'_>,
    reply: &mut ReplyBuffer,
) -> Option<Reply>
where
    L: ServedLease<Space: Store>,
{
    let mut executor = Immediate(lease.space());
    let (_, key) = authentic(keys, request.frame)?;
    let payload = &mut reply[DATA_OVERHEAD..];
    let served = decide(lease, keys, request, &mut executor, payload)?;
    Some(replied(key, &request.frame.header, served, reply))
}

/// As [`answer`], for a lease whose storage takes its time. If `has_room` is false, no I/O begins. The payload of the
/// buffer holds the bytes to write, or receives the bytes that are read; it starts at `DATA_OVERHEAD`.
pub fn begin<L: ServedLease>(
    lease: &L,
    keys: &Keys,
    request: Request<'_>,
    has_room: bool,
    reply: &mut ReplyBuffer,
) -> Option<Begin> {
    let mut executor = Deferred {
        has_room,
        deferred: None,
    };
    let (number, key) = authentic(keys, request.frame)?;
    let payload = &mut reply[DATA_OVERHEAD..];
    let served = decide(lease, keys, request, &mut executor, payload);
    let header = request.frame.header;
    Some(match (served, executor.deferred) {
        (Some(served), _) => Begin::Reply(replied(key, &header, served, reply)),
        (None, None) => Begin::Nothing,
        (None, Some(deferred)) => Begin::Pending(Pending {
            header,
            mark: mark(request.frame.tag),
            key: number,
            deferred,
        }),
    })
}

/// Makes the reply after the storage has finished, in the buffer whose payload the I/O used. `None`: the lease or the
/// key of the request has ended meanwhile.
pub fn finish<L: ServedLease>(
    lease: &L,
    keys: &Keys,
    pending: &Pending,
    result: Result<(), StoreFailed>,
    now: Duration,
    reply: &mut ReplyBuffer,
) -> Option<Reply> {
    let status = result.map_or(DataStatus::Io, |()| DataStatus::Ok);
    let (request, is_write) = (
        (&pending.header, pending.mark),
        matches!(pending.io(), Io::Write { .. }),
    );
    let broken = lease.with_sessions(|sessions| sessions.finish(request, is_write, status));
    broken.into_iter().for_each(|broken| lease.broken(broken));
    let key = keys.numbered(pending.key)?;
    remaining(lease, keys, now).ok()?;
    let served = match status {
        DataStatus::Ok => {
            let reply_range = pending.deferred.reply_range.clone();
            Ok(bring_forward(&mut reply[DATA_OVERHEAD..], reply_range))
        }
        status => Err(status),
    };
    Some(replied(key, &pending.header, served, reply))
}

/// The key of an undamaged frame, and its number.
fn authentic<'a>(keys: &'a Keys, frame: &DataFrame<'_>) -> Option<(u64, &'a DataKey)> {
    let key = keys.of(frame)?;
    (crc32c(frame.payload) == frame.header.payload_crc).then_some(key)
}

/// Handles an authentic request. `None`: no reply now.
fn decide<L: ServedLease>(
    lease: &L,
    keys: &Keys,
    request: Request<'_>,
    executor: &mut impl Executor,
    payload: &mut [u8],
) -> Option<Served> {
    let header = &request.frame.header;
    let Some(op) = operation_of(header) else {
        return Some(Err(DataStatus::Invalid));
    };
    let remaining = match remaining(lease, keys, request.now) {
        Ok(remaining) => remaining,
        Err(refusal) => return Some(Err(refusal)),
    };
    let space = (lease.space(), remaining);
    let (served, broken) =
        lease.with_sessions(|sessions| sessions.serve(op, request, space, executor, payload));
    let Some(broken) = broken else {
        return served;
    };
    lease.broken(broken);
    Some(Err(DataStatus::Fenced))
}

/// The rest of the lease's term. `Err`: the lease gives no access.
fn remaining<L: ServedLease>(
    lease: &L,
    keys: &Keys,
    now: Duration,
) -> Result<Duration, DataStatus> {
    let remaining = lease.deadline().saturating_sub(now);
    match lease.state() {
        AccessState::Fenced => Err(DataStatus::Fenced),
        AccessState::Live if remaining > Duration::ZERO && keys.is_closed() => {
            lease.broken(Broken {
                invariant: Invariant::End,
                detail: "a request was let through after the end of access",
            });
            Err(DataStatus::Fenced)
        }
        AccessState::Live if remaining > Duration::ZERO => Ok(remaining),
        AccessState::Live | AccessState::Over => Err(DataStatus::NoLease),
    }
}

/// The operation; `None` if the header is not valid for the service.
fn operation_of(header: &DataHeader) -> Option<DataOp> {
    let op = match header.op {
        1 => DataOp::Hello,
        2 => DataOp::Read,
        3 => DataOp::Write,
        4 => DataOp::Ping,
        5 if header.service == DataService::Block => DataOp::Flush,
        _ => return None,
    };
    // The size of a part is checked later, against the block size of the lease.
    let can_be_part = header.service == DataService::Block
        && matches!(op, DataOp::Read | DataOp::Write)
        && header.part().is_ok();
    let is_plain = header.status == 0 && header.flags & !data_flags::PAYLOAD_MAC == 0;
    (is_plain && (header.reserved == 0 || can_be_part)).then_some(op)
}

/// Writes header and tag before the payload, which is already in place.
fn replied(key: &DataKey, request: &DataHeader, served: Served, reply: &mut ReplyBuffer) -> Reply {
    let (status, payload_len) =
        served.map_or_else(|status| (status, 0), |bytes| (DataStatus::Ok, bytes));
    let length = DATA_OVERHEAD + payload_len;
    let (head, payload) = reply[..length].split_at_mut(DATA_OVERHEAD);
    head.copy_from_slice(&key.seal(request.answered(status), payload));
    Reply { status, length }
}
