//! Taking a device: whether it may be taken, and what is written on it when it becomes a pool.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Mutex;

use fabricbios_lease::Layout;
use fabricbios_wire::NodeId;

use super::block_device::BlockDevice;
use super::dm::Control;
use super::header::{self, Header};
use super::record::{Record, put};
use super::{DATA_FROM, Device, MIB, TAIL_BYTES, devices_of, signature, uuid_start};
use crate::lock::lock;
use crate::wipe::{Identity, Wiper};
use crate::{Facts, PoolConfig};

/// Blocks that NVMe clients and the samples of a wipe can do with.
const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 512..=4096;
pub(super) fn take(config: &PoolConfig, path: PathBuf) -> Result<(Device, Facts), String> {
    let device = BlockDevice::find(path)?;
    let read_only = device.read_only()?;
    let block_bytes = block_bytes(&device)?;
    let bytes = device.bytes()?;
    let file = open(&device, read_only)?;
    lock(&file)?;
    let control = Control::open()?;
    let record = if read_only {
        refuse_used(&device, device.fingerprint())?;
        refuse_pool(read_header(&file))?;
        None
    } else {
        Some(settle(config, &device, &file, bytes)?)
    };
    let identity = record
        .as_ref()
        .map_or_else(|| device.fingerprint(), |header| header.identity);
    let facts = Facts {
        identity,
        name: config.path.display().to_string(),
        device: Some(device.name.clone()),
        capacity: capacity(bytes, read_only, block_bytes)?,
        align: if read_only {
            u64::from(block_bytes)
        } else {
            MIB
        },
        block_bytes,
        layout: Layout::Stretches,
        read_only,
        removable: device.removable(),
    };
    let pool = Device {
        device,
        file,
        control,
        wiper: Wiper::new(&config.wiper),
        identity,
        block_bytes,
        record: record.map(Record::new),
        held: Mutex::new(BTreeMap::new()),
    };
    pool.recall()?;
    Ok((pool, facts))
}

impl Device {
    /// Puts what an earlier process has left on the list.
    fn recall(&self) -> Result<(), String> {
        for (lease, device) in devices_of(&self.control, self.identity)? {
            if device.is_active {
                let table = self.control.table(&device.uuid)?;
                self.hold(lease, self.extent_of(&table)?)?;
            } else {
                self.held().insert(lease, None);
            }
        }
        Ok(())
    }
}

fn block_bytes(device: &BlockDevice) -> Result<u32, String> {
    let bytes = device.logical_block_bytes()?;
    if BLOCK_BYTES.contains(&bytes) && bytes.is_power_of_two() {
        return Ok(bytes);
    }
    Err(format!(
        "blocks of {bytes} bytes: 512 to 4096 are supported"
    ))
}

fn capacity(bytes: u64, read_only: bool, block_bytes: u32) -> Result<u64, String> {
    let (kept, align) = match read_only {
        true => (0, u64::from(block_bytes)),
        false => (DATA_FROM + TAIL_BYTES, MIB),
    };
    let capacity = bytes.saturating_sub(kept) / align * align;
    if capacity > 0 {
        return Ok(capacity);
    }
    Err(format!("{bytes} bytes: too small, or no medium in it"))
}

fn open(device: &BlockDevice, read_only: bool) -> Result<File, String> {
    let file = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .open(&device.path);
    file.map_err(|error| format!("cannot be opened: {error}"))
}

/// The header of the pool that it is, or becomes now.
fn settle(
    config: &PoolConfig,
    device: &BlockDevice,
    file: &File,
    bytes: u64,
) -> Result<Header, String> {
    let found = read_header(file).or_else(|why| match config.force {
        true => Ok(None),
        false => Err(format!(
            "{why}; take it with --force if nothing of it is needed"
        )),
    })?;
    refuse_used(
        device,
        found.as_ref().map_or([0; 16], |header| header.identity),
    )?;
    match found {
        Some(header) if header.node == config.node_id => own(file, header, bytes),
        Some(header) if config.force => adopt(file, header, config.node_id),
        Some(header) => Err(format!(
            "the pool of node {}: take it with --force if that node has given it up",
            header.node
        )),
        None => {
            refuse_full(config, device, file, bytes)?;
            format(config, file, bytes)
        }
    }
}

fn read_header(file: &File) -> Result<Option<Header>, String> {
    let mut copies = [[0; header::BYTES]; 2];
    for (copy, place) in copies.iter_mut().zip(header::PLACES) {
        match file.read_exact_at(copy, place) {
            // Too small a device is told as such later.
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                return Err(format!("cannot be read: {error}"));
            }
            _ => {}
        }
    }
    Header::newest([&copies[0], &copies[1]])
}

/// Refuses a pool that cannot be written any more: offered as data, it would show what its leases left.
fn refuse_pool(header: Result<Option<Header>, String>) -> Result<(), String> {
    match header? {
        None => Ok(()),
        Some(header) => Err(format!(
            "the pool of node {}, and it cannot be written: have it writable again (blockdev --setrw), \
             or make it no pool any more",
            header.node
        )),
    }
}

