//! FBMU and FBBU frames (`docs/spec/data-plane-over-udp.md`): reads and writes headers. This module
//! has no keys: a header that was read is not authenticated yet.

use crate::LeaseId;
use crate::names::words;

/// Bytes of the header, over which the tag is computed.
pub const DATA_HEADER_LEN: usize = 56;
/// Bytes of the HMAC-SHA256 tag behind the header.
pub const DATA_TAG_LEN: usize = 32;
/// Bytes before the payload.
pub const DATA_OVERHEAD: usize = DATA_HEADER_LEN + DATA_TAG_LEN;
/// Longest datagram: one Ethernet jumbo frame with room to spare.
pub const DATAGRAM_MAX: usize = 9_216;
/// Longest payload.
pub const DATA_PAYLOAD_MAX: usize = DATAGRAM_MAX - DATA_OVERHEAD;
/// Shortest payload of a HELLO.
pub const HELLO_LEN: usize = 40;
/// Bytes of a complete reply to HELLO, if the request was at least as long.
pub const HELLO_REPLY_LEN: usize = 48;

/// One of the two services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
#[cfg_attr(feature = "vectors", serde(rename_all = "snake_case"))]
pub enum DataService {
    /// FBMU: memory.
    Memory,
    /// FBBU: blocks.
    Block,
}

impl DataService {
    /// The first four bytes of the service's frames.
    #[must_use]
    pub const fn magic(self) -> [u8; 4] {
        match self {
            Self::Memory => *b"FBMU",
            Self::Block => *b"FBBU",
        }
    }

    fn of(magic: [u8; 4]) -> Option<Self> {
        [Self::Memory, Self::Block]
            .into_iter()
            .find(|service| service.magic() == magic)
    }
}

words! {
    /// The operation of a frame. [`DataHeader::op`] also keeps unknown numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum DataOp: u8, "data-plane operation", from_byte {
        /// Opens a session.
        Hello = 1, "hello";
        /// Reads from the lease.
        Read = 2, "read";
        /// Writes to the lease.
        Write = 3, "write";
        /// Asks only for an answer.
        Ping = 4, "ping";
        /// FBBU: makes all answered writes durable.
        Flush = 5, "flush";
    }
}

words! {
    /// The outcome of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum DataStatus: u8, "data-plane status", from_byte {
        /// Done.
        Ok = 0, "OK";
        /// The lease is over.
        NoLease = 1, "NO_LEASE";
        /// The lease is unknown, the key is wrong, the frame is damaged, or the request is not valid.
        Invalid = 2, "INVALID";
        /// The range is outside of the lease.
        Range = 3, "RANGE";
        /// The nonce was used by another request.
        Replay = 4, "REPLAY";
        /// The lease ended and could not be proved clean.
        Fenced = 5, "FENCED";
        /// The counter is behind the window, or the session is closed.
        TooOld = 6, "TOO_OLD";
        /// The server is busy; the request was not carried out.
        Busy = 7, "BUSY";
        /// The lease is read-only.
        ReadOnly = 8, "BLOCK_RO";
        /// The storage failed.
        Io = 9, "IO";
    }
}

/// Bits of [`DataHeader::flags`].
pub mod data_flags {
    /// The tag covers the payload too.
    pub const PAYLOAD_MAC: u8 = 1 << 0;
    /// The frame is an answer.
    pub const REPLY: u8 = 1 << 7;
}

/// The 56 bytes before the tag. Fields with few values are kept as received: they are checked after
/// the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct DataHeader {
    /// The service, from the magic.
    pub service: DataService,
    /// [`DataOp`] as a number.
    pub op: u8,
    /// [`data_flags`].
    pub flags: u8,
    /// [`DataStatus`] as a number.
    pub status: u8,
    /// The lease.
    pub lease_id: LeaseId,
    /// Session in the upper half, counter in the lower, except in HELLO and PING.
    pub nonce: u64,
    /// Bytes or blocks from the start of the lease.
    pub offset: u64,
    /// Number of bytes or blocks.
    pub length: u32,
    /// CRC-32C of the payload.
    pub payload_crc: u32,
    /// Bytes after the tag.
    pub payload_len: u32,
    /// [`Part`] in FBBU's READ and WRITE, else 0.
    pub reserved: u32,
}

/// The parts of a datagram. The payload has the length that the header states.
#[derive(Clone, Copy, Debug)]
pub struct DataFrame<'a> {
    /// The bytes of the header, over which the tag is computed.
    pub header_bytes: &'a [u8; DATA_HEADER_LEN],
    /// The header.
    pub header: DataHeader,
    /// The HMAC-SHA256 tag, not verified yet.
    pub tag: &'a [u8; DATA_TAG_LEN],
    /// The bytes after the tag.
    pub payload: &'a [u8],
}

