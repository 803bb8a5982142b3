//! The table of a device: the contexts of processes, and the parts of the memory that they have.
//!
//! The table is a mapped file of words. Processes take turns with a lock of the file, which ends with its holder. A
//! record is valid when its first word is set, and this word is written last: a process that is killed at any point
//! leaves the table intact.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};

use crate::{Directory, Knob, Knobs, Owner, Vendor, lock, mapping::Mapping};

/// A process takes device memory in parts of this many bytes.
pub(crate) const GRANULE: u64 = 2 << 20;
/// A context places small allocations in its granules at multiples of this many bytes.
pub(crate) const PAGE: u64 = 4096;
/// Memory of a device unless the knob says otherwise.
const MEMORY: u64 = 64 << 20;
/// Most memory of a device.
const MEMORY_MAX: u64 = 1 << 40;

/// First word of the table.
const MAGIC: u64 = u64::from_le_bytes(*b"FBSTAND1");
/// Indexes of words of the table.
const AT_MAGIC: usize = 0;
const AT_MEMORY: usize = 1;
/// The largest number of records that were in use at the same time.
const AT_USED: usize = 2;
const AT_RECORDS: usize = 8;
const WORDS_OF_RECORD: usize = 4;
const RECORDS: usize = 16384;
/// How many milliseconds the memory of a dead process stays in use, unless the knob says otherwise.
const LINGERS: u64 = 100;
/// The partition in the record of a process that has none.
const NO_PARTITION: u64 = 0xFF;

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A context of a process.
    Context = 1,
    /// A part of the memory.
    Allocation = 2,
    /// A part of the memory that no process has any more and that was not freed.
    Lost = 3,
    /// A part of the memory whose process is dead and that will be free after a while. The owner's start is the time of
    /// the death in milliseconds since boot.
    Lingering = 4,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) owner: Owner,
    pub(crate) partition: Option<u32>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// The table of one device, open in this process.
#[derive(Debug)]
pub(crate) struct Table {
    file: File,
    memory: File,
    words: Mapping,
    me: Owner,
    /// The lock of the file belongs to the process: the threads of this process take turns with this mutex.
    turn: Mutex<()>,
}

impl Table {
    pub(crate) fn open(directory: &Directory, vendor: Vendor) -> io::Result<Self> {
        let file = directory.open(vendor.table_file())?;
        let memory = directory.open(vendor.memory_file())?;
        let length = ((AT_RECORDS + RECORDS * WORDS_OF_RECORD) * size_of::<u64>()) as u64;
        if file.metadata()?.len() < length {
            file.set_len(length)?;
        }
        Ok(Self {
            words: Mapping::of(&file, length)?,
            file,
            memory,
            me: Owner::me()?,
            turn: Mutex::new(()),
        })
    }

    pub(crate) fn me(&self) -> Owner {
        self.me
    }

    /// The other processes that have the device's memory open, as a library has from its initialisation on. Only root
    /// sees the processes of other users.
    pub(crate) fn openers(&self) -> io::Result<Vec<u32>> {
        let of = |it: fs::Metadata| (it.dev(), it.ino());
        let memory = of(self.memory.metadata()?);
        let pids = fs::read_dir("/proc")?
            .flatten()
            .filter_map(|it| it.file_name().to_str()?.parse().ok());
        let has_it = |pid: &u32| {
            let files = fs::read_dir(format!("/proc/{pid}/fd"));
            let mut files = files.into_iter().flatten().flatten();
            files.any(|it| fs::metadata(it.path()).is_ok_and(|it| of(it) == memory))
        };
        Ok(pids
            .filter(|pid| *pid != self.me.pid)
            .filter(has_it)
            .collect())
    }

    /// Locks the table for this thread. Memory of dead processes becomes free after a while, or is lost if the knob
    /// says so. If no process has memory, the memory gets the size that the knob states.
    pub(crate) fn lock(&self, knobs: &Knobs) -> io::Result<Locked<'_>> {
        let turn = lock(&self.turn);
        while let Err(error) = self.file.lock() {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let locked = Locked {
            table: self,
            _turn: turn,
        };
        if locked.word(AT_MAGIC).load(Ordering::Acquire) != MAGIC {
            locked.word(AT_USED).store(0, Ordering::Relaxed);
            locked.word(AT_MEMORY).store(0, Ordering::Relaxed);
            locked.word(AT_MAGIC).store(MAGIC, Ordering::Release);
        }
        locked.bury_the_dead(knobs);
        locked.resize(knobs.number(Knob::Memory))?;
        Ok(locked)
    }
}

/// The table, while no other thread or process uses it.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
    table: &'a Table,
    _turn: MutexGuard<'a, ()>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // This fails only for an invalid descriptor.
        self.table.file.unlock().ok();
    }
}

