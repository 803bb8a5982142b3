//! After the cut: tidy, scrub, forget. And the remediation of what could not be cut or scrubbed.

use fabricbios_lease::{Backend, Extent, Farewell, Lookup, StepError, Tag};

use super::{
    RdmaBackend,
    life::{ReleaseStep, State},
    memory,
    parts::Parts,
    slot::Slot,
};

impl RdmaBackend {
    pub(super) fn give_back(
        &self,
        tag: Tag,
        extent: Extent,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        memory::check(&self.hardware.arena, extent)?;
        let found = self.custody().find(tag.lease_id);
        let slot = match found {
            Lookup::Here(slot) => slot,
            // Scrubbing again would hit whoever has the bytes now.
            Lookup::Released => return Ok(()),
            Lookup::Unknown => return self.scrub_unknown(tag, extent, progress),
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
            .and_then(|()| self.check_part(tag, extent))
            .and_then(|()| memory::scrub(&self.hardware.arena, extent, progress));
        match &scrubbed {
            Err(error) => slot.set(State::Dirty(error.clone())),
            Ok(()) => {
                slot.remove();
                self.custody().release(tag.lease_id);
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
    fn check_part(&self, tag: Tag, extent: Extent) -> Result<(), StepError> {
        let checked = self.custody().check(tag.lease_id, extent);
        checked.map_err(|why| {
            let detail = format!("asked to release {extent:?}, but {why}");
            self.hardware.error("release", tag, detail)
        })
    }

    /// A lease that this backend never bound, or whose bind came to nothing.
    fn scrub_unknown(
        &self,
        tag: Tag,
        extent: Extent,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        self.check_part(tag, extent)?;
        memory::scrub(&self.hardware.arena, extent, progress)?;
        self.custody().release(tag.lease_id);
        Ok(())
    }

    /// Cuts and releases again, whatever state the lease was left in, and looks whether it is gone.
    pub(super) fn remedy(&self, tag: Tag, extent: Extent) -> Result<(), StepError> {
        self.cut(tag, Farewell::None)?;
        self.release(tag, extent, &|| ())?;
        match self.custody().find(tag.lease_id) {
            Lookup::Here(_) => Err(self.hardware.error("reset", tag, "it is still there")),
            Lookup::Released | Lookup::Unknown => Ok(()),
        }
    }
}
