//! A second key beside the first, for a while.
//!
//! Never the same window bound again: one access with the old key would kill the queue pair at
//! both ends. The new key has a window of its own on the same queue pair.

use fabricbios_lease::{BindError, StepError, Tag};
use fabricbios_wire::Binding;

use super::{
    RdmaBackend,
    connect::Parts,
    life::{Life, State},
    slot::Slot,
    verbs::{QueuePairState, Window},
};

impl RdmaBackend {
    pub(super) fn add_key(&self, tag: Tag) -> Result<Binding, BindError> {
        let slot = self.bound_slot(tag, "rotate").map_err(BindError::Refused)?;
        self.check_rotation(&slot, tag)
            .map_err(BindError::Refused)?;
        // Made without the lock, since it may take the kernel a while.
        let window = self.hardware.new_window(tag).map_err(BindError::Failed)?;
        let mut life = slot.lock();
        let cancelled = life.is_cancelled();
        match self.live(&mut life, tag, "rotate") {
            Ok(parts) => {
                let binding = self.bind_beside(parts, window, tag)?;
                life.generation = life.generation.max(tag.generation);
                Ok(binding)
            }
            Err(error) => Err(self.unused(window, tag, cancelled, error)),
        }
    }

    /// Whether a second key can be made.
    fn check_rotation(&self, slot: &Slot<Parts>, tag: Tag) -> Result<(), StepError> {
        let mut life = slot.lock();
        let parts = self.live(&mut life, tag, "rotate")?;
        let refuse = |why: &str| Err(self.hardware.error("rotate", tag, why));
        if parts.windows.len() > 1 {
            return refuse("the key before the last rotation is not retired yet");
        }
        match parts.state() {
            Ok(QueuePairState::ReadyToSend) => Ok(()),
            Ok(_) => refuse("the queue pair has failed: bind the lease again with a new one"),
            Err(errno) => Err(self.hardware.error("query_qp", tag, errno)),
        }
    }

    fn bind_beside(
        &self,
        parts: &mut Parts,
        window: Window,
        tag: Tag,
    ) -> Result<Binding, BindError> {
        parts.windows.push(window);
        let error = match self.hardware.bind_newest(parts, tag) {
            Ok(()) => return Ok(self.hardware.binding(parts)),
            Err(error) => error,
        };
        match parts.windows.pop().map(Window::dealloc) {
            Some(Err((window, errno))) => {
                // The cut tries again.
                parts.doomed.push(window);
                Err(BindError::Stranded(self.hardware.error(
                    "dealloc_mw",
                    tag,
                    errno,
                )))
            }
            _ => Err(BindError::Failed(error)),
        }
    }

    /// The lease ended while its new window was made.
    fn unused(&self, window: Window, tag: Tag, cancelled: bool, error: StepError) -> BindError {
        match window.dealloc() {
            Err((_, errno)) => BindError::Stranded(self.hardware.error("dealloc_mw", tag, errno)),
            Ok(()) if cancelled => BindError::Cancelled,
            Ok(()) => BindError::Failed(error),
        }
    }

    pub(super) fn drop_old_key(&self, tag: Tag) -> Result<Binding, StepError> {
        let slot = self.bound_slot(tag, "retire key")?;
        let mut life = slot.lock();
        let parts = self.live(&mut life, tag, "retire key")?;
        if parts.windows.len() > 1 {
            self.hardware.retire_oldest(parts, tag)?;
        }
        Ok(self.hardware.binding(parts))
    }

    /// The objects of a lease in use, if the order is not for an older binding.
    fn live<'a>(
        &self,
        life: &'a mut Life<Parts>,
        tag: Tag,
        step: &str,
    ) -> Result<&'a mut Parts, StepError> {
        let current = life.generation <= tag.generation && !life.is_cancelled();
        match &mut life.state {
            State::Live(parts) if current => Ok(parts),
            _ => Err(self
                .hardware
                .error(step, tag, "the lease has no window now")),
        }
    }
}
