//! After the cut: what the lease still has of the device goes, so that nothing holds its bytes any more.

use fabricbios_lease::{Farewell, StepError, Tag};

use super::{
    RdmaBackend,
    life::{ReleaseStep, State},
    parts::Parts,
    slot::Slot,
};

impl RdmaBackend {
    pub(super) fn give_back(&self, tag: Tag) -> Result<(), StepError> {
        let Some(slot) = self.custody().find_or_make(tag.lease_id) else {
            return Ok(());
        };
        let refuse = |why: String| Err(self.hardware.error("release", tag, why));
        let leftovers = match slot.begin_release(tag.generation) {
            ReleaseStep::Tidy(leftovers) => leftovers,
            ReleaseStep::Done => return Ok(()),
            ReleaseStep::Refuse(why) => return refuse(why),
            ReleaseStep::Wait => return refuse("another order does not end".into()),
        };
        let tidied = self.tidy(&slot, leftovers, tag);
        match &tidied {
            Err(error) => slot.set(State::Dirty(error.clone())),
            Ok(()) => {
                slot.remove();
                self.custody().release(tag.lease_id);
            }
        }
        tidied
    }

    /// Destroys what was left behind, after a change beside the state, too.
    pub(super) fn tidy(
        &self,
        slot: &Slot<Parts>,
        leftovers: Vec<Parts>,
        tag: Tag,
    ) -> Result<(), StepError> {
        let tidy = |parts| match self.hardware.dismantle(parts, tag, Farewell::None) {
            Ok((_, leftover)) => leftover,
            Err((parts, error)) => {
                tracing::warn!(%error, "something was left behind");
                Some(parts)
            }
        };
        let stay: Vec<Parts> = leftovers.into_iter().filter_map(tidy).collect();
        let tidied = match stay.is_empty() {
            true => Ok(()),
            false => Err(self
                .hardware
                .error("tidy up", tag, "verbs objects stay: see the log")),
        };
        slot.changed(stay);
        tidied
    }
}
