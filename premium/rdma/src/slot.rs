//! One lease's life behind a lock, and waiting for it to change.
//!
//! The lock is held for looking and for opening access, never while the kernel may take its time.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use fabricbios_lease::{Gate, Proof, StepError};
use fabricbios_wire::Generation;

use super::life::{BindStep, CutResult, CutStep, Life, ReleaseStep, State};

/// How long an order waits for another order on the same lease. The longest that one takes is a
/// GID that does not resolve, a few seconds, behind others of its kind.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// One lease.
#[derive(Debug)]
pub(crate) struct Slot<P> {
    life: Mutex<Life<P>>,
    changed: Condvar,
}

impl<P> Default for Slot<P> {
    fn default() -> Self {
        let life = Life {
            gate: Gate::default(),
            was_bound: false,
            changing: false,
            leftovers: Vec::new(),
            state: State::Empty,
        };
        Self {
            life: Mutex::new(life),
            changed: Condvar::new(),
        }
    }
}

impl<P> Slot<P> {
    /// The lock. A thread that panicked with it left a state that says what it was doing.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Life<P>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes who waits for that.
    pub(crate) fn set(&self, state: State<P>) {
        self.lock().state = state;
        self.changed.notify_all();
    }

    /// Wakes who waits, after a change under [`Slot::lock`].
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    pub(crate) fn begin_bind(&self, generation: Generation, has_peer: bool) -> BindStep<P> {
        let step = self.repeat(
            |life| life.begin_bind(generation, has_peer),
            |step| matches!(step, BindStep::Wait),
        );
        step.unwrap_or_else(|| BindStep::Refuse("another order for the lease does not end".into()))
    }

    /// `Err`: another thread's cut did not end in time.
    pub(crate) fn begin_cut(&self, generation: Generation) -> Result<CutStep<P>, StepError> {
        self.repeat(
            |life| life.begin_cut(generation),
            |step| matches!(step, CutStep::Wait),
        )
        .ok_or_else(|| StepError::new("cut", "an earlier cut of the lease does not end"))
    }

    pub(crate) fn begin_release(&self, generation: Generation) -> ReleaseStep<P> {
        let step = self.repeat(
            |life| life.begin_release(generation),
            |step| matches!(step, ReleaseStep::Wait),
        );
        step.unwrap_or_else(|| {
            ReleaseStep::Refuse("another order for the lease does not end".into())
        })
    }

    /// Begins a change that works beside the state, when no other one does and `check` says what it
    /// is. [`Slot::changed`] ends it.
    pub(crate) fn begin_change<T>(
        &self,
        check: impl Fn(&mut Life<P>) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        let attempt = |life: &mut Life<P>| {
            let checked = (!life.changing).then(|| check(life))?;
            life.changing = checked.is_ok();
            Some(checked)
        };
        let begun = self.repeat(attempt, Option::is_none).flatten();
        begun.unwrap_or_else(|| Err(StepError::new("change", "an earlier one does not end")))
    }

    /// A change beside the state is over, and left these behind.
    pub(crate) fn changed(&self, leftovers: Vec<P>) {
        let mut life = self.lock();
        life.changing = false;
        life.leftovers.extend(leftovers);
        drop(life);
        self.wake();
    }

    /// The lock, when no cut is under way.
    pub(crate) fn lock_settled(&self) -> Result<MutexGuard<'_, Life<P>>, StepError> {
        let until = Instant::now() + WAIT_LIMIT;
        let life = self.lock();
        let cutting = |life: &mut Life<P>| matches!(life.state, State::Cutting);
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(life, left, cutting);
        let (life, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        match timeout.timed_out() {
            true => Err(StepError::new("change", "a cut of the lease does not end")),
            false => Ok(life),
        }
    }

    /// Records how the cut of a generation ended.
    pub(crate) fn finish_cut(
        &self,
        generation: Generation,
        result: CutResult<P>,
    ) -> Result<Proof, StepError> {
        match result {
            Ok((proof, leftover)) => {
                let mut life = self.lock();
                life.leftovers.extend(leftover);
                life.gate.ended(generation);
                life.state = State::Cut(proof.clone());
                drop(life);
                self.wake();
                Ok(proof)
            }
            Err((remains, error)) => {
                self.set(State::Failed {
                    remains,
                    error: error.clone(),
                });
                Err(error)
            }
        }
    }

    /// The lease is over.
    pub(crate) fn remove(&self) {
        self.lock().gate.remove();
        self.wake();
    }

    /// Whether a cut has come for the binding of that generation, which is being made.
    pub(crate) fn is_revoked(&self, generation: Generation) -> bool {
        self.lock().gate.is_revoked(generation)
    }

    /// Whether nothing of this generation gives access any more, as far as that is known without waiting: whoever has
    /// the lock now says it when it is done.
    pub(crate) fn is_over(&self, generation: Generation) -> bool {
        let life = self.life.try_lock();
        life.is_ok_and(|life| life.gate.is_over(generation))
    }

