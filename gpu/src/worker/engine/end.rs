//! The end of a session: closed, or lost.

use std::{sync::RwLockReadGuard, time::Duration};

use fabricbios_wire::{GpuReply, Refusal};

use super::{Engine, EngineState, Memory};
use crate::{
    driver::{DriverError, Stream, wipe_free},
    worker::refusal::{exceeded, internal, invalid, lost, not_found},
};

impl Engine {
    /// Fails if the session is closed or lost.
    pub(in crate::worker) fn check_open(&self) -> Result<(), Refusal> {
        self.open().map(drop)
    }

    /// True if the context is lost.
    pub(in crate::worker) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Ends the session although its kernels still run: the process ends and wipes nothing.
    pub(in crate::worker) fn abandon(&self, after: Duration) -> Refusal {
        let secs = after.as_secs();
        let why = format!(
            "a kernel has not ended {secs} s after the close, and ends with the session's process"
        );
        self.lost.set(why.clone()).ok();
        lost(format!(
            "session {} is over: {why}; its memory is wiped when the lease is over",
            self.order.session
        ))
    }

    /// Ends the session: wipes and frees everything. `idle` is called when all kernels have ended.
    pub(in crate::worker) fn close(
        &self,
        stream: &mut Stream,
        idle: impl FnOnce(),
    ) -> Result<GpuReply, Refusal> {
        // A second close is refused while the first one wipes.
        self.check_open()?;
        let _taking = self.taking();
        let (memories, modules) = {
            let mut state = self.write();
            if let Some(refusal) = self.over_in(&state) {
                return Err(refusal);
            }
            // From now on nothing is queued.
            state.is_closed = true;
            (
                std::mem::take(&mut state.memories),
                std::mem::take(&mut state.modules),
            )
        };
        let synchronized = self.context.synchronize();
        idle();
        let memories = memories.into_values().collect();
        let wiped = synchronized.and_then(|()| self.wipe(stream, memories));
        drop(modules);
        let closed = wiped.and_then(|wiped_bytes| {
            if !self.order.scrub_at_close {
                let free_bytes = self.order.vram_bytes;
                return Ok(GpuReply::Closed {
                    wiped_bytes,
                    free_bytes,
                });
            }
            let wiped = wipe_free(&self.context, &mut |_, _| {})?;
            Ok(GpuReply::Closed {
                wiped_bytes: wiped.bytes,
                free_bytes: wiped.free_bytes,
            })
        });
        closed.map_err(|error| {
            let refusal = self.failed(&error, internal);
            // Memory that could not be wiped ends the session like a lost context.
            self.lost.set(error.to_string()).ok();
            refusal
        })
    }

    pub(super) fn wipe(
        &self,
        stream: &mut Stream,
        memories: Vec<Memory>,
    ) -> Result<u64, DriverError> {
        for memory in &memories {
            stream.zero(memory.address, memory.bytes)?;
        }
        stream.synchronize()?;
        memories
            .iter()
            .try_for_each(|memory| self.context.free(memory.address))?;
        Ok(memories.iter().map(|memory| memory.bytes).sum())
    }

    /// Converts a failed call of the driver into a refusal. `refused` makes the refusal if neither memory nor the
    /// context is the cause.
    pub(in crate::worker) fn failed(
        &self,
        error: &DriverError,
        refused: impl Fn(String) -> Refusal,
    ) -> Refusal {
        if error.is_out_of_memory() {
            return exceeded(true, format!("device {}: {error}", self.order.device.uuid));
        }
        if !error.is_lost() {
            return refused(format!("device {}: {error}", self.order.device.uuid));
        }
        let fault = if error.is_kernel_fault() {
            format!("a kernel of it failed: {error}")
        } else {
            format!("device {} is lost: {error}", self.order.device.uuid)
        };
        let is_first = self.lost.set(fault.clone()).is_ok();
        let why = format!(
            "session {} is over: {fault}; open a new one",
            self.order.session
        );
        if is_first && error.is_kernel_fault() {
            invalid(why)
        } else {
            lost(why)
        }
    }

    pub(super) fn over_in(&self, state: &EngineState) -> Option<Refusal> {
        let session = self.order.session;
        match self.lost.get() {
            Some(why) => Some(lost(format!(
                "session {session} is over: {why}; open a new one"
            ))),
            None if state.is_closed => Some(not_found(format!(
                "session {session} was closed; open a new one"
            ))),
            None => None,
        }
    }

    /// Locks the state for reading. Fails if the session is over.
    pub(super) fn open(&self) -> Result<RwLockReadGuard<'_, EngineState>, Refusal> {
        let state = self.read();
        match self.over_in(&state) {
            Some(refusal) => Err(refusal),
            None => Ok(state),
        }
    }
}
