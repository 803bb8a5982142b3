//! A live lease.

use alloc::{borrow::Cow, boxed::Box, string::String, sync::Arc, vec::Vec};
use core::time::Duration;

use fabricbios_wire::{
    AttachCode, Binding, Effective, EndCause, Generation, LeaseEnd, LeaseId, LeaseInfo,
    LeaseIntent, LeasePhase, LeaseTerms, PreviousKey, RdmaPeer, ResourceId, ResourceType,
};

use crate::{
    BindingId, BootTime, CutTime, LeaseRecord, Now, Placement, Policy, Requested, State, Ticket,
    Wanted,
    config::{CUT_PATIENCES, RENEWAL_WINDOW_FRACTION},
};

pub(crate) use stage::*;

mod stage;

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The grant.
    Grant,
    /// The lease that an earlier request with the same token got, with its binding, or its end.
    Repeat,
    /// A new binding or key.
    Rebind,
    /// A change of the queue pairs, of which nothing is on record.
    Peers,
    /// Another term, and the binding or key that comes with it.
    Renew,
    /// The end, for the holder.
    Free,
    /// The end, for an operator.
    Revoke,
}

/// A live lease.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    pub(crate) tenant: Arc<str>,
    pub(crate) resource_id: ResourceId,
    pub(crate) kind: ResourceType,
    pub(crate) placement: Placement,
    stage: Stage,
    /// The report that was owed when the lease ended. The bytes are not released before the report: an order that still
    /// waits for its thread must not find them with another lease.
    pub(crate) late: Option<Owed>,
    pub(crate) generation: Generation,
    pub(crate) term: Duration,
    pub(crate) grace: Duration,
    /// End of the term; meaningful from the first `Active` on.
    pub(crate) deadline: BootTime,
    pub(crate) granted_at_unix_ms: u64,
    pub(crate) expires_at_unix_ms: u64,
    /// The timers that are set in the table: the next deadline, and the time limit of a provider.
    pub(crate) timers: (Option<BootTime>, Option<BootTime>),
    /// Since when the lease is in the state that is counted.
    pub(crate) state_since: BootTime,
    /// The state as it is counted in the census, and whether the lease counts as on its way.
    pub(crate) counted: (Option<(State, bool)>, bool),
    /// The newest binding that an order has named.
    pub(crate) ordered: Generation,
    /// Start of the work of a provider; while it binds or releases, the last progress. `None`: no time limit counts,
    /// because no thread has begun the release, the cut waits for its turn, or the client has been answered that the
    /// binding takes long.
    pub(crate) since: Option<BootTime>,
    /// The time limit of its cut, and of the retirement of a key.
    pub(crate) cut_within: Duration,
    pub(crate) effective: Effective,
    /// The terms of the kind as they are enforced; absent if they are plain.
    pub(crate) terms: Option<Box<LeaseTerms>>,
    /// See [`LeaseRecord::intent`].
    pub(crate) intent: Option<Box<LeaseIntent>>,
    /// See [`LeaseRecord::requested`].
    pub(crate) requested: Option<Requested>,
    pub(crate) peers: Vec<RdmaPeer>,
    /// Queue pairs of the node that it has or will get; without a client's, one. Until the lease is released.
    /// [`LeaseTable::has_queue_pairs`](crate::LeaseTable::has_queue_pairs) changes it.
    pub(crate) queue_pairs: usize,
    /// Codes that nobody has presented yet.
    pub(crate) attach_codes: Vec<AttachCode>,
    /// `Some`: an earlier run bound the lease, and this run has not yet, so that the next bind adopts the objects that
    /// are left. The number of such binds that failed.
    pub(crate) adoptions_failed: Option<u32>,
    /// Why the lease ends or has ended. The time is 0 until the cut is proved or has failed.
    pub(crate) end: Option<Arc<LeaseEnd>>,
    /// How long its cut took; absent before the proof.
    pub(crate) cut_time: Option<Box<CutTime>>,
    /// Since when the end is certain, or known to this run.
    pub(crate) over_since: Option<BootTime>,
    /// The requests that wait for their answers.
    pub(crate) waiting: Vec<(Waiting, Ticket)>,
    /// For the log line of the grant, with the rule that decided; taken by the grant.
    pub(crate) wanted: Option<Box<(Wanted, &'static str)>>,
}

