//! The only owner of the lease table: waits for an input, applies it without blocking, carries out the table's effects,
//! and waits again.
//!
//! Orders are dispatched at once, so a cut waits for nothing. An answer that depends on a change is sent when the
//! change is durable.

pub mod dispatcher;
mod effects;
mod endpoint;
mod environment;
mod failing;
pub mod fair;
mod inline;
mod inputs;
pub mod lease_list;
pub mod load;
pub(crate) mod log_note;
pub mod mailbox;
pub(crate) mod release_retry;
pub mod requests;
pub mod tally;
mod turns;
pub mod workers;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use fabricbios_lease::{BootTime, LeaseTable, LogPosition, Policy, Report, Ticket};
use fabricbios_wire::{Answer, AttachCode, Endpoint, LeaseId, RdmaPeer, Request, Role};
use tokio::sync::{oneshot, watch};

use crate::{
    driver::{
        effects::Held,
        failing::Failing,
        fair::{FairQueue, Owner},
        lease_list::AboutLeases,
        mailbox::Mailbox,
        tally::{DriverFigures, Tally},
    },
    inventory::Inventory,
    journal::{Change, CommitError, Seq},
};

pub use environment::{Environment, Machine};

/// An input of the driver.
#[derive(Debug)]
pub enum Input {
    /// A request of a peer.
    Request {
        /// The peer and where its answer goes.
        requester: Requester,
        /// The peer's role, from its certificate.
        role: Role,
        /// The request.
        request: Request,
    },
    /// A caller of the rdma_cm listener presents a code, to join the lease of the code.
    Attach {
        /// The code.
        code: AttachCode,
        /// The caller's queue pair.
        peer: RdmaPeer,
        /// Receives the lease of the code and its tenant, or `None`.
        spent: oneshot::Sender<Option<(LeaseId, Arc<str>)>>,
        /// Receives the answer to the LEASE_BIND by which the caller joins.
        reply: oneshot::Sender<Answer>,
    },
    /// Somebody who keeps a copy of the list of leases asks.
    AboutLeases(AboutLeases),
    /// Somebody asks for the figures of the node: metrics and health.
    AboutNode(oneshot::Sender<DriverFigures>),
    /// The rdma_cm listener has ended.
    ListenerLost,
    /// The service manager wants to know whether the driver goes on.
    Alive(oneshot::Sender<()>),
    /// The operator's limits have changed: see [`LeaseTable::change_limits`].
    Limits(Box<Policy>),
    /// A report of a provider.
    Report {
        /// When the provider finished the step; the driver may read the report later.
        at: BootTime,
        /// The report.
        report: Report,
    },
    /// The journal is durable up to this submission, or could not be written.
    Durable(Result<Seq, CommitError>),
    /// Revoke every lease, then stop.
    Drain,
    /// Stop now.
    Halt,
}

/// How long READY waits for the adoption of leases of an earlier run. A slower adoption goes on afterwards; if it
/// fails, the lease ends.
const ADOPTION_PATIENCE: Duration = Duration::from_secs(20);

/// A client that waits for an answer.
#[derive(Debug)]
pub struct Requester {
    /// The tenant in its certificate.
    pub tenant: Arc<str>,
    /// The address that the client reached. Answers use it in endpoints where the node listens on a wildcard.
    pub reached: Option<IpAddr>,
    /// Where the client reaches the control plane, if that is known.
    pub control: Option<Endpoint>,
    /// Receives the answer.
    pub reply: oneshot::Sender<Answer>,
}

/// The answers that wait for a confirmation.
#[derive(Debug)]
struct Confirming {
    granted: (Ticket, Answer),
    repeats: Vec<(Ticket, Answer)>,
}

/// See the module.
#[derive(Debug)]
pub struct Driver<E> {
    table: LeaseTable,
    environment: E,
    inventory: Inventory,
    mailbox: Mailbox<Input>,
    requesters: HashMap<Ticket, Requester>,
    next_ticket: u64,
    /// Changes of the current turn.
    batch: Vec<Change>,
    submitted: Seq,
    durable: Seq,
    /// Answers and orders of the current turn that wait for the disk.
    unsubmitted: Vec<(Owner, Held)>,
    /// Answers and orders that wait for the disk, in order of submission.
    held: VecDeque<(Seq, Owner, Held)>,
    /// Answers and orders whose changes are durable now. One commit can release the items of many thousands of leases.
    released: FairQueue<Held>,
    /// Durable grants and repeats of their requests, which are answered once their store has confirmed them.
    confirming: HashMap<LeaseId, Confirming>,
    /// The error of the last commit, if it failed.
    unwritable: Option<CommitError>,
    failing: Failing,
    tally: Tally,
    /// Since when the journal has had changes to write and has not answered.
    silent_since: Option<BootTime>,
    draining: Option<BootTime>,
    /// Leases that an earlier run could not cut and has reported.
    fenced_before: BTreeSet<LeaseId>,
    next_look: BootTime,
    /// The signal that leases of an earlier run are adopted or cut, and its latest time.
    settled: Option<(oneshot::Sender<()>, BootTime)>,
    /// The signal that leases or resources may have changed.
    changed: Option<watch::Sender<()>>,
    /// Resources may have in this turn, or leases by an input.
    may_have_changed: bool,
    /// The end of the log of the table at the last signal: leases change by timers too.
    signalled: LogPosition,
}

impl<E: Environment> Driver<E> {
    /// A driver that does not run yet.
    #[must_use]
    pub fn new(
        table: LeaseTable,
        environment: E,
        inventory: Inventory,
        mailbox: Mailbox<Input>,
    ) -> Self {
        Self {
            table,
            environment,
            inventory,
            mailbox,
            requesters: HashMap::new(),
            next_ticket: 0,
            batch: Vec::new(),
            submitted: Seq(0),
            unsubmitted: Vec::new(),
            durable: Seq(0),
            held: VecDeque::new(),
            released: FairQueue::default(),
            confirming: HashMap::new(),
            unwritable: None,
            failing: Failing::default(),
            tally: Tally::default(),
            silent_since: None,
            draining: None,
            fenced_before: BTreeSet::new(),
            next_look: BootTime(0),
            settled: None,
            changed: None,
            may_have_changed: false,
            signalled: LogPosition::default(),
        }
    }

    /// Signals `settled` when leases of an earlier run are adopted or cut.
    #[must_use]
    pub fn with_settled_signal(mut self, settled: oneshot::Sender<()>) -> Self {
        self.settled = Some((settled, self.environment.now().boot + ADOPTION_PATIENCE));
        self
    }

    /// Signals `changed` behind each turn in which leases or resources may have changed.
    #[must_use]
    pub fn with_change_signal(mut self, changed: watch::Sender<()>) -> Self {
        self.changed = Some(changed);
        self
    }

    /// Writes `changes` in one commit with the restored leases, so that a crash leaves both or none.
    #[must_use]
    pub fn with_changes(mut self, changes: impl IntoIterator<Item = Change>) -> Self {
        self.batch.extend(changes);
        self
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
