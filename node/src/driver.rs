//! The one owner of the lease table: waits for one thing, applies it without waiting, does what
//! the table asks for, and waits again.
//!
//! What it keeps in order: orders go out as they come, so a cut waits for nothing; an answer that
//! rests on a change goes out when that change is durable.

mod environment;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    io,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use fabricbios_lease::{
    After, Asked, BootTime, Change as TableChange, Effect, LeaseTable, Order, Report, State,
    StepError, Ticket,
};
use fabricbios_wire::{
    Answer, InventoryForm, LeaseError, LeaseId, Refusal, RefusalClass, Reply, Request, Role,
};
use tokio::sync::oneshot;

use crate::{
    endpoint,
    fair::{FairQueue, Owner},
    inventory::{Inventory, Standing},
    journal::{Change, CommitError, Key, Seq},
    log_note,
    mailbox::Mailbox,
    records,
    workers::raise_priority,
};

pub use environment::{Environment, Machine};

/// What can happen to the driver.
#[derive(Debug)]
pub enum Input {
    /// A peer asks.
    Asked {
        /// Who.
        asker: Asker,
        /// From its certificate.
        role: Role,
        /// What.
        request: Request,
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

/// Of who waits for the journal: after that it counts as one that cannot be written.
const JOURNAL_PATIENCE: Duration = Duration::from_secs(9);

/// Of each sort, done in one turn: none keeps the others waiting for longer than some milliseconds.
const REPORTS_A_TURN: usize = 64;
const TIMERS_A_TURN: usize = 64;
const REQUESTS_A_TURN: usize = 16;
const RELEASED_A_TURN: usize = 64;

/// How often it is looked whether everything is settled or drained, while there is more to do.
const LOOK: Duration = Duration::from_millis(10);

/// Who waits for an answer.
#[derive(Debug)]
pub struct Asker {
    /// From its certificate.
    pub tenant: Arc<str>,
    /// What endpoints say where the node listens on a wildcard.
    pub reached: Option<IpAddr>,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Answer>,
}

/// What waits until all that was decided before it is durable.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all that is held are answers"
)]
enum Held {
    /// Nobody is told of what a crash could undo.
    Answer(Ticket, Answer, After),
    /// A release or reset: after a crash the journal must not say that a lease lives whose bytes are
    /// scrubbed. Cuts wait for nothing.
    Order(Order),
}

/// See the module.
#[derive(Debug)]
pub struct Driver<E> {
    table: LeaseTable,
    environment: E,
    inventory: Inventory,
    mailbox: Mailbox<Input>,
    askers: HashMap<Ticket, Asker>,
    next_ticket: u64,
    /// Changes of the turn that is being done.
    batch: Vec<Change>,
    submitted: Seq,
    durable: Seq,
    /// What waits for the disk, in order of submission.
    held: VecDeque<(Seq, Owner, Held)>,
    /// What waited for changes that are durable by now. One commit can have those of many thousands of leases.
    released: FairQueue<Held>,
    /// Grants that are durable, and told once their store has confirmed them.
    confirming: HashMap<LeaseId, (Ticket, Answer)>,
    /// Why the journal could not be written at the last try.
    unwritable: Option<CommitError>,
    /// Since when the journal has had something to write and has not said a word.
    silent_since: Option<BootTime>,
    draining: Option<BootTime>,
    /// Leases that an earlier run could not cut, and told of.
    fenced_before: BTreeSet<LeaseId>,
    next_look: BootTime,
    /// Told when what an earlier run left is as it should be, or at the latest then.
    settled: Option<(oneshot::Sender<()>, BootTime)>,
}