impl Lease {
    /// A lease that has not taken its first step.
    pub(crate) fn new(
        now: Now,
        id: LeaseId,
        tenant: Arc<str>,
        resource_id: ResourceId,
        kind: ResourceType,
        placement: Placement,
    ) -> Self {
        Self {
            id,
            tenant,
            resource_id,
            kind,
            placement,
            stage: Stage::New,
            late: None,
            generation: Generation(1),
            term: Duration::ZERO,
            grace: Duration::ZERO,
            deadline: BootTime(0),
            granted_at_unix_ms: 0,
            expires_at_unix_ms: 0,
            timers: (None, None),
            state_since: now.boot,
            counted: (None, false),
            ordered: Generation(0),
            since: Some(now.boot),
            cut_within: Duration::ZERO,
            effective: Effective::default(),
            terms: None,
            intent: None,
            requested: None,
            peers: Vec::new(),
            queue_pairs: 0,
            attach_codes: Vec::new(),
            adoptions_failed: None,
            end: None,
            cut_time: None,
            over_since: None,
            waiting: Vec::new(),
            wanted: None,
        }
    }

    pub(crate) fn binding(&self) -> Option<&Bound> {
        self.in_use()?.bound.as_deref()
    }

    pub(crate) fn old_key(&self) -> Option<OldKey> {
        self.in_use()?.old_key
    }

    /// Whether an earlier run reported the end of the lease, which is being cut once more.
    pub(crate) fn is_told_over(&self) -> bool {
        matches!(self.stage(), Stage::Cutting(cut) if cut.told_over)
    }

    /// Whether the fence comes from a failed release alone.
    pub(crate) fn is_fenced_by_release(&self) -> bool {
        self.fence().is_some_and(|fence| fence.by_release)
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
        let overlap_ends = match self.old_key() {
            Some(OldKey::Until(at)) => Some(at),
            _ => None,
        };
        match self.state() {
            State::Binding => self.extends_to(),
            State::Active | State::Rebinding => {
                let sooner = overlap_ends.into_iter().chain(self.binds_again_at());
                sooner.chain([self.deadline]).min()
            }
            State::Grace => Some(self.grace_ends()),
            _ => None,
        }
    }

    /// When an adopted lease is bound again.
    pub(crate) fn binds_again_at(&self) -> Option<BootTime> {
        match self.stage() {
            Stage::Active(active) if active.renewal.is_none() => active.bind_again_at,
            _ => None,
        }
    }

    /// Until when a provider must report or progress.
    pub(crate) fn patience_ends(&self, policy: &Policy) -> Option<BootTime> {
        let retiring = match self.old_key() {
            Some(OldKey::Retiring { by }) => Some(by),
            _ => None,
        };
        let work = self.since.and_then(|since| match self.stage() {
            _ if self.extends_to().is_some() => Some(since + policy.extend_within),
            Stage::Binding(_) | Stage::Rebinding(..) => Some(since + policy.bind_within),
            Stage::Cutting(cut) => {
                let moved = cut.moved.map(|at| at + self.cut_within);
                let at_last = since + self.cut_within * CUT_PATIENCES;
                moved.into_iter().chain([at_last]).min()
            }
            Stage::Releasing => Some(since + policy.release_stall),
            _ => None,
        });
        work.into_iter().chain(retiring).min()
    }

    /// Whether a new binding or key can be asked for.
    pub(crate) fn may_rebind(&self) -> bool {
        self.state() == State::Active && self.extends_to().is_none()
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
        let proof = self
            .end
            .take()
            .map(|end| end.proof.clone())
            .unwrap_or_default();
        self.end = Some(Arc::new(LeaseEnd {
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
            Arc::make_mut(end).at_unix_ms = now.unix_ms_at(since);
            self.over_since = Some(since);
        }
    }

    /// The phase that the holder sees. A lease that is being cut appears as active until the cut is proved.
    pub(crate) fn phase(&self) -> LeasePhase {
        match self.state() {
            State::New | State::Binding => LeasePhase::Binding,
            State::Cutting if self.is_told_over() => self.ending(),
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
            generation: self.binding().map_or(self.generation, |it| it.generation),
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
        let Some(bound) = self.binding() else {
            return Binding::plain(self.kind);
        };
        let mut told = bound.binding.clone();
        if let Some(rdma) = told.rdma_mut() {
            rdma.previous = match (rdma.previous, self.old_key()) {
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
            cannot_go_on: { self.end.as_ref() }
                .is_some_and(|end| end.cause == EndCause::NodeRestarted),
            fenced_by_release: self.is_fenced_by_release(),
            terms: self.terms.clone(),
            intent: self.intent.clone(),
            requested: self.requested,
        }
    }

    /// Whether the end of the lease was reported to clients.
    pub(crate) fn is_over(&self) -> bool {
        let over = matches!(
            self.state(),
            State::Releasing | State::Fenced | State::Ended
        );
        over || self.is_told_over()
    }

    /// Whether a client may still have access. After a failed release, access is proved to have ended.
    pub(crate) fn may_be_reachable(&self) -> bool {
        self.state().may_be_reachable() && !self.is_fenced_by_release()
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
