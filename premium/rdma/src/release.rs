//! After the cut: tidy, scrub, forget. And the remediation of what could not be cut or scrubbed.

use fabricbios_lease::{Backend, Extent, Farewell, StepError, Tag};

use super::{
    RdmaBackend,
    life::{ReleaseStep, State},
    memory,
    parts::Parts,
    slot::Slot,
    table::Known,
};

impl RdmaBackend {
    pub(super) fn give_back(
        &self,
        tag: Tag,
        extent: Extent,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        memory::check(&self.hardware.arena, extent)?;
        let slot = match self.table.find(tag.lease_id) {
            Known::Slot(slot) => slot,
            // Scrubbing again would hit whoever has the bytes now.
            Known::Released => return Ok(()),
            Known::No => return self.scrub_unknown(tag, extent, progress),
        };
        let refuse = |why: String| Err(self.hardware.error("release", tag, why));
        match slot.begin_release(tag.generation) {
            ReleaseStep::Scrub(leftovers) => self.scrub(&slot, leftovers, (tag, extent), progress),
            ReleaseStep::Done => Ok(()),
            ReleaseStep::Refuse(why) => refuse(why),
            ReleaseStep::Wait => refuse("another order does not end".into()),
        }
    }

    fn scrub(
        &self,
        slot: &Slot<Parts>,
        leftovers: Vec<Parts>,
        (tag, extent): (Tag, Extent),
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        let tidied = self.tidy(slot, leftovers, tag);
        let scrubbed = tidied
            .and_then(|()| self.check_same(slot, extent, tag))
            .and_then(|()| memory::scrub(&self.hardware.arena, extent, progress));
        match &scrubbed {
            Err(error) => slot.set(State::Dirty(error.clone())),
            Ok(()) => {
                slot.remove();
                self.table.released(tag.lease_id);
            }
        }
        scrubbed
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

    /// Scrubbing other bytes than were bound would leave the tenant's where they are.
    fn check_same(&self, slot: &Slot<Parts>, extent: Extent, tag: Tag) -> Result<(), StepError> {
        match slot.lock().extent {
            Some(bound) if bound != extent => {
                let detail = format!("bound {bound:?}, asked to release {extent:?}");
                Err(self.hardware.error("release", tag, detail))
            }
            _ => Ok(()),
        }
    }

    /// A lease that this backend never bound, or whose bind came to nothing.
    fn scrub_unknown(
        &self,
        tag: Tag,
        extent: Extent,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        if let Some(other) = self.table.holder_besides(tag.lease_id, extent) {
            let detail = format!("the bytes belong to lease {other} by now");
            return Err(self.hardware.error("release", tag, detail));
        }
        memory::scrub(&self.hardware.arena, extent, progress)?;
        self.table.released(tag.lease_id);
        Ok(())
    }

    /// Cuts and releases again, whatever state the lease was left in, and looks whether it is gone.
    pub(super) fn remedy(&self, tag: Tag, extent: Extent) -> Result<(), StepError> {
        self.cut(tag, Farewell::None)?;
        self.release(tag, extent, &|| ())?;
        match self.table.find(tag.lease_id) {
            Known::Slot(_) => Err(self.hardware.error("reset", tag, "it is still there")),
            Known::Released | Known::No => Ok(()),
        }
    }
}
