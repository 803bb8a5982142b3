//! A live lease.

use alloc::{borrow::Cow, boxed::Box, string::String, sync::Arc, vec::Vec};
use core::time::Duration;

use fabricbios_wire::{
    Binding, Effective, EndCause, Generation, LeaseEnd, LeaseId, LeaseInfo, LeaseIntent,
    LeasePhase, LeaseTerms, PreviousKey, RdmaPeer, ResourceId, ResourceType,
};

use crate::{
    BindingId, BootTime, Event, LeaseRecord, Now, Placement, Policy, State, StepError, Ticket,
    Wanted,
    config::{CUT_PATIENCES, RENEWAL_WINDOW_FRACTION},
    extending::Extending,
};

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Waits for the grant.
    Grant(Ticket),
    /// Waits for a new binding or key.
    Rebind(Ticket),
    /// Waits for another term, and for the binding or key that comes with it.
    Renew(Ticket),
    /// The holder waits for the end.
    Free(Ticket),
    /// An operator waits for the end.
    Revoke(Ticket),
}

/// A key that still works beside the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OldKey {
    /// The key works until this time.
    Until(BootTime),
    /// The key is being retired; the lease ends if that is not done by this time.
    Retiring { by: BootTime },
    /// The key ended with its binding; the order to retire it is still outstanding.
    Gone,
}

/// An order without a report yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outstanding {
    /// A bind, as soon as its deadline is acknowledged.
    Term,
    Bind,
    Rotation,
}

/// A live lease.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    pub(crate) tenant: Arc<str>,
    pub(crate) resource_id: ResourceId,
    pub(crate) kind: ResourceType,
    pub(crate) placement: Placement,
    pub(crate) state: State,
    pub(crate) generation: Generation,
    pub(crate) term: Duration,
    pub(crate) grace: Duration,
    /// End of the term; meaningful from the first `Active` on.
    pub(crate) deadline: BootTime,
    pub(crate) granted_at_unix_ms: u64,
    pub(crate) expires_at_unix_ms: u64,
    /// The timers that are set in the table: the next deadline, and the time limit of a provider.
    pub(crate) timers: (Option<BootTime>, Option<BootTime>),
    /// The state as it is counted in the census.
    pub(crate) counted: Option<(State, bool)>,
    /// The newest binding that an order has named.
    pub(crate) ordered: Generation,
    /// A binding was ordered, or an earlier run left one, and no cut of it is proved.
    pub(crate) may_be_open: bool,
    /// Start of the work of the current state; while releasing, the last progress.
    pub(crate) since: BootTime,
    /// While cutting: the cut is ordered. Cuts of leases of an earlier run wait for their turn.
    pub(crate) cut_ordered: bool,
    /// The time limit of its cut, and of the retirement of a key.
    pub(crate) cut_within: Duration,
    /// While cutting: when a thread began the cut, or when another cut of the same kind of resource progressed after
    /// that.
    pub(crate) cut_moved: Option<BootTime>,
    pub(crate) effective: Effective,
    /// The terms of the kind as they are enforced; absent if they are plain.
    pub(crate) terms: Option<Box<LeaseTerms>>,
    /// See [`LeaseRecord::intent`].
    pub(crate) intent: Option<Box<LeaseIntent>>,
    pub(crate) peers: Vec<RdmaPeer>,
    /// The peers of the binding in use, while other peers are being connected.
    pub(crate) peers_before: Option<Vec<RdmaPeer>>,
    /// The binding in use, also while another one is being made.
    pub(crate) binding: Option<Box<Binding>>,
    /// Generation of the binding in use.
    pub(crate) bound: Generation,
    pub(crate) old_key: Option<OldKey>,
    /// A bind or rotation that is ordered and not reported. The bytes are not released before the report: an order
    /// that still waits for its thread must not find them with another lease.
    pub(crate) outstanding: Option<Outstanding>,
    /// A deadline that is not acknowledged yet.
    pub(crate) extending: Option<Box<Extending>>,
    /// The client has been answered that the bind or rotation takes long.
    pub(crate) patience_over: bool,
    /// A thread has begun the release, which must progress from then on.
    pub(crate) release_began: bool,
    /// An earlier run bound the lease, and this run has not yet: the next bind adopts the objects that are left.
    pub(crate) bound_before: bool,
    /// When an adopted lease without a binding is bound again, because something was not ready.
    pub(crate) bind_again_at: Option<BootTime>,
    /// How many such binds failed.
    pub(crate) bound_in_vain: u32,
    /// A restart could not adopt the lease: it is being revoked.
    pub(crate) cannot_go_on: bool,
    /// An earlier run reported the end of the lease, but may not have finished it: the lease is cut and released again.
    pub(crate) told_over: bool,
    /// Overlap of the rotation under way.
    pub(crate) overlap: Duration,
    /// Why the lease ends or has ended. The time is 0 until the cut is proved or has failed.
    pub(crate) end: Option<Box<LeaseEnd>>,
    /// Since when the end is certain, or known to this run.
    pub(crate) over_since: Option<BootTime>,
    /// The error, if the state is Fenced.
    pub(crate) fault: Option<Box<StepError>>,
    /// Whether the fence comes from a failed release alone.
    pub(crate) fenced_by_release: bool,
    pub(crate) waiting: Vec<Waiting>,
    /// For the log line of the grant, with the rule that decided; taken by the grant.
    pub(crate) wanted: Option<Box<(Wanted, &'static str)>>,
}