/// Why a datagram is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAFrame {
    /// The datagram is too short, or of another protocol or version: there is no answer.
    Foreign,
    /// The header is readable, but `payload_len` is wrong or the datagram too long.
    WrongLength(DataHeader),
}

impl DataHeader {
    /// A request without flags, nonce, range and payload.
    #[must_use]
    pub const fn request(service: DataService, op: DataOp, lease_id: LeaseId) -> Self {
        Self {
            service,
            op: op as u8,
            flags: 0,
            status: 0,
            lease_id,
            nonce: 0,
            offset: 0,
            length: 0,
            payload_crc: 0,
            payload_len: 0,
            reserved: 0,
        }
    }

    /// Reads a header of 56 bytes. `None`: another magic or another version.
    #[must_use]
    pub fn read(bytes: &[u8; DATA_HEADER_LEN]) -> Option<Self> {
        let service = DataService::of(part(bytes, 0))?;
        let [version, op, flags, status] = part(bytes, 4);
        (version == 0).then_some(Self {
            service,
            op,
            flags,
            status,
            lease_id: LeaseId(u128::from_be_bytes(part(bytes, 8))),
            nonce: u64::from_be_bytes(part(bytes, 24)),
            offset: u64::from_be_bytes(part(bytes, 32)),
            length: u32::from_be_bytes(part(bytes, 40)),
            payload_crc: u32::from_be_bytes(part(bytes, 44)),
            payload_len: u32::from_be_bytes(part(bytes, 48)),
            reserved: u32::from_be_bytes(part(bytes, 52)),
        })
    }

    /// The header as 56 bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; DATA_HEADER_LEN] {
        let mut out = [0; DATA_HEADER_LEN];
        out[0..4].copy_from_slice(&self.service.magic());
        out[5] = self.op;
        out[6] = self.flags;
        out[7] = self.status;
        out[8..24].copy_from_slice(&self.lease_id.0.to_be_bytes());
        out[24..32].copy_from_slice(&self.nonce.to_be_bytes());
        out[32..40].copy_from_slice(&self.offset.to_be_bytes());
        out[40..44].copy_from_slice(&self.length.to_be_bytes());
        out[44..48].copy_from_slice(&self.payload_crc.to_be_bytes());
        out[48..52].copy_from_slice(&self.payload_len.to_be_bytes());
        out[52..56].copy_from_slice(&self.reserved.to_be_bytes());
        out
    }

    /// The header of a reply to this request, without payload.
    #[must_use]
    pub fn answered(&self, status: DataStatus) -> Self {
        Self {
            flags: self.flags & data_flags::PAYLOAD_MAC | data_flags::REPLY,
            status: status as u8,
            payload_crc: 0,
            payload_len: 0,
            ..*self
        }
    }

    /// The part of a block that the frame carries; `Ok(None)`: the block is not in parts.
    ///
    /// # Errors
    /// If `reserved` is not 0 and names no part.
    pub fn part(&self) -> Result<Option<Part>, NotAPart> {
        match self.reserved {
            0 => Ok(None),
            bits => Part::read(bits).map(Some).ok_or(NotAPart),
        }
    }

    /// The session that the nonce names.
    #[must_use]
    pub fn session(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, reason = "the upper half of 64 bits")]
        let session = (self.nonce >> 32) as u32;
        session
    }

    /// The count of the request in its session.
    #[must_use]
    pub fn counter(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        let counter = self.nonce as u32;
        counter
    }

    /// Whether the frame is an answer.
    #[must_use]
    pub fn is_reply(&self) -> bool {
        self.flags & data_flags::REPLY != 0
    }

    /// Whether the tag covers the payload.
    #[must_use]
    pub fn has_payload_mac(&self) -> bool {
        self.flags & data_flags::PAYLOAD_MAC != 0
    }
}

impl<'a> DataFrame<'a> {
    /// Splits a datagram. Never panics, never allocates.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, NotAFrame> {
        let foreign = NotAFrame::Foreign;
        let (header_bytes, rest) = datagram.split_first_chunk().ok_or(foreign)?;
        let (tag, payload) = rest.split_first_chunk().ok_or(foreign)?;
        let header = DataHeader::read(header_bytes).ok_or(foreign)?;
        let told = usize::try_from(header.payload_len).ok();
        if told != Some(payload.len()) || datagram.len() > DATAGRAM_MAX {
            return Err(NotAFrame::WrongLength(header));
        }
        Ok(Self {
            header_bytes,
            header,
            tag,
            payload,
        })
    }
}

/// One part of a block that does not fit a datagram (section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    index: u16,
    count: u16,
}

