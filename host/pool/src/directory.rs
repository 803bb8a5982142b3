//! A directory as a pool: a preallocated file for each lease; other files are never touched.
//!
//! A file system allocates zeros, so a volume is never wiped: its file is unlinked, and the next lease gets a new file.
//! A file system without preallocation is refused, because a lease is a promise of bytes. A file is made under another
//! name and then renamed: a crash leaves no file, an unused file, or the whole volume.

mod marker;
pub(crate) mod nvmet;
mod volume;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fabricbios_lease::{AllocationMode, Condition, Extent, Proof};
use fabricbios_wire::{LeaseId, NodeId};

use crate::error::{At, Error};
use crate::wipe::{PoolCall, run};
use fabricbios_contract::{Check, Volume};
use fabricbios_helper::Supervisor;

use crate::{Facts, PoolConfig, Storage};
use marker::Marker;
pub(crate) use marker::write_marker;
pub(crate) use volume::remove_if_there;

/// The free space divided by this is kept for the metadata of the file system.
const MARGIN_DIVISOR: u64 = 256;
const MARGIN_BYTES_MIN: u64 = 1 << 20;
const MARGIN_BYTES_MAX: u64 = 1 << 28;
/// The offered space divided by this may be missing, for metadata of the file system.
const LACK_DIVISOR: u64 = 16;
/// Smallest alignment of leases: a page, and the smallest allocation unit of file systems.
const ALIGN_MIN: u64 = 4096;

#[derive(Debug)]
pub(crate) struct DirectoryPool {
    path: PathBuf,
    identity: Inode,
    block_bytes: u32,
    supervisor: Supervisor,
    /// The known volumes, in memory because reading the directory could block.
    known: Arc<Mutex<BTreeSet<LeaseId>>>,
    /// Number of volumes that are being made: they use space and are not in `known` yet.
    making: Arc<AtomicU32>,
    capacity: u64,
    /// The open file, which holds the lock.
    marker: Marker,
}

/// The identity of a directory: the numbers of its device and its inode.
pub(crate) type Inode = (u64, u64);

impl DirectoryPool {
    pub(crate) fn open(config: &PoolConfig, path: PathBuf) -> Result<(Self, Facts), Error> {
        let identity = trusted(&path)?;
        let has_volumes = has_volumes(&path)?;
        let marker = Marker::take(&path, config, has_volumes)?;
        let block_bytes = volume::probe(&path)?;
        // An earlier process that held the marker may have made or removed volumes, so the directory is read after
        // taking the marker.
        let names = names(&path)?;
        for stray in names.iter().filter(|name| volume::is_unfinished(name)) {
            let at = path.join(stray);
            fs::remove_file(&at).at(&at)?;
        }
        let known: BTreeSet<LeaseId> = names.iter().filter_map(|n| volume::lease_of(n)).collect();
        let align = u64::from(block_bytes).max(ALIGN_MIN);
        let facts = Facts {
            identity: marker.identity(),
            name: config.path.display().to_string(),
            device: None,
            capacity: capacity(&path, &known, align).at(&path)?,
            align,
            block_bytes,
            allocation_mode: AllocationMode::Amounts,
            read_only: false,
            removable: false,
        };
        let pool = Self {
            identity,
            block_bytes,
            supervisor: config.supervisor.clone(),
            known: Arc::new(Mutex::new(known)),
            making: Arc::default(),
            capacity: facts.capacity,
            marker,
            path,
        };
        Ok((pool, facts))
    }

    fn known(&self) -> MutexGuard<'_, BTreeSet<LeaseId>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Storage for DirectoryPool {
    /// Does nothing: the file of a lease begins with zeros.
    fn make_clean(&self, _extent: Extent, _progress: &dyn Fn()) -> Result<(), Error> {
        Ok(())
    }

