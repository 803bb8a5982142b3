//! The life of one lease's binding: who may touch its verbs objects, and what may follow what.
//!
//! ```text
//!            ┌──────────────── cut, bind again ───────────────┐
//!            ▼                                                │
//! Empty ─► Connecting ─► Prepared ─► Connecting ─► Live ─► Cutting ─► Cut ─► Releasing ─► Gone
//!            │  cancelled: the binding thread undoes its own     │              │
//!            └──────────────────────────► Cut                 Failed          Dirty
//! ```
//!
//! While a state holds objects (`P`), the lock guards them; in Connecting, Cutting and Releasing
//! one thread has taken them out and works without the lock. A cut never waits for Connecting:
//! nothing can be reached before the window is bound, and that happens under the lock, after a
//! look at `cut_through`. Pure but for the lock: no verbs here, `P` is anything.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use fabricbios_lease::{Extent, StepError};
use fabricbios_wire::Generation;

/// How long an order waits for another order on the same lease. The longest that one takes is a
/// GID that does not resolve, a few seconds, behind others of its kind.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// One lease.
#[derive(Debug)]
pub(crate) struct Slot<P> {
    life: Mutex<Life<P>>,
    changed: Condvar,
}

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct Life<P> {
    /// Of the newest binding that was begun.
    pub(crate) generation: Generation,
    /// Bindings up to this one must not open access any more.
    pub(crate) cut_through: Option<Generation>,
    pub(crate) extent: Option<Extent>,
    pub(crate) state: State<P>,
}

#[derive(Debug)]
pub(crate) enum State<P> {
    /// Never bound.
    Empty,
    /// A thread is making the binding.
    Connecting,
    /// A queue pair without peer, window and access.
    Prepared(P),
    /// In use.
    Live(P),
    /// A thread is taking it down.
    Cutting,
    /// Proven unreachable; `leftover` is dead but still takes up room.
    Cut { proof: String, leftover: Option<P> },
    /// Could not be proven unreachable.
    Failed { remains: P, error: StepError },
    /// A thread is scrubbing.
    Releasing,
    /// Unreachable, but could not be scrubbed or tidied.
    Dirty {
        leftover: Option<P>,
        error: StepError,
    },
    /// Released; the slot is on its way out of the table.
    Gone,
}

/// What a bind has to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BindStep<P> {
    /// Make everything; the state is Connecting.
    Fresh,
    /// Connect what was prepared; the state is Connecting.
    Connect(P),
    /// Cut this, report with [`Slot::finish_cut`], ask again.
    CutFirst(P),
    /// A cut came first.
    Cancelled,
    /// The order makes no sense now.
    Refuse(String),
    /// An older binding could not be cut.
    Stranded(StepError),
    /// Ask again when something has changed.
    Wait,
}

/// What a cut has to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CutStep<P> {
    /// Take this down and report with [`Slot::finish_cut`].
    Cut(P),
    /// Nothing can be reached, for this reason.
    Unreachable(String),
    /// Ask again when something has changed.
    Wait,
}

/// What a release has to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReleaseStep<P> {
    /// Tidy the leftover and scrub; the state is Releasing.
    Scrub(Option<P>),
    /// Done before.
    Done,
    /// It is not cut.
    Refuse(String),
    /// Ask again when something has changed.
    Wait,
}

/// How a cut ended: proof and leftover, or remains and error.
pub(crate) type CutResult<P> = Result<(String, Option<P>), (P, StepError)>;

impl<P> Slot<P> {
    pub(crate) fn new() -> Self {
        let life = Life {
            generation: Generation(0),
            cut_through: None,
            extent: None,
            state: State::Empty,
        };
        Self {
            life: Mutex::new(life),
            changed: Condvar::new(),
        }
    }

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

