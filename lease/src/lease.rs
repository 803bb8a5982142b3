//! One lease that is not over.

use alloc::{borrow::Cow, boxed::Box, string::String, sync::Arc, vec::Vec};
use core::time::Duration;

use fabricbios_wire::{
    Binding, Effective, EndCause, Generation, LeaseEnd, LeaseId, LeaseInfo, LeasePhase, LeaseTerms,
    PreviousKey, RdmaPeer, ResourceId, ResourceType,
};

use crate::{
    BindingId, BootTime, Event, LeaseRecord, Now, Placement, Policy, State, StepError, Ticket,
    Wanted,
    config::{CUT_PATIENCES, RENEWAL_WINDOW_FRACTION},
    extending::Extending,
};

/// Who waits for what a lease is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// For the grant.
    Grant(Ticket),
    /// For a new binding or key.
    Rebind(Ticket),
    /// For another term, and for the binding or key that comes with it.
    Renew(Ticket),
    /// For the end, as its holder.
    Free(Ticket),
    /// For the end, as an operator.
    Revoke(Ticket),
}

/// A key that still works beside the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OldKey {
    /// Until then.
    Until(BootTime),
    /// It is being retired; a failure to do so by then ends the lease.
    Retiring { by: BootTime },
    /// It ended with its binding; the order to retire it is still on its way.
    Gone,
}

/// What has been ordered and not reported yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outstanding {
    /// A bind, as soon as its deadline is acknowledged.
    Term,
    Bind,
    Rotation,
}

/// A lease that is not over.
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
    /// As they are set in the table: what time alone brings, and the end of the patience with a backend.
    pub(crate) timers: (Option<BootTime>, Option<BootTime>),
    /// As it is counted in the table.
    pub(crate) counted: Option<(State, bool)>,
    /// The newest binding that an order has named.
    pub(crate) ordered: Generation,
    /// A binding was ordered, or an earlier run left one, and no cut of it is proved.
    pub(crate) may_be_open: bool,
    /// Start of what the current state does; the last progress while releasing.
    pub(crate) since: BootTime,
    /// While cutting: it is ordered. What an earlier run left waits for its turn.
    pub(crate) cut_ordered: bool,
    /// While cutting: when a thread began with it, or when a cut of its kind moved after that.
    pub(crate) cut_moved: Option<BootTime>,
    pub(crate) effective: Effective,
    /// What was stated that only its kind has, as it is enforced; absent where that is nothing.
    pub(crate) terms: Option<Box<LeaseTerms>>,
    pub(crate) peers: Vec<RdmaPeer>,
    /// While other ones are being connected: those that the binding in use is for.
    pub(crate) peers_before: Option<Vec<RdmaPeer>>,
    /// What works, while another one is being made, too.
    pub(crate) binding: Option<Box<Binding>>,
    /// Of that.
    pub(crate) bound: Generation,
    pub(crate) old_key: Option<OldKey>,
    /// A bind or rotation has been ordered and not reported yet. Until it is, the bytes are not
    /// released: an order that still waits for its thread must not find them with somebody else.
    pub(crate) outstanding: Option<Outstanding>,
    /// Another deadline, or that of another binding, that is not acknowledged yet.
    pub(crate) extending: Option<Box<Extending>>,
    /// Whoever waited for that has been told that it takes long.
    pub(crate) patience_over: bool,
    /// The release has found its thread: from then on it must move.
    pub(crate) release_began: bool,
    /// An earlier run bound it, and this one has not yet: what is there is the next binding's.
    pub(crate) bound_before: bool,
    /// Such a lease has no binding, because something was not ready: it is tried again then.
    pub(crate) bind_again_at: Option<BootTime>,
    /// So often in vain.
    pub(crate) bound_in_vain: u32,
    /// A restart could not go on with it: it is being revoked.
    pub(crate) cannot_go_on: bool,
    /// An earlier run told that it is over, and may not have finished: it is cut and released again.
    pub(crate) told_over: bool,
    /// Overlap that the rotation under way was asked for.
    pub(crate) overlap: Duration,
    /// Why it is ending or has ended. Its time is 0 until access is proved gone, or that cannot be proved.
    pub(crate) end: Option<Box<LeaseEnd>>,
    /// What failed, where the state is Fenced.
    pub(crate) fault: Option<Box<StepError>>,
    /// Whether it was only the release that fenced.
    pub(crate) fenced_by_release: bool,
    pub(crate) waiting: Vec<Waiting>,
    /// For the log line of the grant, with the rule that decided; gone afterwards.
    pub(crate) wanted: Option<Box<(Wanted, &'static str)>>,
}

