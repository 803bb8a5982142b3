//! The flat inventory (000, "Flat Inventory Format"): `u16 count`, then 36 bytes for each resource.

use alloc::vec::Vec;

use crate::{
    FLAT_ENTRIES_MAX, FlatEntry, ResourceType,
    read::{Decoded, Reader},
    write::Writer,
};

/// Bytes of one entry.
pub const FLAT_ENTRY_LEN: usize = 36;

/// Reads a whole flat inventory.
///
/// # Errors
/// If the bytes are no flat inventory.
pub fn decode_flat(bytes: &[u8]) -> Decoded<Vec<FlatEntry>> {
    let mut r = Reader::new(bytes, 0);
    let entries = read(&mut r)?;
    r.finish()?;
    Ok(entries)
}

/// Writes a whole flat inventory; `None` when there are more than [`FLAT_ENTRIES_MAX`] entries.
#[must_use]
pub fn encode_flat(entries: &[FlatEntry]) -> Option<Vec<u8>> {
    let mut w = Writer::new();
    write(&mut w, entries);
    w.payload()
}

pub(crate) fn read(r: &mut Reader<'_>) -> Decoded<Vec<FlatEntry>> {
    read_at_most(r, FLAT_ENTRIES_MAX)
}

pub(crate) fn read_at_most(r: &mut Reader<'_>, max: usize) -> Decoded<Vec<FlatEntry>> {
    r.list(max, FLAT_ENTRY_LEN, "entries", read_entry)
}

fn read_entry(r: &mut Reader<'_>) -> Decoded<FlatEntry> {
    Ok(FlatEntry {
        resource_id: r.resource_id()?,
        resource_type: ResourceType::from_code(r.u16("resource_type")?),
        flags: r.u16("flags")?,
        capacity: r.u64("capacity")?,
        available: r.u64("available")?,
    })
}

pub(crate) fn write(w: &mut Writer, entries: &[FlatEntry]) {
    w.list(entries, FLAT_ENTRIES_MAX, |w, entry| {
        w.u128(entry.resource_id.0)
            .u16(entry.resource_type.code())
            .u16(entry.flags);
        w.u64(entry.capacity).u64(entry.available);
    });
}
