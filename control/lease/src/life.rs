//! The life of a lease, and the only function that moves it on.
//!
//! ```text
//!                          ┌──────────── renew: bind again ────────────┐
//!                          ▼                                           │
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
//! Not drawn: a release that ends late and verifies leads from Fenced to Ended, if it was the
//! release that fenced; a failed cut is never cleared that way. A bind that strands something
//! fences from every state that is not over, because the report may come after the cut; it replaces a fence by a failed
//! release. A lease in use that loses what it was granted is fenced too. Who frees or revokes a lease while its expiry
//! is being cut leaves it no grace time.
//! A lease of an earlier run begins in Rebinding, Cutting, Grace or Fenced, see
//! [`crate::LeaseTable::restore_lease`].

use serde::{Deserialize, Serialize};

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum State {
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
pub enum Event {
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
    /// All states, in the order of life.
    pub const ALL: [Self; 8] = [
        Self::Binding,
        Self::Active,
        Self::Rebinding,
        Self::Cutting,
        Self::Grace,
        Self::Releasing,
        Self::Ended,
        Self::Fenced,
    ];

    /// Where `event` leads from here; `None` is "prohibited": the caller refuses the request or
    /// ignores the stale report.
    #[must_use]
    pub fn next(self, event: Event) -> Option<Self> {
        use Event as E;
        use State as S;
        Some(match (self, event) {
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
            (S::Active | S::Rebinding, E::Lost)
            | (S::Cutting, E::CutFailed)
            | (S::Releasing, E::ReleaseFailed)
            | (
                S::Binding
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
        !matches!(self, Self::Grace | Self::Releasing | Self::Ended)
    }
}

impl Event {
    /// All events.
    pub const ALL: [Self; 17] = [
        Self::Bound,
        Self::NotBound,
        Self::Stranded,
        Self::Rebind,
        Self::Renew,
        Self::Deadline,
        Self::Free,
        Self::Revoke,
        Self::Lost,
        Self::CutProved,
        Self::CutProvedKeep,
        Self::CutFailed,
        Self::GraceOver,
        Self::Released,
        Self::ReleaseFailed,
        Self::ReleasedLate,
        Self::Remedied,
    ];
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write, string::String};

    use super::*;

    /// Every state × every event on one page. A change of it is a change of the product.
    #[test]
    fn the_whole_machine() {
        let mut page = String::new();
        for state in State::ALL {
            writeln!(page, "{state:?}").unwrap();
            for event in Event::ALL {
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
        for event in Event::ALL {
            let left = { State::Fenced.next(event) }.filter(|next| *next != State::Fenced);
            let verified = matches!(event, Event::ReleasedLate | Event::Remedied);
            assert_eq!(left.is_some(), verified, "{event:?}");
        }
    }

    /// The only ways out of reach are a proved cut, a binding that never was, and a fence that was
    /// verified clean.
    #[test]
    fn nothing_that_may_be_reachable_ends_without_a_proof() {
        for state in State::ALL
            .into_iter()
            .filter(|state| state.may_be_reachable())
        {
            for event in Event::ALL {
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