impl Lease {
    /// Moves on. `false`: the event is prohibited here and nothing changed.
    #[must_use]
    pub(crate) fn step(&mut self, event: Event) -> bool {
        self.state
            .next(event)
            .map(|next| self.state = next)
            .is_some()
    }

    /// What was stated that only its kind has, as it is enforced.
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

    /// From when on renewal is accepted: the last fifth of the term, inclusive.
    pub(crate) fn renewable_at(&self) -> BootTime {
        let window = self.term / RENEWAL_WINDOW_FRACTION;
        BootTime(
            self.deadline
                .0
                .saturating_sub(u64::try_from(window.as_nanos()).unwrap_or(0)),
        )
    }

    /// When time alone will change something for this lease.
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

    /// Until when what a backend does may take without an outcome.
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
                let at_last = self.since + policy.cut_within * CUT_PATIENCES;
                let moved = self.cut_moved.map(|at| at + policy.cut_within);
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

    /// How it is told to have ended, if it is not fenced.
    pub(crate) fn ending(&self) -> LeasePhase {
        match self.end.as_ref().map(|end| end.cause) {
            Some(EndCause::Expired) => LeasePhase::Expired,
            Some(EndCause::Freed) => LeasePhase::Freed,
            _ => LeasePhase::Revoked,
        }
    }

    /// Why it ends; the proof of a cut before its grace time stays.
    pub(crate) fn ends(&mut self, cause: EndCause, by: Option<String>) {
        let proof = self.end.take().map(|end| end.proof).unwrap_or_default();
        self.end = Some(Box::new(LeaseEnd {
            at_unix_ms: 0,
            cause,
            by,
            proof,
        }));
    }

    /// Its end is certain since that time.
    pub(crate) fn end_is_certain(&mut self, now: Now, since: BootTime) {
        if let Some(end) = self.end.as_mut().filter(|end| end.at_unix_ms == 0) {
            end.at_unix_ms = now.unix_ms_at(since);
        }
    }

    /// How the holder sees the state. Cut, then tell: a lease that is being cut still is what it
    /// was.
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
                Binding::default()
            },
            ..self.record().info(phase)
        }
    }

    /// The coordinates while they work; nothing afterwards.
    fn told_binding(&self, now: Now) -> Binding {
        let usable = matches!(self.state, State::Active | State::Rebinding);
        let Some(binding) = self.binding.as_deref().filter(|_| usable) else {
            return Binding::default();
        };
        let mut told = binding.clone();
        if let Some(rdma) = &mut told.rdma {
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

    /// As it would be found after a crash.
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
        }
    }

    /// Nothing can be had of it any more, and that was told.
    pub(crate) fn is_over(&self) -> bool {
        let over = matches!(self.state, State::Releasing | State::Fenced | State::Ended);
        over || self.told_over
    }

    /// Whether its access is not proven to have ended: where only the release failed, it is.
    pub(crate) fn may_be_reachable(&self) -> bool {
        let is_cut = self.state == State::Fenced && self.fenced_by_release;
        self.state.may_be_reachable() && !is_cut
    }

    /// Whether anybody was told of it.
    pub(crate) fn granted(&self) -> bool {
        self.granted_at_unix_ms != 0
    }
}

/// Terms and grace times come in whole seconds.
pub(crate) fn whole_secs(span: Duration) -> u32 {
    u32::try_from(span.as_secs()).unwrap_or(u32::MAX)
}
