//! The state of a lease with what belongs to this state alone: nothing is left over from the state before, and what has
//! no meaning in a state cannot be written.

use alloc::{boxed::Box, vec::Vec};
use core::{mem, time::Duration};

use fabricbios_wire::{Binding, Generation, RdmaPeer};

use super::Lease;
use crate::{BootTime, Event, FenceRecord, State};

/// A state with its data.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    New,
    Binding(Making),
    Active(Active),
    Rebinding(InUse, Remaking),
    Cutting(Cut),
    Grace,
    Releasing,
    Ended {
        /// The lease was fenced before.
        fenced: bool,
    },
    Fenced(Box<FenceRecord>),
}

/// The first bind.
#[derive(Clone, Debug)]
pub(crate) enum Making {
    /// The bind is ordered and not reported.
    Ordered,
    /// The client receives the binding when every path has acknowledged its deadline.
    Made(Box<Bound>),
}

/// A binding with its generation.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) generation: Generation,
    pub(crate) binding: Binding,
}

/// What the holder has.
#[derive(Clone, Debug, Default)]
pub(crate) struct InUse {
    /// The binding in use, also while another one is being made.
    pub(crate) bound: Option<Box<Bound>>,
    pub(crate) old_key: Option<OldKey>,
}

/// A key that still works beside the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OldKey {
    /// The key works until this time.
    Until(BootTime),
    /// The key is being retired; the lease ends if that is not done by this time.
    Retiring { by: BootTime },
    /// The key ended with its binding; the order to retire it is still outstanding.
    Gone,
}

/// A lease in use that gets no other binding and no other key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Active {
    pub(crate) in_use: InUse,
    /// Another term, which no path has acknowledged yet.
    pub(crate) renewal: Option<Box<Renewal>>,
    /// When an adopted lease without a binding is bound again, because something was not ready.
    pub(crate) bind_again_at: Option<BootTime>,
}

/// Another term, in force once every path has acknowledged its deadline.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) to: BootTime,
    pub(crate) secs: u32,
    pub(crate) expires_at_unix_ms: u64,
    /// The lease gets another key too.
    pub(crate) rotates: bool,
}

/// The new binding or key that is being made.
#[derive(Clone, Debug)]
pub(crate) enum Remaking {
    /// The bind is ordered when every path has acknowledged its deadline, so that every path closes even if this
    /// process dies.
    Term(PeersBefore),
    /// The bind is ordered and not reported.
    Bind(PeersBefore),
    /// The client receives the binding when every path has acknowledged its deadline.
    Made(Box<Bound>),
    /// The rotation is ordered and not reported. How long the old key works beside the new one.
    Rotation(Duration),
    /// The client receives the new key when the old one is retired.
    Retirement,
    /// A change of the queue pairs is ordered and not reported.
    Peers,
}

/// The peers of the binding in use, while other peers are being connected.
pub(crate) type PeersBefore = Option<Vec<RdmaPeer>>;

/// A cut without a result.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    /// An earlier run reported the end of the lease, but may not have finished it: the lease is cut and released again.
    pub(crate) told_over: bool,
    /// When a thread began the cut, or when another cut of the same kind of resource progressed after that.
    pub(crate) moved: Option<BootTime>,
}

/// A report that a provider owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owed {
    Bind,
    Rotation,
    Peers,
}

/// The state, which nothing else changes.
impl Lease {
    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    pub(crate) fn state(&self) -> State {
        match self.stage {
            Stage::New => State::New,
            Stage::Binding(_) => State::Binding,
            Stage::Active(_) => State::Active,
            Stage::Rebinding(..) => State::Rebinding,
            Stage::Cutting(_) => State::Cutting,
            Stage::Grace => State::Grace,
            Stage::Releasing => State::Releasing,
            Stage::Ended { .. } => State::Ended,
            Stage::Fenced(_) => State::Fenced,
        }
    }

    /// Moves to the next state. `false`: the event is prohibited here, or fences, and the state is unchanged.
    #[must_use]
    pub(crate) fn step(&mut self, event: Event) -> bool {
        let next = self.state().next(event);
        let Some(next) = next.filter(|next| *next != State::Fenced) else {
            return false;
        };
        let owed = self.owed();
        self.stage = mem::replace(&mut self.stage, Stage::New).enter(event, next);
        let ends = matches!(next, State::Cutting | State::Grace | State::Releasing);
        self.late = owed.filter(|_| ends);
        true
    }

    /// Moves to `Fenced`. `false`: the event does not fence here, and the state is unchanged.
    #[must_use]
    pub(crate) fn step_to_fenced(&mut self, event: Event, fence: FenceRecord) -> bool {
        let fences = self.state().next(event) == Some(State::Fenced);
        if fences {
            self.late = self.owed();
            self.stage = Stage::Fenced(Box::new(fence));
        }
        fences
    }
}

/// What belongs to the state; `None` in another state.
impl Lease {
    pub(crate) fn in_use(&self) -> Option<&InUse> {
        match &self.stage {
            Stage::Active(Active { in_use, .. }) | Stage::Rebinding(in_use, _) => Some(in_use),
            _ => None,
        }
    }

