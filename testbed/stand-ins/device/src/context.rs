//! Contexts: a process's memory and streams on a device.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI32, Ordering},
    },
};

use crate::{
    Device, HostMemory, Identity, Knob, Share, Status, Usage,
    knob::LOOK,
    lock,
    mapping::Mapping,
    stream::{Mark, Stream},
    table::{GRANULE, PAGE},
};

/// Address of the first byte of every device.
pub(crate) const BASE: u64 = 0x7f00_0000_0000;

/// Bytes of device memory that a context takes for itself, unless the knob says otherwise.
const OWN_BYTES: u64 = GRANULE;
/// Bytes that a module takes.
const MODULE_BYTES: u64 = 64 << 10;

#[derive(Debug, Clone, Copy)]
struct Allocation {
    bytes: u64,
    /// `None`: the allocation is in a shared granule.
    record: Option<usize>,
}

/// A granule that small allocations share.
#[derive(Debug)]
struct Shared {
    offset: u64,
    record: usize,
}

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) identity: Identity,
    device: Arc<Device>,
    record: usize,
    share: Share,
    memory: Arc<Mapping>,
    allocations: Mutex<BTreeMap<u64, Allocation>>,
    /// Locked before `allocations`.
    shared: Mutex<Vec<Shared>>,
    streams: Mutex<BTreeMap<usize, Arc<Stream>>>,
    /// The first error of a kernel; 0 if there was none.
    error: AtomicI32,
}

impl Context {
    pub(crate) fn new(device: Arc<Device>, identity: Identity) -> Result<Self, Status> {
        open_late()?;
        let opened = device
            .open_context(&identity)
            .map_err(|error| said(&error))?;
        let opened = opened.ok_or(Status::OUT_OF_MEMORY)?;
        let context = Self {
            identity,
            device,
            record: opened.record,
            share: opened.share,
            memory: opened.memory,
            allocations: Mutex::default(),
            shared: Mutex::default(),
            streams: Mutex::default(),
            error: AtomicI32::new(0),
        };
        let own = match context.device.knobs().number(Knob::Context) {
            0 => OWN_BYTES,
            own => own,
        };
        if let Err(status) = context.allocate(own) {
            context.end()?;
            return Err(status);
        }
        Ok(context)
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Fails after a kernel's error: then only the end of the context works.
    pub(crate) fn check(&self) -> Result<(), Status> {
        match self.error.load(Ordering::Acquire) {
            0 => Ok(()),
            error => Err(Status(error)),
        }
    }

    pub(crate) fn usage(&self) -> Result<Usage, Status> {
        self.device
            .usage(&self.identity)
            .map_err(|error| said(&error))
    }

    pub(crate) fn allocate(&self, bytes: u64) -> Result<u64, Status> {
        if bytes == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let mut shared = lock(&self.shared);
        let (offset, record) = if bytes < GRANULE / 2 {
            (self.place_small(&mut shared, bytes)?, None)
        } else {
            let (record, offset) = self.take(bytes)?;
            (offset, Some(record))
        };
        lock(&self.allocations).insert(offset, Allocation { bytes, record });
        Ok(BASE + offset)
    }

    /// Allocates memory for a module.
    pub(crate) fn allocate_module(&self) -> Result<u64, Status> {
        self.allocate(MODULE_BYTES)
    }

    /// Allocates granules of the device; returns their index in the table and their offset in the memory.
    fn take(&self, bytes: u64) -> Result<(usize, u64), Status> {
        let taken = self
            .device
            .allocate(self.share, self.identity.partition, bytes);
        taken
            .map_err(|error| said(&error))?
            .ok_or(Status::OUT_OF_MEMORY)
    }

    /// The first free place in a shared granule, or in a new one.
    fn place_small(&self, shared: &mut Vec<Shared>, bytes: u64) -> Result<u64, Status> {
        let bytes = bytes.next_multiple_of(PAGE);
        for Shared { offset, .. } in shared.iter() {
            let end = offset + GRANULE;
            let mut at = *offset;
            for (start, it) in lock(&self.allocations).range(*offset..end) {
                if at + bytes <= *start {
                    break;
                }
                at = start + it.bytes.next_multiple_of(PAGE);
            }
            if at + bytes <= end {
                return Ok(at);
            }
        }
        let (record, offset) = self.take(GRANULE)?;
        shared.push(Shared { offset, record });
        Ok(offset)
    }

    /// Waits for all work, as the vendors' drivers do, and frees the memory.
    pub(crate) fn free(&self, address: u64) -> Result<(), Status> {
        let offset = address.checked_sub(BASE).ok_or(Status::INVALID_VALUE)?;
        if !lock(&self.allocations).contains_key(&offset) {
            return Err(Status::INVALID_VALUE);
        }
        self.synchronize()?;
        let mut shared = lock(&self.shared);
        let mut allocations = lock(&self.allocations);
        let allocation = allocations.remove(&offset);
        let allocation = allocation.ok_or(Status::INVALID_VALUE)?;
        let locked = self.device.lock().map_err(|error| said(&error))?;
        if let Some(record) = allocation.record {
            locked.remove(record);
        }
        shared.retain(|it| {
            let mut within = allocations.range(it.offset..it.offset + GRANULE);
            let is_used = within.next().is_some();
            if !is_used {
                locked.remove(it.record);
            }
            is_used
        });
        Ok(())
    }

    /// The offset of a range of device memory, if one allocation of the context contains all of the range.
    pub(crate) fn offset(&self, address: u64, length: usize) -> Option<u64> {
        let offset = address.checked_sub(BASE)?;
        let allocations = lock(&self.allocations);
        let (start, allocation) = allocations.range(..=offset).next_back()?;
        let end = offset.checked_add(length as u64)?;
        (end <= start + allocation.bytes).then_some(offset)
    }

    pub(crate) fn add_stream(&self, id: usize) -> Result<(), Status> {
        let stream = Stream::start().map_err(|error| said(&error))?;
        lock(&self.streams).insert(id, stream);
        Ok(())
    }

    pub(crate) fn remove_stream(&self, id: usize) -> Result<(), Status> {
        let removed = lock(&self.streams).remove(&id);
        removed.ok_or(Status::INVALID_HANDLE)?.close();
        Ok(())
    }

    /// Adds work to a stream.
    pub(crate) fn submit(
        self: &Arc<Self>,
        stream: usize,
        work: impl FnOnce(&Self) -> Result<(), Status> + Send + 'static,
    ) -> Result<Mark, Status> {
        let streams = lock(&self.streams);
        let chosen = streams.get(&stream).ok_or(Status::INVALID_HANDLE)?;
        let context = Arc::clone(self);
        chosen.submit(move || {
            let done = context.check().and_then(|()| work(&context));
            if let Err(Status(error)) = done {
                let first = (Ordering::AcqRel, Ordering::Acquire);
                context
                    .error
                    .compare_exchange(0, error, first.0, first.1)
                    .ok();
            }
        });
        Ok(chosen.mark())
    }

    pub(crate) fn copy_in(&self, offset: u64, from: HostMemory, length: usize) {
        self.memory.copy_in(offset, from, length);
    }

    pub(crate) fn copy_out(&self, offset: u64, to: HostMemory, length: usize) {
        self.memory.copy_out(offset, to, length);
    }

    pub(crate) fn fill(&self, offset: u64, length: usize, byte: u8) {
        self.memory.fill(offset, length, byte);
    }

    /// Reads bytes for a kernel.
    pub(crate) fn read(&self, address: u64, length: usize) -> Result<Vec<u8>, Status> {
        let offset = self
            .offset(address, length)
            .ok_or(Status::ILLEGAL_ADDRESS)?;
        Ok(self.memory.read(offset, length))
    }

    /// Writes bytes of a kernel.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Status> {
        let offset = self
            .offset(address, bytes.len())
            .ok_or(Status::ILLEGAL_ADDRESS)?;
        self.memory.write(offset, bytes);
        Ok(())
    }

