//! One device that a process has open.

use std::{
    io,
    sync::{Arc, Mutex},
    thread,
};

use crate::{
    Directory, Identity, Knob, Knobs, Owner, Process, Share, Usage, Vendor, account,
    knob::LOOK,
    lock,
    mapping::Mapping,
    table::{Kind, Locked, Record, Table},
};

/// A device of a state directory.
#[derive(Debug)]
pub struct Device {
    vendor: Vendor,
    directory: Directory,
    knobs: Knobs,
    table: Table,
    /// Mapped when the first context is made.
    memory: Mutex<Option<Arc<Mapping>>>,
}

/// The resources of a context on a device.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The index of the context's record in the table.
    pub(crate) record: usize,
    pub(crate) share: Share,
    pub(crate) memory: Arc<Mapping>,
}

impl Device {
    /// Opens the device of the directory that the environment names.
    ///
    /// # Errors
    /// The directory or one of its files cannot be made or used.
    pub fn open(vendor: Vendor) -> io::Result<Self> {
        Self::open_in(Directory::from_environment()?, vendor)
    }

    /// Opens the device of a directory.
    ///
    /// # Errors
    /// A file of the directory cannot be made or used.
    pub fn open_in(directory: Directory, vendor: Vendor) -> io::Result<Self> {
        Ok(Self {
            vendor,
            knobs: Knobs::open(&directory)?,
            table: Table::open(&directory, vendor)?,
            directory,
            memory: Mutex::new(None),
        })
    }

    /// The knobs of the device.
    #[must_use]
    pub fn knobs(&self) -> &Knobs {
        &self.knobs
    }

    /// The number of partitions: 0 if the device is not in MIG mode.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        if self.vendor == Vendor::Amd {
            return 0;
        }
        let wanted = self.knobs.number(Knob::Mig);
        u32::try_from(wanted).map_or(Identity::PARTITIONS_MAX, |it| {
            it.min(Identity::PARTITIONS_MAX)
        })
    }

    /// Compute slices of the device (7) or of each partition.
    #[must_use]
    pub fn slices(&self, identity: &Identity) -> u32 {
        match identity.partition {
            None => Identity::PARTITIONS_MAX,
            Some(_) => Identity::PARTITIONS_MAX / self.partitions().max(1),
        }
    }

    /// Memory of the device or a partition.
    ///
    /// # Errors
    /// The table cannot be used.
    pub fn usage(&self, identity: &Identity) -> io::Result<Usage> {
        let locked = self.lock()?;
        let share = self.share(&locked, identity);
        Ok(account::usage(&locked, &self.knobs, share))
    }

    /// The processes that have the device or a partition open.
    ///
    /// # Errors
    /// The table cannot be used.
    pub fn processes(&self, identity: &Identity) -> io::Result<Vec<Process>> {
        Ok(account::processes(&self.lock()?, &self.knobs, identity))
    }

    /// Resets the device: all memory is free and zero, and the knobs `lost`, `xid`, `reset-required` and `gone` are
    /// off. Returns the processes that have the device open, with a context or without. If there is any such process
    /// besides this one, nothing changes.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn reset(&self) -> io::Result<Vec<u32>> {
        let locked = self.lock()?;
        let of_process = |it: &Record| matches!(it.kind, Kind::Context | Kind::Allocation);
        let open = locked.records().filter(|(_, it)| of_process(it));
        let mut open: Vec<u32> = open.map(|(_, it)| it.owner.pid).collect();
        open.extend(self.table.openers()?);
        open.sort_unstable();
        open.dedup();
        if open.is_empty() {
            locked.wipe()?;
            for knob in [Knob::Lost, Knob::Xid, Knob::ResetRequired, Knob::Gone] {
                self.directory.clear(knob)?;
            }
        }
        Ok(open)
    }

    /// See [`Directory::settle`].
    pub(crate) fn settle(&self) -> io::Result<()> {
        while self
            .lock()?
            .records()
            .any(|(_, it)| it.kind == Kind::Lingering)
        {
            thread::sleep(LOOK);
        }
        Ok(())
    }

    pub(crate) fn me(&self) -> Owner {
        self.table.me()
    }

    pub(crate) fn lock(&self) -> io::Result<Locked<'_>> {
        self.table.lock(&self.knobs)
    }

    fn share(&self, locked: &Locked<'_>, identity: &Identity) -> Share {
        Share::of(identity, self.partitions(), locked.memory_bytes())
    }

    /// Adds a context to the table. `None`: the table is full.
    pub(crate) fn open_context(&self, identity: &Identity) -> io::Result<Option<Opened>> {
        let locked = self.lock()?;
        let record = Record {
            kind: Kind::Context,
            owner: self.me(),
            partition: identity.partition,
            offset: 0,
            bytes: 0,
        };
        let Some(record) = locked.insert(record) else {
            return Ok(None);
        };
        let mut memory = lock(&self.memory);
        let same = memory
            .take()
            .filter(|it| it.length() == locked.memory_bytes());
        let mapped = match same {
            Some(mapped) => mapped,
            None => Arc::new(locked.map_memory().inspect_err(|_| locked.remove(record))?),
        };
        *memory = Some(Arc::clone(&mapped));
        Ok(Some(Opened {
            record,
            share: self.share(&locked, identity),
            memory: mapped,
        }))
    }

    /// Allocates memory of a share; returns its index in the table and its offset in the memory. `None`: there is not
    /// enough.
    pub(crate) fn allocate(
        &self,
        share: Share,
        partition: Option<u32>,
        bytes: u64,
    ) -> io::Result<Option<(usize, u64)>> {
        let locked = self.lock()?;
        let of = (share, partition);
        Ok(account::allocate(
            &locked,
            &self.knobs,
            of,
            (self.me(), bytes),
        ))
    }
}
