//! The release after a cut: destroys the leftovers, so that no object holds the bytes of the lease any more.

use fabricbios_lease::{BindingId, Linger, StepError};

use super::{
    RdmaPath, binding_cell::BindingCell, binding_state::Phase, binding_step::ReleaseStep,
    parts::Parts,
};

impl RdmaPath {
    pub(super) fn give_back(&self, binding_id: BindingId) -> Result<(), StepError> {
        let Some(cell) = self.custody().find_or_make(binding_id.lease_id) else {
            return Ok(());
        };
        let leftovers = match cell.begin_release(binding_id.generation) {
            ReleaseStep::Tidy(leftovers) => leftovers,
            ReleaseStep::Done => return Ok(()),
            ReleaseStep::Refuse(why) => {
                return Err(self.hardware.error("release", binding_id, why));
            }
        };
        let tidied = self.tidy(&cell, leftovers, binding_id);
        match &tidied {
            Err(error) => cell.set(Phase::Dirty(error.clone())),
            Ok(()) => {
                cell.remove();
                self.custody().release(binding_id.lease_id);
            }
        }
        tidied
    }

    /// Destroys leftovers, including those of a failed change.
    pub(super) fn tidy(
        &self,
        cell: &BindingCell<Parts>,
        leftovers: Vec<Parts>,
        binding_id: BindingId,
    ) -> Result<(), StepError> {
        let tidy = |parts| match self.hardware.dismantle(parts, binding_id, Linger::None) {
            Ok((_, leftover)) => leftover,
            Err((parts, error)) => {
                tracing::warn!(%error, "something was left behind");
                Some(parts)
            }
        };
        let stay: Vec<Parts> = leftovers.into_iter().filter_map(tidy).collect();
        let tidied = match stay.is_empty() {
            true => Ok(()),
            false => {
                Err(self
                    .hardware
                    .error("tidy up", binding_id, "verbs objects stay: see the log"))
            }
        };
        cell.changed(stay);
        tidied
    }
}
