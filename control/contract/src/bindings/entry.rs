//! One lease of a path.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fabricbios_lease::{BindError, Gate, NotOpened, StepError};
use fabricbios_wire::Generation;
use nix::time::{ClockId, clock_gettime};

use crate::LocalRefusal;

/// One lease of a path: its gate, its deadline and the path's objects.
#[derive(Debug, Default)]
pub struct Entry<M = ()> {
    /// The path's own objects of the lease.
    pub objects: M,
    state: Mutex<EntryState>,
    pub(super) admission: Mutex<()>,
    /// Nanoseconds on the boot-time clock; 0 until the first `extend` after a bind.
    pub(super) deadline: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct EntryState {
    pub(super) gate: Gate,
    /// The tenant of the last binding that opened.
    pub(super) tenant: Arc<str>,
    /// A binding has opened, and no end was proved since.
    pub(super) is_open: bool,
    /// An admission was under way when a cut closed the gate.
    pub(super) cuts_again: bool,
    /// The newest generation whose end was proved after a cut.
    pub(super) proved: Option<Generation>,
}

impl<M> Entry<M> {
    pub(super) fn state(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn admission(&self) -> MutexGuard<'_, ()> {
        self.admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the generation may be made, or used if it has opened.
    #[must_use]
    pub fn admits(&self, generation: Generation) -> bool {
        self.state().gate.admits(generation)
    }

    /// The time until the deadline of a binding that is in use. `check` decides on its tenant.
    ///
    /// # Errors
    /// `check` refuses the tenant, or the lease is not in use.
    pub fn remaining(
        &self,
        check: impl FnOnce(&str) -> Result<(), LocalRefusal>,
    ) -> Result<Duration, LocalRefusal> {
        let state = self.state();
        let generation = state.bound(check)?;
        self.left(&state, generation)
    }

    fn left(&self, state: &EntryState, generation: Generation) -> Result<Duration, LocalRefusal> {
        if !state.is_open || !state.gate.admits(generation) {
            return Err(LocalRefusal::NotActive("it was cut".into()));
        }
        match self.deadline.load(Ordering::Acquire).checked_sub(now()) {
            None | Some(0) => Err(LocalRefusal::NotActive("its deadline has passed".into())),
            Some(left) => Ok(Duration::from_nanos(left)),
        }
    }

    /// Starts an admission, in which the caller gives access. `check` decides on the tenant. The proof of a cut waits
    /// for the end of the admission, and cuts again.
    ///
    /// # Errors
    /// `check` refuses the tenant, or the lease is not in use.
    pub fn admit(
        &self,
        check: impl Fn(&str) -> Result<(), LocalRefusal>,
    ) -> Result<Admission<'_, M>, LocalRefusal> {
        // Checked before the lock too, so that a refusal never waits for the proof of a cut.
        self.remaining(&check)?;
        let guard = self.admission();
        let generation = self.state().bound(check)?;
        let admission = Admission {
            entry: self,
            generation,
            _guard: guard,
        };
        admission.check()?;
        Ok(admission)
    }
}

impl EntryState {
    /// The generation of the lease's binding. `check` decides on its tenant.
    fn bound(
        &self,
        check: impl FnOnce(&str) -> Result<(), LocalRefusal>,
    ) -> Result<Generation, LocalRefusal> {
        let bound = self.gate.generation();
        let bound = bound.ok_or_else(|| LocalRefusal::NotActive("it is not bound yet".into()))?;
        check(&self.tenant)?;
        Ok(bound)
    }

    /// The gate after the binding opens. Access by an older binding that was not cut continues under this binding.
    pub(super) fn opened(&self, generation: Generation) -> Result<Gate, NotOpened> {
        let mut gate = self.gate.clone();
        if let Some(before) = gate.generation().filter(|it| !gate.is_revoked(*it)) {
            gate.ended(before);
        }
        gate.open(generation)?;
        Ok(gate)
    }

    /// Marks that a binding opens. Invariant: none opens behind the proof of its end. A refusal changes nothing.
    ///
    /// # Errors
    /// The gate or the invariant refuses it. A failed invariant fences, since access may have opened behind the proof.
    pub(super) fn opens(&mut self, generation: Generation) -> Result<(), BindError> {
        let opened = self.opened(generation)?;
        if self.proved >= Some(generation) {
            let why = "a binding opens behind the proof of its end; this is a mistake in the node's program";
            return Err(BindError::Stranded(StepError::new("invariant", why)));
        }
        self.gate = opened;
        self.is_open = true;
        Ok(())
    }

    /// Whether no client has access, and none can get access behind a cut.
    pub(super) fn is_ended(&self) -> bool {
        !(self.is_open || self.cuts_again)
    }

    /// Marks the end of this generation as proved.
    pub(super) fn end(&mut self, generation: Generation) {
        self.gate.ended(generation);
        self.is_open = false;
    }
}

/// Access is being given. The binding stays the same meanwhile, and the proof of its cut waits until this is dropped.
#[derive(Debug)]
pub struct Admission<'a, M> {
    entry: &'a Entry<M>,
    generation: Generation,
    _guard: MutexGuard<'a, ()>,
}

impl<M> Admission<'_, M> {
    /// Checks that the lease is still in use. Call it after access was given and before a wait: a cut that has begun
    /// meanwhile may have ended only the access that it found, and its proof waits for this admission.
    ///
    /// # Errors
    /// The lease was cut, or its deadline has passed.
    pub fn check(&self) -> Result<(), LocalRefusal> {
        let state = self.entry.state();
        self.entry.left(&state, self.generation).map(drop)
    }
}

/// Nanoseconds on the boot-time clock, the clock of deadlines.
pub(super) fn now() -> u64 {
    // The call fails only if the kernel does not have the clock; then every lease counts as ended.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
    now.map_or(u64::MAX, |it| {
        u64::try_from(it.as_nanos()).unwrap_or(u64::MAX)
    })
}
