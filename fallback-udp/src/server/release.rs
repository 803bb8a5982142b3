//! The release after a cut: it waits for I/O in flight, closes the storage and remembers only that the lease has ended.

use std::{
    mem,
    sync::{Arc, PoisonError},
};

use fabricbios_lease::{BindingId, StepError};

use super::{
    binding_state::{BindingCell, BindingState, Phase},
    clock,
    entry::{Content, Entry},
    udp_path::UdpPath,
};
use crate::AccessState;

impl<C: Content> UdpPath<C> {
    /// Releases a binding that was cut, once it has no I/O in flight.
    pub(super) fn give_back(
        &self,
        binding_id: BindingId,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        let Some(cell) = self.custody().find_or_make(binding_id.lease_id) else {
            // The lease was released before: its bytes may have a new holder. The lease may have been fenced since then
            // because of another path; this second release then reports that the other path is clean too.
            if let Some(entry) = self.leases.of(binding_id) {
                entry.set(AccessState::Over);
            }
            return Ok(());
        };
        let _turn = cell
            .releasing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let begun = cell.lock().begin_release(binding_id)?;
        let Some(entry) = begun else {
            return Ok(());
        };
        let cleaned = entry.as_ref().map_or(Ok(()), |entry| {
            let quiet = entry.content.wait_until_quiet(progress);
            quiet.map_err(|why| StepError {
                detail: format!("{binding_id}: {}", why.detail),
                ..why
            })?;
            entry.close()
        });
        self.finish(&cell, binding_id, entry, cleaned)
    }

    fn finish(
        &self,
        cell: &BindingCell<C>,
        binding_id: BindingId,
        entry: Option<Arc<Entry<C>>>,
        cleaned: Result<(), StepError>,
    ) -> Result<(), StepError> {
        let mut state = cell.lock();
        if let Err(error) = &cleaned {
            state.phase = Phase::Dirty {
                error: error.clone(),
                entry,
            };
            return cleaned;
        }
        state.gate.remove();
        drop(state);
        if let Some(entry) = entry {
            self.leases.remember(entry, clock::now());
        }
        self.custody().release(binding_id.lease_id);
        Ok(())
    }
}

impl<C> BindingState<C> {
    /// The entry to clean up, if the lease was bound; the phase is Releasing then. `None`: the lease was released
    /// before.
    fn begin_release(
        &mut self,
        binding_id: BindingId,
    ) -> Result<Option<Option<Arc<Entry<C>>>>, StepError> {
        let refuse = |why: &str| {
            Err(StepError::new(
                "release",
                format_args!("{binding_id}: {why}"),
            ))
        };
        if let Err(moved_on) = self.gate.check_current(binding_id.generation) {
            return refuse(&moved_on.to_string());
        }
        if self.gate.is_removed() {
            return Ok(None);
        }
        let entry = match mem::take(&mut self.phase) {
            Phase::Cut { entry, .. } => Some(entry),
            // Releasing: the thread that began the release is gone, since this thread has the lock `releasing`.
            Phase::Dirty { entry, .. } | Phase::Releasing(entry) => entry,
            Phase::Empty => None,
            other => {
                let step = match &other {
                    Phase::Failed { error, .. } => refuse(&format!("its cut failed: {error}")),
                    _ => refuse("it is not cut"),
                };
                self.phase = other;
                return step;
            }
        };
        self.phase = Phase::Releasing(entry.clone());
        Ok(Some(entry))
    }
}
