//! One datagram in, at most one out: section 2 of the specification, in its order.
//!
//! ```text
//! open ──► Frame ──► answer: key, checksum, sense, standing ──► Desk: session, window, room, range
//!   ├────► Refused ─► unauthenticated                            (under the lease's lock)
//!   └────► Nothing
//! ```
//!
//! Pure: no socket, no lock, no clock. Who serves brings the lease and a buffer. Nothing is
//! allocated but for HELLO.

use core::{net::IpAddr, time::Duration};

use fabricbios_wire::{
    DATA_OVERHEAD, DATAGRAM_MAX, DataFrame, DataHeader, DataOp, DataService, DataStatus, NotAFrame,
    data_flags,
};

use crate::{DataKey, Desk, Keys, crc32c};

/// Room for the longest datagram.
pub type ReplyBuffer = [u8; DATAGRAM_MAX];

/// What a lease gives access to. Counts from the start of the lease, in bytes for FBMU and in blocks
/// for FBBU. Whoever calls has checked that the range is within the lease.
pub trait Store {
    /// How many units there are.
    fn units(&self) -> u64;

    /// Bytes of a unit.
    fn unit_bytes(&self) -> u32 {
        1
    }

    /// Whether nothing can be written.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Copies out, from the unit `offset` on.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), StoreFailed>;

    /// Copies in, from the unit `offset` on.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), StoreFailed>;

    /// Makes what was written durable.
    fn flush(&self) -> Result<(), StoreFailed> {
        Ok(())
    }
}

/// The storage did not do it; the store has told the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFailed;

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
    type Store: Store;

    /// How it is with it.
    fn standing(&self) -> Standing;

    /// When it is over, since boot. Zero: not begun.
    fn deadline(&self) -> Duration;

    /// Its bytes.
    fn store(&self) -> &Self::Store;

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
pub fn answer<L: Leased>(
    lease: &L,
    keys: &Keys,
    asked: Asked<'_>,
    reply: &mut ReplyBuffer,
) -> Option<Reply> {
    let frame = asked.frame;
    let key = keys.of(frame)?;
    if crc32c(frame.payload) != frame.header.payload_crc {
        return None;
    }
    let (status, payload_len) = decide(lease, asked, &mut reply[DATA_OVERHEAD..]);
    let header = frame.header.answered(status);
    let length = seal(key, header, payload_len, reply);
    Some(Reply { status, length })
}

/// How the request goes, and how many bytes of payload the reply has.
fn decide<L: Leased>(lease: &L, asked: Asked<'_>, payload: &mut [u8]) -> (DataStatus, usize) {
    let header = &asked.frame.header;
    let Some(op) = what_is_asked(header) else {
        return (DataStatus::Invalid, 0);
    };
    let remaining = lease.deadline().saturating_sub(asked.now);
    match lease.standing() {
        Standing::Fenced => return (DataStatus::Fenced, 0),
        Standing::Live if remaining > Duration::ZERO => {}
        Standing::Live | Standing::Over => return (DataStatus::NoLease, 0),
    }
    let store = lease.store();
    let result = lease.at_desk(|desk| desk.serve(op, asked, remaining, store, payload));
    result.map_or_else(|status| (status, 0), |bytes| (DataStatus::Ok, bytes))
}

/// The operation, where the header makes sense for the service.
fn what_is_asked(header: &DataHeader) -> Option<DataOp> {
    let plain =
        header.status == 0 && header.reserved == 0 && header.flags & !data_flags::PAYLOAD_MAC == 0;
    let op = match header.op {
        1 => DataOp::Hello,
        2 => DataOp::Read,
        3 => DataOp::Write,
        4 => DataOp::Ping,
        5 if header.service == DataService::Block => DataOp::Flush,
        _ => return None,
    };
    plain.then_some(op)
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
