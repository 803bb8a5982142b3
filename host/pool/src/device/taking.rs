//! Opens a device as a pool, after checking that it may be used.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Mutex;

use fabricbios_lease::AllocationMode;
use fabricbios_wire::NodeId;

use super::block_device::BlockDevice;
use super::dm::Control;
use super::header::Header;
use super::record::Record;
use super::settling::{Fate, Wanted, adopt, fate, format, lost, own, read_header};
use super::{DATA_FROM, DevicePool, MIB, TAIL_BYTES, devices_of, uuid_start};
use crate::error::{At, Error};
use crate::lock::lock;
use crate::wipe::Identity;
use crate::{Facts, PoolConfig};

/// Block sizes that NVMe clients and the samples of a wipe support.
pub(super) const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 512..=4096;
pub(super) fn take(config: &PoolConfig, path: PathBuf) -> Result<(DevicePool, Facts), Error> {
    let device = BlockDevice::find(path)?;
    let read_only = device.read_only()?;
    let block_bytes = block_bytes(&device)?;
    let bytes = device.bytes()?;
    let file = open(&device, read_only)?;
    lock(&file)?;
    let control = Control::open()?;
    let (record, is_taken_over) = if read_only {
        refuse_used(&device, device.fingerprint())?;
        refuse_pool(read_header(&file))?;
        (None, false)
    } else {
        let wanted = Wanted {
            node_id: &config.node_id,
            force: config.force,
            may_begin: config.may_begin,
        };
        match fate(&wanted, &device, &file, bytes, |what| lost(config, what))? {
            Fate::Own(header) => (Some(own(&file, header, bytes)?), false),
            Fate::Adopt(header) => (Some(adopt(&file, header, config.node_id)?), true),
            Fate::Format => (Some(format(config, &file, bytes)?), false),
        }
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
        allocation_mode: AllocationMode::Stretches,
        read_only,
        removable: device.removable(),
    };
    let pool = DevicePool {
        device,
        file,
        control,
        supervisor: config.supervisor.clone(),
        identity,
        block_bytes,
        is_taken_over,
        record: record.map(Record::new),
        held: Mutex::default(),
    };
    pool.recall()?;
    Ok((pool, facts))
}

/// See [`crate::Pool::check`].
pub(crate) fn check(path: PathBuf, node_id: &NodeId, force: bool) -> Result<(), Error> {
    let device = BlockDevice::find(path)?;
    let read_only = device.read_only()?;
    let bytes = device.bytes()?;
    capacity(bytes, read_only, block_bytes(&device)?)?;
    Control::open()?;
    let file = open(&device, true)?;
    if read_only {
        refuse_used(&device, device.fingerprint())?;
        return refuse_pool(read_header(&file));
    }
    let wanted = Wanted {
        node_id,
        force,
        may_begin: true,
    };
    fate(&wanted, &device, &file, bytes, |_| ()).map(drop)
}

impl DevicePool {
    /// Puts the extents of an earlier process's devices on the list.
    fn recall(&self) -> Result<(), Error> {
        for (lease, device) in devices_of(&self.control, self.identity)? {
            if device.is_active {
                let table = self.control.table(&device.uuid)?;
                self.hold(lease, self.extent_of(&table)?)?;
            } else {
                self.held().find_or_make(lease);
            }
        }
        Ok(())
    }
}

fn block_bytes(device: &BlockDevice) -> Result<u32, Error> {
    let bytes = device.logical_block_bytes()?;
    if BLOCK_BYTES.contains(&bytes) && bytes.is_power_of_two() {
        return Ok(bytes);
    }
    Err(Error::Setting(format!(
        "blocks of {bytes} bytes: 512 to 4096 are supported"
    )))
}

pub(super) fn capacity(bytes: u64, read_only: bool, block_bytes: u32) -> Result<u64, Error> {
    let (kept, align) = match read_only {
        true => (0, u64::from(block_bytes)),
        false => (DATA_FROM + TAIL_BYTES, MIB),
    };
    let capacity = bytes.saturating_sub(kept) / align * align;
    if capacity > 0 {
        return Ok(capacity);
    }
    Err(Error::Setting(format!(
        "{bytes} bytes: too small, or no medium in it"
    )))
}

fn open(device: &BlockDevice, read_only: bool) -> Result<File, Error> {
    let file = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .open(&device.path);
    file.during("cannot be opened")
}

/// Refuses a pool that has become read-only: if it were opened as a data device, it would show the data of earlier
/// leases.
pub(super) fn refuse_pool(header: Result<Option<Header>, Error>) -> Result<(), Error> {
    match header? {
        None => Ok(()),
        Some(header) => Err(Error::Setting(format!(
            "the pool of node {}, and it cannot be written: have it writable again (blockdev --setrw), \
             or make it no pool any more",
            header.node
        ))),
    }
}

/// Refuses a device that is in use, except by the volumes of this pool.
pub(super) fn refuse_used(device: &BlockDevice, identity: Identity) -> Result<(), Error> {
    let exclusive = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(&device.path);
    match exclusive {
        Ok(_) => return Ok(()),
        Err(error) if error.raw_os_error() != Some(libc::EBUSY) => {
            return Err(error).during("cannot be opened");
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
    Err(Error::Setting(
        match (device.used_as(), others.as_slice()) {
            (Some(purpose), _) => format!("in use: {purpose}"),
            (None, []) => "in use by a program, or a partition of it is".to_owned(),
            (None, names) => format!("in use by {}", names.join(", ")),
        },
    ))
}
