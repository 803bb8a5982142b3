//! Reads the header of a device, or makes the device a pool.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use fabricbios_wire::NodeId;

use super::TAIL_BYTES;
use super::block_device::BlockDevice;
use super::header::{self, Header};
use super::record::put;
use super::signature;
use super::taking::{BLOCK_BYTES, capacity, refuse_used};
use crate::error::{At, Error};
use crate::{PoolConfig, new_identity};

/// What to do about a damaged header.
const DAMAGED: &str = "; take it with --force if nothing of it is needed";

/// The settings that decide on a device.
pub(super) struct Wanted<'a> {
    pub(super) node_id: &'a NodeId,
    pub(super) force: bool,
    pub(super) may_begin: bool,
}

/// What a start does with a device that can be written.
pub(super) enum Fate {
    /// The pool of this node goes on.
    Own(Header),
    /// The pool of another node is taken over.
    Adopt(Header),
    /// The device becomes a pool.
    Format,
}

/// Decides what a start does with a device. `lost` gets what `force` overwrites.
pub(super) fn fate(
    wanted: &Wanted<'_>,
    device: &BlockDevice,
    file: &File,
    bytes: u64,
    lost: impl Fn(&dyn Display),
) -> Result<Fate, Error> {
    let found = match read_header(file) {
        Err(why) if wanted.force => {
            lost(&why);
            None
        }
        found => found.advise(DAMAGED)?,
    };
    refuse_used(device, found.as_ref().map_or([0; 16], |it| it.identity))?;
    match found {
        Some(header) if header.node == *wanted.node_id => Ok(Fate::Own(header)),
        Some(header) if wanted.force => {
            lost(&format_args!("the pool of node {}", header.node));
            Ok(Fate::Adopt(header))
        }
        Some(header) => Err(Error::Setting(format!(
            "the pool of node {}: take it with --force if that node has given it up",
            header.node
        ))),
        None if !wanted.may_begin => Err(Error::Setting(
            "no pool: another device than before?".into(),
        )),
        None => match contents(device, file, bytes)? {
            Some(there) if wanted.force => {
                lost(&there);
                Ok(Fate::Format)
            }
            Some(there) => Err(full(&there)),
            None => Ok(Fate::Format),
        },
    }
}

pub(super) fn read_header(file: &File) -> Result<Option<Header>, Error> {
    let mut copies = [[0; header::BYTES]; 2];
    for (copy, place) in copies.iter_mut().zip(header::PLACES) {
        match file.read_exact_at(copy, place) {
            // A device that is too small is refused later.
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                return Err(error).during("cannot be read");
            }
            _ => {}
        }
    }
    Header::newest([&copies[0], &copies[1]]).map_err(|flaw| Error::Setting(flaw.to_string()))
}

/// Describes the data on a device; `None`: no data was found.
fn contents(device: &BlockDevice, file: &File, bytes: u64) -> Result<Option<String>, Error> {
    let read = |offset, bytes: &mut [u8]| file.read_exact_at(bytes, offset);
    let mut there = signature::found(bytes, read).during("cannot be read")?;
    let partitions = device.partitions();
    there.extend(partitions.iter().map(String::as_str));
    Ok((!there.is_empty()).then(|| there.join(", ")))
}

fn full(there: &str) -> Error {
    Error::Setting(format!(
        "has {there} on it, which would be lost: take another device, or this one with --force"
    ))
}

/// Logs the data that `--force` overwrites on this device.
pub(super) fn lost(config: &PoolConfig, what: &dyn Display) {
    tracing::warn!(pool = %config.path.display(), %what, "--force: taken although this was there; it is lost");
}

/// Makes the device a pool and zeroes both ends, where earlier uses have left signatures.
pub(super) fn format(config: &PoolConfig, file: &File, bytes: u64) -> Result<Header, Error> {
    capacity(bytes, false, *BLOCK_BYTES.start())?;
    let header = Header {
        sequence: 0,
        identity: new_identity()?,
        node: config.node_id,
        unwritten_from: 0,
        grants: 0,
    };
    clear_ends(file, bytes)
        .and_then(|()| put(file, &header))
        .during("cannot be written")?;
    Ok(header)
}

fn clear_ends(file: &File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    file.write_all_at(&zeros, 0)?;
    file.write_all_at(&zeros, bytes - TAIL_BYTES)?;
    file.sync_all()
}

/// Checks the header of a pool of this node. If the device has shrunk, leases beyond its end were given up and not
/// wiped.
pub(super) fn own(file: &File, header: Header, bytes: u64) -> Result<Header, Error> {
    let end = capacity(bytes, false, *BLOCK_BYTES.start())?;
    match header.unwritten_from > end {
        true => {
            let node = header.node;
            adopt(file, header, node)
        }
        false => Ok(header),
    }
}

/// Takes over the pool of another node. Its leases are not known here, so the whole pool counts as unwritten. Grants
/// count from the start, since each node counts its own.
pub(super) fn adopt(file: &File, old: Header, node: NodeId) -> Result<Header, Error> {
    let header = Header {
        sequence: old.sequence.wrapping_add(1),
        node,
        unwritten_from: 0,
        grants: if node == old.node { old.grants } else { 0 },
        ..old
    };
    put(file, &header).during("cannot be written")?;
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::super::MIB;
    use super::super::taking::refuse_pool;
    use super::*;

    fn pool(unwritten_from: u64) -> (File, Header) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(MIB).unwrap();
        let header = Header {
            sequence: 4,
            identity: [1; 16],
            node: NodeId([2; 32]),
            unwritten_from,
            grants: 3,
        };
        put(&file, &header).unwrap();
        (file, header)
    }

    #[test]
    fn a_pool_that_cannot_be_written_is_not_offered_as_data() {
        let (file, _) = pool(0);
        let refusal = refuse_pool(read_header(&file)).unwrap_err().to_string();
        assert!(refusal.contains("cannot be written"), "{refusal}");
        file.write_all_at(&[9; 4096], header::PLACES[0]).unwrap();
        refuse_pool(read_header(&file)).unwrap();
    }

    #[test]
    fn a_pool_that_has_shrunk_below_what_was_given_out_is_trusted_nowhere() {
        let (file, header) = pool(5 * MIB);
        let kept = own(&file, header.clone(), 7 * MIB).unwrap();
        assert_eq!(kept, header);
        let shrunk = own(&file, header, 6 * MIB).unwrap();
        assert_eq!(shrunk.unwritten_from, 0);
        assert_eq!(read_header(&file).unwrap(), Some(shrunk));
    }
}
