//! The life of one lease's binding: who may touch its verbs objects, and what may follow what.
//!
//! ```text
//!            ┌──────────────── cut, bind again ───────────────┐
//!            ▼                                                │
//! Empty ─► Connecting ─► Prepared ─► Connecting ─► Live ─► Cutting ─► Cut ─► Releasing ─► removed
//!            │  cancelled: the binding thread undoes its own     │              │
//!            └──────────────────────────► Cut                 Failed          Dirty
//! ```
//!
//! A binding that takes the place of another one is connected beside it, then the older one is cut, and then the new
//! one opens: Live ─► Cutting ─► Cut ─► Live.
//!
//! While a state holds objects (`P`), the lock guards them; in Connecting, Cutting and Releasing
//! one thread has taken them out and works without the lock. A cut never waits for a binding to be made:
//! nothing can be reached before access opens, and that happens under the lock, through the [`Gate`].
//! Pure: no verbs, no lock, no clock; `P` is anything.

use fabricbios_lease::{Gate, Proof, StepError};
use fabricbios_wire::Generation;

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct Life<P> {
    /// Its generation is that of the binding that `state` is about.
    pub(crate) gate: Gate,
    /// The lease had a binding, whose bytes it holds until its release.
    pub(crate) was_bound: bool,
    /// A thread makes a further key or the next binding, beside the state and without the lock. Cuts do not wait for it;
    /// what would miss or disturb its objects does.
    pub(crate) changing: bool,
    /// What gives no access, because it is dead or never opened, and still takes up room. It goes before the next
    /// binding or with the release.
    pub(crate) leftovers: Vec<P>,
    pub(crate) state: State<P>,
}

#[derive(Debug)]
pub(crate) enum State<P> {
    /// Never bound.
    Empty,
    /// A thread is making the binding.
    Connecting,
    /// Queue pairs without peer and access.
    Prepared(P),
    /// In use.
    Live(P),
    /// A thread is taking it down.
    Cutting,
    /// Proven unreachable.
    Cut(Proof),
    /// Could not be proven unreachable.
    Failed { remains: P, error: StepError },
    /// A thread is tidying up, or has: the gate says so then, and the slot is on its way out of the table.
    Releasing,
    /// Unreachable, but could not be tidied up.
    Dirty(StepError),
}

/// What a bind has to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BindStep<P> {
    /// Make everything; the state is Connecting.
    Fresh,
    /// Connect what was prepared; the state is Connecting.
    Connect(P),
    /// Make everything beside what is there; `changing` says so until [`Slot::changed`].
    Beside,
    /// Take these away, report with [`Slot::changed`], ask again.
    Tidy(Vec<P>),
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
    Unreachable(Proof),
    /// Ask again when something has changed.
    Wait,
}

/// What a release has to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReleaseStep<P> {
    /// Take these away; the state is Releasing.
    Tidy(Vec<P>),
    /// Done before.
    Done,
    /// It is not cut.
    Refuse(String),
    /// Ask again when something has changed.
    Wait,
}

/// How a cut ended: proof and leftover, or remains and error.
pub(crate) type CutResult<P> = Result<(Proof, Option<P>), (P, StepError)>;

impl<P> Life<P> {
    pub(super) fn begin_bind(&mut self, generation: Generation, has_peer: bool) -> BindStep<P> {
        if !self.gate.admits(generation) {
            return BindStep::Cancelled;
        }
        if self.changing {
            return BindStep::Wait;
        }
        if !self.leftovers.is_empty() {
            self.changing = true;
            return BindStep::Tidy(std::mem::take(&mut self.leftovers));
        }
        match std::mem::replace(&mut self.state, State::Cutting) {
            State::Empty | State::Cut(_) => {
                self.start(generation);
                BindStep::Fresh
            }
            State::Prepared(parts) if has_peer => {
                self.start(generation);
                BindStep::Connect(parts)
            }
            other => self.beside(other, generation),
        }
    }

