//! What the driver does with each input.

use std::{iter, sync::Arc, time::Duration};

use fabricbios_lease::{Asked, BindingId, BootTime, Report, StepError, Ticket, Trouble};
use fabricbios_wire::{
    Answer, AttachCode, InventoryForm, LeaseId, PeerChange, RdmaPeer, Refusal, Reply, Request,
    ResourceInventory, Role,
};
use tokio::sync::oneshot;

use super::{
    Confirming, Driver, Environment, Input, Requester,
    effects::{unavailable, unconfirmed, unwritten},
    endpoint, log_note,
    tally::{DriverFigures, kind_of},
};

/// How long a drain may take; cuts and scrubs that take longer may never end.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

impl<E: Environment> Driver<E> {
    pub(super) fn apply(&mut self, input: Input) {
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

    pub(super) fn on_report(&mut self, at: BootTime, report: Report) {
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
        waiting: Confirming,
    ) {
        if outcome.is_ok() {
            self.tally.granted(id.resource_id);
        }
        for (ticket, answer) in iter::once(waiting.granted).chain(waiting.repeats) {
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
            return requester.reply(Ok(self.inventory_now(form, role)));
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

    fn inventory_now(&self, form: InventoryForm, role: Role) -> Reply {
        match form {
            InventoryForm::Flat => {
                let now = self.environment.now().boot;
                let failing = |id| self.failing.trouble(now, id);
                Reply::FlatInventory(self.inventory.flat(self.table.availability(), &failing))
            }
            InventoryForm::Structured => Reply::Inventory(self.structured_inventory(role)),
        }
    }

    /// The reasons of fences are for operators: they name leases of others. A scheduler tells its clients what nodes report.
    fn structured_inventory(&self, role: Role) -> ResourceInventory {
        let unwritable = self.unwritable.as_ref();
        let trouble = unwritable.map(|error| format!("the journal cannot be written: {error}"));
        let offered = self.table.availability().map(|mut it| {
            if role != Role::Operator {
                it.trouble = it.trouble.map(Trouble::for_all);
            }
            it
        });
        let now = self.environment.now().boot;
        let failing = |id| self.failing.trouble(now, id);
        self.inventory
            .structured(offered, self.table.limits(), trouble, &failing)
    }

    /// For metrics and health. Looks at no lease, but at those that are in a state for too long.
    pub(super) fn figures(&self) -> DriverFigures {
        DriverFigures {
            offered: self.table.availability().collect(),
            states: self.table.figures(self.environment.now().boot),
            inventory: self.structured_inventory(Role::Operator),
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
    pub(super) fn reply(self, answer: Answer) {
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
