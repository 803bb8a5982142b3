//! Streams: queues whose work the device does in order.

use std::{ffi::c_void, ptr::NonNull, slice};

use super::{
    api::{Address, Handle},
    arguments::Arguments,
    context::Context,
    error::DriverError,
    module::Kernel,
    shared::Shared,
};

/// The stream does not wait for the default stream (`CU_STREAM_NON_BLOCKING`, `hipStreamNonBlocking`).
const NON_BLOCKING: u32 = 1;
/// The most dynamic shared memory, in bytes, that a kernel gets without a call that asks for more.
const SHARED_BYTES_PLAIN: u32 = 48 << 10;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: i32 = 8;

/// The size of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, bytes.
    pub shared_bytes: u32,
}

/// A stream, with pinned memory through which it copies. It belongs to one thread.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    handle: Handle,
    staging: NonNull<u8>,
    staging_bytes: usize,
    /// Copies may be in flight in the staging memory below this offset, bytes.
    sent: usize,
    shared: Option<Shared>,
    /// Copies of pinned or shared memory may be in flight.
    is_copying: bool,
}

impl Stream {
    /// Makes a stream with this many bytes (at least 1) of pinned memory.
    ///
    /// # Errors
    /// The driver cannot pin more memory, or the context is lost.
    pub fn new(context: &Context, staging_bytes: usize) -> Result<Self, DriverError> {
        let api = context.api()?;
        let mut memory = std::ptr::null_mut();
        // SAFETY: `memory` has room for the result.
        unsafe { api.allocate_host(&mut memory, staging_bytes, 0) }?;
        let Some(staging) = NonNull::new(memory.cast::<u8>()) else {
            let text = "the driver has allocated pinned memory at address 0";
            return Err(DriverError::own(
                context.vendor(),
                "allocate pinned memory",
                text,
            ));
        };
        // SAFETY: the driver has allocated this many bytes there.
        unsafe { staging.write_bytes(0, staging_bytes) };
        let mut handle = 0;
        // SAFETY: `handle` has room for the result.
        if let Err(error) = unsafe { api.create_stream(&mut handle, NON_BLOCKING) } {
            // SAFETY: it was allocated above. If this fails too, the memory is lost until the process ends.
            unsafe { api.free_host(memory) }.ok();
            return Err(error);
        }
        Ok(Self {
            context: context.clone(),
            handle,
            staging,
            staging_bytes,
            sent: 0,
            shared: None,
            is_copying: false,
        })
    }

