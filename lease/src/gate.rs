//! Which binding of a lease may open access over one path. Each path has a gate for each of its leases.
//!
//! Invariants, which [`Gate::open`] checks where access opens:
//! - **revoked**: nothing opens once a cut of the same or a newer generation has begun. A cut does not wait
//!   for a binding that is being made: it leaves its mark and goes on.
//! - **order**: nothing opens once a newer generation has begun.
//! - **one**: a successor may be made beside a binding in use. It opens only when the binding before has ended.
//! - **removed**: nothing opens once the lease was removed.
//!
//! The gate knows orders. What there is of the binding (windows, sessions, links) is the state of the path,
//! which holds its own lock over both.

use core::fmt;

use fabricbios_wire::Generation;

use crate::{BindError, Proof, StepError};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// What the path has is of this generation.
    begun: Option<Generation>,
    /// The binding of `begun` gives access, or may still come to.
    stands: bool,
    /// Up to this generation nothing opens any more.
    revoked: Option<Generation>,
    removed: bool,
}

/// An order is for an older generation than the path has by now. It must touch nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedOn(pub Generation);

/// Why a binding must not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shut {
    /// A cut, a newer generation or the removal came first.
    Cancelled,
    /// The binding before, of this generation, has not ended.
    Occupied(Generation),
}

impl Gate {
    /// The generation that what the path has is of.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        self.begun
    }

    /// The newest generation of which a cut has begun.
    #[must_use]
    pub fn revoked(&self) -> Option<Generation> {
        self.revoked
    }

    /// Whether a cut of this generation or a newer one has begun.
    #[must_use]
    pub fn is_revoked(&self, generation: Generation) -> bool {
        self.revoked >= Some(generation)
    }

    /// Whether nothing of this generation may be used any more: it was cut, or the lease was removed.
    #[must_use]
    pub fn is_over(&self, generation: Generation) -> bool {
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

    /// What the path has is of this generation from now on: nothing yet, or what an older binding had and
    /// this one goes on with. `false`: it must not be made.
    pub fn begin(&mut self, generation: Generation) -> bool {
        let may = self.admits(generation);
        if may {
            self.begun = Some(generation);
            self.stands = true;
        }
        may
    }

    /// The binding of this generation is made, and opens access now.
    ///
    /// # Errors
    /// It must not: what was made of it has to go.
    pub fn open(&mut self, generation: Generation) -> Result<(), Shut> {
        let older = self.begun.filter(|older| *older < generation);
        match older {
            Some(older) if self.stands && self.admits(generation) => Err(Shut::Occupied(older)),
            _ => self.begin(generation).then_some(()).ok_or(Shut::Cancelled),
        }
    }

    /// A cut begins. From now on nothing opens up to this generation.
    ///
    /// # Errors
    /// The lease has moved on, and there is nothing to cut.
    pub fn revoke(&mut self, generation: Generation) -> Result<(), MovedOn> {
        self.revoked = self.revoked.max(Some(generation));
        self.check_current(generation)
    }

    /// Whether an order of this generation may touch what the path has.
    ///
    /// # Errors
    /// The lease has moved on.
    pub fn check_current(&self, generation: Generation) -> Result<(), MovedOn> {
        match self.begun {
            Some(newer) if newer > generation => Err(MovedOn(newer)),
            _ => Ok(()),
        }
    }

    /// Nothing of this generation gives access any more: proved, or undone before it opened. A report that
    /// comes late says nothing about a newer one.
    pub fn ended(&mut self, generation: Generation) {
        if self.check_current(generation).is_ok() {
            self.stands = false;
        }
    }

    /// The lease is over on this path.
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

/// A binding that has not ended although its successor is to open is an error of the node: what it has is
/// fenced.
impl From<Shut> for BindError {
    fn from(shut: Shut) -> Self {
        match shut {
            Shut::Cancelled => Self::Cancelled,
            Shut::Occupied(Generation(older)) => Self::Stranded(StepError::new(
                "open",
                format_args!("generation {older}, the one before, has not ended"),
            )),
        }
    }
}

#[cfg(test)]
mod tests;
