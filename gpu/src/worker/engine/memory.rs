//! Buffers.

use fabricbios_wire::{GpuReply, GpuSharedCopy, Refusal};

use super::{Engine, EngineState, Memory, number_of, unknown};
use crate::{
    driver::{DriverError, Stream},
    worker::refusal::{exceeded, internal, invalid},
};

/// Bytes of device memory that a buffer uses: drivers allocate in units.
fn taken(bytes: u64) -> u64 {
    let unit = if bytes > 1 << 20 { 2 << 20 } else { 512 };
    bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
}

impl Engine {
    /// Allocates memory and fills it with zeroes: it may have bytes of another tenant whose worker died.
    pub(in crate::worker) fn allocate(
        &self,
        stream: &mut Stream,
        bytes: u64,
    ) -> Result<GpuReply, Refusal> {
        // A closed session answers at once, also while it is being wiped.
        drop(self.open()?);
        let _taking = self.taking();
        let (used, cap) = {
            let state = self.open()?;
            state.check_count()?;
            (state.used(), self.order.vram_bytes)
        };
        let takes = taken(bytes);
        if used.checked_add(takes).is_none_or(|all| all > cap) {
            let why = format!(
                "bytes is {bytes}, which take {takes} of the device; lease {} has {cap} bytes of memory, and {used} of them are in use",
                self.order.lease_id
            );
            return Err(exceeded(takes <= cap, why));
        }
        let failed = |error: DriverError| self.failed(&error, internal);
        let address = self.context.allocate(bytes).map_err(failed)?;
        let zeroed = stream
            .zero(address, bytes)
            .and_then(|()| stream.synchronize());
        if let Err(error) = zeroed {
            self.context.free(address).ok();
            return Err(failed(error));
        }
        let mut state = self.write();
        state.buffer_bytes += takes;
        let number = state.number();
        state.memories.insert(number, Memory { address, bytes });
        let memory = self.handle(number);
        Ok(GpuReply::Memory { memory, address })
    }

    /// Wipes and frees memory.
    pub(in crate::worker) fn free(
        &self,
        stream: &mut Stream,
        handle: u64,
    ) -> Result<GpuReply, Refusal> {
        self.memory(&*self.open()?, handle)?;
        self.synchronize()?;
        let _taking = self.taking();
        let mut state = self.write();
        // Another queue may have freed the memory, or closed the session.
        let memory = match self.over_in(&state) {
            Some(refusal) => return Err(refusal),
            None => self.memory(&state, handle)?,
        };
        let wiped = self.context.synchronize().and_then(|()| {
            stream.zero(memory.address, memory.bytes)?;
            stream.synchronize()?;
            self.context.free(memory.address)
        });
        wiped.map_err(|error| self.failed(&error, internal))?;
        state.memories.remove(&number_of(handle));
        state.buffer_bytes -= taken(memory.bytes);
        Ok(GpuReply::Done)
    }

    /// Queues work on a part of a buffer; `queue` gets the address of the part.
    pub(in crate::worker) fn copy(
        &self,
        (handle, offset, length): (u64, u64, u64),
        queue: impl FnOnce(u64) -> Result<(), DriverError>,
    ) -> Result<(), Refusal> {
        let state = self.open()?;
        let memory = self.memory(&state, handle)?;
        if offset
            .checked_add(length)
            .is_none_or(|end| end > memory.bytes)
        {
            let why = format!(
                "offset {offset} and length {length} are past the end of memory {handle:#x}, which has {} bytes",
                memory.bytes
            );
            return Err(invalid(why));
        }
        queue(memory.address + offset).map_err(|error| self.failed(&error, internal))
    }

    /// Checks the bounds of a part of the memory that a stream shares.
    pub(in crate::worker) fn check_shared(
        &self,
        stream: &Stream,
        copy: &GpuSharedCopy,
    ) -> Result<(), Refusal> {
        let (offset, length, has) = (copy.shared_offset, copy.length, stream.shared_bytes());
        if offset.checked_add(length).is_some_and(|end| end <= has) {
            return Ok(());
        }
        let why = format!(
            "shared_offset {offset} and length {length} are past the end of the shared memory, which has {has} bytes"
        );
        Err(invalid(why))
    }

    pub(super) fn memory(&self, state: &EngineState, handle: u64) -> Result<Memory, Refusal> {
        let number = self.number_in("memory", handle)?;
        state
            .memories
            .get(&number)
            .copied()
            .ok_or_else(|| unknown("memory", handle))
    }
}
