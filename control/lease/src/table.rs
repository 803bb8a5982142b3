//! The table: one owner, no locks, no clock.
//!
//! The driver calls `on_*` with the time for every request, report and tick, and then drains `poll_effect`, which
//! returns the effects to carry out. `next_deadline` is the latest time for the next [`LeaseTable::on_tick`]. Times
//! must never go backwards.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    vec::Vec,
};
use core::time::Duration;

use fabricbios_wire::{
    Answer, AttachCode, Fence, LeaseId, Request, ResourceId, ResourceType, Role,
};

use crate::{
    After, Availability, BootTime, Change, Durability, Effect, Note, Offer, Order, Placement,
    Policy, State, Ticket,
    change_log::ChangeLog,
    figures::Figures,
    invariants::Broken,
    lease::Lease,
    rate::Rates,
    record::Ended,
    resource::Resource,
    tenants::Tenant,
    timers::{Timer, Timers},
};

/// A request with the data that the table cannot make by itself.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The receiver of the answer.
    pub ticket: Ticket,
    /// The tenant, from the certificate.
    pub tenant: Arc<str>,
    /// The role in the certificate.
    pub role: Role,
    /// A new random id, for the lease if one is granted; an attach code is made of it.
    pub fresh_id: LeaseId,
    /// The request.
    pub request: Request,
}

/// The leases: who holds which part of which resource until when.
#[derive(Debug)]
pub struct LeaseTable {
    pub(crate) policy: Policy,
    pub(crate) resources: BTreeMap<ResourceId, Resource>,
    /// In boxes: a tree has a third of its places free, and moves the others.
    pub(crate) leases: BTreeMap<LeaseId, Box<Lease>>,
    pub(crate) ended: BTreeMap<LeaseId, Ended>,
    pub(crate) tenants: BTreeMap<Arc<str>, Tenant>,
    /// How many records of ended leases each tenant has.
    pub(crate) histories: BTreeSet<(usize, Arc<str>)>,
    pub(crate) rates: Rates,
    /// The leases of the attach codes that nobody has presented yet.
    pub(crate) attach_codes: BTreeMap<AttachCode, LeaseId>,
    /// Nobody takes attach codes any more.
    pub(crate) attach_lost: bool,
    /// Leases of an earlier run whose cut is not ordered yet; leases that a client may still reach come first.
    pub(crate) cut_later: VecDeque<LeaseId>,
    /// Leases of an earlier run whose cut is ordered and has no result yet.
    pub(crate) cut_now: BTreeSet<LeaseId>,
    /// When a cut of this kind of resource last progressed.
    pub(crate) cut_moved: BTreeMap<ResourceType, BootTime>,
    /// The node is going down.
    pub(crate) draining: bool,
    /// Ends of terms, of grace times and of overlaps of keys.
    pub(crate) deadlines: Timers,
    /// Time limits of providers.
    pub(crate) patience: Timers,
    /// When records of ended leases are dropped.
    pub(crate) forget: Timers,
    /// The number of leases by state, and by whether an earlier run reported their end.
    pub(crate) census: BTreeMap<(State, bool), usize>,
    /// How long leases stay in their states.
    pub(crate) figures: Figures,
    /// The time of the last input.
    pub(crate) now: BootTime,
    /// The amount of each resource that leases hold.
    pub(crate) held: BTreeMap<ResourceId, u64>,
    /// The last changes of live leases.
    pub(crate) changes: ChangeLog,
    /// Invariants that failed in the current step.
    pub(crate) broken: Vec<Broken>,
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
            histories: BTreeSet::new(),
            rates: Rates::default(),
            attach_codes: BTreeMap::new(),
            attach_lost: false,
            cut_later: VecDeque::new(),
            cut_now: BTreeSet::new(),
            cut_moved: BTreeMap::new(),
            draining: false,
            deadlines: Timers::default(),
            patience: Timers::default(),
            forget: Timers::default(),
            census: BTreeMap::new(),
            figures: Figures::default(),
            now: BootTime(0),
            held: BTreeMap::new(),
            changes: ChangeLog::default(),
            broken: Vec::new(),
            effects: VecDeque::new(),
        }
    }

    /// Adds a resource that the operator offers.
    pub fn offer(&mut self, kind: ResourceType, offer: Offer) {
        self.resources
            .insert(offer.resource_id, Resource::new(kind, offer));
    }
}

/// Getters.
impl LeaseTable {
    /// The durability of an offered resource.
    #[must_use]
    pub fn durability(&self, id: ResourceId) -> Option<Durability> {
        self.resources.get(&id).map(|resource| resource.durability)
    }

