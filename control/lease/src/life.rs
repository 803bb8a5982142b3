//! The life of a lease: its states, and where each event leads.
//!
//! ```text
//!                                       ┌───── renew: bind again ──────┐
//!                                       ▼                              │
//!  request ─► Binding ─► Active ◄─► Rebinding        deadline ─► proved with grace
//!               │  │        │           │ │                            │
//!      refused  │  └─ end ──┴─── end ───┘ │          Cutting ──────► Grace
//!               ▼           ▼             │            │ │             │ over, free, revoke
//!             Ended      Cutting ─────────┼── proved ──┘ │             ▼
//!               ▲           │ failed, late│ stranded     └────────► Releasing ─► Ended
//!               │           ▼             ▼                            │ failed, stuck
//!               └─ remedied ── Fenced ◄────────────────────────────────┘
//! ```
//!
//! Not drawn: a release that ends late and verifies leads from Fenced to Ended, if it was the release that fenced; a
//! failed cut is never cleared that way. A bind that strands something fences from every state but Ended, because the
//! report may come after the cut; it replaces a fence by a failed release. A lease in use is renewed without leaving its
//! state, and fenced if it loses what it was granted. Who frees or revokes a lease while its expiry is being cut leaves
//! it no grace time. A lease of an earlier run begins in Rebinding, Cutting, Grace or Fenced, see
//! [`crate::LeaseTable::restore_lease`]. Each lease takes its first step from New.

use serde::{Deserialize, Serialize};

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum State {
    /// Neither asked for nor restored; no lease of the table is in it.
    New,
    /// The first binding is being made; the client does not know the lease yet.
    Binding,
    /// In use.
    Active,
    /// In use; a new binding or a new key is being made.
    Rebinding,
    /// Access is being cut; the end is reported only after the cut is proved.
    Cutting,
    /// Access is cut, the contents are kept.
    Grace,
    /// The part is being scrubbed and returned.
    Releasing,
    /// Over, clean. Only a record remains.
    Ended,
    /// Over, not proved clean. Its resource is fenced.
    Fenced,
}

/// An event in the life of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Event {
    /// A tenant asked for the lease, and there is room.
    Asked,
    /// An earlier run granted the lease, and it goes on.
    Adopted,
    /// An earlier run granted the lease and may not have cut it.
    FoundUncut,
    /// An earlier run cut the lease, and its contents are kept.
    FoundCut,
    /// An earlier run reported the end of the lease, and may not have finished it.
    FoundOver,
    /// An earlier run fenced the lease; or the record of that fence, which says why.
    FoundFenced,
    /// The provider made the binding, or the new key.
    Bound,
    /// The provider could not, and left nothing behind.
    NotBound,
    /// The provider could not, and left something behind.
    Stranded,
    /// The holder wants another binding or key.
    Rebind,
    /// The holder wants another term.
    Renew,
    /// The term is over.
    Deadline,
    /// The holder gave it back.
    Free,
    /// An operator or a fault took it back.
    Revoke,
    /// The lease does not have its part alone any more, see [`crate::Condition::Lost`].
    Lost,
    /// Proven unreachable, nothing to keep.
    CutProved,
    /// Proven unreachable, contents to be kept for a grace time.
    CutProvedKeep,
    /// The cut failed, or did not end in time.
    CutFailed,
    /// The grace time is over.
    GraceOver,
    /// Scrubbed and returned.
    Released,
    /// Not scrubbed, or no progress for too long.
    ReleaseFailed,
    /// A release that had fenced ended after all, and verified.
    ReleasedLate,
    /// An operator's remediation verified clean.
    Remedied,
}

impl State {
    /// The states of leases that are not over.
    pub(crate) const COUNTED: [Self; 7] = [
        Self::Binding,
        Self::Active,
        Self::Rebinding,
        Self::Cutting,
        Self::Grace,
        Self::Releasing,
        Self::Fenced,
    ];