    /// The states that a bind leaves as they are.
    fn beside(&mut self, state: State<P>, generation: Generation) -> BindStep<P> {
        let older = self.gate.generation().filter(|it| *it < generation);
        let step = match (&state, older) {
            (State::Prepared(_) | State::Live(_), Some(_)) => {
                self.changing = true;
                BindStep::Beside
            }
            (State::Connecting, Some(older)) => {
                self.gate.revoke(older).ok();
                BindStep::Wait
            }
            (State::Cutting | State::Releasing, _) => BindStep::Wait,
            (State::Failed { error, .. }, _) => BindStep::Stranded(error.clone()),
            (State::Dirty(error), _) => BindStep::Refuse(format!("not clean: {error}")),
            _ => BindStep::Refuse(format!("generation {} is bound already", generation.0)),
        };
        self.state = state;
        step
    }

    fn start(&mut self, generation: Generation) {
        self.gate.begin(generation);
        self.state = State::Connecting;
    }

    pub(super) fn begin_cut(&mut self, generation: Generation) -> CutStep<P> {
        if let Err(moved_on) = self.gate.revoke(generation) {
            return CutStep::Unreachable(moved_on.into());
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

    /// The proof that nothing of this generation, or an older one, gives access.
    pub(super) fn check_ended(&self, generation: Generation) -> Result<Proof, String> {
        match &self.state {
            State::Failed { error, .. } => Err(format!("its cut failed: {error}")),
            State::Cutting => Err("it is being cut".into()),
            State::Connecting if self.gate.is_revoked(generation) => {
                Ok(why_unreachable(&self.state))
            }
            State::Prepared(_) | State::Live(_) | State::Connecting => Err("it is not cut".into()),
            State::Empty | State::Cut(_) | State::Releasing | State::Dirty(_) => {
                Ok(why_unreachable(&self.state))
            }
        }
    }

    pub(super) fn begin_release(&mut self, generation: Generation) -> ReleaseStep<P> {
        if let Err(moved_on) = self.gate.check_current(generation) {
            return ReleaseStep::Refuse(moved_on.to_string());
        }
        if self.gate.is_removed() {
            return ReleaseStep::Done;
        }
        if self.changing {
            return ReleaseStep::Wait;
        }
        let refuse = |why: &str| ReleaseStep::Refuse(why.into());
        let bound = self.gate.generation();
        match std::mem::replace(&mut self.state, State::Releasing) {
            State::Cut(_) | State::Dirty(_) | State::Empty => {
                ReleaseStep::Tidy(std::mem::take(&mut self.leftovers))
            }
            other => {
                let step = match &other {
                    State::Connecting if bound.is_some_and(|it| self.gate.admits(it)) => {
                        refuse("it is being bound")
                    }
                    State::Connecting | State::Cutting | State::Releasing => ReleaseStep::Wait,
                    State::Failed { error, .. } => refuse(&format!("its cut failed: {error}")),
                    _ => refuse("it is not cut"),
                };
                self.state = other;
                step
            }
        }
    }

    /// Whether nothing was ever bound and no cut knows of the lease. It is removed then; a second time it is not
    /// there to be removed.
    pub(crate) fn remove_if_nothing(&mut self) -> bool {
        let nothing = matches!(self.state, State::Empty | State::Cut(_));
        let unknown = self.gate.revoked().is_none() && !self.gate.is_removed() && !self.was_bound;
        let removed = nothing && unknown && self.leftovers.is_empty();
        if removed {
            self.gate.remove();
        }
        removed
    }
}

fn why_unreachable<P>(state: &State<P>) -> Proof {
    match state {
        State::Cut(proof) => proof.clone(),
        State::Connecting => Proof::nothing_to_cut("access is not open yet, and will not be"),
        State::Empty => Proof::nothing_to_cut("it was never bound"),
        _ => Proof::nothing_to_cut("it was cut before"),
    }
}
