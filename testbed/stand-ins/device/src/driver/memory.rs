//! Memory of the device and pinned memory of the host.

use std::alloc::{self, Layout};

use nix::{
    sys::resource::{Resource, getrlimit},
    unistd::geteuid,
};

use super::{Driver, Pinned};
use crate::{HostMemory, Status, Usage, lock};

impl Driver {
    /// Waits for all work of the thread's context.
    ///
    /// # Errors
    /// The thread has no context, or a kernel failed.
    pub fn synchronize(&self) -> Result<(), Status> {
        self.current()?.synchronize()
    }

    /// Memory of the device of the thread's context.
    ///
    /// # Errors
    /// The thread has no context, or the state directory cannot be used.
    pub fn usage(&self) -> Result<Usage, Status> {
        self.current()?.usage()
    }

    /// Allocates memory; returns its address.
    ///
    /// # Errors
    /// The size is 0, or not enough memory is free.
    pub fn allocate(&self, bytes: usize) -> Result<u64, Status> {
        self.current()?.allocate(bytes as u64)
    }

    /// Frees memory. Its bytes stay.
    ///
    /// # Errors
    /// Nothing is allocated at this address.
    pub fn free(&self, address: u64) -> Result<(), Status> {
        self.current()?.free(address)
    }

    /// Fills memory with a byte.
    ///
    /// # Errors
    /// The range is not within one allocation, or there is no such stream.
    pub fn fill(&self, stream: usize, to: u64, byte: u8, length: usize) -> Result<(), Status> {
        let context = self.current()?;
        let offset = context.offset(to, length).ok_or(Status::INVALID_VALUE)?;
        context.submit(stream, move |context| {
            context.fill(offset, length, byte);
            Ok(())
        })?;
        Ok(())
    }

    /// Copies from the host. Memory that is not pinned is read before this returns.
    ///
    /// # Errors
    /// The range is not within one allocation, or there is no such stream.
    pub fn copy_in(
        &self,
        stream: usize,
        to: u64,
        from: HostMemory,
        length: usize,
    ) -> Result<(), Status> {
        let context = self.current()?;
        let offset = context.offset(to, length).ok_or(Status::INVALID_VALUE)?;
        if self.is_pinned(from, length) {
            context.submit(stream, move |context| {
                context.copy_in(offset, from, length);
                Ok(())
            })?;
        } else {
            let bytes = from.get(length)?;
            context.submit(stream, move |context| {
                let mut bytes = bytes;
                let from = HostMemory::at(bytes.as_mut_ptr().cast());
                context.copy_in(offset, from, length);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Copies to the host. Memory that is not pinned is written before this returns.
    ///
    /// # Errors
    /// The range is not within one allocation, or there is no such stream.
    pub fn copy_out(
        &self,
        stream: usize,
        to: HostMemory,
        from: u64,
        length: usize,
    ) -> Result<(), Status> {
        let context = self.current()?;
        let offset = context.offset(from, length).ok_or(Status::INVALID_VALUE)?;
        if to.address() == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let mark = context.submit(stream, move |context| {
            context.copy_out(offset, to, length);
            Ok(())
        })?;
        if self.is_pinned(to, length) {
            return Ok(());
        }
        context.wait(&mark)
    }

    /// Allocates pinned memory of the host.
    ///
    /// # Errors
    /// The size is 0, or not enough memory is free.
    pub fn allocate_host(&self, length: usize) -> Result<HostMemory, Status> {
        self.current()?;
        let layout = Layout::from_size_align(length, 4096).ok();
        let layout = layout
            .filter(|it| it.size() > 0)
            .ok_or(Status::INVALID_VALUE)?;
        // SAFETY: the size is not zero.
        let place = unsafe { alloc::alloc_zeroed(layout) };
        if place.is_null() {
            return Err(Status::OUT_OF_MEMORY);
        }
        let memory = HostMemory::at(place.cast());
        let layout = Some(layout);
        lock(&self.objects)
            .pinned
            .insert(memory.address(), Pinned { length, layout });
        Ok(memory)
    }

    /// Frees pinned memory of the host.
    ///
    /// # Errors
    /// The driver has allocated no memory at this address.
    pub fn free_host(&self, memory: HostMemory) -> Result<(), Status> {
        self.ready()?;
        let mut objects = lock(&self.objects);
        let pinned = objects.pinned.get(&memory.address()).copied();
        let layout = pinned
            .and_then(|it| it.layout)
            .ok_or(Status::INVALID_VALUE)?;
        objects.pinned.remove(&memory.address());
        // SAFETY: `allocate_host` allocated the memory with this layout, and it has not been freed since.
        unsafe { alloc::dealloc(memory.bytes(), layout) };
        Ok(())
    }

    /// Pins memory of the process.
    ///
    /// # Errors
    /// The memory is null or empty, a part of it is already pinned, or this process may not lock so much.
    pub fn pin(&self, memory: HostMemory, length: usize) -> Result<(), Status> {
        self.current()?;
        let start = memory.address();
        let end = start
            .checked_add(length)
            .filter(|_| start != 0 && length != 0);
        let end = end.ok_or(Status::INVALID_VALUE)?;
        let mut objects = lock(&self.objects);
        let before = objects.pinned.range(..end).next_back();
        if before.is_some_and(|(place, pinned)| place + pinned.length > start) {
            return Err(Status::ALREADY_REGISTERED);
        }
        let registered = objects.pinned.values().filter(|it| it.layout.is_none());
        let locked: usize = registered.map(|it| it.length).sum();
        if locked.saturating_add(length) > lockable_bytes() {
            return Err(Status::OUT_OF_MEMORY);
        }
        let layout = None;
        objects.pinned.insert(start, Pinned { length, layout });
        Ok(())
    }

    /// Unpins memory of the process.
    ///
    /// # Errors
    /// The memory is not pinned.
    pub fn unpin(&self, memory: HostMemory) -> Result<(), Status> {
        self.ready()?;
        let mut objects = lock(&self.objects);
        let pinned = objects.pinned.get(&memory.address());
        if pinned.is_none_or(|it| it.layout.is_some()) {
            return Err(Status::NOT_REGISTERED);
        }
        objects.pinned.remove(&memory.address());
        Ok(())
    }

    fn is_pinned(&self, memory: HostMemory, length: usize) -> bool {
        let objects = lock(&self.objects);
        let found = objects.pinned.range(..=memory.address()).next_back();
        found.is_some_and(|(place, pinned)| memory.address() + length <= place + pinned.length)
    }
}

/// The bytes that this process may lock: RLIMIT_MEMLOCK, which does not apply to root.
fn lockable_bytes() -> usize {
    if geteuid().is_root() {
        return usize::MAX;
    }
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK);
    limit.map_or(0, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX))
}
