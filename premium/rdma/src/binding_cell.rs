//! The binding of one lease behind a lock, with waiting for its changes.
//!
//! The lock is held while the state is read and while access opens, never during a call that may take long.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError},
    time::{Duration, Instant},
};

use fabricbios_lease::{Gate, Proof, StepError};
use fabricbios_wire::Generation;

use super::binding_state::{
    BindStep, BindingState, CutResult, CutStep, NotNow, Objects, Phase, ReleaseStep,
};

/// Longest wait of an order for another order on the same lease. The longest order is one whose GID does not resolve:
/// it takes a few seconds, after other orders of this kind.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// The binding of one lease, behind its lock.
#[derive(Debug)]
pub(crate) struct BindingCell<P> {
    state: Mutex<BindingState<P>>,
    changed: Condvar,
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
mod tests {
    use fabricbios_lease::{BindError, NotOpened};

    use super::*;

    const G1: Generation = Generation(1);
    const G2: Generation = Generation(2);

    type TestCell = BindingCell<&'static str>;

    impl Objects for &'static str {
        fn may_give_access(&self) -> bool {
            *self == "queue pair"
        }
    }

    fn cell(generation: Generation, phase: Phase<&'static str>) -> TestCell {
        let cell = BindingCell::default();
        cell.lock().gate.begin(generation);
        cell.set(phase);
        cell
    }

    fn live() -> TestCell {
        cell(G1, Phase::Live("parts"))
    }

    fn error() -> StepError {
        StepError::new("dealloc_mw", "EIO")
    }

    #[test]
    fn a_new_binding_is_made_beside_the_older_one_which_stays_as_it_is() {
        let cell = live();
        assert_eq!(cell.begin_bind(G2, true), BindStep::Beside);
        assert!(matches!(cell.lock().phase, Phase::Live("parts")));
        assert_eq!(cell.lock().gate.generation(), Some(G1));
        assert_eq!(cell.lock().begin_bind(Generation(3), true), None);
        cell.changed(Vec::new());
        assert_eq!(cell.begin_bind(Generation(3), true), BindStep::Beside);
    }

    #[test]
    fn a_cut_does_not_wait_for_a_binding_beside_and_ends_both() {
        let cell = live();
        assert_eq!(cell.begin_bind(G2, true), BindStep::Beside);
        assert!(!cell.is_revoked(G2));
        assert_eq!(cell.begin_cut(G2), Ok(CutStep::Cut("parts")));
        cell.finish_cut(G2, Ok((Proof::default(), None))).unwrap();
        assert!(cell.is_revoked(G2), "it must not open any more");
        assert_eq!(cell.lock().begin_release(G2), None);
        cell.changed(vec!["rest"]);
        assert_eq!(cell.begin_release(G2), ReleaseStep::Tidy(vec!["rest"]));
    }

    #[test]
    fn the_end_of_the_older_binding_lets_the_one_beside_it_open() {
        let cell = live();
        assert_eq!(cell.begin_bind(G2, true), BindStep::Beside);
        assert_eq!(cell.begin_cut(G1), Ok(CutStep::Cut("parts")));
        assert_eq!(cell.lock().gate.open(G2), Err(NotOpened::Occupied(G1)));
        cell.finish_cut(G1, Ok((Proof::default(), None))).unwrap();
        assert_eq!(cell.lock().gate.open(G2), Ok(()));
    }

    #[test]
    fn what_an_earlier_bind_left_goes_before_the_next_one() {
        let cell = live();
        assert_eq!(cell.begin_bind(G2, true), BindStep::Beside);
        cell.changed(vec!["rest"]);
        let g3 = Generation(3);
        assert_eq!(cell.begin_bind(g3, true), BindStep::Tidy(vec!["rest"]));
        cell.changed(Vec::new());
        assert_eq!(cell.begin_bind(g3, true), BindStep::Beside);
    }

    #[test]
    fn a_binding_that_could_not_be_cut_strands_the_next() {
        let cell = live();
        assert_eq!(cell.begin_cut(G1), Ok(CutStep::Cut("parts")));
        assert_eq!(cell.finish_cut(G1, Err(("parts", error()))), Err(error()));
        assert_eq!(cell.begin_bind(G2, true), BindStep::Stranded(error()));
    }

    #[test]
    fn a_cut_during_connecting_does_not_wait_and_cancels() {
        let cell = TestCell::default();
        assert_eq!(cell.begin_bind(G1, true), BindStep::Fresh);
        assert!(!cell.is_revoked(G1));
        assert!(matches!(cell.begin_cut(G1), Ok(CutStep::Unreachable(_))));
        assert!(cell.is_revoked(G1));
    }

