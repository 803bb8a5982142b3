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
pub mod lease_list;
pub mod load;
pub(crate) mod log_note;
pub mod mailbox;
pub(crate) mod release_retry;
pub mod requests;
pub mod tally;
pub mod workers;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    io,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use fabricbios_lease::{
    Asked, BindingId, BootTime, LeaseTable, LogPosition, Policy, Report, State, StepError, Ticket,
};
use fabricbios_wire::{
    Answer, AttachCode, Endpoint, InventoryForm, LeaseId, PeerChange, RdmaPeer, Refusal, Reply,
    Request, ResourceInventory, Role,
};
use tokio::{
    sync::{Notify, oneshot, watch},
    task::yield_now,
    time::timeout,
};

use crate::{
    driver::{
        effects::{Held, unavailable, unconfirmed, unwritten},
        failing::Failing,
        fair::{FairQueue, Owner},
        lease_list::AboutLeases,
        mailbox::Mailbox,
        tally::{DriverFigures, Tally, kind_of},
        workers::raise_priority,
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

/// How long a drain may take; cuts and scrubs that take longer may never end.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

/// How long READY waits for the adoption of leases of an earlier run. A slower adoption goes on afterwards; if it
/// fails, the lease ends.
const ADOPTION_PATIENCE: Duration = Duration::from_secs(20);

/// A journal that does not answer for this time counts as not writable.
const JOURNAL_PATIENCE: Duration = Duration::from_secs(9);

/// Most items of each sort in one turn. So one sort delays the others by some milliseconds at most.
const REPORTS_A_TURN: usize = 64;
const TIMERS_A_TURN: usize = 64;
const REQUESTS_A_TURN: usize = 16;
const RELEASED_A_TURN: usize = 64;

/// Interval of the check whether the node has settled or drained, while the driver has more work.
const LOOK: Duration = Duration::from_millis(10);

/// What follows a turn.
enum Step {
    Again,
    /// An item, or this time.
    Wait(Option<BootTime>),
    Done,
}

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
    /// Answers and orders that wait for the disk, in order of submission.
    held: VecDeque<(Seq, Owner, Held)>,
    /// Answers and orders whose changes are durable now. One commit can release the items of many thousands of leases.
    released: FairQueue<Held>,
    /// Durable grants and repeats of their requests, which are answered once their store has confirmed them.
    confirming: HashMap<LeaseId, Vec<(Ticket, Answer)>>,
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

    /// Runs until drained or halted, then closes the journal. Returns, after a drain, the leases whose end could not be
    /// proved.
    ///
    /// # Errors
    /// The driver cannot wait for inputs, or the journal could not be closed.
    pub fn run(mut self) -> io::Result<Vec<LeaseId>> {
        raise_priority();
        self.begin();
        loop {
            match self.step() {
                Step::Again => {}
                Step::Wait(until) => self.mailbox.wait(until)?,
                Step::Done => break,
            }
        }
        self.close()
    }

    /// The same as a task, without a thread: for simulations of many nodes in one process. The mailbox calls
    /// `woken.notify_one`, which is not lost if nobody waits yet; see [`Mailbox::woken_by`].
    ///
    /// # Errors
    /// The journal could not be closed.
    pub async fn run_as_task(mut self, woken: &Notify) -> io::Result<Vec<LeaseId>> {
        self.begin();
        loop {
            match self.step() {
                Step::Again => yield_now().await,
                Step::Wait(_) if !self.mailbox.begin_to_wait() => {}
                Step::Wait(until) => {
                    let now = self.environment.now().boot;
                    let span = until.map_or(Duration::MAX, |until| now.until(until));
                    // It is over because somebody called, or because the time has come.
                    timeout(span, woken.notified()).await.ok();
                }
                Step::Done => break,
            }
        }
        self.close()
    }

    /// One turn, and what comes next.
    fn step(&mut self) -> Step {
        let Some(more) = self.turn() else {
            return Step::Done;
        };
        let now = self.environment.now().boot;
        if more && now < self.next_look {
            return Step::Again;
        }
        self.next_look = now + LOOK;
        self.signal_settled();
        match (self.is_done(), more) {
            (true, _) => Step::Done,
            (false, true) => Step::Again,
            (false, false) => Step::Wait(self.next_wake()),
        }
    }

    fn close(self) -> io::Result<Vec<LeaseId>> {
        let uncut = self.uncut();
        self.environment.close().map_err(io::Error::other)?;
        Ok(uncut)
    }

    /// Adopts or ends the leases of an earlier run.
    fn begin(&mut self) {
        let uncut = self.table.uncut();
        let fenced = uncut.filter(|(_, state)| *state == State::Fenced);
        self.fenced_before = fenced.map(|(id, _)| id).collect();
        self.table.on_start(self.environment.now());
        self.perform();
    }

    fn uncut(&self) -> Vec<LeaseId> {
        let is_ours = |id: &LeaseId| self.draining.is_some() && !self.fenced_before.contains(id);
        let uncut = self.table.uncut().map(|(id, _)| id);
        uncut.filter(is_ours).collect()
    }

    /// Does some work of each sort. Returns whether there is more; `None`: stop now.
    fn turn(&mut self) -> Option<bool> {
        while let Some(input) = self.mailbox.take_notice() {
            if matches!(input, Input::Halt) {
                return None;
            }
            self.apply(input);
            self.perform();
        }
        self.release_held();
        for _ in 0..REPORTS_A_TURN {
            let Some(input) = self.mailbox.take_report() else {
                break;
            };
            self.apply(input);
        }
        self.perform();
        let now = self.environment.now();
        let done_at = |input: &Input| match input {
            Input::Report { at, .. } => Some(*at),
            _ => None,
        };
        let heard = self.mailbox.least_of_reports(done_at).unwrap_or(now.boot);
        let more_is_due = self.table.tick_some(now, heard, TIMERS_A_TURN);
        self.perform();
        for _ in 0..REQUESTS_A_TURN {
            let Some(input) = self.mailbox.take_request() else {
                break;
            };
            self.apply(input);
        }
        self.perform();
        self.check_journal(now.boot);
        self.signal_changes();
        Some(more_is_due || !self.released.is_empty() || !self.mailbox.is_empty())
    }

    fn signal_changes(&mut self) {
        let log_end = self.table.log_end();
        let leases_changed = std::mem::replace(&mut self.signalled, log_end) != log_end;
        let may_have_changed = std::mem::take(&mut self.may_have_changed);
        if let Some(changed) = &self.changed
            && (leases_changed || may_have_changed)
        {
            changed.send_replace(());
        }
    }

    /// Treats a disk that does not answer like a full disk.
    fn check_journal(&mut self, now: BootTime) {
        // Other threads write to the journal too, so more may be durable than the driver has submitted.
        if self.submitted <= self.durable {
            return;
        }
        let since = *self.silent_since.get_or_insert(now);
        if since + JOURNAL_PATIENCE <= now {
            self.silent_since = Some(now);
            let secs = JOURNAL_PATIENCE.as_secs();
            let error = format_args!("its disk has not answered for {secs} s");
            self.not_durable(&CommitError::new(error));
            self.perform();
        }
    }

    fn next_wake(&self) -> Option<BootTime> {
        self.table
            .next_deadline()
            .into_iter()
            .chain(self.draining)
            .chain(self.settled.as_ref().map(|(_, latest)| *latest))
            .chain(self.silent_since.map(|since| since + JOURNAL_PATIENCE))
            .min()
    }

    /// READY follows this signal. So leases that expired while no daemon ran are no longer served at READY.
    fn signal_settled(&mut self) {
        let Some((_, latest)) = self.settled else {
            return;
        };
        if self.table.is_settled() || latest <= self.environment.now().boot {
            let settled = self.settled.take();
            // The receiver may be gone already.
            settled.map(|(settled, _)| settled.send(()).ok());
        }
    }

    fn is_done(&self) -> bool {
        let Some(patience_ends) = self.draining else {
            return false;
        };
        let fenced_alone = || {
            let census = self.table.census();
            census.keys().all(|state| *state == State::Fenced)
        };
        let waits =
            !self.held.is_empty() || !self.released.is_empty() || !self.confirming.is_empty();
        (!waits && fenced_alone()) || patience_ends <= self.environment.now().boot
    }

    fn apply(&mut self, input: Input) {
        let only_looks = match &input {
            Input::Request { request, .. } => only_looks(request),
            Input::AboutLeases(_) | Input::AboutNode(_) | Input::Alive(_) => true,
            _ => false,
        };
        self.may_have_changed |= !only_looks;
        match input {
            Input::Request {
                requester,
                role,
                request,
            } => self.on_request(requester, role, request),
            Input::Attach {
                code,
                peer,
                spent,
                reply,
            } => self.on_attach(&code, peer, spent, reply),
            Input::AboutLeases(question) => self.tell_of_leases(question),
            // Who asked may be gone.
            Input::AboutNode(reply) => drop(reply.send(self.figures())),
            Input::ListenerLost => self.table.on_attach_lost(),
            // Who asked may be gone.
            Input::Alive(reply) => drop(reply.send(())),
            Input::Limits(policy) => self.table.change_limits(*policy),
            Input::Report { at, report } => self.on_report(at, report),
            Input::Durable(outcome) => {
                self.silent_since = None;
                match outcome {
                    Ok(seq) => {
                        self.unwritable = None;
                        self.durable = self.durable.max(seq);
                    }
                    Err(error) => self.not_durable(&error),
                }
            }
            Input::Drain => {
                let now = self.environment.now();
                self.draining = Some(now.boot + DRAIN_PATIENCE);
                self.table.on_drain(now);
            }
            Input::Halt => {}
        }
    }

    fn on_report(&mut self, at: BootTime, report: Report) {
        match &report {
            Report::Condition(id, condition) => log_note::log_condition(*id, condition),
            Report::Confirmed(binding_id, outcome) => {
                if outcome.is_ok() {
                    self.failing.works(binding_id.resource_id);
                }
                if let Some(waiting) = self.confirming.remove(&binding_id.lease_id) {
                    self.on_confirmed(*binding_id, outcome, waiting);
                }
            }
            _ => {}
        }
        let amount = report.lease_id().and_then(|id| self.table.amount(id));
        self.tally.report(&report, amount);
        self.table.on_report(self.environment.now(), at, report);
    }

    /// Answers the request for a lease, and its repeats.
    fn on_confirmed(
        &mut self,
        id: BindingId,
        outcome: &Result<(), StepError>,
        waiting: Vec<(Ticket, Answer)>,
    ) {
        if outcome.is_ok() {
            self.tally.granted(id.resource_id);
        }
        for (ticket, answer) in waiting {
            match outcome {
                Ok(()) => self.reply(ticket, answer),
                Err(error) => self.refuse(ticket, id.lease_id, unconfirmed(error)),
            }
        }
    }

    /// The caller joins as its tenant could, in the same turn.
    fn on_attach(
        &mut self,
        code: &AttachCode,
        peer: RdmaPeer,
        spent: oneshot::Sender<Option<(LeaseId, Arc<str>)>>,
        reply: oneshot::Sender<Answer>,
    ) {
        let of_code = self.table.spend_attach_code(code);
        // A listener that has gone spends the code too, and nothing joins.
        if spent.send(of_code.clone()).is_ok()
            && let Some((lease_id, tenant)) = of_code
        {
            let change = PeerChange::Add(vec![peer]);
            let request = Request::LeasePeers { lease_id, change };
            let requester = Requester {
                tenant,
                reached: None,
                control: None,
                reply,
            };
            self.on_request(requester, Role::Tenant, request);
        }
    }

    fn on_request(&mut self, requester: Requester, role: Role, request: Request) {
        let now = self.environment.now();
        let tenant = Arc::clone(&requester.tenant);
        let may_ask = self.table.check_rate(now, &tenant, role);
        if let Err(refusal) = may_ask.and_then(|()| self.check_accepts_leases(&tenant, &request)) {
            self.tally.refused(kind_of(&request), &refusal);
            return requester.reply(Err(refusal));
        }
        if let Request::GetInventory(form) = request {
            return requester.reply(Ok(self.inventory_now(form)));
        }
        let Some(fresh_id) = self.environment.random_lease_id() else {
            let refusal = unavailable("the system has no randomness for a lease id");
            self.tally.refused(kind_of(&request), &refusal);
            return requester.reply(Err(refusal));
        };
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.requesters.insert(ticket, requester);
        let asked = Asked {
            ticket,
            tenant,
            role,
            fresh_id,
            request,
        };
        self.table.on_request(now, &asked);
    }

    fn inventory_now(&self, form: InventoryForm) -> Reply {
        match form {
            InventoryForm::Flat => {
                let now = self.environment.now().boot;
                let failing = |id| self.failing.trouble(now, id);
                Reply::FlatInventory(self.inventory.flat(self.table.availability(), &failing))
            }
            InventoryForm::Structured => Reply::Inventory(self.structured_inventory()),
        }
    }

    fn structured_inventory(&self) -> ResourceInventory {
        let unwritable = self.unwritable.as_ref();
        let trouble = unwritable.map(|error| format!("the journal cannot be written: {error}"));
        let (offered, limits) = (self.table.availability(), self.table.limits());
        let now = self.environment.now().boot;
        let failing = |id| self.failing.trouble(now, id);
        self.inventory
            .structured(offered, limits, trouble, &failing)
    }

    /// For metrics and health. Looks at no lease, but at those that are in a state for too long.
    fn figures(&self) -> DriverFigures {
        DriverFigures {
            offered: self.table.availability().collect(),
            states: self.table.figures(self.environment.now().boot),
            inventory: self.structured_inventory(),
            tally: self.tally.clone(),
            waiting: self.mailbox.waiting(),
            held: self.held.len() + self.released.len(),
            pools: self.environment.pools(),
            journal: self.environment.journal(),
            unwritable: self.unwritable.as_ref().map(ToString::to_string),
            is_draining: self.draining.is_some(),
        }
    }

    /// Checks that new leases, and queue pairs that join one, are accepted at the moment.
    fn check_accepts_leases(&self, tenant: &str, request: &Request) -> Result<(), Refusal> {
        let joins = matches!(
            request,
            Request::LeasePeers {
                change: PeerChange::Add(_),
                ..
            }
        );
        let allocates =
            matches!(request, Request::LeaseAlloc(_)) && !self.table.is_repeat(tenant, request);
        if !joins && !allocates {
            return Ok(());
        }
        if self.draining.is_some() {
            return Err(unavailable("the node is shutting down; lease elsewhere"));
        }
        if let Some(error) = &self.unwritable {
            return Err(unwritten(error));
        }
        match self.environment.has_room() {
            true => Ok(()),
            false => Err(unavailable(
                "the node's journal does not keep up; try again later",
            )),
        }
    }
}

impl Requester {
    /// A client that has gone away needs no answer: its lease, if any, stays listed and expires.
    fn reply(self, answer: Answer) {
        if self
            .reply
            .send(endpoint::reachable(answer, self.reached, self.control))
            .is_err()
        {
            tracing::debug!("a client went away before its answer");
        }
    }
}

/// Whether the request changes nothing.
fn only_looks(request: &Request) -> bool {
    matches!(
        request,
        Request::Ping(_)
            | Request::GetInventory(_)
            | Request::LeaseQuery(_)
            | Request::LeaseList { .. }
            | Request::FenceList
    )
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