/// Refuses a device that anybody but this pool's own volumes has in use.
fn refuse_used(device: &BlockDevice, identity: Identity) -> Result<(), String> {
    let exclusive = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(&device.path);
    match exclusive {
        Ok(_) => return Ok(()),
        Err(error) if error.raw_os_error() != Some(libc::EBUSY) => {
            return Err(format!("cannot be opened: {error}"));
        }
        Err(_busy) => {}
    }
    let own = uuid_start(identity);
    let holders = device.holders();
    let is_own = |uuid: &Option<String>| uuid.as_ref().is_some_and(|uuid| uuid.starts_with(&own));
    let others: Vec<&str> = holders
        .iter()
        .filter(|(_, uuid)| !is_own(uuid))
        .map(|(name, _)| name.as_str())
        .collect();
    if others.is_empty() && !holders.is_empty() {
        return Ok(());
    }
    Err(match (device.used_as(), others.as_slice()) {
        (Some(purpose), _) => format!("in use: {purpose}"),
        (None, []) => "in use by a program, or a partition of it is".to_owned(),
        (None, names) => format!("in use by {}", names.join(", ")),
    })
}

/// Refuses a device that seems to have something on it.
fn refuse_full(
    config: &PoolConfig,
    device: &BlockDevice,
    file: &File,
    bytes: u64,
) -> Result<(), String> {
    let read = |offset, bytes: &mut [u8]| file.read_exact_at(bytes, offset);
    let found =
        signature::found(bytes, read).map_err(|error| format!("cannot be read: {error}"))?;
    let partitions = device.partitions();
    let mut there: Vec<&str> = found;
    there.extend(partitions.iter().map(String::as_str));
    if there.is_empty() || config.force {
        return Ok(());
    }
    Err(format!(
        "has {} on it, which would be lost: take another device, or this one with --force",
        there.join(", ")
    ))
}

/// Makes it a pool: what is there of a disk's earlier life at its ends goes.
fn format(config: &PoolConfig, file: &File, bytes: u64) -> Result<Header, String> {
    capacity(bytes, false, *BLOCK_BYTES.start())?;
    let mut identity = [0; 16];
    getrandom::fill(&mut identity).map_err(|error| format!("no random number: {error}"))?;
    let header = Header {
        sequence: 0,
        identity,
        node: config.node_id,
        virgin_from: 0,
    };
    clear_ends(file, bytes)
        .and_then(|()| put(file, &header))
        .map_err(|error| format!("cannot be written: {error}"))?;
    Ok(header)
}

fn clear_ends(file: &File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    file.write_all_at(&zeros, 0)?;
    file.write_all_at(&zeros, bytes - TAIL_BYTES)?;
    file.sync_all()
}

/// The node's own. Where it has shrunk, leases behind its end or across it were given up and not wiped.
fn own(file: &File, header: Header, bytes: u64) -> Result<Header, String> {
    let end = capacity(bytes, false, *BLOCK_BYTES.start())?;
    match header.virgin_from > end {
        true => {
            let node = header.node;
            adopt(file, header, node)
        }
        false => Ok(header),
    }
}

/// Takes over a pool of which nobody knows here what its leases have left, such as another node's: all of
/// it counts as virgin.
fn adopt(file: &File, old: Header, node: NodeId) -> Result<Header, String> {
    let header = Header {
        sequence: old.sequence.wrapping_add(1),
        node,
        virgin_from: 0,
        ..old
    };
    put(file, &header).map_err(|error| format!("cannot be written: {error}"))?;
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(virgin_from: u64) -> (File, Header) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(MIB).unwrap();
        let header = Header {
            sequence: 4,
            identity: [1; 16],
            node: NodeId([2; 32]),
            virgin_from,
        };
        put(&file, &header).unwrap();
        (file, header)
    }

    #[test]
    fn a_pool_that_cannot_be_written_is_not_offered_as_data() {
        let (file, _) = pool(0);
        let refusal = refuse_pool(read_header(&file)).unwrap_err();
        assert!(refusal.contains("cannot be written"), "{refusal}");
        file.write_all_at(&[9; 4096], header::PLACES[0]).unwrap();
        assert_eq!(refuse_pool(read_header(&file)), Ok(()));
    }

    #[test]
    fn a_pool_that_has_shrunk_below_what_was_given_out_is_trusted_nowhere() {
        let (file, header) = pool(5 * MIB);
        let kept = own(&file, header.clone(), 7 * MIB).unwrap();
        assert_eq!(kept, header);
        let shrunk = own(&file, header, 6 * MIB).unwrap();
        assert_eq!(shrunk.virgin_from, 0);
        assert_eq!(read_header(&file), Ok(Some(shrunk)));
    }
}
