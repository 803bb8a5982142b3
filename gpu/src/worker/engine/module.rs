//! Modules and launches.

use std::sync::Arc;

use fabricbios_wire::{GpuReply, Refusal};

use super::{Engine, LOCAL_BYTES_FREE, unknown};
use crate::{
    driver::{DriverError, Kernel},
    worker::{
        image,
        modules::{Loaded, load},
        refusal::{exceeded, invalid},
    },
};

/// Most bytes of the images of all loaded modules.
const IMAGE_BYTES_MAX: u64 = 1 << 30;

impl Engine {
    /// Checks that the client may send a module of `length` bytes.
    pub(in crate::worker) fn check_image(&self, length: u32) -> Result<(), Refusal> {
        let state = self.open()?;
        state.check_count()?;
        let loaded = state.image_bytes;
        if loaded + u64::from(length) > IMAGE_BYTES_MAX {
            let why = format!(
                "length is {length}; modules may have {IMAGE_BYTES_MAX} bytes, and {loaded} are loaded"
            );
            return Err(exceeded(true, why));
        }
        Ok(())
    }

    pub(in crate::worker) fn load(&self, bytes: Vec<u8>) -> Result<GpuReply, Refusal> {
        image::check(self.order.device.vendor, &bytes)?;
        let _taking = self.taking();
        // Several queues may have passed the first check at the same time.
        self.check_image(u32::try_from(bytes.len()).unwrap_or(u32::MAX))?;
        let loaded = load(&self.context, bytes).map_err(|error| self.failed(&error, invalid))?;
        let mut state = self.write();
        state.check_count()?;
        let taken = loaded.device_bytes;
        state.module_bytes += taken;
        if taken > 0 && state.used() > self.order.vram_bytes {
            state.module_bytes -= taken;
            let why = format!(
                "the module takes {taken} bytes of the device; lease {} has {} bytes of memory, and {} of them are in use",
                self.order.lease_id,
                self.order.vram_bytes,
                state.used()
            );
            return Err(exceeded(true, why));
        }
        state.image_bytes += loaded.image_bytes;
        let number = state.number();
        state.modules.insert(number, Arc::new(loaded));
        let module = self.handle(number);
        Ok(GpuReply::Module { module })
    }

    pub(in crate::worker) fn unload(&self, handle: u64) -> Result<GpuReply, Refusal> {
        self.module(handle)?;
        self.synchronize()?;
        let _taking = self.taking();
        let mut state = self.write();
        // Kernels of the module may have been queued meanwhile.
        self.synchronize()?;
        let number = self.number_in("module", handle)?;
        let loaded = state
            .modules
            .remove(&number)
            .ok_or_else(|| unknown("module", handle))?;
        state.image_bytes -= loaded.image_bytes;
        state.module_bytes -= loaded.device_bytes;
        Ok(GpuReply::Done)
    }

    pub(in crate::worker) fn module(&self, handle: u64) -> Result<Arc<Loaded>, Refusal> {
        let state = self.open()?;
        let found = state.modules.get(&self.number_in("module", handle)?);
        found.cloned().ok_or_else(|| unknown("module", handle))
    }

    /// Counts the memory that the driver takes for a kernel's local variables at its first launch.
    pub(in crate::worker) fn count_local(&self, kernel: &Kernel) -> Result<(), Refusal> {
        let each = kernel.local_bytes.saturating_sub(LOCAL_BYTES_FREE);
        let takes = each.saturating_mul(self.context.resident_threads());
        if takes <= self.open()?.local_bytes {
            return Ok(());
        }
        let _taking = self.taking();
        let mut state = self.write();
        let cap = self.order.vram_bytes;
        let others = state.used().saturating_sub(state.local_bytes);
        if others.saturating_add(takes) > cap {
            let why = format!(
                "each thread of the kernel has {} bytes of variables, for which the driver takes {takes} bytes of the device; \
                 lease {} has {cap} bytes of memory, and {others} of them are in use",
                kernel.local_bytes, self.order.lease_id
            );
            return Err(exceeded(takes <= cap, why));
        }
        state.local_bytes = state.local_bytes.max(takes);
        Ok(())
    }

    /// Queues work that uses no handle.
    pub(in crate::worker) fn launch(
        &self,
        queue: impl FnOnce() -> Result<(), DriverError>,
        refused: impl Fn(String) -> Refusal,
    ) -> Result<(), Refusal> {
        let _state = self.open()?;
        queue().map_err(|error| self.failed(&error, refused))
    }
}
