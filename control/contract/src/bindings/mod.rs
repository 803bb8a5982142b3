//! The life of each lease on one path: which binding may open access, until when, and what a cut waits for.
//!
//! A path has one [`Bindings`], and each of its leases one [`Entry`]: the [`Gate`], the deadline, and the path's own
//! objects `M`. The path supplies its calls of the kernel. Bind, extend, revoke, verify and remove are here. An entry
//! has two locks:
//!
//! - **state**, held for a moment and never over a call of the kernel. A deadline and a cut take no other lock of the lease.
//! - **admission**, held by each thread that opens access or takes objects away, also while the kernel waits: a bind,
//!   the entry of a local user's process, the proof, the removal.
//!
//! A cut closes the gate, ends access and does not wait for the admission, which a tenant or another user of the
//! machine may hold up. Access that is being admitted as the gate closes may open after the cut. So a bind asks the
//! gate again when its work is done, and the proof waits for the admission and cuts again before it checks.

mod entry;
mod making;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, atomic::Ordering};

use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Custody, Lookup, Proof, StepError,
};
use fabricbios_wire::LeaseId;

pub use entry::{Admission, Entry};
pub use making::Making;

use crate::{Guard, LocalRefusal, Revoked};

/// The leases of a path, see the module.
#[derive(Debug)]
pub struct Bindings<M = ()> {
    leases: Mutex<Custody<Arc<Entry<M>>>>,
    guard: Option<Arc<dyn Guard>>,
}

impl<M> Default for Bindings<M> {
    fn default() -> Self {
        Self {
            leases: Mutex::default(),
            guard: None,
        }
    }
}

impl<M: Default> Bindings<M> {
    /// No leases yet. `guard` ends the leases that this process cannot end.
    #[must_use]
    pub fn guarded_by(guard: Arc<dyn Guard>) -> Self {
        Self {
            guard: Some(guard),
            ..Self::default()
        }
    }

    fn leases(&self) -> MutexGuard<'_, Custody<Arc<Entry<M>>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of a lease, a new one if there is none. `None`: the lease was removed.
    #[must_use]
    pub fn entry(&self, lease: LeaseId) -> Option<Arc<Entry<M>>> {
        self.leases().find_or_make(lease)
    }

    /// The entry of a lease that a local user wants to use.
    ///
    /// # Errors
    /// The path has no such lease, or it is over.
    pub fn in_use(&self, lease: LeaseId) -> Result<Arc<Entry<M>>, LocalRefusal> {
        LocalRefusal::unless_here(self.leases().find(lease))
    }

    /// See [`Guard::check`].
    ///
    /// # Errors
    /// The lease is new, and no watchdog would end it if this process hangs.
    pub fn check_guard(&self, order: &BindOrder) -> Result<(), BindError> {
        self.guard.as_ref().map_or(Ok(()), |it| it.check(order))
    }

