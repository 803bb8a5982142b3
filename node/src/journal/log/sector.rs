//! The sectors of the log of commits.
//!
//! A sector has 512 bytes, numbers little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 0–7 | identity of the log, random |
//! | 8–15 | number of the frame, which is the number of its commit; 0: the head of the file |
//! | 16–19 | number of this sector in the frame, from 0 |
//! | 20–23 | sectors of the frame |
//! | 24–27 | payload bytes in this sector |
//! | 28–43 | chain value of the frame before |
//! | 44–59 | first 16 bytes of the SHA-256 of all other bytes of the sector |
//! | 60–511 | payload, then zeros |
//!
//! The chain value of a frame is the first 16 bytes of the SHA-256 over bytes 44–59 of its sectors.

use sha2::{Digest, Sha256};

use crate::journal::Value;

/// A disk writes so many bytes as a whole or not at all.
pub(in crate::journal) const SECTOR: usize = 512;
/// Payload bytes of a sector.
pub(in crate::journal) const ROOM: usize = SECTOR - HEAD;
const HEAD: usize = 60;
const SUM: usize = 44;

/// Ties a frame to the frame before it.
pub(in crate::journal) type Chain = [u8; 16];

/// A sector whose checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sector<'a> {
    /// The number of its frame.
    pub(super) frame: u64,
    /// Its number in the frame, from 0.
    pub(super) index: usize,
    /// The sectors of the frame.
    pub(super) count: usize,
    /// The chain value of the frame before.
    pub(super) before: Chain,
    pub(super) sum: Chain,
    pub(super) payload: &'a [u8],
}

/// What a place of the log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// Nothing was written there.
    Zeros,
    Sector(Sector<'a>),
    /// Neither zeros nor a sector of this log.
    Damaged,
}

/// Reads one place of the log with this identity.
pub(super) fn look(bytes: &[u8; SECTOR], log: u64) -> Found<'_> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Found::Zeros;
    }
    read(bytes, log).map_or(Found::Damaged, Found::Sector)
}

fn read(bytes: &[u8; SECTOR], log: u64) -> Option<Sector<'_>> {
    let small = |at| part(bytes, at).map(|it| u32::from_le_bytes(it) as usize);
    let sum = part(bytes, SUM)?;
    if u64::from_le_bytes(part(bytes, 0)?) != log || sum_of(bytes) != sum {
        return None;
    }
    let sector = Sector {
        frame: u64::from_le_bytes(part(bytes, 8)?),
        index: small(16)?,
        count: small(20)?,
        before: part(bytes, 28)?,
        sum,
        payload: bytes.get(HEAD..)?.get(..small(24)?)?,
    };
    (sector.index < sector.count).then_some(sector)
}

fn part<const N: usize>(bytes: &[u8; SECTOR], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn sum_of(bytes: &[u8; SECTOR]) -> Chain {
    let mut hash = Sha256::new();
    hash.update(&bytes[..SUM]);
    hash.update(&bytes[HEAD..]);
    half(hash)
}

fn half(hash: Sha256) -> Chain {
    let whole: [u8; 32] = hash.finalize().into();
    whole.first_chunk().copied().unwrap_or_default()
}

/// The chain value of the frame with these sectors.
pub(super) fn chain<'a>(sectors: impl Iterator<Item = Sector<'a>>) -> Chain {
    let mut hash = Sha256::new();
    sectors.for_each(|it| hash.update(it.sum));
    half(hash)
}

/// Sectors of a frame with so many bytes of payload.
pub(super) fn sectors_of(payload: usize) -> usize {
    payload.div_ceil(ROOM).max(1)
}

/// Writes a frame. Returns its bytes and its chain value.
pub(super) fn write(log: u64, frame: u64, before: Chain, payload: &[u8]) -> (Value, Chain) {
    let count = sectors_of(payload.len());
    let mut bytes = Value::new(vec![0; count * SECTOR]);
    let (sectors, _) = bytes.as_chunks_mut::<SECTOR>();
    let mut hash = Sha256::new();
    for (index, sector) in sectors.iter_mut().enumerate() {
        let part = payload.get(index * ROOM..).unwrap_or_default();
        let part = &part[..part.len().min(ROOM)];
        sector[..8].copy_from_slice(&log.to_le_bytes());
        sector[8..16].copy_from_slice(&frame.to_le_bytes());
        for (at, number) in [(16, index), (20, count), (24, part.len())] {
            // A frame is shorter than the log.
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            sector[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        sector[28..SUM].copy_from_slice(&before);
        sector[HEAD..HEAD + part.len()].copy_from_slice(part);
        let sum = sum_of(sector);
        sector[SUM..HEAD].copy_from_slice(&sum);
        hash.update(sum);
    }
    (bytes, half(hash))
}
