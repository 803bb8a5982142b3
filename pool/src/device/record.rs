//! What is on record of a device, in memory and in its header.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fabricbios_lease::Extent;

use super::header::Header;
use super::virgin::Virgin;

/// The header as it was written last, and what was given out since.
#[derive(Debug)]
pub(super) struct Record(Mutex<(Header, Virgin)>);

impl Record {
    pub(super) fn new(header: Header) -> Self {
        let virgin = Virgin::new(header.virgin_from);
        Self(Mutex::new((header, virgin)))
    }

    pub(super) fn virgin_within(&self, extent: Extent) -> Vec<Extent> {
        self.lock().1.within(extent)
    }

    /// `extent` is zeros now, durably.
    pub(super) fn touch(&self, device: &File, extent: Extent) -> io::Result<()> {
        let (header, virgin) = &mut *self.lock();
        virgin.touch(extent);
        write(device, header, virgin)
    }

    /// Everything counts as never given out.
    pub(super) fn forget(&self, device: &File) -> io::Result<()> {
        let (header, virgin) = &mut *self.lock();
        *virgin = Virgin::new(0);
        write(device, header, virgin)
    }

    fn lock(&self) -> MutexGuard<'_, (Header, Virgin)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Only if something has changed. One that fails is written at the same place again, so that the copy that
/// counts stays whole.
fn write(device: &File, header: &mut Header, virgin: &Virgin) -> io::Result<()> {
    if header.virgin_from == virgin.from() {
        return Ok(());
    }
    let next = Header {
        sequence: header.sequence.wrapping_add(1),
        virgin_from: virgin.from(),
        ..header.clone()
    };
    put(device, &next)?;
    *header = next;
    Ok(())
}

/// Returns when it is on the device.
pub(super) fn put(device: &File, header: &Header) -> io::Result<()> {
    device.write_all_at(&header.encode(), header.place())?;
    device.sync_all()
}

#[cfg(test)]
mod tests {
    use super::super::header::{BYTES, PLACES};
    use super::*;
    use fabricbios_wire::NodeId;

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
        let device = tempfile::tempfile().unwrap();
        device.set_len(1 << 20).unwrap();
        let header = Header {
            sequence: 1,
            identity: [1; 16],
            node: NodeId([2; 32]),
            virgin_from: 0,
        };
        put(&device, &header).unwrap();
        let record = Record::new(header);
        let extent = |offset, length| Extent { offset, length };
        record.touch(&device, extent(0, 10)).unwrap();
        record.touch(&device, extent(20, 10)).unwrap();
        assert_eq!(stored(&device).virgin_from, 10);
        assert_eq!(record.virgin_within(extent(0, 30)), [extent(10, 10)]);
        record.forget(&device).unwrap();
        assert_eq!(stored(&device).virgin_from, 0);
        assert_eq!(record.virgin_within(extent(0, 30)), [extent(0, 30)]);
        assert_eq!(stored(&device).sequence, 3);
    }
}
