//! A raw block device as a pool: a header in its first bytes names the owner, and device-mapper divides the rest.
//!
//! | bytes | what |
//! |---|---|
//! | the first MiB | the header, twice ([`header`]); zeros otherwise |
//! | then | the leases; an extent's offset counts from here |
//! | the last MiB | zeros: data of a tenant here could make this machine take the disk for a RAID |
//!
//! A read-only device has neither the header nor the zeros at its end: all of it is data, from its first byte.
//!
//! flock(2) excludes other daemons and keeps udev away. `O_EXCL` cannot do that: it claims the device for the process,
//! and the kernel then refuses the claim of device-mapper (`bd_may_claim`, block/bdev.c). The start tries `O_EXCL` only
//! once, to find out whether the device is in use.

mod block_device;
pub(crate) mod dm;
pub(crate) mod header;
pub(crate) mod record;
mod settling;
mod signature;
mod taking;
mod unwritten;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fabricbios_lease::{Condition, Custody, Extent, Proof};
use fabricbios_wire::LeaseId;

use crate::error::{At, Error};
use crate::steps::passed;
use crate::wipe::{Identity, PoolCall, range_is_busy, run};
use fabricbios_contract::{Check, Volume};
use fabricbios_helper::Supervisor;

use crate::{Facts, PoolConfig, Storage};
use block_device::BlockDevice;
pub(crate) use block_device::SECTOR_BYTES;
use dm::{Control, DeviceNumber, MappedDevice, Slice, Target};
use header::Header;
use record::Record;
pub(crate) use taking::check;

const NAME_START: &str = "fabricbios-";
const MIB: u64 = 1 << 20;
/// Offset of the first lease, in bytes.
const DATA_FROM: u64 = MIB;
/// Length of the unused end, in bytes.
const TAIL_BYTES: u64 = MIB;

#[derive(Debug)]
pub(crate) struct DevicePool {
    device: BlockDevice,
    /// The open device, which holds the lock.
    file: File,
    control: Control,
    supervisor: Supervisor,
    identity: Identity,
    block_bytes: u32,
    /// See [`crate::Pool::is_taken_over`].
    is_taken_over: bool,
    /// `None` for a read-only device.
    record: Option<Record>,
    /// The extents that contain, or may contain, data of a lease, until they are wiped.
    held: Mutex<Custody<()>>,
}

impl DevicePool {
    pub(crate) fn open(config: &PoolConfig, path: PathBuf) -> Result<(Self, Facts), Error> {
        taking::take(config, path).at(&config.path)
    }