impl Locked<'_> {
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.table.words.words()[at]
    }

    fn field(&self, index: usize, field: usize) -> &AtomicU64 {
        self.word(AT_RECORDS + index * WORDS_OF_RECORD + field)
    }

    fn used(&self) -> usize {
        let used = self.word(AT_USED).load(Ordering::Relaxed);
        usize::try_from(used).unwrap_or(RECORDS).min(RECORDS)
    }

    fn record(&self, index: usize) -> Option<Record> {
        let first = self.field(index, 0).load(Ordering::Acquire);
        let kind = match first & 0xFF {
            1 => Kind::Context,
            2 => Kind::Allocation,
            3 => Kind::Lost,
            4 => Kind::Lingering,
            _ => return None,
        };
        let partition = (first >> 8) & 0xFF;
        let pid = u32::try_from(first >> 32).unwrap_or_default();
        let start = self.field(index, 1).load(Ordering::Relaxed);
        Some(Record {
            kind,
            owner: Owner { pid, start },
            partition: (partition != NO_PARTITION)
                .then(|| u32::try_from(partition).ok())
                .flatten(),
            offset: self.field(index, 2).load(Ordering::Relaxed),
            bytes: self.field(index, 3).load(Ordering::Relaxed),
        })
    }

    /// The device's memory in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.word(AT_MEMORY).load(Ordering::Relaxed)
    }

    /// Maps the memory. Its size stays while this process has a record.
    pub(crate) fn map_memory(&self) -> io::Result<Mapping> {
        Mapping::of(&self.table.memory, self.memory_bytes())
    }

    /// All records with their indexes.
    pub(crate) fn records(&self) -> impl Iterator<Item = (usize, Record)> + '_ {
        (0..self.used()).filter_map(|index| Some((index, self.record(index)?)))
    }

    /// Adds a record; returns its index. `None`: the table is full.
    pub(crate) fn insert(&self, record: Record) -> Option<usize> {
        let used = self.used();
        let free = (0..used).find(|&index| self.record(index).is_none());
        let index = free.or_else(|| (used < RECORDS).then_some(used))?;
        if index == used {
            // The record is not valid yet, so nothing is lost if this process is killed here.
            self.field(index, 0).store(0, Ordering::Relaxed);
            self.word(AT_USED).store(used as u64 + 1, Ordering::Relaxed);
        }
        self.field(index, 1)
            .store(record.owner.start, Ordering::Relaxed);
        self.field(index, 2).store(record.offset, Ordering::Relaxed);
        self.field(index, 3).store(record.bytes, Ordering::Relaxed);
        let partition = record.partition.map_or(NO_PARTITION, u64::from);
        let first = record.kind as u64 | partition << 8 | u64::from(record.owner.pid) << 32;
        self.field(index, 0).store(first, Ordering::Release);
        Some(index)
    }

    pub(crate) fn remove(&self, index: usize) {
        self.field(index, 0).store(0, Ordering::Release);
    }

    /// Removes all records and clears the memory. No process may have a record.
    pub(crate) fn wipe(&self) -> io::Result<()> {
        (0..self.used()).for_each(|index| self.remove(index));
        self.word(AT_USED).store(0, Ordering::Relaxed);
        self.table.memory.set_len(0)?;
        self.table.memory.set_len(self.memory_bytes())
    }

    fn bury_the_dead(&self, knobs: &Knobs) {
        let is_lost = knobs.is_set(Knob::Lost);
        let lingers = match knobs.number(Knob::Lingering) {
            0 => LINGERS,
            wanted => wanted,
        };
        let now = since_boot_ms();
        let mut known: Vec<(Owner, bool)> = vec![(self.table.me, true)];
        for (index, record) in self.records() {
            let owner = record.owner;
            match record.kind {
                Kind::Lost => continue,
                Kind::Lingering if now < owner.start.saturating_add(lingers) => continue,
                Kind::Lingering => {
                    self.remove(index);
                    continue;
                }
                Kind::Context | Kind::Allocation => {}
            }
            let found = known.iter().find(|(it, _)| *it == owner);
            let is_alive = found.map(|(_, is_alive)| *is_alive).unwrap_or_else(|| {
                known.push((owner, owner.is_alive()));
                known.last().is_some_and(|(_, is_alive)| *is_alive)
            });
            match (is_alive, record.kind) {
                (true, _) => {}
                (false, Kind::Allocation) if is_lost => self.turn_into(index, Kind::Lost),
                (false, Kind::Allocation) => {
                    self.field(index, 1).store(now, Ordering::Relaxed);
                    self.turn_into(index, Kind::Lingering);
                }
                (false, _) => self.remove(index),
            }
        }
    }

    fn turn_into(&self, index: usize, kind: Kind) {
        let first = self.field(index, 0);
        let changed = first.load(Ordering::Relaxed) & !0xFF | kind as u64;
        first.store(changed, Ordering::Release);
    }

    fn resize(&self, wanted: u64) -> io::Result<()> {
        let wanted = if wanted == 0 { MEMORY } else { wanted };
        let wanted = wanted.clamp(GRANULE, MEMORY_MAX).next_multiple_of(GRANULE);
        let is_idle = || self.records().all(|(_, it)| it.kind == Kind::Lingering);
        if self.memory_bytes() != wanted && is_idle() {
            self.table.memory.set_len(wanted)?;
            self.word(AT_MEMORY).store(wanted, Ordering::Relaxed);
        } else if self.table.memory.metadata()?.len() < self.memory_bytes() {
            // The file was removed.
            self.table.memory.set_len(self.memory_bytes())?;
        }
        Ok(())
    }
}

fn since_boot_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME);
    let now = now.map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