    /// The time limit of a cut of a lease of this resource, see [`Offer::cut_within`].
    pub(crate) fn cut_within(&self, id: ResourceId) -> Duration {
        let own = self.resources.get(&id).and_then(|it| it.cut_within);
        own.unwrap_or_default().max(self.policy.cut_within)
    }

    /// Every offered resource.
    pub fn availability(&self) -> impl Iterator<Item = Availability> + '_ {
        self.resources.values().map(|resource| Availability {
            fenced_part: match resource.is_partly_fenced() && !resource.is_fenced() {
                true => {
                    let leases = resource.fenced_leases.iter();
                    let live = leases.filter_map(|id| self.leases.get(id));
                    let live = live.map(|lease| &lease.placement);
                    live.chain(&resource.set_aside).map(Placement::amount).sum()
                }
                false => 0,
            },
            ..resource.availability()
        })
    }

    /// Every fence.
    #[must_use]
    pub fn fences(&self) -> Vec<Fence> {
        self.resources.values().flat_map(Resource::fences).collect()
    }

    /// How many leases are in each state that is not over.
    #[must_use]
    pub fn census(&self) -> BTreeMap<State, usize> {
        let counted = self.census.iter().filter(|(_, number)| **number > 0);
        counted.fold(BTreeMap::new(), |mut census, (&(state, _), number)| {
            *census.entry(state).or_default() += number;
            census
        })
    }

    /// Leases whose access is not proved to have ended, with their states. `Fenced` leases are included if a cut or a
    /// bind failed, not if only the release failed.
    pub fn uncut(&self) -> impl Iterator<Item = (LeaseId, State)> + '_ {
        let leases = self.leases.values();
        let leases = leases.filter(|lease| lease.may_be_reachable());
        leases.map(|lease| (lease.id, lease.state()))
    }

    /// Whether every lease of an earlier run has a binding again or is cut. Leases whose end that run reported already
    /// do not count.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let unsettled = [State::Rebinding, State::Cutting].map(|state| (state, false));
        let number = |is| self.census.get(is).copied().unwrap_or(0);
        unsettled.iter().all(|is| number(is) == 0)
    }

    /// The capacity that a live lease holds, in the unit of its kind.
    #[must_use]
    pub fn amount(&self, id: LeaseId) -> Option<u64> {
        self.leases.get(&id).map(|lease| lease.placement.amount())
    }

    /// The kind of a live lease.
    #[must_use]
    pub fn kind(&self, id: LeaseId) -> Option<ResourceType> {
        self.leases.get(&id).map(|lease| lease.kind)
    }

    /// Leases on record, alive or ended.
    #[must_use]
    pub fn records(&self) -> usize {
        self.leases.len() + self.ended.len()
    }

    /// The time of the next due timer, exact.
    #[must_use]
    pub fn next_deadline(&self) -> Option<BootTime> {
        let timers = [&self.deadlines, &self.patience, &self.forget];
        timers.into_iter().filter_map(Timers::next).min()
    }
}

/// Effects.
impl LeaseTable {
    /// The next effect to carry out; `None` when there is none left.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    pub(crate) fn order(&mut self, mut order: Order) {
        if !self.may_order(&mut order) {
            return;
        }
        let lease = order.lease_id().and_then(|id| self.leases.get(&id));
        self.effects.push_back(Effect::Order {
            tenant: lease.map(|lease| lease.tenant.clone()),
            after_journal: match order {
                Order::Release(..) => lease.is_none_or(|it| it.granted()),
                Order::Reset(..) => true,
                _ => false,
            },
            order,
        });
    }

    pub(crate) fn journal(&mut self, change: Change) {
        self.effects.push_back(Effect::Journal(change));
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.effects.push_back(Effect::Note(note));
    }

    /// Answers a request once the changes so far are durable.
    pub(crate) fn answer(&mut self, ticket: Ticket, answer: Answer) {
        self.answer_after(After::Journal, ticket, answer);
    }

    pub(crate) fn answer_after(&mut self, after: After, ticket: Ticket, answer: Answer) {
        self.effects.push_back(Effect::Answer {
            ticket,
            answer,
            after,
        });
    }
}

/// Bookkeeping.
impl LeaseTable {
    /// Sets the lease's timers as its state wants them, and counts it. To be called after every change.
    pub(crate) fn arm(&mut self, id: LeaseId) {
        self.count(id);
        self.drop_attach_codes(id);
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let (term, patience) = (lease.next_deadline(), lease.patience_ends(&self.policy));
        let owner = Some(lease.tenant.clone());
        let old = core::mem::replace(&mut lease.timers, (term, patience));
        self.deadlines.set(&owner, Timer::Lease(id), old.0, term);
        self.patience.set(&owner, Timer::Lease(id), old.1, patience);
    }
}
