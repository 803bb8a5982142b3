//! The record of a device, in memory and in its header.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fabricbios_lease::Extent;

use super::header::Header;
use super::unwritten::Unwritten;
use crate::error::Error;

/// Writes a header. When this returns, the header is on the device.
pub type Put<'a> = &'a dyn Fn(&Header) -> Result<(), Error>;

/// The last written header, and the changes since.
#[derive(Debug)]
pub struct Record(Mutex<(Header, Unwritten)>);

impl Record {
    /// The record of a pool with this header.
    #[must_use]
    pub fn new(header: Header) -> Self {
        let unwritten = Unwritten::new(header.unwritten_from);
        Self(Mutex::new((header, unwritten)))
    }

    /// The unwritten parts of `extent`, in order.
    #[must_use]
    pub fn unwritten_within(&self, extent: Extent) -> Vec<Extent> {
        self.lock().1.within(extent)
    }

    /// Records durably that `extent` is no longer unwritten.
    ///
    /// # Errors
    /// `put` failed: its error.
    pub fn touch(&self, put: Put<'_>, extent: Extent) -> Result<(), Error> {
        let (header, unwritten) = &mut *self.lock();
        unwritten.touch(extent);
        write(put, header, unwritten)
    }

    /// The number of the latest grant.
    #[must_use]
    pub fn grants(&self) -> u64 {
        self.lock().0.grants
    }

    /// Records the number of a grant. The recorded number never decreases.
    ///
    /// # Errors
    /// `put` failed: its error.
    pub fn count(&self, put: Put<'_>, number: u64) -> Result<(), Error> {
        let (header, _) = &mut *self.lock();
        if number <= header.grants {
            return Ok(());
        }
        change(put, header, |next| next.grants = number)
    }

    /// Marks all bytes as unwritten.
    ///
    /// # Errors
    /// `put` failed: its error.
    pub fn forget(&self, put: Put<'_>) -> Result<(), Error> {
        let (header, unwritten) = &mut *self.lock();
        *unwritten = Unwritten::new(0);
        write(put, header, unwritten)
    }

    fn lock(&self) -> MutexGuard<'_, (Header, Unwritten)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the header if it has changed.
fn write(put: Put<'_>, header: &mut Header, unwritten: &Unwritten) -> Result<(), Error> {
    if header.unwritten_from == unwritten.from() {
        return Ok(());
    }
    change(put, header, |next| next.unwritten_from = unwritten.from())
}

/// Changes the record and writes it. After a failure the next header goes to the same place, so that the valid copy
/// stays whole.
fn change(
    put: Put<'_>,
    header: &mut Header,
    change: impl FnOnce(&mut Header),
) -> Result<(), Error> {
    let mut next = header.clone();
    next.sequence = header.sequence.wrapping_add(1);
    change(&mut next);
    put(&next)?;
    *header = next;
    Ok(())
}

/// Returns when the header is on the device.
pub(crate) fn put(device: &File, header: &Header) -> io::Result<()> {
    device.write_all_at(&header.encode(), header.place())?;
    device.sync_all()
}

#[cfg(test)]
mod tests {
    use super::super::header::{BYTES, PLACES};
    use super::*;
    use fabricbios_wire::NodeId;

    fn pool() -> (File, Record) {
        let device = tempfile::tempfile().unwrap();
        device.set_len(1 << 20).unwrap();
        let header = Header {
            sequence: 1,
            identity: [1; 16],
            node: NodeId([2; 32]),
            unwritten_from: 0,
            grants: 0,
        };
        put(&device, &header).unwrap();
        let record = Record::new(header);
        (device, record)
    }

    fn onto(device: &File) -> impl Fn(&Header) -> Result<(), Error> {
        |header| Ok(put(device, header)?)
    }

    fn stored(device: &File) -> Header {
        let copies = PLACES.map(|place| {
            let mut copy = [0; BYTES];
            device.read_exact_at(&mut copy, place).unwrap();
            copy
        });
        Header::newest([&copies[0], &copies[1]]).unwrap().unwrap()
    }

    #[test]
    fn what_was_given_out_is_on_record_and_can_be_forgotten() {
        let (device, record) = pool();
        let extent = |offset, length| Extent { offset, length };
        record.touch(&onto(&device), extent(0, 10)).unwrap();
        record.touch(&onto(&device), extent(20, 10)).unwrap();
        assert_eq!(stored(&device).unwritten_from, 10);
        assert_eq!(record.unwritten_within(extent(0, 30)), [extent(10, 10)]);
        record.forget(&onto(&device)).unwrap();
        assert_eq!(stored(&device).unwritten_from, 0);
        assert_eq!(record.unwritten_within(extent(0, 30)), [extent(0, 30)]);
        assert_eq!(stored(&device).sequence, 3);
    }

    #[test]
    fn grants_are_counted_forwards_only_and_outlive_what_is_forgotten() {
        let (device, record) = pool();
        record.count(&onto(&device), 7).unwrap();
        record.count(&onto(&device), 5).unwrap();
        record.forget(&onto(&device)).unwrap();
        assert_eq!((record.grants(), stored(&device).grants), (7, 7));
    }
}
