//! The one owner of the lease table: waits for one thing, applies it without waiting, does what
//! the table asks for, and waits again.
//!
//! What it keeps in order: orders go out as they come, so a cut waits for nothing; an answer that
//! rests on a change goes out when that change is durable.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    io,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use fabricbios_lease::{
    Asked, BootTime, Change as TableChange, Effect, LeaseTable, Now, Order, Report, State, Ticket,
};
use fabricbios_wire::{
    Answer, InventoryForm, LeaseError, LeaseId, Refusal, RefusalClass, Reply, Request, Role,
};
use tokio::sync::oneshot;

use crate::{
    backends::Backends,
    clock, endpoint,
    inventory::{Inventory, Standing},
    journal::{Change, CommitError, Journal, Seq},
    lanes, log_note,
    mailbox::Mailbox,
    records,
};

/// What can happen to the driver.
#[derive(Debug)]
pub enum Input {
    /// A peer asks.
    Asked {
        /// From its certificate.
        tenant: Arc<str>,
        /// From its certificate.
        role: Role,
        /// What endpoints say where the node listens on a wildcard.
        reached: Option<IpAddr>,
        /// What.
        request: Request,
        /// Where the answer goes.
        reply: oneshot::Sender<Answer>,
    },
    /// A backend reports.
    Report {
        /// When it was done; reading it may come later.
        at: BootTime,
        /// What.
        report: Report,
    },
    /// The journal is durable up to here, or could not be written.
    Durable(Result<Seq, CommitError>),
    /// Take every lease back, then stop.
    Drain,
    /// Stop now.
    Halt,
}

/// How long a drain may take: cuts and scrubs that have not ended by then never may.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

/// How long clients wait for leases of an earlier run to be adopted: one that takes longer goes on being
/// made, and ends if it cannot be.
const ADOPTION_PATIENCE: Duration = Duration::from_secs(20);

/// Who waits for an answer.
#[derive(Debug)]
struct Asker {
    reached: Option<IpAddr>,
    reply: oneshot::Sender<Answer>,
}

/// What waits until all that was decided before it is durable.
#[derive(Debug)]
enum Held {
    /// Nobody is told of what a crash could undo.
    Answer(Ticket, Answer),
    /// A release or reset: after a crash the journal must not say that a lease lives whose bytes are
    /// scrubbed. Cuts wait for nothing.
    Order(Order),
}

/// See the module.
#[derive(Debug)]
pub struct Driver {
    table: LeaseTable,
    backends: Backends,
    journal: Journal,
    inventory: Inventory,
    mailbox: Mailbox<Input>,
    askers: HashMap<Ticket, Asker>,
    next_ticket: u64,
    /// Changes of the turn that is being done.
    batch: Vec<Change>,
    submitted: Seq,
    durable: Seq,
    /// What waits for the disk, in order of submission.
    held: VecDeque<(Seq, Held)>,
    draining: Option<BootTime>,
    /// Leases that an earlier run could not cut, and told of.
    fenced_before: BTreeSet<LeaseId>,
    latest: BootTime,
    /// Told when what an earlier run left is as it should be, or at the latest then.
    settled: Option<(oneshot::Sender<()>, BootTime)>,
}

impl Driver {
    /// A driver that has not begun.
    #[must_use]
    pub fn new(
        table: LeaseTable,
        backends: Backends,
        journal: Journal,
        inventory: Inventory,
        mailbox: Mailbox<Input>,
    ) -> Self {
        Self {
            table,
            backends,
            journal,
            inventory,
            mailbox,
            askers: HashMap::new(),
            next_ticket: 0,
            batch: Vec::new(),
            submitted: Seq(0),
            durable: Seq(0),
            held: VecDeque::new(),
            draining: None,
            fenced_before: BTreeSet::new(),
            latest: BootTime(0),
            settled: None,
        }
    }

    /// Has it told when leases of an earlier run have their bindings again or are cut.
    #[must_use]
    pub fn telling(mut self, settled: oneshot::Sender<()>) -> Self {
        self.settled = Some((settled, clock::now().boot + ADOPTION_PATIENCE));
        self
    }

    /// Drives until drained or halted, then closes the journal. Once drained: the leases whose access
    /// could not be proven to have ended.
    pub fn run(mut self) -> io::Result<Vec<LeaseId>> {
        lanes::hurry();
        let fenced = self
            .table
            .uncut()
            .filter(|(_, state)| *state == State::Fenced);
        self.fenced_before = fenced.map(|(id, _)| id).collect();
        let now = self.now();
        self.table.on_tick(now);
        self.perform();
        self.tell_settled();
        while !self.is_done() {
            self.mailbox.wait(self.next_wake())?;
            if !self.turn() {
                break;
            }
            self.tell_settled();
        }
        let uncut = self.uncut();
        self.journal.close().map_err(io::Error::other)?;
        Ok(uncut)
    }