    /// Begins a bind. Makes no object yet.
    ///
    /// # Errors
    /// The lease was removed, or [`Bindings::check_guard`] refuses it.
    pub fn begin(&self, order: &BindOrder) -> Result<Making<'_, M>, BindError> {
        let making = self.begin_unguarded(order.binding_id, &order.tenant)?;
        self.check_guard(order)?;
        Ok(making)
    }

    /// Like [`Bindings::begin`]; the caller checks the guard itself.
    ///
    /// # Errors
    /// The lease was removed.
    pub fn begin_unguarded(
        &self,
        binding_id: BindingId,
        tenant: &Arc<str>,
    ) -> Result<Making<'_, M>, BindError> {
        let entry = self.entry(binding_id.lease_id);
        let entry = entry.ok_or(BindError::Cancelled)?;
        Ok(Making::new(self, entry, binding_id, Arc::clone(tenant)))
    }

    /// Sets the deadline of a binding. Never waits for the kernel.
    ///
    /// # Errors
    /// The binding was cut.
    pub fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        match self.leases().find(binding_id.lease_id) {
            Lookup::Here(entry) if entry.state().gate.is_closed(binding_id.generation) => {
                return Err(AlreadyCut);
            }
            Lookup::Here(entry) => entry.deadline.store(deadline.0, Ordering::Release),
            Lookup::Released => return Err(AlreadyCut),
            // The lease is bound later.
            Lookup::Unknown => {}
        }
        if let Some(guard) = &self.guard {
            guard.extend(binding_id, deadline);
        }
        Ok(())
    }

    /// Closes the gate and ends access with `cut`. Waits for no admission.
    ///
    /// # Errors
    /// `cut` failed: its error.
    pub fn revoke(
        &self,
        binding_id: BindingId,
        cut: impl FnOnce(&M) -> Result<Revoked, StepError>,
    ) -> Result<Revoked, StepError> {
        // Under this lock, because a failed bind forgets an entry whose gate no cut has closed.
        let mut leases = self.leases();
        let Some(entry) = leases.find_or_make(binding_id.lease_id) else {
            return Ok(Revoked::proved(removed()));
        };
        let closed = entry.state().gate.revoke(binding_id.generation);
        drop(leases);
        if let Err(moved_on) = closed {
            return Ok(Revoked::proved(moved_on.into()));
        }
        // A thread that takes the lock from now on finds the gate closed.
        let cuts_again = matches!(entry.admission.try_lock(), Err(TryLockError::WouldBlock));
        if cuts_again {
            entry.state().cuts_again = true;
        }
        let revoked = cut(&entry.objects)?;
        Ok(Revoked {
            is_proved: revoked.is_proved && !cuts_again,
            ..revoked
        })
    }

    /// Waits for the admission that was under way when the gate closed, and then cuts again. Then proves with `prove`,
    /// which gets the data of the cut and adds its own steps.
    ///
    /// # Errors
    /// `cut` or `prove` failed: its error.
    pub fn verify(
        &self,
        binding_id: BindingId,
        revoked: Option<&Revoked>,
        cut: impl FnOnce(&M) -> Result<Revoked, StepError>,
        prove: impl FnOnce(&M, Option<&Revoked>) -> Result<Proof, StepError>,
    ) -> Result<Proof, StepError> {
        let Some(entry) = self.entry(binding_id.lease_id) else {
            return Ok(removed());
        };
        let check_current = || entry.state().gate.check_current(binding_id.generation);
        // Checked before the lock too: no proof waits for an admission of a newer binding.
        if let Err(moved_on) = check_current() {
            return Ok(moved_on.into());
        }
        let _admission = entry.admission();
        if let Err(moved_on) = check_current() {
            return Ok(moved_on.into());
        }
        let cuts_again = entry.state().cuts_again;
        let mut proof = revoked.map(|it| it.steps.clone()).unwrap_or_default();
        let mut known = revoked;
        if cuts_again {
            proof = proof.and(cut(&entry.objects)?.steps);
            // Neither cut alone has ended all access.
            known = None;
        }
        if known.is_none_or(|it| !it.is_proved) {
            proof = proof.and(prove(&entry.objects, known)?);
        }
        let mut state = entry.state();
        state.cuts_again = false;
        if state.gate.is_closed(binding_id.generation) {
            state.end(binding_id.generation);
            state.proved = state.proved.max(Some(binding_id.generation));
        }
        drop(state);
        if let Some(guard) = &self.guard {
            guard.over(binding_id);
        }
        Ok(proof)
    }

    /// Removes the objects of a lease with `clean`. The lease never comes back.
    ///
    /// # Errors
    /// The end of access is not proved, or `clean` failed.
    pub fn remove(
        &self,
        lease: LeaseId,
        clean: impl FnOnce(&M) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        let Some(entry) = self.entry(lease) else {
            return Ok(());
        };
        let _admission = entry.admission();
        if !entry.state().is_ended() {
            let why = format_args!("lease {lease}: it was not revoked");
            return Err(StepError::new("remove", why));
        }
        clean(&entry.objects)?;
        entry.state().gate.remove();
        self.leases().release(lease);
        Ok(())
    }
}

fn removed() -> Proof {
    Proof::nothing_to_cut("the lease was removed before")
}

#[cfg(test)]
mod tests;