    pub(crate) fn mark(&self, stream: usize) -> Result<Mark, Status> {
        let streams = lock(&self.streams);
        let stream = streams.get(&stream).ok_or(Status::INVALID_HANDLE)?;
        Ok(stream.mark())
    }

    /// Waits until a stream has reached a mark. A device that is gone ends the wait.
    pub(crate) fn wait(&self, mark: &Mark) -> Result<(), Status> {
        while !mark.wait_for(LOOK) {
            if self.device.knobs().is_set(Knob::Gone) {
                return Err(Status::DEVICE_UNAVAILABLE);
            }
        }
        self.check()
    }

    /// Waits for all streams.
    pub(crate) fn synchronize(&self) -> Result<(), Status> {
        let marks: Vec<Mark> = lock(&self.streams).values().map(Stream::mark).collect();
        marks.iter().try_for_each(|mark| self.wait(mark))
    }

    /// Ends the context: waits for its work and frees all of its memory.
    pub(crate) fn end(&self) -> Result<(), Status> {
        self.device.knobs().hang(Knob::HangTeardown);
        // The error of a kernel ends with the context.
        self.synchronize().ok();
        lock(&self.streams).values().for_each(|it| it.close());
        let shared = std::mem::take(&mut *lock(&self.shared));
        let allocations = std::mem::take(&mut *lock(&self.allocations));
        let own = allocations.values().filter_map(|it| it.record);
        let locked = self.device.lock().map_err(|error| said(&error))?;
        for record in own.chain(shared.iter().map(|it| it.record)) {
            locked.remove(record);
        }
        locked.remove(self.record);
        Ok(())
    }
}

/// Opens a file, as the vendors' libraries do when they make a context or load a module: a sandbox that forbids this
/// after the initialisation breaks them.
pub(crate) fn open_late() -> Result<(), Status> {
    std::fs::File::open("/proc/self/maps")
        .map(drop)
        .map_err(|error| said(&error))
}

/// The result for an error of the state directory. Prints the error to standard error, where tests show it.
pub(crate) fn said(error: &std::io::Error) -> Status {
    eprintln!("stand-in of a GPU library: {error}");
    Status::OPERATING_SYSTEM
}
