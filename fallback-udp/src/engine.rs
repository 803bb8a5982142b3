//! One datagram in, at most one out: section 2 of the specification, in its order.
//!
//! ```text
//! open ──► Frame ──► answer: key, checksum, sense, standing ──► Desk: session, window, room, range
//!   │                                                            (under the lease's lock)
//!   │      where the storage takes its time, instead of answer:
//!   │                begin: the same ─► Pending ─► finish: Desk, standing, key
//!   ├────► Refused ─► unauthenticated
//!   └────► Nothing
//! ```
//!
//! Pure: no socket, no lock, no clock. Who serves brings the lease and a buffer. Nothing is
//! allocated but for HELLO and for parts of blocks.

use core::{net::IpAddr, time::Duration};

use fabricbios_wire::{
    DATA_OVERHEAD, DATAGRAM_MAX, DataFrame, DataHeader, DataOp, DataService, DataStatus, NotAFrame,
    data_flags,
};

use crate::{
    DataKey, Desk, Keys, crc32c,
    desk::Begun,
    hands::{AtOnce, Hands, Io, Later, Served, Taken, bring_forward},
    space::{Space, Store, StoreFailed},
};

/// Room for the longest datagram.
pub type ReplyBuffer = [u8; DATAGRAM_MAX];

/// How it is with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// Used until its deadline.
    Live,
    /// Over.
    Over,
    /// Its end could not be proved.
    Fenced,
}

/// A lease, as it is served.
pub trait Leased {
    /// Its bytes.
    type Space: Space;

    /// How it is with it.
    fn standing(&self) -> Standing;

    /// When it is over, since boot. Zero: not begun.
    fn deadline(&self) -> Duration;

    /// Its bytes.
    fn space(&self) -> &Self::Space;

    /// Has something done by the lease's desk, one thing at a time.
    fn at_desk<R>(&self, work: impl FnOnce(&mut Desk) -> R) -> R;
}

/// What a datagram turned out to be.
#[derive(Clone, Copy, Debug)]
pub enum Opened<'a> {
    /// Not for this service; nobody is answered.
    Nothing,
    /// Not a whole frame: to be answered with [`unauthenticated`], if at all.
    Refused(DataHeader),
    /// A request of somebody who may or may not have the key.
    Frame(DataFrame<'a>),
}

/// A request, where it came from, and when.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// What is asked.
    pub frame: &'a DataFrame<'a>,
    /// Source address.
    pub source: IpAddr,
    /// Time since boot, suspended time included (CLOCK_BOOTTIME).
    pub now: Duration,
}

/// A reply that carries a right tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How the request went.
    pub status: DataStatus,
    /// Bytes of the buffer.
    pub length: usize,
}

/// What a request gets that may have to wait for the storage.
#[derive(Debug)]
pub enum Begin {
    /// An answer at once.
    Reply(Reply),
    /// No answer: the same request is under way.
    Nothing,
    /// An answer once the storage has done it.
    Pending(Pending),
}

/// A request that waits for the storage; [`finish`] has to be told how that went.
#[derive(Debug)]
pub struct Pending {
    header: DataHeader,
    key: u64,
    begun: Begun,
    taken: Taken,
}

impl Pending {
    /// What is to be done, with the payload of the buffer that was given to [`begin`].
    #[must_use]
    pub fn io(&self) -> &Io {
        &self.taken.io
    }
}

/// Takes a datagram apart.
#[must_use]
pub fn open(service: DataService, datagram: &[u8]) -> Opened<'_> {
    let is_ours = |header: &DataHeader| header.service == service && !header.is_reply();
    match DataFrame::parse(datagram) {
        Ok(frame) if is_ours(&frame.header) => Opened::Frame(frame),
        Err(NotAFrame::WrongLength(header)) if is_ours(&header) => Opened::Refused(header),
        _ => Opened::Nothing,
    }
}

/// INVALID for somebody who did not prove to have a key: 88 bytes, the tag zeros.
#[must_use]
pub fn unauthenticated(header: &DataHeader, reply: &mut ReplyBuffer) -> usize {
    let header = header.answered(DataStatus::Invalid).bytes();
    reply[..header.len()].copy_from_slice(&header);
    reply[header.len()..DATA_OVERHEAD].fill(0);
    DATA_OVERHEAD
}

