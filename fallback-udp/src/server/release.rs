//! After the cut: clean up, remember that the lease is over, forget the rest.

use std::{
    mem,
    sync::{Arc, PoisonError},
};

use fabricbios_lease::{StepError, Tag};

use super::{
    clock,
    entry::{Content, Entry},
    life::{Life, Slot, State},
    road::Road,
};
use crate::Standing;

/// What a release has to do.
enum Step<C> {
    /// Clean up; the state is Releasing.
    Clean(Option<Arc<Entry<C>>>),
    /// Done before.
    Done,
}

impl<C: Content> Road<C> {
    /// Ends a binding that was cut: `clean` takes away what is left of it, once nothing of it is under way.
    pub(super) fn give_back(
        &self,
        tag: Tag,
        progress: &dyn Fn(),
        clean: impl FnOnce(&Entry<C>),
    ) -> Result<(), StepError> {
        let Some(slot) = self.custody().find_or_make(tag.lease_id) else {
            // Scrubbing again would hit whoever has the bytes now. The lease may have been fenced
            // meanwhile for what another road left, and that is remedied when this is asked again.
            if let Some(entry) = self.serving.leases.of(tag) {
                entry.set(Standing::Over);
            }
            return Ok(());
        };
        let _turn = slot
            .releasing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let begun = slot.lock().begin_release(tag)?;
        let Step::Clean(entry) = begun else {
            return Ok(());
        };
        let cleaned = wait_until_quiet(tag, entry.as_deref(), progress);
        if let (Ok(()), Some(entry)) = (&cleaned, &entry) {
            clean(entry);
        }
        self.finish(&slot, tag, entry, cleaned)
    }

    fn finish(
        &self,
        slot: &Slot<C>,
        tag: Tag,
        entry: Option<Arc<Entry<C>>>,
        cleaned: Result<(), StepError>,
    ) -> Result<(), StepError> {
        let mut life = slot.lock();
        if let Err(error) = &cleaned {
            life.state = State::Dirty {
                error: error.clone(),
                entry,
            };
            return cleaned;
        }
        life.gate.remove();
        drop(life);
        if let Some(entry) = entry {
            self.serving.leases.remember(entry, clock::now());
        }
        self.custody().release(tag.lease_id);
        Ok(())
    }
}

fn wait_until_quiet<C: Content>(
    tag: Tag,
    entry: Option<&Entry<C>>,
    progress: &dyn Fn(),
) -> Result<(), StepError> {
    let quiet = entry.map_or(Ok(()), |entry| entry.content.wait_until_quiet(progress));
    quiet.map_err(|why| StepError::new("release", format_args!("{tag}: {why}")))
}

impl<C> Life<C> {
    fn begin_release(&mut self, tag: Tag) -> Result<Step<C>, StepError> {
        let refuse = |why: &str| Err(StepError::new("release", format_args!("{tag}: {why}")));
        if let Err(moved_on) = self.gate.check_current(tag.generation) {
            return refuse(&moved_on.to_string());
        }
        if self.gate.is_removed() {
            return Ok(Step::Done);
        }
        let entry = match mem::take(&mut self.state) {
            State::Cut { entry, .. } => Some(entry),
            // Releasing: the thread that was at it is gone, or this one would be waiting for it.
            State::Dirty { entry, .. } | State::Releasing(entry) => entry,
            State::Empty => None,
            other => {
                let step = match &other {
                    State::Failed { error, .. } => refuse(&format!("its cut failed: {error}")),
                    _ => refuse("it is not cut"),
                };
                self.state = other;
                return step;
            }
        };
        self.state = State::Releasing(entry.clone());
        Ok(Step::Clean(entry))
    }
}