    /// The name, for metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Binding => "binding",
            Self::Active => "active",
            Self::Rebinding => "rebinding",
            Self::Cutting => "cutting",
            Self::Grace => "grace",
            Self::Releasing => "releasing",
            Self::Ended => "ended",
            Self::Fenced => "fenced",
        }
    }

    /// Where `event` leads from here; `None` is "prohibited": the caller refuses the request or
    /// ignores the stale report.
    #[must_use]
    pub(crate) fn next(self, event: Event) -> Option<Self> {
        use Event as E;
        use State as S;
        Some(match (self, event) {
            (S::New, E::Asked) => S::Binding,
            (S::New, E::Adopted) => S::Rebinding,
            (S::New, E::FoundUncut | E::FoundOver) => S::Cutting,
            (S::New, E::FoundCut) => S::Grace,
            (S::Binding | S::Rebinding, E::Bound) | (S::Rebinding, E::NotBound) => S::Active,
            (S::Binding, E::NotBound) => S::Ended,
            (S::Active, E::Rebind) | (S::Grace, E::Renew) => S::Rebinding,
            (S::Active, E::Renew) => S::Active,
            (S::Binding | S::Active | S::Rebinding, E::Deadline)
            | (S::Binding | S::Active | S::Rebinding | S::Cutting, E::Free | E::Revoke) => {
                S::Cutting
            }
            (S::Cutting, E::CutProvedKeep) => S::Grace,
            (S::Cutting, E::CutProved) | (S::Grace, E::GraceOver | E::Free | E::Revoke) => {
                S::Releasing
            }
            (S::Releasing, E::Released) | (S::Fenced, E::ReleasedLate | E::Remedied) => S::Ended,
            (S::New | S::Fenced, E::FoundFenced)
            | (S::Active | S::Rebinding, E::Lost)
            | (S::Cutting, E::CutFailed)
            | (S::Releasing, E::ReleaseFailed)
            | (
                S::New
                | S::Binding
                | S::Active
                | S::Rebinding
                | S::Cutting
                | S::Grace
                | S::Releasing
                | S::Fenced,
                E::Stranded,
            ) => S::Fenced,
            _prohibited => return None,
        })
    }

    /// Whether a client may still have access.
    #[must_use]
    pub fn may_be_reachable(self) -> bool {
        !matches!(
            self,
            Self::New | Self::Grace | Self::Releasing | Self::Ended
        )
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write, string::String};

    use super::*;

    /// In the order of life.
    const STATES: [State; 9] = [
        State::New,
        State::Binding,
        State::Active,
        State::Rebinding,
        State::Cutting,
        State::Grace,
        State::Releasing,
        State::Ended,
        State::Fenced,
    ];

    const EVENTS: [Event; 23] = [
        Event::Asked,
        Event::Adopted,
        Event::FoundUncut,
        Event::FoundCut,
        Event::FoundOver,
        Event::FoundFenced,
        Event::Bound,
        Event::NotBound,
        Event::Stranded,
        Event::Rebind,
        Event::Renew,
        Event::Deadline,
        Event::Free,
        Event::Revoke,
        Event::Lost,
        Event::CutProved,
        Event::CutProvedKeep,
        Event::CutFailed,
        Event::GraceOver,
        Event::Released,
        Event::ReleaseFailed,
        Event::ReleasedLate,
        Event::Remedied,
    ];

    /// Every state × every event on one page. A change of it is a change of the product.
    #[test]
    fn the_whole_machine() {
        let mut page = String::new();
        for state in STATES {
            writeln!(page, "{state:?}").unwrap();
            for event in EVENTS {
                match state.next(event) {
                    Some(next) => writeln!(page, "    {event:?} -> {next:?}").unwrap(),
                    None => writeln!(page, "    {event:?} prohibited").unwrap(),
                }
            }
        }
        insta::assert_snapshot!(page);
    }

    #[test]
    fn only_a_verified_clean_up_leaves_a_fence() {
        for event in EVENTS {
            let left = { State::Fenced.next(event) }.filter(|next| *next != State::Fenced);
            let verified = matches!(event, Event::ReleasedLate | Event::Remedied);
            assert_eq!(left.is_some(), verified, "{event:?}");
        }
    }

    /// The only ways out of reach are a proved cut, a binding that never was, and a fence that was
    /// verified clean.
    #[test]
    fn nothing_that_may_be_reachable_ends_without_a_proof() {
        for state in STATES.into_iter().filter(|state| state.may_be_reachable()) {
            for event in EVENTS {
                let Some(next) = state.next(event).filter(|next| !next.may_be_reachable()) else {
                    continue;
                };
                let proved = matches!(event, Event::CutProved | Event::CutProvedKeep);
                let never_bound = (state, event) == (State::Binding, Event::NotBound);
                let verified = state == State::Fenced;
                assert!(
                    proved || never_bound || verified,
                    "{state:?} --{event:?}--> {next:?}"
                );
            }
        }
    }
}
