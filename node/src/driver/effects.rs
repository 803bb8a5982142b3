//! Carries out the effects of the table. Answers and orders that depend on a change wait until it is durable.

use std::{mem, sync::Arc};

use fabricbios_lease::{After, BootTime, Change as TableChange, Effect, Order, StepError, Ticket};
use fabricbios_wire::{Answer, LeaseError, LeaseId, Refusal, RefusalClass};

use super::{Confirming, Driver, Environment, log_note, turns::ITEMS_A_TURN};
use crate::{
    driver::fair::Owner,
    journal::{Change, CommitError, Key, Seq, records},
};

/// An answer or order that waits until every change before it is durable.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all held items are answers"
)]
pub(super) enum Held {
    /// Clients must not learn of a change that a crash could undo.
    Answer(Ticket, Answer, After),
    /// A release or reset: after a crash the journal must not have a live lease whose bytes are scrubbed. Cuts are
    /// never held.
    Order(Order),
}

impl<E: Environment> Driver<E> {
    /// Carries out the table's effects until there are none, but for what waits for the disk: see [`Self::submit`].
    pub(super) fn perform(&mut self) {
        while let Some(effect) = self.table.poll_effect() {
            match effect {
                Effect::Order {
                    order,
                    tenant,
                    after_journal: true,
                } => self.unsubmitted.push((tenant, Held::Order(order))),
                Effect::Order { order, tenant, .. } => self.dispatch(tenant, order),
                Effect::Journal(change) => self.batch.extend(encode(change)),
                Effect::Note(note) => {
                    self.tally.note(&note);
                    log_note::log(&note);
                    self.failing.count(&note, || self.environment.now().boot);
                }
                Effect::Answer {
                    ticket,
                    answer,
                    after: After::Nothing,
                } => self.reply(ticket, answer),
                Effect::Answer {
                    ticket,
                    answer,
                    after,
                } => {
                    let requester = self.requesters.get(&ticket);
                    let tenant = requester.map(|requester| Arc::clone(&requester.tenant));
                    let held = Held::Answer(ticket, answer, after);
                    self.unsubmitted.push((tenant, held));
                }
            }
        }
    }

    /// Submits the changes of the turn. What depends on them, or on earlier ones, waits until they are durable.
    pub(super) fn submit(&mut self) {
        if !self.batch.is_empty() {
            self.submitted = self.environment.submit(mem::take(&mut self.batch));
        }
        let seq = self.submitted;
        let unsubmitted = self.unsubmitted.drain(..);
        self.held
            .extend(unsubmitted.map(|(tenant, it)| (seq, tenant, it)));
        let is_durable = |(seq, ..): &(Seq, Owner, Held)| *seq <= self.durable;
        while self.held.front().is_some_and(is_durable)
            && let Some((_, tenant, held)) = self.held.pop_front()
        {
            self.released.push(tenant, held);
        }
    }

    /// Dispatches an order. The report of an order that is done at once is applied in this turn.
    pub(super) fn dispatch(&mut self, owner: Owner, order: Order) {
        if let Some(report) = self.environment.dispatch(owner, order) {
            self.on_report(self.environment.now().boot, report);
        }
    }

    /// Sends some of the answers and orders that waited for the disk, until the end of their share of the turn.
    pub(super) fn release_held(&mut self, share: BootTime) {
        for _ in 0..ITEMS_A_TURN {
            if self.is_over(share) {
                return;
            }
            match self.released.pop_of(|_| true) {
                Some((tenant, Held::Answer(ticket, answer, After::Grant(binding_id)))) => {
                    let confirming = Confirming {
                        granted: (ticket, answer),
                        repeats: Vec::new(),
                    };
                    self.confirming.insert(binding_id.lease_id, confirming);
                    self.dispatch(tenant, Order::Confirm(binding_id));
                }
                Some((_, Held::Answer(ticket, answer, After::Repeat(id)))) => {
                    match self.confirming.get_mut(&id) {
                        Some(waiting) => waiting.repeats.push((ticket, answer)),
                        None => self.reply(ticket, answer),
                    }
                }
                Some((_, Held::Answer(ticket, answer, _))) => self.reply(ticket, answer),
                Some((tenant, Held::Order(order))) => self.dispatch(tenant, order),
                None => return,
            }
        }
    }

    /// The commit failed: the waiting clients get an error, and leases that were about to be granted are taken back.
    /// Cuts did not wait. Releases go on waiting, because the journal retries the commit.
    pub(super) fn not_durable(&mut self, error: &CommitError) {
        if self.unwritable.is_none() {
            tracing::error!(%error, waiting = self.held.len(), "the journal could not be written; trying again");
        }
        self.unwritable = Some(error.clone());
        for (seq, tenant, held) in mem::take(&mut self.held) {
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
                self.refuse(ticket, binding_id.lease_id, unwritten(error));
                continue;
            }
            if let After::Repeat(id) = after {
                self.refuse(ticket, id, unwritten_before(error));
                continue;
            }
            match answer {
                Ok(_) => {
                    let refusal = undecided(error);
                    self.tally.refused(None, &refusal);
                    self.reply(ticket, Err(refusal));
                }
                // The table has noted it.
                refused => self.reply(ticket, refused),
            }
        }
    }

    /// Refuses a request for a lease that the table had granted.
    pub(super) fn refuse(&mut self, ticket: Ticket, id: LeaseId, refusal: Refusal) {
        self.tally.refused(self.table.kind(id), &refusal);
        self.reply(ticket, Err(refusal));
    }

    pub(super) fn reply(&mut self, ticket: Ticket, answer: Answer) {
        if let Some(requester) = self.requesters.remove(&ticket) {
            requester.reply(answer);
        }
    }
}

pub(super) fn unavailable(message: impl Into<String>) -> Refusal {
    Refusal::new(LeaseError::Unavailable, RefusalClass::Transient, message)
}

pub(super) fn unwritten(error: &CommitError) -> Refusal {
    unavailable(format!(
        "nothing was leased: the node cannot write its journal ({error}); lease elsewhere, or try again when its \
         operator has seen to the disk"
    ))
}

fn undecided(error: &CommitError) -> Refusal {
    Refusal::new(
        LeaseError::Internal,
        RefusalClass::Transient,
        format!(
            "decided, but not in the journal ({error}): if the node dies before the journal can be written, the change is lost"
        ),
    )
}

fn unwritten_before(error: &CommitError) -> Refusal {
    unavailable(format!(
        "whether this request has a lease is not known: the node cannot write its journal ({error}); repeat the request \
         when its operator has seen to the disk"
    ))
}

pub(super) fn unconfirmed(error: &StepError) -> Refusal {
    unavailable(format!(
        "nothing was leased: the node could not do `{}`, its storage does not answer or fails; lease elsewhere, or try \
         again later, the node's log says what is wrong",
        error.step
    ))
}

/// The journal's form of a change. Records are plain data, so encoding does not fail. A failure would only be logged,
/// because an unwritten record is better than a stopped node.
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
