//! Answers those who keep a copy of the list of leases: the reports to schedulers.

use fabricbios_lease::{Changes, LeaseSummary, LogPosition};
use fabricbios_wire::{LEASES_PER_REPORT_MAX, LeaseId};
use tokio::sync::oneshot;

use super::{Driver, Environment};

/// A question about the list. Each answer has at most [`LEASES_PER_REPORT_MAX`] leases, so that it delays no cut.
#[derive(Debug)]
pub enum AboutLeases {
    /// The leases with ids above this one, and the end of the log of changes.
    Above(LeaseId, oneshot::Sender<(Vec<LeaseSummary>, LogPosition)>),
    /// What has changed since. `None`: the log does not go back so far.
    Since(LogPosition, oneshot::Sender<Option<Changes>>),
}

impl<E: Environment> Driver<E> {
    pub(super) fn tell_of_leases(&self, question: AboutLeases) {
        // Who asked may be gone.
        match question {
            AboutLeases::Above(after, reply) => {
                let leases = self.table.summaries(after, LEASES_PER_REPORT_MAX);
                reply.send((leases, self.table.log_end())).ok();
            }
            AboutLeases::Since(from, reply) => {
                let changes = self.table.changes_since(from, LEASES_PER_REPORT_MAX);
                reply.send(changes).ok();
            }
        }
    }
}