    /// Records how a cut ended.
    pub(crate) fn finish_cut(&self, result: CutResult<P>) -> Result<String, StepError> {
        match result {
            Ok((proof, leftover)) => {
                self.set(State::Cut {
                    proof: proof.clone(),
                    leftover,
                });
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

    /// Whether a cut has come for the binding that is being made.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.lock().is_cancelled()
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

impl<P> Life<P> {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cut_through
            .is_some_and(|through| through >= self.generation)
    }

    fn begin_bind(&mut self, generation: Generation, has_peer: bool) -> BindStep<P> {
        let newer = self.generation > generation && !matches!(self.state, State::Empty);
        if newer
            || self
                .cut_through
                .is_some_and(|through| through >= generation)
        {
            return BindStep::Cancelled;
        }
        let same = self.generation == generation;
        match std::mem::replace(&mut self.state, State::Cutting) {
            State::Empty | State::Cut { leftover: None, .. } => {
                self.start(generation);
                BindStep::Fresh
            }
            State::Prepared(parts) if has_peer => {
                self.start(generation);
                BindStep::Connect(parts)
            }
            State::Prepared(parts) | State::Live(parts) if !same => BindStep::CutFirst(parts),
            State::Cut {
                leftover: Some(parts),
                ..
            } => BindStep::CutFirst(parts),
            other => self.cannot_bind(other, generation),
        }
    }

    /// The states that a bind leaves as they are.
    fn cannot_bind(&mut self, state: State<P>, generation: Generation) -> BindStep<P> {
        let step = match &state {
            State::Connecting if self.generation < generation => {
                self.cut_through = self.cut_through.max(Some(self.generation));
                BindStep::Wait
            }
            State::Cutting | State::Releasing => BindStep::Wait,
            State::Failed { error, .. } => BindStep::Stranded(error.clone()),
            State::Dirty { error, .. } => BindStep::Refuse(format!("not clean: {error}")),
            State::Gone => BindStep::Cancelled,
            _ => BindStep::Refuse(format!("generation {} is bound already", generation.0)),
        };
        self.state = state;
        step
    }

    fn start(&mut self, generation: Generation) {
        self.generation = generation;
        self.state = State::Connecting;
    }

    fn begin_cut(&mut self, generation: Generation) -> CutStep<P> {
        self.cut_through = self.cut_through.max(Some(generation));
        if self.generation > generation {
            let newer = self.generation.0;
            return CutStep::Unreachable(format!("the lease has moved on to generation {newer}"));
        }
        match std::mem::replace(&mut self.state, State::Cutting) {
            State::Prepared(parts) | State::Live(parts) | State::Failed { remains: parts, .. } => {
                CutStep::Cut(parts)
            }
            State::Cutting => CutStep::Wait,
            other => {
                let why = why_unreachable(&other);
                self.state = other;
                CutStep::Unreachable(why)
            }
        }
    }

    fn begin_release(&mut self, generation: Generation) -> ReleaseStep<P> {
        if self.generation > generation {
            let newer = self.generation.0;
            return ReleaseStep::Refuse(format!("the lease has moved on to generation {newer}"));
        }
        let refuse = |why: &str| ReleaseStep::Refuse(why.into());
        match std::mem::replace(&mut self.state, State::Releasing) {
            State::Cut { leftover, .. } | State::Dirty { leftover, .. } => {
                ReleaseStep::Scrub(leftover)
            }
            State::Empty => ReleaseStep::Scrub(None),
            other => {
                let step = match &other {
                    State::Connecting if !self.is_cancelled() => refuse("it is being bound"),
                    State::Connecting | State::Cutting | State::Releasing => ReleaseStep::Wait,
                    State::Failed { error, .. } => refuse(&format!("its cut failed: {error}")),
                    State::Gone => ReleaseStep::Done,
                    _ => refuse("it is not cut"),
                };
                self.state = other;
                step
            }
        }
    }
}

fn why_unreachable<P>(state: &State<P>) -> String {
    match state {
        State::Cut { proof, .. } => proof.clone(),
        State::Connecting => "no window is bound yet, and none will be".into(),
        State::Empty => "it was never bound".into(),
        _ => "it was cut before".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G1: Generation = Generation(1);
    const G2: Generation = Generation(2);

    type TestSlot = Slot<&'static str>;

    fn slot(generation: Generation, state: State<&'static str>) -> TestSlot {
        let slot = Slot::new();
        slot.lock().generation = generation;
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
        assert_eq!(TestSlot::new().begin_bind(G1, true), BindStep::Fresh);
    }

    #[test]
    fn a_prepared_queue_pair_is_connected_and_not_replaced() {
        let slot = slot(G1, State::Prepared("parts"));
        assert_eq!(slot.begin_bind(G2, true), BindStep::Connect("parts"));
        assert_eq!(slot.lock().generation, G2);
    }

    #[test]
    fn an_older_binding_is_cut_before_a_new_one() {
        let slot = live();
        assert_eq!(slot.begin_bind(G2, true), BindStep::CutFirst("parts"));
        slot.finish_cut(Ok(("proof".into(), None))).unwrap();
        assert_eq!(slot.begin_bind(G2, true), BindStep::Fresh);
    }

    #[test]
    fn a_binding_that_could_not_be_cut_strands_the_next() {
        let slot = live();
        assert_eq!(slot.begin_bind(G2, true), BindStep::CutFirst("parts"));
        assert_eq!(slot.finish_cut(Err(("parts", error()))), Err(error()));
        assert_eq!(slot.begin_bind(G2, true), BindStep::Stranded(error()));
    }

    #[test]
    fn a_bind_after_the_cut_of_its_generation_is_cancelled() {
        let slot = TestSlot::new();
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
        assert!(!slot.is_cancelled());
    }

    #[test]
    fn a_cut_during_connecting_does_not_wait_and_cancels() {
        let slot = TestSlot::new();
        assert_eq!(slot.begin_bind(G1, true), BindStep::Fresh);
        assert!(!slot.is_cancelled());
        assert!(matches!(slot.begin_cut(G1), Ok(CutStep::Unreachable(_))));
        assert!(slot.is_cancelled());
    }

    #[test]
    fn a_release_waits_for_a_cancelled_bind_to_end() {
        let slot = TestSlot::new();
        assert_eq!(slot.begin_bind(G1, true), BindStep::Fresh);
        assert!(
            matches!(slot.begin_release(G1), ReleaseStep::Refuse(_)),
            "not cut yet"
        );
        assert!(matches!(slot.begin_cut(G1), Ok(CutStep::Unreachable(_))));
        std::thread::scope(|threads| {
            let release = threads.spawn(|| slot.begin_release(G1));
            slot.finish_cut(Ok(("undone".into(), None))).unwrap();
            assert_eq!(release.join().unwrap(), ReleaseStep::Scrub(None));
        });
    }

    #[test]
    fn a_newer_bind_cancels_an_older_one_that_is_connecting() {
        let slot = TestSlot::new();
        assert_eq!(slot.begin_bind(G1, true), BindStep::Fresh);
        assert_eq!(slot.lock().begin_bind(G2, true), BindStep::Wait);
        assert!(slot.is_cancelled());
    }

    #[test]
    fn a_failed_cut_is_tried_again_by_the_next_and_blocks_release() {
        let slot = live();
        assert_eq!(slot.begin_cut(G1), Ok(CutStep::Cut("parts")));
        assert_eq!(slot.lock().begin_cut(G1), CutStep::Wait);
        assert!(slot.finish_cut(Err(("parts", error()))).is_err());
        assert!(matches!(slot.begin_release(G1), ReleaseStep::Refuse(_)));
        assert_eq!(slot.begin_cut(G1), Ok(CutStep::Cut("parts")));
    }

    #[test]
    fn cut_and_release_are_idempotent() {
        let slot = live();
        assert_eq!(slot.begin_cut(G1), Ok(CutStep::Cut("parts")));
        slot.finish_cut(Ok(("proof".into(), Some("rest")))).unwrap();
        assert_eq!(slot.begin_cut(G1), Ok(CutStep::Unreachable("proof".into())));
        assert_eq!(slot.begin_release(G1), ReleaseStep::Scrub(Some("rest")));
        slot.set(State::Gone);
        assert_eq!(slot.begin_release(G1), ReleaseStep::Done);
        assert!(matches!(slot.begin_cut(G1), Ok(CutStep::Unreachable(_))));
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