    fn uncut(&self) -> Vec<LeaseId> {
        let is_ours = |id: &LeaseId| self.draining.is_some() && !self.fenced_before.contains(id);
        let uncut = self.table.uncut().map(|(id, _)| id);
        uncut.filter(is_ours).collect()
    }

    /// Takes in everything that is there, all that was done before each thing that is asked;
    /// `false`: stop now.
    fn turn(&mut self) -> bool {
        loop {
            while let Some(input) = self.mailbox.take_done() {
                if matches!(input, Input::Halt) {
                    return false;
                }
                self.apply(input);
                self.perform();
            }
            let now = self.now();
            self.table.on_tick(now);
            self.perform();
            let Some(input) = self.mailbox.take_asked() else {
                return true;
            };
            self.apply(input);
            self.perform();
        }
    }

    /// The time, for the table: it never goes backwards.
    fn now(&mut self) -> Now {
        let now = clock::now();
        self.latest = self.latest.max(now.boot);
        now
    }

    /// The time at which something was done, or the latest that the table knows of.
    fn done_at(&mut self, at: BootTime) -> Now {
        self.latest = self.latest.max(at);
        Now {
            boot: self.latest,
            unix_ms: clock::now().unix_ms_at(self.latest),
        }
    }

    fn next_wake(&self) -> Option<BootTime> {
        self.table
            .next_deadline()
            .into_iter()
            .chain(self.draining)
            .chain(self.settled.as_ref().map(|(_, latest)| *latest))
            .min()
    }

    fn tell_settled(&mut self) {
        let census = self.table.census();
        // Cutting: what ran out while there was no daemon is not served any more when this one is READY.
        let unsettled = [State::Rebinding, State::Cutting];
        let is_settled = !unsettled.iter().any(|state| census.contains_key(state));
        let now = clock::now().boot;
        let is_time = |latest: BootTime| is_settled || latest <= now;
        if let Some((settled, _)) = self.settled.take_if(|(_, latest)| is_time(*latest)) {
            // Whoever waited for it may be gone with the daemon.
            settled.send(()).ok();
        }
    }

    fn is_done(&self) -> bool {
        let Some(patience_ends) = self.draining else {
            return false;
        };
        let settled = self
            .table
            .census()
            .keys()
            .all(|state| *state == State::Fenced);
        (settled && self.held.is_empty()) || patience_ends <= clock::now().boot
    }

    fn apply(&mut self, input: Input) {
        match input {
            Input::Asked {
                tenant,
                role,
                reached,
                request,
                reply,
            } => self.asked(tenant, role, request, Asker { reached, reply }),
            Input::Report { at, report } => {
                let at = self.done_at(at);
                self.table.on_report(at, report);
            }
            Input::Durable(Ok(seq)) => self.durable = self.durable.max(seq),
            Input::Durable(Err(error)) => self.not_durable(&error),
            Input::Drain => {
                let now = self.now();
                self.draining = Some(now.boot + DRAIN_PATIENCE);
                self.table.on_drain(now);
            }
            Input::Halt => {}
        }
    }

    fn asked(&mut self, tenant: Arc<str>, role: Role, request: Request, asker: Asker) {
        if let Some(refusal) = self.not_now(&request) {
            return asker.tell(Err(refusal));
        }
        if let Request::GetInventory(form) = request {
            return asker.tell(Ok(self.inventory_now(form)));
        }
        let Some(fresh_id) = fresh_lease_id() else {
            let why = "the system has no randomness for a lease id";
            return asker.tell(Err(unavailable(why)));
        };
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.askers.insert(ticket, asker);
        let asked = Asked {
            ticket,
            tenant,
            role,
            fresh_id,
            request,
        };
        let now = self.now();
        self.table.on_request(now, &asked);
    }

    fn inventory_now(&self, form: InventoryForm) -> Reply {
        let offered: Vec<Standing> = self
            .table
            .availability()
            .map(|available| self.backends.standing(available))
            .collect();
        match form {
            InventoryForm::Flat => Reply::FlatInventory(self.inventory.flat(&offered)),
            InventoryForm::Structured => Reply::Inventory(self.inventory.structured(&offered)),
        }
    }