    fn repeat<S>(
        &self,
        mut attempt: impl FnMut(&mut Life<P>) -> S,
        is_wait: impl Fn(&S) -> bool,
    ) -> Option<S> {
        let until = Instant::now() + WAIT_LIMIT;
        let mut life = self.lock();
        loop {
            let step = attempt(&mut life);
            if !is_wait(&step) {
                self.changed.notify_all();
                return Some(step);
            }
            let left = until.checked_duration_since(Instant::now())?;
            let woken = self.changed.wait_timeout(life, left);
            life = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_lease::Shut;

    use super::*;

    const G1: Generation = Generation(1);
    const G2: Generation = Generation(2);

    type TestSlot = Slot<&'static str>;

    fn slot(generation: Generation, state: State<&'static str>) -> TestSlot {
        let slot = Slot::default();
        slot.lock().gate.begin(generation);
        slot.set(state);
        slot
    }

    fn live() -> TestSlot {
        slot(G1, State::Live("parts"))
    }

    fn error() -> StepError {
        StepError::new("dealloc_mw", "EIO")
    }

    #[test]
    fn a_new_lease_is_made_from_nothing() {
        assert_eq!(TestSlot::default().begin_bind(G1, true), BindStep::Fresh);
    }

    #[test]
    fn a_prepared_queue_pair_is_connected_and_not_replaced() {
        let slot = slot(G1, State::Prepared("parts"));
        assert_eq!(slot.begin_bind(G2, true), BindStep::Connect("parts"));
        assert_eq!(slot.lock().gate.generation(), Some(G2));
    }

    #[test]
    fn a_new_binding_is_made_beside_the_older_one_which_stays_as_it_is() {
        let slot = live();
        assert_eq!(slot.begin_bind(G2, true), BindStep::Beside);
        assert!(matches!(slot.lock().state, State::Live("parts")));
        assert_eq!(slot.lock().gate.generation(), Some(G1));
        assert_eq!(slot.lock().begin_bind(Generation(3), true), BindStep::Wait);
        slot.changed(Vec::new());
        assert_eq!(slot.begin_bind(Generation(3), true), BindStep::Beside);
    }

    #[test]
    fn a_cut_does_not_wait_for_a_binding_beside_and_ends_both() {
        let slot = live();
        assert_eq!(slot.begin_bind(G2, true), BindStep::Beside);
        assert!(!slot.is_revoked(G2));
        assert_eq!(slot.begin_cut(G2), Ok(CutStep::Cut("parts")));
        slot.finish_cut(G2, Ok((Proof::default(), None))).unwrap();
        assert!(slot.is_revoked(G2), "it must not open any more");
        assert_eq!(slot.lock().begin_release(G2), ReleaseStep::Wait);
        slot.changed(vec!["rest"]);
        assert_eq!(slot.begin_release(G2), ReleaseStep::Tidy(vec!["rest"]));
    }

    #[test]
    fn the_end_of_the_older_binding_lets_the_one_beside_it_open() {
        let slot = live();
        assert_eq!(slot.begin_bind(G2, true), BindStep::Beside);
        assert_eq!(slot.begin_cut(G1), Ok(CutStep::Cut("parts")));
        assert_eq!(slot.lock().gate.open(G2), Err(Shut::Occupied(G1)));
        slot.finish_cut(G1, Ok((Proof::default(), None))).unwrap();
        assert_eq!(slot.lock().gate.open(G2), Ok(()));
    }

    #[test]
    fn what_an_earlier_bind_left_goes_before_the_next_one() {
        let slot = live();
        assert_eq!(slot.begin_bind(G2, true), BindStep::Beside);
        slot.changed(vec!["rest"]);
        let g3 = Generation(3);
        assert_eq!(slot.begin_bind(g3, true), BindStep::Tidy(vec!["rest"]));
        slot.changed(Vec::new());
        assert_eq!(slot.begin_bind(g3, true), BindStep::Beside);
    }

    #[test]
    fn a_binding_that_could_not_be_cut_strands_the_next() {
        let slot = live();
        assert_eq!(slot.begin_cut(G1), Ok(CutStep::Cut("parts")));
        assert_eq!(slot.finish_cut(G1, Err(("parts", error()))), Err(error()));
        assert_eq!(slot.begin_bind(G2, true), BindStep::Stranded(error()));
    }

    #[test]
    fn a_bind_after_the_cut_of_its_generation_is_cancelled() {
        let slot = TestSlot::default();
        assert!(matches!(slot.begin_cut(G2), Ok(CutStep::Unreachable(_))));
        assert_eq!(slot.begin_bind(G1, true), BindStep::Cancelled);
        assert_eq!(slot.begin_bind(G2, true), BindStep::Cancelled);
        assert_eq!(slot.begin_bind(Generation(3), true), BindStep::Fresh);
    }

    #[test]
    fn an_older_order_never_touches_a_newer_binding() {
        let slot = slot(G2, State::Live("parts"));
        assert!(matches!(slot.begin_cut(G1), Ok(CutStep::Unreachable(_))));
        assert_eq!(slot.begin_bind(G1, true), BindStep::Cancelled);
        assert!(matches!(slot.begin_release(G1), ReleaseStep::Refuse(_)));
        assert!(matches!(slot.lock().state, State::Live("parts")));
        assert!(!slot.is_revoked(G2));
    }

    #[test]
    fn a_cut_during_connecting_does_not_wait_and_cancels() {
        let slot = TestSlot::default();
        assert_eq!(slot.begin_bind(G1, true), BindStep::Fresh);
        assert!(!slot.is_revoked(G1));
        assert!(matches!(slot.begin_cut(G1), Ok(CutStep::Unreachable(_))));
        assert!(slot.is_revoked(G1));
    }

    #[test]
    fn a_release_waits_for_a_cancelled_bind_to_end() {
        let slot = TestSlot::default();
        assert_eq!(slot.begin_bind(G1, true), BindStep::Fresh);
        assert!(
            matches!(slot.begin_release(G1), ReleaseStep::Refuse(_)),
            "not cut yet"
        );
        assert!(matches!(slot.begin_cut(G1), Ok(CutStep::Unreachable(_))));
        std::thread::scope(|threads| {
            let release = threads.spawn(|| slot.begin_release(G1));
            slot.finish_cut(G1, Ok((Proof::default(), None))).unwrap();
            assert_eq!(release.join().unwrap(), ReleaseStep::Tidy(Vec::new()));
        });
    }

    #[test]
    fn a_newer_bind_cancels_an_older_one_that_is_connecting() {
        let slot = TestSlot::default();
        assert_eq!(slot.begin_bind(G1, true), BindStep::Fresh);
        assert_eq!(slot.lock().begin_bind(G2, true), BindStep::Wait);
        assert!(slot.is_revoked(G1));
    }

    #[test]
    fn a_failed_cut_is_tried_again_by_the_next_and_blocks_release() {
        let slot = live();
        assert_eq!(slot.begin_cut(G1), Ok(CutStep::Cut("parts")));
        assert_eq!(slot.lock().begin_cut(G1), CutStep::Wait);
        assert!(slot.finish_cut(G1, Err(("parts", error()))).is_err());
        assert!(matches!(slot.begin_release(G1), ReleaseStep::Refuse(_)));
        assert_eq!(slot.begin_cut(G1), Ok(CutStep::Cut("parts")));
    }

    #[test]
    fn cut_and_release_are_idempotent() {
        let slot = live();
        assert_eq!(slot.begin_cut(G1), Ok(CutStep::Cut("parts")));
        slot.finish_cut(G1, Ok((Proof::default(), Some("rest"))))
            .unwrap();
        assert_eq!(
            slot.begin_cut(G1),
            Ok(CutStep::Unreachable(Proof::default()))
        );
        assert_eq!(slot.begin_release(G1), ReleaseStep::Tidy(vec!["rest"]));
        slot.remove();
        assert_eq!(slot.begin_release(G1), ReleaseStep::Done);
        assert!(matches!(slot.begin_cut(G1), Ok(CutStep::Unreachable(_))));
    }

    #[test]
    fn a_cut_does_not_wait_for_a_rotation_and_the_release_after_it_does() {
        let slot = live();
        slot.begin_change(|_| Ok(())).unwrap();
        assert_eq!(slot.begin_cut(G1), Ok(CutStep::Cut("parts")));
        slot.finish_cut(G1, Ok((Proof::default(), None))).unwrap();
        assert_eq!(slot.lock().begin_release(G1), ReleaseStep::Wait);
        assert_eq!(slot.lock().begin_bind(G2, true), BindStep::Wait);
        slot.changed(Vec::new());
        assert_eq!(slot.begin_release(G1), ReleaseStep::Tidy(Vec::new()));
    }

    #[test]
    fn a_bind_that_came_to_nothing_removes_its_slot_once() {
        let slot = TestSlot::default();
        assert_eq!(slot.begin_bind(G1, true), BindStep::Fresh);
        assert!(!slot.lock().remove_if_nothing(), "it is being bound");
        slot.finish_cut(G1, Ok((Proof::default(), None))).unwrap();
        assert!(slot.lock().remove_if_nothing());
        assert_eq!(slot.begin_bind(G2, true), BindStep::Cancelled);
        assert!(!slot.lock().remove_if_nothing(), "its place may be taken");
    }

    #[test]
    fn a_change_that_is_refused_is_over() {
        let slot = live();
        let refused: Result<(), _> = slot.begin_change(|_| Err(error()));
        assert_eq!(refused, Err(error()));
        assert!(!slot.lock().changing);
    }

    #[test]
    fn a_live_lease_is_not_released() {
        assert!(matches!(live().begin_release(G1), ReleaseStep::Refuse(_)));
    }

    #[test]
    fn binding_the_same_generation_twice_is_refused() {
        assert!(matches!(live().begin_bind(G1, true), BindStep::Refuse(_)));
    }
}