    /// Finds the volume, or makes it after `prepare`.
    fn open_volume(
        &self,
        lease: LeaseId,
        extent: Extent,
        prepare: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Volume, Error> {
        let is_new = self.hold(lease, extent)?;
        let made = self.find_or_make(lease, extent, prepare);
        // If the device could not be removed, the extent stays on the list for `destroy`.
        if made.is_err() && is_new && matches!(self.control.find(&self.uuid(lease)), Ok(None)) {
            self.held().forget(lease);
        }
        Ok(Volume {
            path: made?,
            bytes: extent.length,
            block_bytes: self.block_bytes,
            read_only: self.record.is_none(),
        })
    }

    fn find_or_make(
        &self,
        lease: LeaseId,
        extent: Extent,
        prepare: impl FnOnce() -> Result<(), Error>,
    ) -> Result<PathBuf, Error> {
        let uuid = self.uuid(lease);
        match self.control.find(&uuid)? {
            Some(found) if found.is_active => {
                self.confirm(&uuid, extent)?;
                return node_of(found.number);
            }
            // A process ended while it made this device. The device had no table, so nothing was written to it.
            Some(_unfinished) => self.control.remove_patiently(&uuid)?,
            None => {}
        }
        prepare()?;
        let offset = self.data_from() + extent.offset;
        let slice = Slice {
            name: format!("{NAME_START}{lease}"),
            uuid: uuid.clone(),
            target: Target::linear(self.device.number, offset, extent.length),
            read_only: self.record.is_none(),
        };
        run(&self.supervisor, &PoolCall::Map(slice), &|| ())?;
        let made = self.control.find(&uuid)?;
        let gone =
            || Error::Changed("device-mapper has made a device, and it cannot be found".into());
        let made = made.ok_or_else(gone).at(&self.device.path)?;
        node_of(made.number).inspect_err(|_| {
            if let Err(error) = self.control.remove_patiently(&uuid) {
                tracing::warn!(%error, "a device that nobody can open cannot be removed");
            }
        })
    }

    /// Puts an extent on the list; refuses one that overlaps another. Returns whether it is new.
    fn hold(&self, lease: LeaseId, extent: Extent) -> Result<bool, Error> {
        let mut held = self.held();
        let is_new = held.find(lease).here().is_none();
        let claimed = held.claim(lease, extent);
        let refused = |why| Error::Order(format!("{extent:?} asked for, but {why}"));
        claimed.map_err(refused).at(&self.device.path)?;
        Ok(is_new)
    }

    fn confirm(&self, uuid: &str, extent: Extent) -> Result<(), Error> {
        let found = self.extent_of(&self.control.table(uuid)?)?;
        if found == extent {
            return Ok(());
        }
        let why = format!("device {uuid} is {found:?} and not {extent:?}");
        Err(Error::Order(why)).at(&self.device.path)
    }

    /// Writes headers in a helper process, which is given up if the device does not answer. While such a process still
    /// exists, no further header is written.
    fn put(&self) -> impl Fn(&Header) -> Result<(), Error> {
        |header| {
            self.refuse_busy(header.place(), header::BYTES as u64, "writes the header")?;
            let call = PoolCall::Record {
                device: (&self.device.path).into(),
                header: header.clone(),
            };
            run(&self.supervisor, &call, &|| ())
        }
    }

    /// Refuses a range that a helper process of this daemon or of an earlier one still writes.
    fn refuse_busy(&self, offset: u64, length: u64, what: &str) -> Result<(), Error> {
        if range_is_busy(&self.file, offset, length).at(&self.device.path)? {
            let why = format!("a process that was given up still {what}");
            return Err(io::Error::other(why)).at(&self.device.path);
        }
        Ok(())
    }

    fn zero(&self, extent: Extent, progress: &dyn Fn()) -> Result<(), Error> {
        let call = PoolCall::Zero {
            device: (&self.device.path).into(),
            identity: self.identity,
            offset: DATA_FROM + extent.offset,
            length: extent.length,
        };
        run(&self.supervisor, &call, progress)
    }

    fn data_from(&self) -> u64 {
        self.record.as_ref().map_or(0, |_| DATA_FROM)
    }

    fn extent_of(&self, table: &[Target]) -> Result<Extent, Error> {
        let extent = extent_of(table, self.device.number, self.data_from());
        let foreign = || Error::Changed(format!("a device of the pool has the table {table:?}"));
        extent.ok_or_else(foreign).at(&self.device.path)
    }

    fn uuid(&self, lease: LeaseId) -> String {
        format!("{}{lease}", uuid_start(self.identity))
    }

    fn held(&self) -> MutexGuard<'_, Custody<()>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Storage for DevicePool {
    /// Checks that the device is still there.
    fn check(&self) -> Check {
        let device = self.device.clone();
        Box::new(move || {
            device.is_there().map_or_else(
                |why| Condition::Unavailable(format!("{}: {why}", device.path.display())),
                |()| Condition::Good,
            )
        })
    }

    fn create(&self, lease: LeaseId, extent: Extent) -> Result<Volume, Error> {
        self.open_volume(lease, extent, || self.make_clean(extent, &|| ()))
    }

    fn reopen(&self, lease: LeaseId, extent: Extent) -> Result<Volume, Error> {
        // The extent contains data of the lease, even if the record no longer says that the extent was leased.
        self.open_volume(lease, extent, || match &self.record {
            Some(record) => record.touch(&self.put(), extent),
            None => Ok(()),
        })
    }

    /// Zeroes the parts of the extent that hold data from before the pool.
    fn make_clean(&self, extent: Extent, progress: &dyn Fn()) -> Result<(), Error> {
        let Some(record) = &self.record else {
            return Ok(());
        };
        self.refuse_busy(DATA_FROM + extent.offset, extent.length, "zeroes there")?;
        for stretch in record.unwritten_within(extent) {
            self.zero(stretch, progress)?;
        }
        record.touch(&self.put(), extent)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, Error> {
        let devices = devices_of(&self.control, self.identity)?.into_iter();
        let there = devices.map(|(lease, _)| lease);
        let known = self.held().all().into_iter().map(|(lease, ())| lease);
        let all: BTreeSet<LeaseId> = known.chain(there).collect();
        Ok(all.into_iter().collect())
    }

    fn place_of(&self, lease: LeaseId) -> Option<Extent> {
        self.held().extent_of(lease)
    }

    fn destroy(
        &self,
        lease: LeaseId,
        given: Option<Extent>,
        progress: &dyn Fn(),
    ) -> Result<Proof, Error> {
        let uuid = self.uuid(lease);
        let active = self.control.find(&uuid)?.filter(|found| found.is_active);
        let found = match active {
            Some(_) => Some(self.extent_of(&self.control.table(&uuid)?)?),
            None => self.held().extent_of(lease),
        };
        // From here on the extent is on the list until it is clean. A different extent for the same lease is refused.
        for extent in [found, given].into_iter().flatten() {
            self.hold(lease, extent)?;
        }
        run(&self.supervisor, &PoolCall::Unmap { uuid }, progress)?;
        passed("unmap volume");
        let cleaned = match (found.or(given), &self.record) {
            (_, None) => Proof::nothing_to_clean("the pool is read-only"),
            (None, _) => Proof::default(),
            (Some(extent), _) => {
                let began = Instant::now();
                self.zero(extent, progress)?;
                let found = format!("{} bytes zeroed, samples read back", extent.length);
                Proof::of("zero blocks", began.elapsed(), found)
            }
        };
        self.held().forget(lease);
        Ok(cleaned)
    }

    fn grants(&self) -> Option<u64> {
        self.record.as_ref().map(Record::grants)
    }

    fn count_grant(&self, number: u64) -> Result<(), Error> {
        let counted = self.record.as_ref().map(|it| it.count(&self.put(), number));
        counted.unwrap_or(Ok(()))
    }

    /// All bytes that no lease holds count as unwritten.
    fn distrust(&self) -> Result<(), Error> {
        let forgotten = self.record.as_ref().map(|it| it.forget(&self.put()));
        forgotten.unwrap_or(Ok(()))
    }

    /// The extents of a device are there from the start.
    fn lacks_room(&self, _bytes: u64) -> Option<String> {
        None
    }

    fn is_taken_over(&self) -> bool {
        self.is_taken_over
    }
}

fn uuid_start(identity: Identity) -> String {
    format!("FABRICBIOS-{:032x}-", u128::from_be_bytes(identity))
}

/// Finds the pool's devices, by the prefix of their device-mapper UUIDs. Names are not used: another program may take a
/// name.
fn devices_of(
    control: &Control,
    identity: Identity,
) -> Result<Vec<(LeaseId, MappedDevice)>, Error> {
    let start = uuid_start(identity);
    let lease = |device: &MappedDevice| device.uuid.strip_prefix(&start)?.parse().ok();
    let devices = control.devices(NAME_START)?.into_iter();
    Ok(devices
        .filter_map(|device| Some((lease(&device)?, device)))
        .collect())
}

/// The extent of a table that this crate made, which has one linear target.
fn extent_of(table: &[Target], device: DeviceNumber, data_from: u64) -> Option<Extent> {
    let [target] = table else { return None };
    let (there, sector) = target.parameters.split_once(' ')?;
    let ours = target.kind == "linear" && target.start == 0 && there == device.to_string();
    let from = sector.parse::<u64>().ok()?.checked_mul(SECTOR_BYTES)?;
    ours.then_some(Extent {
        offset: from.checked_sub(data_from)?,
        length: target.length.checked_mul(SECTOR_BYTES)?,
    })
}

/// The path of the device node that the kernel makes in devtmpfs, with or without udev.
fn node_of(number: DeviceNumber) -> Result<PathBuf, Error> {
    let path = Path::new("/dev").join(format!("dm-{}", number.minor));
    let metadata = fs::metadata(&path).at(&path);
    let metadata = metadata.advise(": is devtmpfs mounted on /dev?")?;
    match metadata.file_type().is_block_device() && DeviceNumber::of(metadata.rdev()) == number {
        true => Ok(path),
        false => Err(Error::Changed(format!("not device {number}"))).at(&path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_tells_the_extent_that_it_was_made_for() {
        let number = DeviceNumber { major: 8, minor: 1 };
        let extent = Extent {
            offset: 5 * MIB,
            length: 2 * MIB,
        };
        let table = |offset| Target::linear(number, offset, extent.length);
        let told = |table: &[Target]| extent_of(table, number, DATA_FROM);
        assert_eq!(told(&[table(DATA_FROM + extent.offset)]), Some(extent));
        assert_eq!(told(&[table(0)]), None);
        assert_eq!(told(&[]), None);
        let elsewhere = DeviceNumber { major: 8, minor: 2 };
        assert_eq!(told(&[Target::linear(elsewhere, DATA_FROM, MIB)]), None);
    }
}