    /// Why new leases are not taken on at the moment.
    fn not_now(&self, request: &Request) -> Option<Refusal> {
        if !matches!(request, Request::LeaseAlloc(_)) {
            return None;
        }
        if self.draining.is_some() {
            return Some(unavailable("the node is shutting down; lease elsewhere"));
        }
        (!self.journal.has_room())
            .then(|| unavailable("the node's journal does not keep up; try again later"))
    }

    /// Does what the table asks for, until it asks for nothing.
    fn perform(&mut self) {
        let mut held = Vec::new();
        while let Some(effect) = self.table.poll_effect() {
            match effect {
                Effect::Order(order @ (Order::Release(..) | Order::Reset(..))) => {
                    held.push(Held::Order(order));
                }
                Effect::Order(order) => self.backends.dispatch(order),
                Effect::Journal(change) => self.batch.extend(encode(change)),
                Effect::Note(note) => log_note::log(&note),
                Effect::Answer {
                    ticket,
                    answer,
                    after_journal: true,
                } => {
                    held.push(Held::Answer(ticket, answer));
                }
                Effect::Answer {
                    ticket,
                    answer,
                    after_journal: false,
                } => {
                    self.tell(ticket, answer);
                }
            }
        }
        if !self.batch.is_empty() {
            self.submitted = self.journal.submit(std::mem::take(&mut self.batch));
        }
        let seq = self.submitted;
        self.held.extend(held.into_iter().map(|it| (seq, it)));
        self.let_go();
    }

    /// What was held for changes that are durable by now.
    fn let_go(&mut self) {
        while self
            .held
            .front()
            .is_some_and(|(seq, ..)| *seq <= self.durable)
        {
            match self.held.pop_front() {
                Some((_, Held::Answer(ticket, answer))) => self.tell(ticket, answer),
                Some((_, Held::Order(order))) => self.backends.dispatch(order),
                None => {}
            }
        }
    }

    /// The disk refused: who waits for it is told so. Cuts were made all the same, and a lease that
    /// nobody was told of runs out by itself. Releases go on waiting: the write is tried again.
    fn not_durable(&mut self, error: &CommitError) {
        tracing::error!(%error, waiting = self.held.len(), "the journal could not be written");
        for (seq, held) in std::mem::take(&mut self.held) {
            let (ticket, answer) = match held {
                Held::Answer(ticket, answer) => (ticket, answer),
                order @ Held::Order(_) => {
                    self.held.push_back((seq, order));
                    continue;
                }
            };
            let told = match answer {
                Ok(_) => Err(Refusal::new(
                    LeaseError::Internal,
                    RefusalClass::Transient,
                    format!(
                        "decided, but it could not be written down ({error}): should the node die before it can be, it comes undone"
                    ),
                )),
                refusal => refusal,
            };
            self.tell(ticket, told);
        }
    }

    fn tell(&mut self, ticket: Ticket, answer: Answer) {
        if let Some(asker) = self.askers.remove(&ticket) {
            asker.tell(answer);
        }
    }
}

impl Asker {
    /// One that has gone away needs no answer: its lease, if any, is listed and runs out.
    fn tell(self, answer: Answer) {
        if self
            .reply
            .send(endpoint::reachable(answer, self.reached))
            .is_err()
        {
            tracing::debug!("an asker went away before its answer");
        }
    }
}

fn unavailable(message: &str) -> Refusal {
    Refusal::new(LeaseError::Unavailable, RefusalClass::Transient, message)
}

fn fresh_lease_id() -> Option<LeaseId> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(LeaseId(u128::from_be_bytes(bytes))).filter(|id| id.0 != 0)
}

/// The journal's form of a change. Records are plain data: encoding them cannot fail, and if it
/// did, an unwritten record is better than a dead node.
fn encode(change: TableChange) -> Option<Change> {
    let encoded = match change {
        TableChange::PutLease(record) => {
            records::encode(&record).map(|bytes| Change::PutLease(record.lease_id, bytes))
        }
        TableChange::RemoveLease(id) => Ok(Change::RemoveLease(id)),
        TableChange::PutFence(record) => {
            records::encode(&record).map(|bytes| Change::PutFence(record.resource_id, bytes))
        }
        TableChange::RemoveFence(id) => Ok(Change::RemoveFence(id)),
    };
    encoded
        .inspect_err(|error| tracing::error!(%error, "a record cannot be encoded"))
        .ok()
}

#[cfg(test)]
mod tests;