impl Lease {
    /// Moves to the next state. `false`: the event is prohibited here and the state is unchanged.
    #[must_use]
    pub(crate) fn step(&mut self, event: Event) -> bool {
        self.state
            .next(event)
            .map(|next| self.state = next)
            .is_some()
    }

    /// The terms of the kind as they are enforced.
    pub(crate) fn terms(&self) -> Cow<'_, LeaseTerms> {
        match self.terms.as_deref() {
            Some(terms) => Cow::Borrowed(terms),
            None => Cow::Owned(LeaseTerms::plain(self.kind)),
        }
    }

    pub(crate) fn binding_id(&self) -> BindingId {
        BindingId {
            lease_id: self.id,
            generation: self.generation,
            resource_id: self.resource_id,
        }
    }

    /// The time from which renewal is accepted: the last fifth of the term, inclusive.
    pub(crate) fn renewable_at(&self) -> BootTime {
        let window = self.term / RENEWAL_WINDOW_FRACTION;
        BootTime(
            self.deadline
                .0
                .saturating_sub(u64::try_from(window.as_nanos()).unwrap_or(0)),
        )
    }

    /// The next time at which the lease changes without a report.
    pub(crate) fn next_deadline(&self) -> Option<BootTime> {
        let overlap_ends = match self.old_key {
            Some(OldKey::Until(at)) => Some(at),
            _ => None,
        };
        let bind_again_at = self.bind_again_at.filter(|_| self.may_rebind());
        match self.state {
            State::Binding => self.extending.is_some().then_some(self.deadline),
            State::Active | State::Rebinding => {
                let sooner = overlap_ends.into_iter().chain(bind_again_at);
                sooner.chain([self.deadline]).min()
            }
            State::Grace => Some(self.grace_ends()),
            _ => None,
        }
    }

    /// Until when a provider must report or progress.
    pub(crate) fn patience_ends(&self, policy: &Policy) -> Option<BootTime> {
        let retiring = match self.old_key {
            Some(OldKey::Retiring { by }) => Some(by),
            _ => None,
        };
        match self.state {
            State::Binding | State::Active | State::Rebinding if self.extending.is_some() => {
                let extended = self.since + policy.extend_within;
                Some(retiring.map_or(extended, |by| by.min(extended)))
            }
            State::Rebinding if !self.patience_over => {
                let bound = self.since + policy.bind_within;
                Some(retiring.map_or(bound, |by| by.min(bound)))
            }
            State::Active | State::Rebinding => retiring,
            State::Binding => Some(self.since + policy.bind_within),
            State::Cutting if self.cut_ordered => {
                let at_last = self.since + self.cut_within * CUT_PATIENCES;
                let moved = self.cut_moved.map(|at| at + self.cut_within);
                Some(moved.map_or(at_last, |at| at.min(at_last)))
            }
            State::Releasing if self.release_began => Some(self.since + policy.release_stall),
            State::Grace | State::Cutting | State::Releasing | State::Ended | State::Fenced => None,
        }
    }

    /// Whether a new binding or key can be asked for.
    pub(crate) fn may_rebind(&self) -> bool {
        self.state == State::Active && self.extending.is_none()
    }

    pub(crate) fn grace_ends(&self) -> BootTime {
        self.deadline + self.grace
    }

    /// The phase after the end, unless the lease is fenced.
    pub(crate) fn ending(&self) -> LeasePhase {
        match self.end.as_ref().map(|end| end.cause) {
            Some(EndCause::Expired) => LeasePhase::Expired,
            Some(EndCause::Freed) => LeasePhase::Freed,
            _ => LeasePhase::Revoked,
        }
    }

    /// Sets the cause of the end; the proof of an earlier cut stays.
    pub(crate) fn ends(&mut self, cause: EndCause, by: Option<String>) {
        let proof = self.end.take().map(|end| end.proof).unwrap_or_default();
        self.end = Some(Box::new(LeaseEnd {
            at_unix_ms: 0,
            cause,
            by,
            proof,
            cleaning: Vec::new(),
        }));
    }

    /// Sets the time since which the end is certain.
    pub(crate) fn end_is_certain(&mut self, now: Now, since: BootTime) {
        if let Some(end) = self.end.as_mut().filter(|end| end.at_unix_ms == 0) {
            end.at_unix_ms = now.unix_ms_at(since);
            self.over_since = Some(since);
        }
    }

    /// The phase that the holder sees. A lease that is being cut appears as active until the cut is proved.
    pub(crate) fn phase(&self) -> LeasePhase {
        match self.state {
            State::Binding => LeasePhase::Binding,
            State::Cutting if self.told_over => self.ending(),
            State::Active | State::Rebinding | State::Cutting => LeasePhase::Active,
            State::Grace => LeasePhase::Grace,
            State::Releasing | State::Ended => self.ending(),
            State::Fenced => LeasePhase::Fenced,
        }
    }

    pub(crate) fn info(&self, now: Now, with_keys: bool) -> LeaseInfo {
        let phase = self.phase();
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let ms_before_expiry = |at: BootTime| {
            self.expires_at_unix_ms
                .saturating_sub(millis(at.until(self.deadline)))
        };
        LeaseInfo {
            generation: match self.binding {
                Some(_) => self.bound,
                None => self.generation,
            },
            renewable_at_unix_ms: match phase {
                LeasePhase::Active => ms_before_expiry(self.renewable_at()),
                LeasePhase::Grace => self.expires_at_unix_ms,
                _ => 0,
            },
            grace_ends_unix_ms: match phase {
                LeasePhase::Binding | LeasePhase::Active | LeasePhase::Grace
                    if !self.grace.is_zero() =>
                {
                    self.expires_at_unix_ms.saturating_add(millis(self.grace))
                }
                _ => 0,
            },
            remaining_ms: match phase {
                LeasePhase::Active => millis(now.boot.until(self.deadline)),
                _ => 0,
            },
            binding: if with_keys {
                self.told_binding(now)
            } else {
                Binding::plain(self.kind)
            },
            ..self.record().info(phase)
        }
    }

    /// The binding that the holder sees: empty while it cannot be used.
    fn told_binding(&self, now: Now) -> Binding {
        let usable = matches!(self.state, State::Active | State::Rebinding);
        let Some(binding) = self.binding.as_deref().filter(|_| usable) else {
            return Binding::plain(self.kind);
        };
        let mut told = binding.clone();
        if let Some(rdma) = told.rdma_mut() {
            rdma.previous = match (rdma.previous, self.old_key) {
                (Some(key), Some(OldKey::Until(until))) => Some(PreviousKey {
                    rkey: key.rkey,
                    remaining_ms: u32::try_from(now.boot.until(until).as_millis())
                        .unwrap_or(u32::MAX),
                }),
                _ => None,
            };
        }
        told
    }

    /// The record of the lease, for the journal.
    pub(crate) fn record(&self) -> LeaseRecord {
        let phase = self.phase();
        let lives = matches!(
            phase,
            LeasePhase::Binding | LeasePhase::Active | LeasePhase::Grace
        );
        LeaseRecord {
            lease_id: self.id,
            tenant: self.tenant.clone(),
            resource_id: self.resource_id,
            resource_type: self.kind,
            capacity: self.placement.amount(),
            placement: Some(self.placement.clone()),
            generation: self.generation,
            granted_at_unix_ms: self.granted_at_unix_ms,
            expires_at_unix_ms: self.expires_at_unix_ms,
            effective: self.effective,
            term_secs: whole_secs(self.term),
            grace_secs: whole_secs(self.grace),
            deadline: self.deadline,
            ended: (!lives).then_some(phase),
            end: self.end.clone().filter(|end| end.at_unix_ms != 0),
            cannot_go_on: self.cannot_go_on,
            fenced_by_release: self.fenced_by_release,
            terms: self.terms.clone(),
            intent: self.intent.clone(),
        }
    }

    /// Whether the end of the lease was reported to clients.
    pub(crate) fn is_over(&self) -> bool {
        let over = matches!(self.state, State::Releasing | State::Fenced | State::Ended);
        over || self.told_over
    }

    /// Whether a client may still have access. After a failed release, access is proved to have ended.
    pub(crate) fn may_be_reachable(&self) -> bool {
        let is_cut = self.state == State::Fenced && self.fenced_by_release;
        self.state.may_be_reachable() && !is_cut
    }

    /// Whether the lease was granted, and its client knows it.
    pub(crate) fn granted(&self) -> bool {
        self.granted_at_unix_ms != 0
    }
}

/// Terms and grace times come in whole seconds.
pub(crate) fn whole_secs(span: Duration) -> u32 {
    u32::try_from(span.as_secs()).unwrap_or(u32::MAX)
}