    pub(crate) fn in_use_mut(&mut self) -> Option<&mut InUse> {
        match &mut self.stage {
            Stage::Active(Active { in_use, .. }) | Stage::Rebinding(in_use, _) => Some(in_use),
            _ => None,
        }
    }

    pub(crate) fn active_mut(&mut self) -> Option<&mut Active> {
        match &mut self.stage {
            Stage::Active(active) => Some(active),
            _ => None,
        }
    }

    /// Says what is being made, of a lease that gets another binding or key.
    pub(crate) fn remakes(&mut self, what: Remaking) {
        if let Stage::Rebinding(_, remaking) = &mut self.stage {
            *remaking = what;
        }
    }

    /// Takes the peers of the binding in use, while other peers are being connected.
    pub(crate) fn peers_before(&mut self) -> PeersBefore {
        match &mut self.stage {
            Stage::Rebinding(_, Remaking::Term(peers) | Remaking::Bind(peers)) => peers.take(),
            _ => None,
        }
    }

    pub(crate) fn cut_mut(&mut self) -> Option<&mut Cut> {
        match &mut self.stage {
            Stage::Cutting(cut) => Some(cut),
            _ => None,
        }
    }

    pub(crate) fn fence(&self) -> Option<&FenceRecord> {
        match &self.stage {
            Stage::Fenced(fence) => Some(fence),
            _ => None,
        }
    }

    /// Notes another key of the same binding, beside the old key or after it.
    pub(crate) fn has_another_key(&mut self, binding: Binding, old_key: Option<OldKey>) {
        if let Some(in_use) = self.in_use_mut() {
            in_use.old_key = old_key;
            if let Some(bound) = &mut in_use.bound {
                bound.binding = binding;
            }
        }
    }

    /// Notes the binding that was made.
    pub(crate) fn is_made(&mut self, bound: Box<Bound>) {
        match &mut self.stage {
            Stage::Binding(making) => *making = Making::Made(bound),
            Stage::Rebinding(_, remaking) => *remaking = Remaking::Made(bound),
            _ => {}
        }
    }

    /// The report of a bind, a rotation or a change of queue pairs that a provider owes.
    pub(crate) fn owed(&self) -> Option<Owed> {
        match &self.stage {
            Stage::Binding(Making::Ordered) | Stage::Rebinding(_, Remaking::Bind(_)) => {
                Some(Owed::Bind)
            }
            Stage::Rebinding(_, Remaking::Rotation(_)) => Some(Owed::Rotation),
            Stage::Rebinding(_, Remaking::Peers) => Some(Owed::Peers),
            _ => self.late,
        }
    }

    /// Whether a bind, a rotation or a change of queue pairs is ordered, or soon, and not reported.
    pub(crate) fn is_on_its_way(&self) -> bool {
        let waits = matches!(self.stage, Stage::Rebinding(_, Remaking::Term(_)));
        waits || self.owed().is_some()
    }

    /// The deadline that some path has not acknowledged yet.
    pub(crate) fn extends_to(&self) -> Option<BootTime> {
        match &self.stage {
            Stage::Active(active) => active.renewal.as_ref().map(|it| it.to),
            Stage::Binding(Making::Made(_))
            | Stage::Rebinding(_, Remaking::Term(_) | Remaking::Made(_)) => Some(self.deadline),
            _ => None,
        }
    }
}

impl InUse {
    /// Forgets the keys of the old binding, which was cut.
    pub(crate) fn older_is_gone(&mut self) {
        self.bound = None;
        self.old_key = match self.old_key {
            Some(OldKey::Retiring { .. } | OldKey::Gone) => Some(OldKey::Gone),
            Some(OldKey::Until(_)) | None => None,
        };
    }
}

impl Stage {
    fn enter(self, event: Event, next: State) -> Self {
        match (next, self) {
            (State::Binding, _) => Self::Binding(Making::Ordered),
            (State::Active, before) => Self::Active(before.into_active()),
            (State::Rebinding, before) => {
                Self::Rebinding(before.into_active().in_use, Remaking::Term(None))
            }
            (State::Cutting, Self::Cutting(cut)) => Self::Cutting(cut),
            (State::Cutting, _) => Self::Cutting(Cut {
                told_over: event == Event::FoundOver,
                moved: None,
            }),
            (State::Grace, _) => Self::Grace,
            (State::Releasing, _) => Self::Releasing,
            (State::Ended, before) => Self::Ended {
                fenced: matches!(before, Self::Fenced(_)),
            },
            // No event leads to the one; `step_to_fenced` leads to the other.
            (State::New | State::Fenced, before) => before,
        }
    }

    /// The same lease without the work that is under way; a binding that was made is in use.
    fn into_active(self) -> Active {
        let (mut in_use, made) = match self {
            Self::Active(active) => return active,
            Self::Rebinding(in_use, Remaking::Made(bound)) => (in_use, Some(bound)),
            Self::Rebinding(in_use, _) => (in_use, None),
            Self::Binding(Making::Made(bound)) => (InUse::default(), Some(bound)),
            _ => Default::default(),
        };
        in_use.bound = made.or(in_use.bound);
        Active {
            in_use,
            ..Active::default()
        }
    }
}