impl<E: Environment> Driver<E> {
    /// A driver that has not begun.
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
            askers: HashMap::new(),
            next_ticket: 0,
            batch: Vec::new(),
            submitted: Seq(0),
            durable: Seq(0),
            held: VecDeque::new(),
            released: FairQueue::default(),
            confirming: HashMap::new(),
            unwritable: None,
            silent_since: None,
            draining: None,
            fenced_before: BTreeSet::new(),
            next_look: BootTime(0),
            settled: None,
        }
    }

    /// Has it told when leases of an earlier run have their bindings again or are cut.
    #[must_use]
    pub fn telling(mut self, settled: oneshot::Sender<()>) -> Self {
        self.settled = Some((settled, self.environment.now().boot + ADOPTION_PATIENCE));
        self
    }

    /// Has `changes` written together with what became of leases of an earlier run, so that neither is there alone.
    #[must_use]
    pub fn writing(mut self, changes: impl IntoIterator<Item = Change>) -> Self {
        self.batch.extend(changes);
        self
    }

    /// Drives until drained or halted, then closes the journal. Once drained: the leases whose access
    /// could not be proven to have ended.
    pub fn run(mut self) -> io::Result<Vec<LeaseId>> {
        raise_priority();
        self.begin();
        while let Some(more) = self.turn() {
            let now = self.environment.now().boot;
            if more && now < self.next_look {
                continue;
            }
            self.next_look = now + LOOK;
            self.tell_settled();
            if self.is_done() {
                break;
            }
            if !more {
                self.mailbox.wait(self.next_wake())?;
            }
        }
        let uncut = self.uncut();
        self.environment.close().map_err(io::Error::other)?;
        Ok(uncut)
    }

    /// Takes up what an earlier run left.
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

    /// Does some of everything that there is to do: whether there is more. `None`: stop now.
    fn turn(&mut self) -> Option<bool> {
        while let Some(input) = self.mailbox.take_done() {
            if matches!(input, Input::Halt) {
                return None;
            }
            self.apply(input);
            self.perform();
        }
        self.let_go();
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
            let Some(input) = self.mailbox.take_asked() else {
                break;
            };
            self.apply(input);
        }
        self.perform();
        self.mind_the_journal(now.boot);
        Some(more_is_due || !self.released.is_empty() || !self.mailbox.is_empty())
    }

    /// A disk that does not answer is to who waits for it like one that is full.
    fn mind_the_journal(&mut self, now: BootTime) {
        if self.submitted == self.durable {
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

    /// What ran out while there was no daemon is not served any more when this one is READY.
    fn tell_settled(&mut self) {
        let Some((_, latest)) = self.settled else {
            return;
        };
        if self.table.is_settled() || latest <= self.environment.now().boot {
            let settled = self.settled.take();
            // Whoever waited for it may be gone with the daemon.
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
        match input {
            Input::Asked {
                asker,
                role,
                request,
            } => self.asked(asker, role, request),
            Input::Report { at, report } => self.reported(at, report),
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

    fn reported(&mut self, at: BootTime, report: Report) {
        match &report {
            Report::Condition(id, condition) => self.inventory.note(*id, condition),
            Report::Confirmed(binding_id, outcome) => {
                if let Some((ticket, answer)) = self.confirming.remove(&binding_id.lease_id) {
                    let refused = outcome.as_ref().err().map(unconfirmed);
                    self.tell(ticket, refused.map_or(answer, Err));
                }
            }
            _ => {}
        }
        self.table.on_report(self.environment.now(), at, report);
    }

    fn asked(&mut self, asker: Asker, role: Role, request: Request) {
        let now = self.environment.now();
        let tenant = Arc::clone(&asker.tenant);
        let may_ask = self.table.check_rate(now, &tenant, role);
        if let Err(refusal) = may_ask.and_then(|()| self.check_open(&request)) {
            return asker.tell(Err(refusal));
        }
        if let Request::GetInventory(form) = request {
            return asker.tell(Ok(self.inventory_now(form)));
        }
        let Some(fresh_id) = self.environment.random_lease_id() else {
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
        self.table.on_request(now, &asked);
    }

    fn inventory_now(&self, form: InventoryForm) -> Reply {
        let standing = |available| self.inventory.standing(available);
        let offered: Vec<Standing> = self.table.availability().map(standing).collect();
        match form {
            InventoryForm::Flat => Reply::FlatInventory(self.inventory.flat(&offered)),
            InventoryForm::Structured => Reply::Inventory(self.inventory.structured(&offered)),
        }
    }

    /// Whether new leases are taken on at the moment.
    fn check_open(&self, request: &Request) -> Result<(), Refusal> {
        if !matches!(request, Request::LeaseAlloc(_)) {
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

    /// Does what the table asks for, until it asks for nothing.
    fn perform(&mut self) {
        let mut held = Vec::new();
        while let Some(effect) = self.table.poll_effect() {
            match effect {
                Effect::Order {
                    order,
                    tenant,
                    after_journal: true,
                } => held.push((tenant, Held::Order(order))),
                Effect::Order { order, tenant, .. } => self.dispatch(tenant, order),
                Effect::Journal(change) => self.batch.extend(encode(change)),
                Effect::Note(note) => log_note::log(&note),
                Effect::Answer {
                    ticket,
                    answer,
                    after: After::Nothing,
                } => self.tell(ticket, answer),
                Effect::Answer {
                    ticket,
                    answer,
                    after,
                } => {
                    let asker = self.askers.get(&ticket);
                    let tenant = asker.map(|asker| Arc::clone(&asker.tenant));
                    held.push((tenant, Held::Answer(ticket, answer, after)));
                }
            }
        }
        if !self.batch.is_empty() {
            self.submitted = self.environment.submit(std::mem::take(&mut self.batch));
        }
        let seq = self.submitted;
        self.held
            .extend(held.into_iter().map(|(tenant, it)| (seq, tenant, it)));
        let is_durable = |(seq, ..): &(Seq, Owner, Held)| *seq <= self.durable;
        while self.held.front().is_some_and(is_durable)
            && let Some((_, tenant, held)) = self.held.pop_front()
        {
            self.released.push(tenant, held);
        }
    }

    /// What is done at once is heard at once: whoever waits for it is told in this turn.
    fn dispatch(&mut self, owner: Owner, order: Order) {
        if let Some(report) = self.environment.dispatch(owner, order) {
            self.reported(self.environment.now().boot, report);
        }
    }

    /// Tells and orders some of what waited for the disk.
    fn let_go(&mut self) {
        for _ in 0..RELEASED_A_TURN {
            match self.released.pop_of(|_| true) {
                Some((tenant, Held::Answer(ticket, answer, After::Grant(binding_id)))) => {
                    self.confirming
                        .insert(binding_id.lease_id, (ticket, answer));
                    self.dispatch(tenant, Order::Confirm(binding_id));
                }
                Some((_, Held::Answer(ticket, answer, _))) => self.tell(ticket, answer),
                Some((tenant, Held::Order(order))) => self.dispatch(tenant, order),
                None => return,
            }
        }
    }

    /// The disk refused: who waits for it is told so, and a lease that was to be granted is taken back. Cuts were
    /// made all the same. Releases of leases on record go on waiting: the write is tried again.
    fn not_durable(&mut self, error: &CommitError) {
        if self.unwritable.is_none() {
            tracing::error!(%error, waiting = self.held.len(), "the journal could not be written; trying again");
        }
        self.unwritable = Some(error.clone());
        for (seq, tenant, held) in std::mem::take(&mut self.held) {
            let (ticket, answer, after) = match held {
                Held::Answer(ticket, answer, after) => (ticket, answer, after),
                order @ Held::Order(..) => {
                    self.held.push_back((seq, tenant, order));
                    continue;
                }
            };
            if let After::Grant(binding_id) = after {
                self.table
                    .on_grant_lost(self.environment.now(), binding_id.lease_id);
                self.tell(ticket, Err(unwritten(error)));
                continue;
            }
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

fn unavailable(message: impl Into<String>) -> Refusal {
    Refusal::new(LeaseError::Unavailable, RefusalClass::Transient, message)
}

fn unwritten(error: &CommitError) -> Refusal {
    unavailable(format!(
        "nothing was leased: the node cannot write its journal ({error}); lease elsewhere, or try again when its \
         operator has seen to the disk"
    ))
}

fn unconfirmed(error: &StepError) -> Refusal {
    unavailable(format!(
        "nothing was leased: the node could not do `{}`, its storage does not answer or fails; lease elsewhere, or try \
         again later, the node's log says what is wrong",
        error.step
    ))
}

/// The journal's form of a change. Records are plain data: encoding them cannot fail, and if it
/// did, an unwritten record is better than a dead node.
fn encode(change: TableChange) -> Option<Change> {
    let (key, encoded) = match change {
        TableChange::PutLease(record) => (Key::Lease(record.lease_id), records::encode(&record)),
        TableChange::PutFence(record) => (Key::Fence(record.resource_id), records::encode(&record)),
        TableChange::RemoveLease(id) => return Some(Change::remove(Key::Lease(id))),
        TableChange::RemoveFence(id) => return Some(Change::remove(Key::Fence(id))),
    };
    encoded
        .inspect_err(|error| tracing::error!(%error, "a record cannot be encoded"))
        .map(|bytes| Change::put(key, bytes))
        .ok()
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