    #[test]
    fn a_release_waits_for_a_cancelled_bind_to_end() {
        let cell = TestCell::default();
        assert_eq!(cell.begin_bind(G1, true), BindStep::Fresh);
        assert!(
            matches!(cell.begin_release(G1), ReleaseStep::Refuse(_)),
            "not cut yet"
        );
        assert!(matches!(cell.begin_cut(G1), Ok(CutStep::Unreachable(_))));
        std::thread::scope(|threads| {
            let release = threads.spawn(|| cell.begin_release(G1));
            cell.finish_cut(G1, Ok((Proof::default(), None))).unwrap();
            assert_eq!(release.join().unwrap(), ReleaseStep::Tidy(Vec::new()));
        });
    }

    #[test]
    fn a_newer_bind_cancels_an_older_one_that_is_connecting() {
        let cell = TestCell::default();
        assert_eq!(cell.begin_bind(G1, true), BindStep::Fresh);
        assert_eq!(cell.lock().begin_bind(G2, true), None);
        assert!(cell.is_revoked(G1));
    }

    #[test]
    fn a_cut_does_not_wait_for_a_rotation_and_the_release_after_it_does() {
        let cell = live();
        cell.begin_change(|_| Ok(())).unwrap();
        assert_eq!(cell.begin_cut(G1), Ok(CutStep::Cut("parts")));
        cell.finish_cut(G1, Ok((Proof::default(), None))).unwrap();
        assert_eq!(cell.lock().begin_release(G1), None);
        assert_eq!(cell.lock().begin_bind(G2, true), None);
        cell.changed(Vec::new());
        assert_eq!(cell.begin_release(G1), ReleaseStep::Tidy(Vec::new()));
    }

    #[test]
    fn a_binding_is_closed_after_its_cut_also_if_a_thread_panicked_with_the_lock() {
        let cell = live();
        std::thread::scope(|threads| {
            let thread = threads.spawn(|| {
                let _state = cell.lock();
                panic!("the lock is poisoned");
            });
            thread.join().unwrap_err();
        });
        assert!(!cell.is_closed(G1));
        assert_eq!(cell.begin_cut(G1), Ok(CutStep::Cut("parts")));
        assert!(cell.is_closed(G1));
    }

    #[test]
    fn a_bind_that_came_to_nothing_removes_its_cell_once() {
        let cell = TestCell::default();
        assert_eq!(cell.begin_bind(G1, true), BindStep::Fresh);
        assert!(!cell.lock().remove_if_nothing(), "it is being bound");
        cell.finish_cut(G1, Ok((Proof::default(), None))).unwrap();
        assert!(cell.lock().remove_if_nothing());
        assert_eq!(cell.begin_bind(G2, true), BindStep::Cancelled);
        assert!(!cell.lock().remove_if_nothing(), "its place may be taken");
    }

    #[test]
    fn a_change_that_is_refused_is_over() {
        let cell = live();
        let refused: Result<(), _> = cell.begin_change(|_| Err(error()));
        assert_eq!(refused, Err(error()));
        assert!(!cell.lock().changing);
    }

    #[test]
    fn binding_the_same_generation_twice_is_refused() {
        assert!(matches!(live().begin_bind(G1, true), BindStep::Refuse(_)));
    }

    #[test]
    fn a_proof_behind_which_something_is_open_fails_the_cut() {
        let cell = live();
        assert_eq!(cell.begin_cut(G1), Ok(CutStep::Cut("parts")));
        let finished = cell.finish_cut(G1, Ok((Proof::default(), Some("queue pair"))));
        let error = finished.unwrap_err().to_string();
        assert!(
            error.contains("ended") && error.contains("mistake"),
            "{error}"
        );
        assert!(matches!(cell.begin_release(G1), ReleaseStep::Refuse(_)));
        assert_eq!(cell.begin_cut(G1), Ok(CutStep::Cut("queue pair")));
    }

    #[test]
    fn a_binding_does_not_open_over_objects_of_another_one() {
        let cell = live();
        cell.lock().gate.ended(G1);
        let Err(BindError::Stranded(error)) = cell.lock().open(G2) else {
            panic!("it opened");
        };
        assert!(error.to_string().contains("one: "), "{error}");
        assert!(matches!(cell.lock().phase, Phase::Live("parts")));
    }
}
