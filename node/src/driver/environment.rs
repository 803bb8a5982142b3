//! The environment of the driver: the node, or a simulation.

use std::{os::fd::OwnedFd, sync::Arc};

use fabricbios_lease::{Now, Order, Report};
use fabricbios_wire::LeaseId;

use crate::{
    driver::{dispatcher::Dispatcher, fair::Owner, load::PoolFigures},
    journal::{Change, CommitError, Journal, JournalFigures, Seq},
    process::clock,
};

/// See the module. No call blocks.
pub trait Environment {
    /// Reads both clocks.
    fn now(&self) -> Now;
    /// A random, unused lease id; `None`: the system has no randomness.
    fn random_lease_id(&mut self) -> Option<LeaseId>;
    /// Carries out an order for a lease of `owner`. Returns the report if the order is done already.
    fn dispatch(&mut self, owner: Owner, order: Order) -> Option<Report>;
    /// Submits changes that become durable together.
    fn submit(&mut self, changes: Vec<Change>) -> Seq;
    /// True if the disk keeps up, so that new leases can be accepted.
    fn has_room(&self) -> bool;
    /// The figures of the journal; a simulation has none.
    fn journal(&self) -> JournalFigures {
        JournalFigures::default()
    }
    /// The jobs in worker pools; a simulation has none.
    fn pools(&self) -> Vec<PoolFigures> {
        Vec::new()
    }
    /// The driver's thread begins to wait for [`Self::awaited`]; a task cannot.
    fn drive(&mut self) {}
    /// Becomes readable when [`Self::hear`] has something to do.
    fn awaited(&self) -> Option<Arc<OwnedFd>> {
        None
    }
    /// The number up to which submissions are durable, if that is news: not all commits come as [`Input::Durable`].
    ///
    /// [`Input::Durable`]: super::Input::Durable
    fn hear(&mut self) -> Option<Seq> {
        None
    }
    /// Makes every submission durable and closes the journal.
    ///
    /// # Errors
    /// Changes since the last report may be lost.
    fn close(self) -> Result<(), CommitError>;
}

/// The machine that the node runs on.
#[derive(Debug)]
pub struct Machine {
    /// Carries out orders.
    pub dispatcher: Dispatcher,
    /// Stores changes.
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
        self.dispatcher.dispatch(owner, order)
    }

    fn submit(&mut self, changes: Vec<Change>) -> Seq {
        self.journal.submit(changes)
    }

    fn has_room(&self) -> bool {
        self.journal.has_room()
    }

    fn journal(&self) -> JournalFigures {
        self.journal.figures()
    }

    fn pools(&self) -> Vec<PoolFigures> {
        self.dispatcher.pools()
    }

    fn drive(&mut self) {
        self.journal.drive();
    }

    fn awaited(&self) -> Option<Arc<OwnedFd>> {
        self.journal.awaited()
    }

    fn hear(&mut self) -> Option<Seq> {
        self.journal.hear()
    }

    fn close(self) -> Result<(), CommitError> {
        self.journal.close()
    }
}
