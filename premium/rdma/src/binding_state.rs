//! The binding of one lease: its phases, their order, and the thread that may touch its verbs objects.
//!
//! ```text
//!            ┌──────────────── cut, bind again ───────────────┐
//!            ▼                                                │
//! Empty ─► Connecting ─► Prepared ─► Connecting ─► Live ─► Cutting ─► Cut ─► Releasing ─► removed
//!            │  cancelled: the binding thread undoes its own     │              │
//!            └──────────────────────────► Cut                 Failed          Dirty
//! ```
//!
//! A new binding of a lease is connected beside the older one; then the older one is cut, and then the new one opens:
//! Live ─► Cutting ─► Cut ─► Live.
//!
//! While a phase holds objects (`P`), the lock guards them. In Connecting, Cutting and Releasing one thread has taken
//! the objects out and works without the lock. A cut never waits for a binding that is being made: it has no access
//! before it opens, and it opens under the lock, through the [`Gate`]. Pure: no verbs, no lock, no clock.
//!
//! Invariants, each checked where the state changes. One that does not hold is a mistake in the program: the bind or the
//! cut fails with it, which fences the resource.
//! - **one**: a binding opens only if no objects of another binding are there.
//! - **ended**: the objects that a proved cut leaves give no access.

use std::fmt::Display;

use fabricbios_lease::{BindError, Gate, Proof, StepError};
use fabricbios_wire::Generation;

use super::binding_step::{BindStep, CutResult, CutStep, NotNow, ReleaseStep};

/// The objects of a binding.
pub(crate) trait Objects {
    /// Whether a client may still reach the bytes through these objects.
    fn may_give_access(&self) -> bool;
}

/// The state that the lock of a `BindingCell` guards.
#[derive(Debug)]
pub(crate) struct BindingState<P> {
    /// Its generation is that of the binding in `phase`.
    pub(crate) gate: Gate,
    /// Whether the lease ever had a binding; it then holds its bytes until the release.
    pub(crate) was_bound: bool,
    /// A thread is making another key or the next binding, without the lock. Cuts do not wait for that thread; binds,
    /// rotations and releases do.
    pub(crate) changing: bool,
    /// Objects that give no access and could not be destroyed. They are destroyed before the next binding or at the
    /// release.
    pub(crate) leftovers: Vec<P>,
    pub(crate) phase: Phase<P>,
}

#[derive(Debug)]
pub(crate) enum Phase<P> {
    /// Never bound.
    Empty,
    /// A thread is making the binding.
    Connecting,
    /// Queue pairs that have no peer and give no access.
    Prepared(P),
    /// Open: the client has access.
    Live(P),
    /// A thread is cutting the binding.
    Cutting,
    /// Access has ended, with proof.
    Cut(Proof),
    /// The cut failed: access may remain.
    Failed { remains: P, error: StepError },
    /// A thread is releasing the lease. When the thread has finished, the gate says removed, and the cell leaves the
    /// custody.
    Releasing,
    /// Access has ended, but the release failed.
    Dirty(StepError),
}

/// An invariant that does not hold.
fn broken(invariant: &'static str, detail: impl Display) -> StepError {
    let detail = format_args!("{invariant}: {detail}; this is a mistake in the node's program");
    StepError::new("invariant", detail)
}

/// Each `begin_` method returns `None` if the caller must wait for a change and call again.
impl<P: Objects> BindingState<P> {
    pub(super) fn begin_bind(
        &mut self,
        generation: Generation,
        has_peer: bool,
    ) -> Option<BindStep<P>> {
        if !self.gate.admits(generation) {
            return Some(BindStep::Cancelled);
        }
        if self.changing {
            return None;
        }
        if !self.leftovers.is_empty() {
            self.changing = true;
            return Some(BindStep::Tidy(std::mem::take(&mut self.leftovers)));
        }
        match std::mem::replace(&mut self.phase, Phase::Cutting) {
            Phase::Empty | Phase::Cut(_) => {
                self.start(generation);
                Some(BindStep::Fresh)
            }
            Phase::Prepared(parts) if has_peer => {
                self.start(generation);
                Some(BindStep::Connect(parts))
            }
            other => self.beside(other, generation),
        }
    }

    /// The step of a bind in a phase that stays as it is.
    fn beside(&mut self, phase: Phase<P>, generation: Generation) -> Option<BindStep<P>> {
        let older = self.gate.generation().filter(|it| *it < generation);
        let step = match (&phase, older) {
            (Phase::Prepared(_) | Phase::Live(_), Some(_)) => {
                self.changing = true;
                Some(BindStep::Beside)
            }
            (Phase::Connecting, Some(older)) => {
                self.gate.revoke(older).ok();
                None
            }
            (Phase::Cutting | Phase::Releasing, _) => None,
            (Phase::Failed { error, .. }, _) => Some(BindStep::Stranded(error.clone())),
            (Phase::Dirty(error), _) => Some(BindStep::Refuse(NotNow::Dirty(error.clone()))),
            _ => Some(BindStep::Refuse(NotNow::Bound(generation))),
        };
        self.phase = phase;
        step
    }

