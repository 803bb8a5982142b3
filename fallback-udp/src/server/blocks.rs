//! The blocks of one lease: the open file and the I/O in flight.

use std::{
    fs::File,
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use fabricbios_contract::{Inline, Part, Volume};
use fabricbios_lease::{BindError, BindOrder, StepError};
use fabricbios_wire::{Binding, DataOp, DataService, ResourceId};

use super::{
    block_file,
    entry::{Content, Entry},
    fbbu::BlockSource,
    udp_path::UdpPath,
};
use crate::{Broken, Invariant, Io, ServedLease as _, Share, Space};

/// Most I/Os in flight of one lease, so that a lease whose storage hangs cannot use up memory and threads.
const IOS_AT_MOST: u32 = 128;
/// Most flushes in flight of one lease: each occupies a thread of the kernel.
const FLUSHES_AT_MOST: u32 = 4;
/// Storage that finishes no I/O for this long counts as hanging.
const PATIENCE: Duration = Duration::from_secs(9);

/// The blocks of one lease.
#[derive(Debug)]
pub struct Blocks {
    path: PathBuf,
    units: u64,
    unit_bytes: u32,
    is_read_only: bool,
    write_verifier: u64,
    share: Arc<Share>,
    /// `None`: closed.
    file: Mutex<Option<Arc<File>>>,
    ios: AtomicU32,
    flushes: AtomicU32,
    /// Number of I/Os that have finished.
    ended: Mutex<u64>,
    has_ended: Condvar,
    patience: Duration,
}

/// One I/O in flight. Dropping this counts the I/O as finished.
#[derive(Debug)]
pub(super) struct IoInFlight {
    pub(super) entry: Arc<Entry<Blocks>>,
    is_flush: bool,
}

impl Blocks {
    pub(super) fn open(
        file: &Volume,
        write_verifier: u64,
        share: Arc<Share>,
    ) -> Result<Self, StepError> {
        let opened = block_file::open(file)?;
        Ok(Self {
            path: file.path.clone(),
            units: file.bytes / u64::from(file.block_bytes),
            unit_bytes: file.block_bytes,
            is_read_only: file.read_only,
            write_verifier,
            share,
            file: Mutex::new(Some(Arc::new(opened))),
            ios: AtomicU32::new(0),
            flushes: AtomicU32::new(0),
            ended: Mutex::new(0),
            has_ended: Condvar::new(),
            patience: PATIENCE,
        })
    }

    /// Whether one more I/O may begin.
    pub(super) fn has_room(&self, op: u8) -> bool {
        let is_flush = op == DataOp::Flush as u8;
        self.ios.load(Ordering::Relaxed) < IOS_AT_MOST
            && (!is_flush || self.flushes.load(Ordering::Relaxed) < FLUSHES_AT_MOST)
    }

    fn file(&self) -> MutexGuard<'_, Option<Arc<File>>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> MutexGuard<'_, u64> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IoInFlight {
    /// Counts an I/O and returns the file for it; `None`: closed. The caller holds the read lock of the keys, so that
    /// the end of access comes before this I/O or waits for it.
    pub(super) fn begin(entry: &Arc<Entry<Blocks>>, io: &Io) -> (Self, Option<Arc<File>>) {
        let is_flush = matches!(io, Io::Flush);
        let blocks = &entry.content;
        blocks.ios.fetch_add(1, Ordering::Relaxed);
        blocks.flushes.fetch_add(is_flush.into(), Ordering::Relaxed);
        let in_flight = Self {
            entry: Arc::clone(entry),
            is_flush,
        };
        let file = blocks.file().clone();
        if file.is_none() {
            entry.broken(Broken {
                invariant: Invariant::End,
                detail: "an I/O was to begin on closed blocks",
            });
        }
        (in_flight, file)
    }
}

impl Drop for IoInFlight {
    fn drop(&mut self) {
        let blocks = &self.entry.content;
        let mut ended = blocks.ended();
        let is_counted =
            count_down(&blocks.ios, 1) & count_down(&blocks.flushes, self.is_flush.into());
        if !is_counted {
            self.entry.broken(Broken {
                invariant: Invariant::InFlight,
                detail: "an I/O has finished that was not counted",
            });
        }
        *ended += 1;
        blocks.has_ended.notify_all();
    }
}

/// Subtracts `by`. `false`: the counter was smaller, and stays.
fn count_down(counter: &AtomicU32, by: u32) -> bool {
    let less = |count: u32| count.checked_sub(by);
    let counted = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    counted.is_ok()
}

impl Space for Blocks {
    fn units(&self) -> u64 {
        self.units
    }

    fn unit_bytes(&self) -> u32 {
        self.unit_bytes
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn write_verifier(&self) -> u64 {
        self.write_verifier
    }

    fn share(&self) -> Option<&Arc<Share>> {
        Some(&self.share)
    }
}

impl Content for Blocks {
    const SERVICE: DataService = DataService::Block;
    type Source = BlockSource;

    /// A cut does not wait for the storage.
    fn inline(_: &BlockSource, _: ResourceId) -> Inline {
        Inline::Cut
    }

    /// First cuts an older generation of the lease and waits for its I/O in flight.
    fn bind(path: &UdpPath<Self>, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let volume = part.record::<Volume>()?;
        path.source
            .look(&volume.path)
            .map_err(BindError::Stranded)?;
        let read_only = order.terms.block().is_some_and(|it| it.read_only);
        let read_only = volume.read_only || read_only;
        let volume = Volume {
            read_only,
            ..(*volume).clone()
        };
        path.serve(order.binding_id, &order.tenant, &volume)
    }

    fn is_quiet(&self) -> bool {
        let _ended = self.ended();
        self.ios.load(Ordering::Relaxed) == 0
    }

    fn wait_until_quiet(&self, progress: &dyn Fn()) -> Result<(), StepError> {
        let mut ended = self.ended();
        loop {
            let (left, before) = (self.ios.load(Ordering::Relaxed), *ended);
            if left == 0 {
                return Ok(());
            }
            progress();
            let is_stuck = |now: &mut u64| *now == before;
            let waited = self
                .has_ended
                .wait_timeout_while(ended, self.patience, is_stuck);
            ended = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *ended == before {
                let why = format_args!(
                    "{left} I/Os of {} are under way and none has come back for {} s; look at the \
                     storage (dmesg) and try again",
                    self.path.display(),
                    self.patience.as_secs()
                );
                return Err(StepError::new("wait for the storage", why));
            }
        }
    }

    fn close(&self) -> Result<(), Broken> {
        if !self.is_quiet() {
            return Err(Broken {
                invariant: Invariant::Quiet,
                detail: "blocks with I/O in flight were to be closed",
            });
        }
        drop(self.file().take());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, sync::atomic::AtomicU32};

    use fabricbios_lease::BindingId;
    use fabricbios_wire::{DpKey, Generation, LeaseId, ResourceId};

    use super::super::entry::SessionLimits;
    use super::*;
    use crate::{DataKey, Keys, Room};

    /// One block, on storage that counts as stuck at once.
    fn entry(path: &std::path::Path) -> Arc<Entry<Blocks>> {
        let file = Volume {
            path: path.into(),
            bytes: 512,
            block_bytes: 512,
            read_only: true,
        };
        let blocks = Blocks {
            patience: Duration::from_millis(1),
            ..Blocks::open(&file, 1, Share::new(&Room::new(128 * 512), Arc::default())).unwrap()
        };
        let binding_id = BindingId {
            lease_id: LeaseId(1),
            generation: Generation(1),
            resource_id: ResourceId(1),
        };
        let keys = Keys::new(DataKey::new(&DpKey([1; 32])));
        Arc::new(Entry::new(binding_id, keys, blocks, SessionLimits::few()))
    }

    #[test]
    fn stuck_storage_is_an_error_that_says_how_much_of_what() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0; 512]).unwrap();
        let entry = entry(file.path());
        let both = [0, 1].map(|_| IoInFlight::begin(&entry, &Io::Flush).0);
        let calls = AtomicU32::new(0);
        let progress = || {
            calls.fetch_add(1, Ordering::Relaxed);
        };
        let error = entry.content.wait_until_quiet(&progress).unwrap_err();
        let error = error.to_string();
        let path = file.path().display().to_string();
        assert!(
            error.contains("2 I/Os of ") && error.contains(&path),
            "{error}"
        );
        assert!(!entry.content.is_quiet());
        drop(both);
        assert!(entry.content.is_quiet());
        entry.content.wait_until_quiet(&progress).unwrap();
        assert!(calls.load(Ordering::Relaxed) > 0);
    }

    #[test]
    fn what_is_closed_too_early_or_used_too_late_is_found() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0; 512]).unwrap();
        let entry = entry(file.path());
        let closed = || entry.close();
        let says = |result: Result<(), StepError>, name: &str| {
            assert!(result.unwrap_err().to_string().contains(name), "{name}");
        };
        let (in_flight, open) = IoInFlight::begin(&entry, &Io::Flush);
        assert!(open.is_some());
        says(closed(), "quiet: ");
        let uncounted = IoInFlight::begin(&entry, &Io::Flush).0;
        entry.content.ios.store(1, Ordering::Relaxed);
        drop(in_flight);
        drop(uncounted);
        says(entry.check_invariants(), "in flight: ");
        let held = entry.content.share.take(512).unwrap();
        says(closed(), "room: ");
        drop(held);
        assert_eq!(closed(), Ok(()));
        let (_late, closed_file) = IoInFlight::begin(&entry, &Io::Flush);
        assert!(closed_file.is_none());
        says(entry.check_invariants(), "end: ");
    }
}