/// `reserved` is not 0 and names no part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAPart;

impl Part {
    /// Most parts of a block.
    pub const COUNT_MAX: u16 = 64;
    /// Fewest bytes of a part.
    pub const BYTES_MIN: u32 = 64;

    /// Part `index` of `count`. `None`: `count` is no power of two from 2 to 64, or there is no part `index`.
    #[must_use]
    pub const fn new(index: u16, count: u16) -> Option<Self> {
        if count.is_power_of_two() && count >= 2 && count <= Self::COUNT_MAX && index < count {
            return Some(Self { index, count });
        }
        None
    }

    /// The index of the part, from 0.
    #[must_use]
    pub const fn index(self) -> u16 {
        self.index
    }

    /// The number of parts.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.count
    }

    /// The value for [`DataHeader::reserved`].
    #[must_use]
    pub fn reserved(self) -> u32 {
        u32::from(self.index) << 16 | u32::from(self.count)
    }

    /// The range of the part in a block of `unit` bytes. `None`: a block of this size cannot have so many parts.
    #[must_use]
    pub fn range(self, unit: u32) -> Option<core::ops::Range<usize>> {
        let count = u32::from(self.count);
        let bytes = unit / count;
        if !unit.is_multiple_of(count) || bytes < Self::BYTES_MIN {
            return None;
        }
        let start = usize::try_from(bytes * u32::from(self.index)).ok()?;
        Some(start..start + usize::try_from(bytes).ok()?)
    }

    fn read(reserved: u32) -> Option<Self> {
        let [a, b, c, d] = reserved.to_be_bytes();
        Self::new(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
    }
}

/// The reply to HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct HelloReply {
    /// Length of the lease, in units.
    pub resource_len: u64,
    /// Bytes of a unit.
    pub unit: u32,
    /// Most bytes of one READ.
    pub max_read: u32,
    /// Most bytes of one WRITE.
    pub max_write: u32,
    /// The new session.
    pub session: u32,
    /// Size of the replay window, requests.
    pub window: u16,
    /// The lease is read-only.
    pub read_only: bool,
    /// Milliseconds until the end of the lease, at most.
    pub remaining_ms: u32,
    /// Longest datagram that the server accepts.
    pub datagram_max: u32,
    /// FBBU: the write verifier. It changes with each reboot of the server's machine: writes that were not flushed may
    /// then be lost. 0: the server has none.
    pub write_verifier: u64,
}

impl HelloReply {
    /// The payload, 48 bytes; a shorter reply consists of its first bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; HELLO_REPLY_LEN] {
        let mut out = [0; HELLO_REPLY_LEN];
        out[0..8].copy_from_slice(&self.resource_len.to_be_bytes());
        out[8..12].copy_from_slice(&self.unit.to_be_bytes());
        out[12..16].copy_from_slice(&self.max_read.to_be_bytes());
        out[16..20].copy_from_slice(&self.max_write.to_be_bytes());
        out[20..24].copy_from_slice(&self.session.to_be_bytes());
        out[24..26].copy_from_slice(&self.window.to_be_bytes());
        out[27] = u8::from(self.read_only);
        out[28..32].copy_from_slice(&self.remaining_ms.to_be_bytes());
        out[32..36].copy_from_slice(&self.datagram_max.to_be_bytes());
        out[40..48].copy_from_slice(&self.write_verifier.to_be_bytes());
        out
    }

    /// Reads a payload; bytes after the first 48 are padding. `None`: the payload is too short, or `unit`,
    /// `session` or `window` cannot be used.
    #[must_use]
    pub fn read(payload: &[u8]) -> Option<Self> {
        let (bytes, more): (&[u8; HELLO_LEN], _) = payload.split_first_chunk()?;
        let u32_at = |at: usize| u32::from_be_bytes(part(bytes, at));
        let reply = Self {
            resource_len: u64::from_be_bytes(part(bytes, 0)),
            unit: u32_at(8),
            max_read: u32_at(12),
            max_write: u32_at(16),
            session: u32_at(20),
            window: u16::from_be_bytes(part(bytes, 24)),
            read_only: bytes[27] & 1 != 0,
            remaining_ms: u32_at(28),
            datagram_max: u32_at(32),
            write_verifier: more.first_chunk().map_or(0, |it| u64::from_be_bytes(*it)),
        };
        let usable = reply.unit > 0 && reply.session > 0 && reply.window >= 2;
        usable.then_some(reply)
    }
}

/// `N` bytes from `at`. The caller has checked the length.
fn part<const N: usize, const M: usize>(bytes: &[u8; M], at: usize) -> [u8; N] {
    core::array::from_fn(|i| bytes[at + i])
}
