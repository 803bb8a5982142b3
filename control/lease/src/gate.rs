//! The gate decides which binding of a lease may open access over one path. Each path has a gate for each of its
//! leases.
//!
//! Invariants, which [`Gate::open`] checks where access opens:
//! - **revoked**: no binding opens once a cut of the same or a newer generation has begun. A cut does not wait for a
//!   binding that is being made.
//! - **order**: no binding opens once a newer generation has begun.
//! - **one**: a new binding may be made beside a binding in use. It opens only after the old binding has ended.
//! - **removed**: no binding opens once the lease was removed.
//!
//! The gate knows orders only. The path keeps the objects of the binding (windows, sessions, links), under one lock
//! with the gate.

use core::fmt;

use fabricbios_wire::Generation;

use crate::{BindError, Proof, StepError};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// The generation of the objects that the path has.
    begun: Option<Generation>,
    /// The binding of `begun` gives access, or may do so later.
    may_give_access: bool,
    /// No binding up to this generation opens any more.
    revoked: Option<Generation>,
    removed: bool,
}

/// The order is for an older generation than that of the path. The path must change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedOn(pub Generation);

/// Why a binding may not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOpened {
    /// A cut, a newer generation or the removal came first.
    Cancelled,
    /// The old binding, of this generation, has not ended.
    Occupied(Generation),
}

impl Gate {
    /// The generation of the objects that the path has.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        self.begun
    }

    /// The newest generation whose cut has begun.
    #[must_use]
    pub fn revoked(&self) -> Option<Generation> {
        self.revoked
    }

    /// Whether a cut of this generation or a newer one has begun.
    #[must_use]
    pub fn is_revoked(&self, generation: Generation) -> bool {
        self.revoked >= Some(generation)
    }

    /// Whether this generation may not be used any more: it was cut, or the lease was removed.
    #[must_use]
    pub fn is_closed(&self, generation: Generation) -> bool {
        self.removed || self.is_revoked(generation)
    }

    /// Whether the lease was removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.removed
    }

    /// Whether the generation may be made, or used if it has opened.
    #[must_use]
    pub fn admits(&self, generation: Generation) -> bool {
        let newer = self.begun > Some(generation);
        !(newer || self.removed || self.is_revoked(generation))
    }

    /// Starts a binding of this generation; it may go on with objects of an older binding. `false`: the binding must
    /// not be made.
    pub fn begin(&mut self, generation: Generation) -> bool {
        let may = self.admits(generation);
        if may {
            self.begun = Some(generation);
            self.may_give_access = true;
        }
        may
    }

    /// Opens access for the binding of this generation, which is made.
    ///
    /// # Errors
    /// The binding may not open: the path must remove its objects.
    pub fn open(&mut self, generation: Generation) -> Result<(), NotOpened> {
        let older = self.begun.filter(|older| *older < generation);
        match older {
            Some(older) if self.may_give_access && self.admits(generation) => {
                Err(NotOpened::Occupied(older))
            }
            _ => self
                .begin(generation)
                .then_some(())
                .ok_or(NotOpened::Cancelled),
        }
    }

    /// Begins a cut: no binding up to this generation opens any more.
    ///
    /// # Errors
    /// The path has a newer generation: there is nothing to cut.
    pub fn revoke(&mut self, generation: Generation) -> Result<(), MovedOn> {
        self.revoked = self.revoked.max(Some(generation));
        self.check_current(generation)
    }

    /// Checks that an order of this generation may change the objects of the path.
    ///
    /// # Errors
    /// The path has a newer generation.
    pub fn check_current(&self, generation: Generation) -> Result<(), MovedOn> {
        match self.begun {
            Some(newer) if newer > generation => Err(MovedOn(newer)),
            _ => Ok(()),
        }
    }

    /// Marks the binding of this generation as ended: cut and proved, or undone before it opened. A late call does
    /// not change a newer one.
    pub fn ended(&mut self, generation: Generation) {
        if self.check_current(generation).is_ok() {
            self.may_give_access = false;
        }
    }

    /// Marks the lease as over on this path.
    pub fn remove(&mut self) {
        self.removed = true;
    }
}

impl fmt::Display for MovedOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lease has moved on to generation {}", self.0.0)
    }
}

impl From<MovedOn> for Proof {
    fn from(moved_on: MovedOn) -> Self {
        Self::nothing_to_cut(moved_on)
    }
}

/// An old binding that has not ended when the new one opens is an error of the node: the resource is fenced.
impl From<NotOpened> for BindError {
    fn from(why: NotOpened) -> Self {
        match why {
            NotOpened::Cancelled => Self::Cancelled,
            NotOpened::Occupied(Generation(older)) => Self::Stranded(StepError::new(
                "open",
                format_args!("generation {older}, the one before, has not ended"),
            )),
        }
    }
}

#[cfg(test)]
mod tests;
