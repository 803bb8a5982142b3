//! The binding of one lease behind a lock, with waiting for its changes.
//!
//! The lock is held while the state is read and while access opens, never during a call that may take long.

use std::{
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use fabricbios_lease::{BootTime, Gate, Proof, StepError};
use fabricbios_wire::Generation;

use super::{
    binding_state::{BindingState, Objects, Phase},
    binding_step::{BindStep, CutResult, CutStep, NotNow, ReleaseStep},
};

/// Longest wait of an order for another order on the same lease. The longest order is one whose GID does not resolve:
/// it takes a few seconds, after other orders of this kind.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// The binding of one lease, behind its lock.
#[derive(Debug)]
pub(crate) struct BindingCell<P> {
    state: Mutex<BindingState<P>>,
    changed: Condvar,
    /// The last deadline of the lease, boot time in nanoseconds; 0: none yet.
    deadline: AtomicU64,
}

impl<P> Default for BindingCell<P> {
    fn default() -> Self {
        let state = BindingState {
            gate: Gate::default(),
            was_bound: false,
            changing: false,
            leftovers: Vec::new(),
            phase: Phase::Empty,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            deadline: AtomicU64::new(0),
        }
    }
}

impl<P: Objects> BindingCell<P> {
    /// Locks the state. If a thread panicked with the lock, the phase still says what that thread was doing.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BindingState<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the phase and wakes the waiting threads.
    pub(crate) fn set(&self, phase: Phase<P>) {
        self.lock().phase = phase;
        self.changed.notify_all();
    }

    /// Wakes the waiting threads, after a change under [`BindingCell::lock`].
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Notes the deadline. Never blocks. Returns whether it is another one.
    pub(crate) fn extend(&self, deadline: BootTime) -> bool {
        self.deadline.swap(deadline.0, Ordering::SeqCst) != deadline.0
    }

    /// The last deadline; `None`: no path has one yet, and no client knows the lease.
    pub(crate) fn deadline(&self) -> Option<BootTime> {
        let deadline = BootTime(self.deadline.load(Ordering::SeqCst));
        Some(deadline).filter(|it| it.0 > 0)
    }

    pub(crate) fn begin_bind(&self, generation: Generation, has_peer: bool) -> BindStep<P> {
        let step = self.repeat(|state| state.begin_bind(generation, has_peer));
        step.unwrap_or(BindStep::Refuse(NotNow::Busy))
    }

    /// Begins a cut. `Err`: the cut by another thread did not end in time.
    pub(crate) fn begin_cut(&self, generation: Generation) -> Result<CutStep<P>, StepError> {
        let step = self.repeat(|state| state.begin_cut(generation));
        step.ok_or_else(|| StepError::new("cut", "an earlier cut of the lease has not ended"))
    }

    pub(crate) fn begin_release(&self, generation: Generation) -> ReleaseStep<P> {
        let step = self.repeat(|state| state.begin_release(generation));
        step.unwrap_or(ReleaseStep::Refuse(NotNow::Busy))
    }

    /// Begins a change that leaves the phase as it is, after any other such change has ended. `check` decides whether
    /// the change may begin. [`BindingCell::changed`] ends the change.
    pub(crate) fn begin_change<T>(
        &self,
        check: impl Fn(&mut BindingState<P>) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        let attempt = |state: &mut BindingState<P>| {
            let checked = (!state.changing).then(|| check(state))?;
            state.changing = checked.is_ok();
            Some(checked)
        };
        let begun = self.repeat(attempt);
        begun.unwrap_or_else(|| {
            Err(StepError::new(
                "change",
                "an earlier change of the lease has not ended",
            ))
        })
    }

    /// Ends a change that [`BindingCell::begin_change`] or [`BindStep::Beside`] began. `leftovers`: objects of the
    /// change that could not be destroyed.
    pub(crate) fn changed(&self, leftovers: Vec<P>) {
        let mut state = self.lock();
        state.changing = false;
        state.leftovers.extend(leftovers);
        drop(state);
        self.wake();
    }

    /// Waits until no cut is in progress, and locks the state.
    pub(crate) fn lock_settled(&self) -> Result<MutexGuard<'_, BindingState<P>>, StepError> {
        let until = Instant::now() + WAIT_LIMIT;
        let state = self.lock();
        let cutting = |state: &mut BindingState<P>| matches!(state.phase, Phase::Cutting);
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(state, left, cutting);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        match timeout.timed_out() {
            true => Err(StepError::new("change", "a cut of the lease has not ended")),
            false => Ok(state),
        }
    }

    /// Records the result of the cut of a generation.
    pub(crate) fn finish_cut(
        &self,
        generation: Generation,
        result: CutResult<P>,
    ) -> Result<Proof, StepError> {
        let finished = self.lock().finish_cut(generation, result);
        self.wake();
        finished
    }

    /// Records that the lease is released.
    pub(crate) fn remove(&self) {
        self.lock().gate.remove();
        self.wake();
    }

    /// Whether a cut of this generation has begun. Checked while the binding is being made.
    pub(crate) fn is_revoked(&self, generation: Generation) -> bool {
        self.lock().gate.is_revoked(generation)
    }

    /// Whether this generation gives no access any more. `false` if another thread has the lock: that thread reports
    /// the result itself.
    pub(crate) fn is_closed(&self, generation: Generation) -> bool {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        state.gate.is_closed(generation)
    }

    /// Repeats `attempt` after each change until it returns a step; `None`: it returned no step in time.
    fn repeat<S>(&self, mut attempt: impl FnMut(&mut BindingState<P>) -> Option<S>) -> Option<S> {
        let until = Instant::now() + WAIT_LIMIT;
        let mut state = self.lock();
        loop {
            if let Some(step) = attempt(&mut state) {
                self.changed.notify_all();
                return Some(step);
            }
            let left = until.checked_duration_since(Instant::now())?;
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests;