    /// Does nothing: a file that is not the volume of a lease is not leased.
    fn distrust(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Checks that the path still leads to the same directory, and that the directory has room for the offer. A single
    /// lack of room does not count: it may come from a volume that is being made or removed.
    fn check(&self) -> Check {
        let (path, identity, offered) = (self.path.clone(), self.identity, self.capacity);
        let (known, making) = (Arc::clone(&self.known), Arc::clone(&self.making));
        let marker = self.marker.path.clone();
        let was_short = AtomicBool::new(false);
        Box::new(move || {
            if let Err(why) = is_same(&path, identity) {
                return Condition::Unavailable(why.to_string());
            }
            // Every grant is counted in the marker.
            if let Err(error) = fs::symlink_metadata(&marker) {
                let marker = marker.display();
                return Condition::Unavailable(format!("{marker}: {error}: put the file back"));
            }
            let volumes = known.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let lacks = match making.load(Ordering::Relaxed) {
                0 => lack(&path, &volumes, offered),
                _ => None,
            };
            match was_short.swap(lacks.is_some(), Ordering::Relaxed) {
                true => lacks.map_or(Condition::Good, Condition::Degraded),
                false => Condition::Good,
            }
        })
    }

    fn reopen(&self, lease: LeaseId, extent: Extent) -> Result<Volume, Error> {
        let path = self.path.join(volume::name(lease));
        match volume::is_there(&path, extent.length)? {
            true => self.create(lease, extent),
            false => Err(Error::Changed("its file is gone".into())).at(&path),
        }
    }

    fn create(&self, lease: LeaseId, extent: Extent) -> Result<Volume, Error> {
        let bytes = extent.length;
        let call = PoolCall::Make {
            directory: (&self.path).into(),
            identity: self.identity,
            lease,
            bytes,
        };
        self.making.fetch_add(1, Ordering::Relaxed);
        let made = run(&self.supervisor, &call, &|| ());
        if made.is_ok() {
            self.known().insert(lease);
        }
        self.making.fetch_sub(1, Ordering::Relaxed);
        made?;
        Ok(Volume {
            path: self.path.join(volume::name(lease)),
            bytes,
            block_bytes: self.block_bytes,
            read_only: false,
        })
    }

    fn lacks_room(&self, bytes: u64) -> Option<String> {
        let free = volume::free_bytes(&self.path).ok()?;
        (free < bytes).then(|| {
            format!("{bytes} bytes were asked for, and {free} are free: others have filled the pool's file system")
        })
    }

    fn grants(&self) -> Option<u64> {
        Some(self.marker.grants())
    }

    fn is_taken_over(&self) -> bool {
        self.marker.is_taken_over
    }

    fn count_grant(&self, number: u64) -> Result<(), Error> {
        self.marker.count(number, &self.supervisor)
    }

    fn place_of(&self, _: LeaseId) -> Option<Extent> {
        None
    }

    fn leases(&self) -> Result<Vec<LeaseId>, Error> {
        Ok(self.known().iter().copied().collect())
    }

    /// Unlinks the names without following links.
    fn destroy(
        &self,
        lease: LeaseId,
        given: Option<Extent>,
        progress: &dyn Fn(),
    ) -> Result<Proof, Error> {
        is_same(&self.path, self.identity)?;
        let names = [volume::name(lease), volume::unfinished_name(lease)];
        let call = PoolCall::Remove {
            directory: (&self.path).into(),
            names: names.map(OsString::from).into(),
        };
        let began = Instant::now();
        run(&self.supervisor, &call, progress)?;
        self.known().remove(&lease);
        let bytes = given.map_or(String::new(), |it| format!("{} bytes: ", it.length));
        let found = format!("{bytes}file removed; the file of a lease begins with zeroes");
        Ok(Proof::of("remove volume", began.elapsed(), found))
    }
}

/// Makes a volume unless it exists. Runs in a helper process.
pub(crate) fn make(path: &Path, identity: Inode, lease: LeaseId, bytes: u64) -> Result<(), Error> {
    is_same(path, identity)?;
    match volume::is_there(&path.join(volume::name(lease)), bytes)? {
        true => Ok(()),
        false => volume::make(path, lease, bytes),
    }
}

/// The identity of a directory. Refuses one to which users other than this one and root can write.
fn trusted(path: &Path) -> Result<Inode, Error> {
    let shown = path.display();
    let metadata = fs::metadata(path).at(path)?;
    let own = nix::unistd::geteuid().as_raw();
    if metadata.uid() != own && metadata.uid() != 0 {
        let owner = metadata.uid();
        let why =
            format!("belongs to user {owner}, who could exchange the files: chown {own} {shown}");
        return Err(Error::Setting(why)).at(path);
    }
    if metadata.mode() & 0o022 != 0 {
        let why =
            format!("others may write to it, and could exchange the files: chmod go-w {shown}");
        return Err(Error::Setting(why)).at(path);
    }
    Ok((metadata.dev(), metadata.ino()))
}

/// See [`crate::Pool::check`].
pub(crate) fn check(path: &Path, node_id: &NodeId, force: bool) -> Result<(), Error> {
    trusted(path)?;
    marker::check(path, node_id, force, has_volumes(path)?)
}

fn is_same(path: &Path, identity: Inode) -> Result<(), Error> {
    let now = fs::metadata(path).at(path)?;
    if (now.dev(), now.ino()) == identity {
        return Ok(());
    }
    let why = "another directory than when the daemon took it: start it anew";
    Err(Error::Changed(why.into())).at(path)
}

fn has_volumes(path: &Path) -> Result<bool, Error> {
    let names = names(path)?;
    Ok(names.iter().any(|name| volume::lease_of(name).is_some()))
}

fn names(path: &Path) -> Result<Vec<String>, Error> {
    let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.at(path)?.into_iter();
    let names = entries.map(|entry| entry.file_name());
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}

/// Describes the lack of room if other files fill the file system, so that offered leases would be refused.
fn lack(path: &Path, volumes: &BTreeSet<LeaseId>, offered: u64) -> Option<String> {
    // A volume that was removed meanwhile is no problem. `is_same` reports a missing directory.
    let holds = capacity(path, volumes, 1).ok()?;
    let missing = offered.saturating_sub(holds);
    (missing > offered / LACK_DIVISOR).then(|| {
        let shown = path.display();
        format!(
            "{shown}: others have filled its file system: {missing} bytes of {offered} are missing"
        )
    })
}

/// Bytes for volumes: the free space without the margin, and the space of the existing volumes.
fn capacity(path: &Path, known: &BTreeSet<LeaseId>, align: u64) -> io::Result<u64> {
    let mut held: u64 = 0;
    for lease in known {
        let metadata = fs::symlink_metadata(path.join(volume::name(*lease)))?;
        if metadata.is_file() {
            held = held.saturating_add(metadata.len());
        }
    }
    let free = volume::free_bytes(path)?;
    let margin = (free / MARGIN_DIVISOR).clamp(MARGIN_BYTES_MIN, MARGIN_BYTES_MAX);
    let all = free.saturating_sub(margin).saturating_add(held);
    Ok(all - all % align)
}