    /// Waits for all work of the stream.
    ///
    /// # Errors
    /// A kernel failed, or the context is lost.
    pub fn synchronize(&mut self) -> Result<(), DriverError> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.context.api()?.synchronize_stream(self.handle) }?;
        (self.sent, self.is_copying) = (0, false);
        Ok(())
    }

    /// A free part of the staging memory, which no copy uses: at most `most` bytes.
    ///
    /// # Errors
    /// The context is lost.
    pub fn free_part(&mut self, most: usize) -> Result<&mut [u8], DriverError> {
        if self.sent >= self.staging_bytes {
            self.synchronize()?;
        }
        let length = most.min(self.staging_bytes - self.sent);
        // SAFETY: the range is within the memory, and no copy of the device uses it.
        Ok(unsafe { slice::from_raw_parts_mut(self.staging.add(self.sent).as_ptr(), length) })
    }

    /// Begins to copy the first `length` bytes of the free part to the device.
    ///
    /// # Errors
    /// The driver rejects the address, or the context is lost.
    pub fn send(&mut self, to: Address, length: usize) -> Result<(), DriverError> {
        let length = length.min(self.staging_bytes - self.sent);
        // SAFETY: the range is within the memory.
        let from = unsafe { self.staging.add(self.sent) };
        self.sent += length;
        self.is_copying = true;
        // SAFETY: the memory stays until the stream's work is done, see `drop`.
        unsafe {
            self.context
                .api()?
                .copy_to(to, from.as_ptr().cast(), length, self.handle)
        }
    }

    /// Begins to copy from the device, at most the length of the staging memory.
    ///
    /// # Errors
    /// The driver rejects the address, or the context is lost.
    pub fn begin_fetch(&mut self, from: Address, length: usize) -> Result<(), DriverError> {
        if self.is_copying {
            self.synchronize()?;
        }
        let length = length.min(self.staging_bytes);
        (self.sent, self.is_copying) = (length, true);
        let to: *mut c_void = self.staging.as_ptr().cast();
        // SAFETY: the memory has this many bytes, and stays until the stream's work is done, see `drop`.
        unsafe { self.context.api()?.copy_from(to, from, length, self.handle) }
    }

    /// Waits for all work of the stream; returns the first bytes of the staging memory.
    ///
    /// # Errors
    /// A kernel failed, or the context is lost.
    pub fn fetched(&mut self, length: usize) -> Result<&[u8], DriverError> {
        self.synchronize()?;
        let length = length.min(self.staging_bytes);
        // SAFETY: the range is within the memory, and no copy is under way.
        Ok(unsafe { slice::from_raw_parts(self.staging.as_ptr(), length) })
    }

    /// Begins to fill memory of the device with zeroes.
    pub(crate) fn zero(&self, to: Address, bytes: u64) -> Result<(), DriverError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: only memory of the device is written, and the driver checks the address.
        unsafe { self.context.api()?.fill(to, 0, bytes, self.handle) }
    }

    /// Uses this shared memory for copies, instead of the previous shared memory.
    ///
    /// # Errors
    /// The context is lost.
    pub fn share(&mut self, shared: Shared) -> Result<(), DriverError> {
        self.synchronize()?;
        self.shared = Some(shared);
        Ok(())
    }

    /// Bytes of the shared memory; 0 if there is none.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.shared.as_ref().map_or(0, Shared::length)
    }

    /// Begins to copy a part of the shared memory to the device.
    ///
    /// # Errors
    /// The shared memory has no such part, or the driver rejects the address.
    pub fn send_shared(
        &mut self,
        to: Address,
        offset: u64,
        length: u64,
    ) -> Result<(), DriverError> {
        let (from, length) = self.shared_part(offset, length)?;
        // SAFETY: the part is within the mapping, which stays until the stream's work is done.
        unsafe {
            self.context
                .api()?
                .copy_to(to, from.as_ptr(), length, self.handle)
        }
    }

    /// Begins to copy from the device to a part of the shared memory.
    ///
    /// # Errors
    /// The shared memory has no such part, or the driver rejects the address.
    pub fn fetch_shared(
        &mut self,
        from: Address,
        offset: u64,
        length: u64,
    ) -> Result<(), DriverError> {
        let (to, length) = self.shared_part(offset, length)?;
        // SAFETY: the part is within the mapping, which stays until the stream's work is done.
        unsafe {
            self.context
                .api()?
                .copy_from(to.as_ptr(), from, length, self.handle)
        }
    }

    fn shared_part(
        &mut self,
        offset: u64,
        length: u64,
    ) -> Result<(NonNull<c_void>, usize), DriverError> {
        let part = self.shared.as_ref().and_then(|it| it.part(offset, length));
        let part = part.ok_or_else(|| {
            let text = format!(
                "{length} bytes at {offset} of {} shared bytes",
                self.shared_bytes()
            );
            DriverError::own(self.context.vendor(), "shared memory", text)
        })?;
        self.is_copying = true;
        Ok(part)
    }

    /// Queues a kernel. The driver copies the arguments before this returns.
    ///
    /// # Errors
    /// The driver rejects the shape, or the context is lost.
    pub fn launch(
        &self,
        kernel: &Kernel,
        shape: Shape,
        arguments: &mut Arguments,
    ) -> Result<(), DriverError> {
        let api = self.context.api()?;
        let Shape {
            grid: [gx, gy, gz],
            block: [bx, by, bz],
            shared_bytes,
        } = shape;
        if shared_bytes > SHARED_BYTES_PLAIN {
            let most = i32::try_from(shared_bytes).unwrap_or(i32::MAX);
            // SAFETY: the kernel's module is loaded. A driver without this call decides at the launch.
            let set = unsafe { api.set_attribute(kernel.handle(), MAX_DYNAMIC_SHARED, most) };
            set.transpose()?;
        }
        // SAFETY: the kernel's module is loaded, and the array has enough arguments for every kernel.
        unsafe {
            api.launch(
                kernel.handle(),
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared_bytes,
                self.handle,
                arguments.pointers(),
                std::ptr::null_mut(),
            )
        }
    }
}

impl Drop for Stream {
    /// If the context is lost or released, its streams and the memory end with the process.
    fn drop(&mut self) {
        if self.is_copying && self.synchronize().is_err() {
            std::mem::forget(self.shared.take());
            return;
        }
        if let Ok(api) = self.context.api() {
            // SAFETY: both are of this context, no copy is in flight, and nobody uses them any more. The device
            // finishes kernels that are still queued.
            unsafe {
                api.free_host(self.staging.as_ptr().cast()).ok();
                api.destroy_stream(self.handle).ok();
            }
        }
    }
}
