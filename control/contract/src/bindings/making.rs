//! One bind.

use std::sync::{Arc, atomic::Ordering};

use fabricbios_lease::{BindError, BindingId, Gate, StepError};
use fabricbios_wire::Generation;

use super::{Bindings, Entry};

/// A binding that is being made. If nothing of the lease is left at the end, its entry is removed.
#[derive(Debug)]
pub struct Making<'a, M: Default> {
    bindings: &'a Bindings<M>,
    entry: Arc<Entry<M>>,
    binding_id: BindingId,
    tenant: Arc<str>,
    /// The generation of the binding that was there when this bind began.
    before: Option<Generation>,
}

impl<'a, M: Default> Making<'a, M> {
    pub(super) fn new(
        bindings: &'a Bindings<M>,
        entry: Arc<Entry<M>>,
        binding_id: BindingId,
        tenant: Arc<str>,
    ) -> Self {
        let before = entry.state().gate.generation();
        Self {
            bindings,
            entry,
            binding_id,
            tenant,
            before,
        }
    }

    /// The objects of the path.
    #[must_use]
    pub fn objects(&self) -> &M {
        &self.entry.objects
    }

    /// Checks that the binding may open now.
    ///
    /// # Errors
    /// A cut, a newer generation or the removal came first.
    pub fn check(&self) -> Result<(), BindError> {
        let opened = self.entry.state().opened(self.binding_id.generation);
        Ok(opened.map(drop)?)
    }

    /// Opens access with `admit` beside the access by an older binding, which continues. Can be called once for each
    /// step of a bind that opens access.
    ///
    /// # Errors
    /// `admit` failed, or the gate refused: a cut may have begun meanwhile. The path undoes what `admit` has done, or
    /// leaves it to the cut.
    pub fn beside<T, E: From<BindError>>(
        &self,
        admit: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let _admission = self.entry.admission();
        self.open()?;
        let admitted = admit().and_then(|admitted| {
            self.check_again()?;
            Ok(admitted)
        });
        match &admitted {
            Ok(_) => self.entry.deadline.store(0, Ordering::Release),
            Err(_) if self.before.is_none() => self.undone(self.before),
            Err(_) => {}
        }
        admitted
    }

    /// Replaces the older binding, which ends first: `end` ends all access to the lease, `make` makes objects that give
    /// no access yet, and `open` opens access. `end` is called after a failure too, but not for a binding that was
    /// `adopted`: its own cut ends it.
    ///
    /// # Errors
    /// `make` or `open` failed, or the gate refused the binding. `Stranded`: `end` failed.
    pub fn anew<T>(
        &self,
        adopted: bool,
        make: impl FnOnce() -> Result<T, StepError>,
        open: impl FnOnce(T) -> Result<(), StepError>,
        end: impl Fn() -> Result<(), StepError>,
    ) -> Result<(), BindError> {
        let _admission = self.entry.admission();
        self.check_again()?;
        // Another bind may have opened while this one waited for the admission.
        let before = self.entry.state().gate.generation();
        // In this run, an adopted binding follows at most a failed attempt. Its objects are in use since an earlier
        // run.
        if let Some(before) = before.filter(|_| !adopted) {
            end().map_err(BindError::Stranded)?;
            self.entry.state().end(before);
        }
        self.open()?;
        self.entry.deadline.store(0, Ordering::Release);
        let made = make().map_err(BindError::Failed).and_then(|made| {
            self.check_again()?;
            open(made).map_err(BindError::Failed)?;
            self.check_again()
        });
        let Err(error) = made else { return Ok(()) };
        if adopted {
            return Err(error);
        }
        end().map_err(BindError::Stranded)?;
        self.undone(before);
        Err(match before {
            Some(_) => error.lost(),
            None => error,
        })
    }

    fn open(&self) -> Result<(), BindError> {
        let mut state = self.entry.state();
        state.opens(self.binding_id.generation)?;
        state.tenant = Arc::clone(&self.tenant);
        Ok(())
    }

    /// Whether no cut has begun.
    fn check_again(&self) -> Result<(), BindError> {
        match self.entry.admits(self.binding_id.generation) {
            true => Ok(()),
            false => Err(BindError::Cancelled),
        }
    }

    /// Marks that nothing of this binding and of an older one is left.
    fn undone(&self, before: Option<Generation>) {
        let mut state = self.entry.state();
        state.end(self.binding_id.generation);
        // No cut knows of the lease, and no order names it any more.
        if before.is_none() && state.gate.revoked().is_none() {
            state.gate = Gate::default();
        }
    }
}

impl<M: Default> Drop for Making<'_, M> {
    fn drop(&mut self) {
        let mut leases = self.bindings.leases();
        if self.entry.state().gate == Gate::default() {
            leases.forget(self.binding_id.lease_id);
        }
    }
}