    fn start(&mut self, generation: Generation) {
        self.gate.begin(generation);
        self.phase = Phase::Connecting;
    }

    /// Opens the gate for a binding that is made. The caller opens access under the same lock, and sets the phase. A
    /// refusal changes nothing.
    pub(super) fn open(&mut self, generation: Generation) -> Result<(), BindError> {
        let mut opened = self.gate.clone();
        opened.open(generation)?;
        match self.phase {
            Phase::Connecting | Phase::Cut(_) => {
                self.gate = opened;
                Ok(())
            }
            _ => Err(BindError::Stranded(broken(
                "one",
                "objects of another binding are there",
            ))),
        }
    }

    pub(super) fn begin_cut(&mut self, generation: Generation) -> Option<CutStep<P>> {
        if let Err(moved_on) = self.gate.revoke(generation) {
            return Some(CutStep::Unreachable(moved_on.into()));
        }
        match std::mem::replace(&mut self.phase, Phase::Cutting) {
            Phase::Prepared(parts) | Phase::Live(parts) | Phase::Failed { remains: parts, .. } => {
                Some(CutStep::Cut(parts))
            }
            Phase::Cutting => None,
            other => {
                let why = why_unreachable(&other);
                self.phase = other;
                Some(CutStep::Unreachable(why))
            }
        }
    }

    /// Records the result of the cut of a generation.
    pub(super) fn finish_cut(
        &mut self,
        generation: Generation,
        result: CutResult<P>,
    ) -> Result<Proof, StepError> {
        let result = result.and_then(|(proof, leftover)| match leftover {
            Some(left) if left.may_give_access() => {
                let why = format_args!("what is left gives access behind the proof {proof}");
                Err((left, broken("ended", why)))
            }
            leftover => Ok((proof, leftover)),
        });
        match result {
            Ok((proof, leftover)) => {
                self.leftovers.extend(leftover);
                self.gate.ended(generation);
                self.phase = Phase::Cut(proof.clone());
                Ok(proof)
            }
            Err((remains, error)) => {
                self.phase = Phase::Failed {
                    remains,
                    error: error.clone(),
                };
                Err(error)
            }
        }
    }

    /// The proof that this generation and all older ones give no access.
    pub(super) fn check_ended(&self, generation: Generation) -> Result<Proof, NotNow> {
        match &self.phase {
            Phase::Failed { error, .. } => Err(NotNow::CutFailed(error.clone())),
            Phase::Cutting => Err(NotNow::BeingCut),
            Phase::Connecting if self.gate.is_revoked(generation) => {
                Ok(why_unreachable(&self.phase))
            }
            Phase::Prepared(_) | Phase::Live(_) | Phase::Connecting => Err(NotNow::NotCut),
            Phase::Empty | Phase::Cut(_) | Phase::Releasing | Phase::Dirty(_) => {
                Ok(why_unreachable(&self.phase))
            }
        }
    }

    pub(super) fn begin_release(&mut self, generation: Generation) -> Option<ReleaseStep<P>> {
        let refuse = |why| Some(ReleaseStep::Refuse(why));
        if let Err(moved_on) = self.gate.check_current(generation) {
            return refuse(NotNow::MovedOn(moved_on));
        }
        if self.gate.is_removed() {
            return Some(ReleaseStep::Done);
        }
        if self.changing {
            return None;
        }
        let bound = self.gate.generation();
        match std::mem::replace(&mut self.phase, Phase::Releasing) {
            Phase::Cut(_) | Phase::Dirty(_) | Phase::Empty => {
                Some(ReleaseStep::Tidy(std::mem::take(&mut self.leftovers)))
            }
            other => {
                let step = match &other {
                    Phase::Connecting if bound.is_some_and(|it| self.gate.admits(it)) => {
                        refuse(NotNow::BeingBound)
                    }
                    Phase::Connecting | Phase::Cutting | Phase::Releasing => None,
                    Phase::Failed { error, .. } => refuse(NotNow::CutFailed(error.clone())),
                    _ => refuse(NotNow::NotCut),
                };
                self.phase = other;
                step
            }
        }
    }

    /// Removes the binding if nothing was ever bound and no cut was ordered for the lease. Returns whether this call
    /// removed it; only the first call can.
    pub(crate) fn remove_if_nothing(&mut self) -> bool {
        let nothing = matches!(self.phase, Phase::Empty | Phase::Cut(_));
        let unknown = self.gate.revoked().is_none() && !self.gate.is_removed() && !self.was_bound;
        let removed = nothing && unknown && self.leftovers.is_empty();
        if removed {
            self.gate.remove();
        }
        removed
    }
}

fn why_unreachable<P>(phase: &Phase<P>) -> Proof {
    match phase {
        Phase::Cut(proof) => proof.clone(),
        Phase::Connecting => Proof::nothing_to_cut("access is not open yet, and will not be"),
        Phase::Empty => Proof::nothing_to_cut("the lease was never bound"),
        _ => Proof::nothing_to_cut("the lease was cut before"),
    }
}