/// Answers a request. `None`: it was not made with a key of the lease, or was damaged on its way;
/// nothing was done.
///
/// The keys stay as they are until this returns: a key that was taken away before this was called
/// does nothing, and once whoever takes one away has the keys for itself, nothing that was asked
/// with it is still being done.
pub fn answer<L>(lease: &L, keys: &Keys, asked: Asked<'_>, reply: &mut ReplyBuffer) -> Option<Reply>
where
    L: Leased<Space: Store>,
{
    let mut hands = AtOnce(lease.space());
    let (_, key) = authentic(keys, asked.frame)?;
    let served = decide(lease, asked, &mut hands, &mut reply[DATA_OVERHEAD..])?;
    Some(replied(key, &asked.frame.header, served, reply))
}

/// As [`answer`], for a lease whose storage takes its time. With `has_room` false nothing more is
/// begun. The payload of the buffer is what is to be written, or where to read to; it starts at
/// `DATA_OVERHEAD`.
pub fn begin<L: Leased>(
    lease: &L,
    keys: &Keys,
    asked: Asked<'_>,
    has_room: bool,
    reply: &mut ReplyBuffer,
) -> Option<Begin> {
    let mut hands = Later {
        has_room,
        taken: None,
    };
    let (number, key) = authentic(keys, asked.frame)?;
    let served = decide(lease, asked, &mut hands, &mut reply[DATA_OVERHEAD..]);
    let header = asked.frame.header;
    Some(match (served, hands.taken) {
        (Some(served), _) => Begin::Reply(replied(key, &header, served, reply)),
        (None, None) => Begin::Nothing,
        (None, Some(taken)) => Begin::Pending(Pending {
            header,
            key: number,
            begun: Begun::of(asked.frame, &taken.io),
            taken,
        }),
    })
}

/// What the storage did is over: the answer to the request, in the buffer whose payload it used.
/// `None`: the lease or the key of the request is over by now.
pub fn finish<L: Leased>(
    lease: &L,
    keys: &Keys,
    pending: &Pending,
    result: Result<(), StoreFailed>,
    now: Duration,
    reply: &mut ReplyBuffer,
) -> Option<Reply> {
    let status = result.map_or(DataStatus::Io, |()| DataStatus::Ok);
    lease.at_desk(|desk| desk.finish(&pending.begun, status));
    let key = keys.numbered(pending.key)?;
    if lease.standing() != Standing::Live || lease.deadline() <= now {
        return None;
    }
    let served = match status {
        DataStatus::Ok => {
            let told = pending.taken.told.clone();
            Ok(bring_forward(&mut reply[DATA_OVERHEAD..], told))
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

/// How the request goes, and how many bytes of payload the reply has; none: no reply now.
fn decide<L: Leased>(
    lease: &L,
    asked: Asked<'_>,
    hands: &mut impl Hands,
    payload: &mut [u8],
) -> Option<Served> {
    let header = &asked.frame.header;
    let Some(op) = what_is_asked(header) else {
        return Some(Err(DataStatus::Invalid));
    };
    let remaining = lease.deadline().saturating_sub(asked.now);
    match lease.standing() {
        Standing::Fenced => return Some(Err(DataStatus::Fenced)),
        Standing::Live if remaining > Duration::ZERO => {}
        Standing::Live | Standing::Over => return Some(Err(DataStatus::NoLease)),
    }
    let space = (lease.space(), remaining);
    lease.at_desk(|desk| desk.serve(op, asked, space, hands, payload))
}

/// The operation, where the header makes sense for the service.
fn what_is_asked(header: &DataHeader) -> Option<DataOp> {
    let op = match header.op {
        1 => DataOp::Hello,
        2 => DataOp::Read,
        3 => DataOp::Write,
        4 => DataOp::Ping,
        5 if header.service == DataService::Block => DataOp::Flush,
        _ => return None,
    };
    // Whether parts are of a size that the lease has is seen later.
    let can_be_part = header.service == DataService::Block
        && matches!(op, DataOp::Read | DataOp::Write)
        && header.part().is_ok();
    let is_plain = header.status == 0 && header.flags & !data_flags::PAYLOAD_MAC == 0;
    (is_plain && (header.reserved == 0 || can_be_part)).then_some(op)
}

fn replied(key: &DataKey, asked: &DataHeader, served: Served, reply: &mut ReplyBuffer) -> Reply {
    let (status, payload_len) =
        served.map_or_else(|status| (status, 0), |bytes| (DataStatus::Ok, bytes));
    let length = seal(key, asked.answered(status), payload_len, reply);
    Reply { status, length }
}

/// Puts header and tag before a payload that is in its place already.
fn seal(
    key: &DataKey,
    mut header: DataHeader,
    payload_len: usize,
    reply: &mut ReplyBuffer,
) -> usize {
    let length = DATA_OVERHEAD + payload_len;
    let (head, payload) = reply[..length].split_at_mut(DATA_OVERHEAD);
    #[allow(clippy::cast_possible_truncation, reason = "it fits a datagram")]
    let told = payload_len as u32;
    header.payload_len = told;
    header.payload_crc = crc32c(payload);
    let tag = key.tag(&header, payload);
    let (header_bytes, tag_bytes) = head.split_at_mut(head.len() - tag.len());
    header_bytes.copy_from_slice(&header.bytes());
    tag_bytes.copy_from_slice(&tag);
    length
}
