//! The table: one owner, no locks, no clock.
//!
//! Its methods come in four families. *Getters* look. `on_*` say what happened: a request, a
//! report, time passing; each takes the time. `poll_effect` says what to do about it: drain it
//! after every `on_*`. `next_deadline` says when to call [`LeaseTable::on_tick`] at the latest.
//! Time given must never go backwards.

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    vec::Vec,
};

use fabricbios_wire::{Answer, Fence, LeaseId, Request, ResourceId, ResourceType, Role};

use crate::{
    Availability, BootTime, Change, Effect, FenceRecord, Note, Now, Offer, Order, Policy, State,
    Ticket, lease::Lease, record::Ended, resource::Resource, tenants::Tenant,
};

/// A request with all that the table cannot make by itself.
#[derive(Clone, Debug)]
pub struct Asked {
    /// For the answer.
    pub ticket: Ticket,
    /// Who asks, from the certificate.
    pub tenant: Arc<str>,
    /// What the certificate allows.
    pub role: Role,
    /// Random and new: the id of the lease, if one is granted.
    pub fresh_id: LeaseId,
    /// What is asked.
    pub request: Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Lease(LeaseId),
    Reset(ResourceId),
}

/// Who holds what until when.
#[derive(Debug)]
pub struct LeaseTable {
    pub(crate) policy: Policy,
    pub(crate) resources: BTreeMap<ResourceId, Resource>,
    pub(crate) leases: BTreeMap<LeaseId, Lease>,
    pub(crate) ended: BTreeMap<LeaseId, Ended>,
    pub(crate) tenants: BTreeMap<Arc<str>, Tenant>,
    /// Leases in `Cutting`.
    pub(crate) cutting: usize,
    /// When a cut of that kind of resource came a step further.
    pub(crate) cut_moved: BTreeMap<ResourceType, BootTime>,
    /// The node is going down.
    pub(crate) draining: bool,
    pub(crate) timers: BTreeSet<(BootTime, Timer)>,
    /// Ended leases in the order in which they will be forgotten.
    pub(crate) forget: VecDeque<(BootTime, LeaseId)>,
    effects: VecDeque<Effect>,
}

/// Starting.
impl LeaseTable {
    /// An empty table.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            resources: BTreeMap::new(),
            leases: BTreeMap::new(),
            ended: BTreeMap::new(),
            tenants: BTreeMap::new(),
            cutting: 0,
            cut_moved: BTreeMap::new(),
            draining: false,
            timers: BTreeSet::new(),
            forget: VecDeque::new(),
            effects: VecDeque::new(),
        }
    }

    /// Adds a resource that the operator offers.
    pub fn offer(&mut self, kind: ResourceType, offer: Offer) {
        self.resources
            .insert(offer.resource_id, Resource::new(kind, offer));
    }

    /// Grants nothing of an offered resource any more: it cannot be had now. Leases of it go on.
    pub fn withhold(&mut self, id: ResourceId) {
        if let Some(resource) = self.resources.get_mut(&id) {
            resource.withheld = true;
        }
    }
}

/// Getters.
impl LeaseTable {
    /// Every offered resource.
    pub fn availability(&self) -> impl Iterator<Item = Availability> + '_ {
        self.resources.values().map(|resource| Availability {
            resource_id: resource.id,
            resource_type: resource.kind,
            capacity: resource.capacity,
            available: if resource.is_fenced() || resource.withheld {
                0
            } else {
                resource.free.longest()
            },
            fenced: resource.is_fenced(),
            partly_fenced: resource.is_partly_fenced(),
        })
    }

    /// Every fence.
    #[must_use]
    pub fn fences(&self) -> Vec<Fence> {
        self.resources
            .values()
            .filter_map(|r| r.fence.as_ref().map(FenceRecord::to_wire))
            .collect()
    }

    /// How many leases are in each state that is not over.
    #[must_use]
    pub fn census(&self) -> BTreeMap<State, usize> {
        self.leases
            .values()
            .fold(BTreeMap::new(), |mut census, lease| {
                *census.entry(lease.state).or_default() += 1;
                census
            })
    }

    /// Leases whose access is not proven to have ended, and how far they are: `Fenced` where a cut or a
    /// bind failed, not where only the release did.
    pub fn uncut(&self) -> impl Iterator<Item = (LeaseId, State)> + '_ {
        let leases = self.leases.values();
        let leases = leases.filter(|lease| lease.may_be_reachable());
        leases.map(|lease| (lease.id, lease.state))
    }

    /// Leases on record, alive or ended.
    #[must_use]
    pub fn records(&self) -> usize {
        self.leases.len() + self.ended.len()
    }

    /// When something falls due: exact, never later than the next thing that time alone changes.
    #[must_use]
    pub fn next_deadline(&self) -> Option<BootTime> {
        let timer = self.timers.first().map(|&(at, _)| at);
        let forget = self.forget.front().map(|&(at, _)| at);
        timer.into_iter().chain(forget).min()
    }
}

/// What to do.
impl LeaseTable {
    /// The next thing to do; `None` when all is done.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    pub(crate) fn order(&mut self, order: Order) {
        self.effects.push_back(Effect::Order(order));
    }

    pub(crate) fn journal(&mut self, change: Change) {
        self.effects.push_back(Effect::Journal(change));
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.effects.push_back(Effect::Note(note));
    }

    /// Says what was decided; what it rests on is durable first.
    pub(crate) fn answer(&mut self, ticket: Ticket, answer: Answer) {
        self.effects.push_back(Effect::Answer {
            ticket,
            answer,
            after_journal: true,
        });
    }

    /// Says what is so; nothing new rests on it.
    pub(crate) fn answer_now(&mut self, ticket: Ticket, answer: Answer) {
        self.effects.push_back(Effect::Answer {
            ticket,
            answer,
            after_journal: false,
        });
    }
}

/// Book-keeping that every move shares.
impl LeaseTable {
    /// Puts the lease's timer where its state wants it. To be called after every change.
    pub(crate) fn arm(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let wanted = lease.next_timer(&self.policy);
        if let Some(old) = core::mem::replace(&mut lease.timer, wanted) {
            self.timers.remove(&(old, Timer::Lease(id)));
        }
        if let Some(at) = wanted {
            self.timers.insert((at, Timer::Lease(id)));
        }
    }

    /// Drops the records that have been kept long enough.
    pub(crate) fn forget_old(&mut self, now: Now) {
        while let Some(&(at, id)) = self.forget.front().filter(|&&(at, _)| at <= now.boot) {
            debug_assert!(at <= now.boot);
            self.forget.pop_front();
            if let Some(ended) = self.ended.remove(&id) {
                self.forget_name(&ended.tenant, id);
                self.journal(Change::RemoveLease(id));
            }
        }
    }
}
