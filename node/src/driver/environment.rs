//! What the driver asks and acts on: the node that it runs on, or a simulation.

use fabricbios_lease::{Now, Order, Report};
use fabricbios_wire::LeaseId;

use crate::{
    backends::Backends,
    clock,
    fair::Owner,
    journal::{Change, CommitError, Journal, Seq},
};

/// See the module. No call waits for anything.
pub trait Environment {
    /// Both clocks.
    fn now(&self) -> Now;
    /// An id that nobody can guess and no lease has had; `None`: the system has no randomness.
    fn random_lease_id(&mut self) -> Option<LeaseId>;
    /// Has an order for a lease of `owner` carried out. What comes of it is a report, which is given back where the order
    /// is done already.
    fn dispatch(&mut self, owner: Owner, order: Order) -> Option<Report>;
    /// Hands in changes that become durable together.
    fn submit(&mut self, changes: Vec<Change>) -> Seq;
    /// Whether the disk follows, so that new leases can be taken on.
    fn has_room(&self) -> bool;
    /// Makes everything durable, and ends.
    fn close(self) -> Result<(), CommitError>;
}

/// The machine that the node runs on.
#[derive(Debug)]
pub struct Machine {
    /// What carries out orders.
    pub backends: Backends,
    /// What must not be forgotten.
    pub journal: Journal,
}

impl Environment for Machine {
    fn now(&self) -> Now {
        clock::now()
    }

    fn random_lease_id(&mut self) -> Option<LeaseId> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        Some(LeaseId(u128::from_be_bytes(bytes))).filter(|id| id.0 != 0)
    }

    fn dispatch(&mut self, owner: Owner, order: Order) -> Option<Report> {
        self.backends.dispatch(owner, order)
    }

    fn submit(&mut self, changes: Vec<Change>) -> Seq {
        self.journal.submit(changes)
    }

    fn has_room(&self) -> bool {
        self.journal.has_room()
    }

    fn close(self) -> Result<(), CommitError> {
        self.journal.close()
    }
}
