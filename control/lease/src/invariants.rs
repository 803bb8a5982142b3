//! The invariants of the table, by name.
//!
//! - **overlap**: no two leases hold the same position, nor one that is set aside for a stray, and no more leases share
//!   the cores than allowed.
//! - **capacity**: the parts of a resource that are held, set aside for strays and free add up to the whole.
//! - **generations**: no order names an older binding than an order before it.
//! - **proof**: no end is reported to a client and no part is released while a binding may be open.
//! - **states**: a lease has a cause of its end exactly when it is not in use any more, and gets only orders whose
//!   report its state waits for.
//! - **timers**: each lease has the timers that its state wants, and there are no others.
//! - **tenants**: the counts of a tenant match its leases.
//! - **requests**: a request of a tenant, by its token, has one lease, and the table finds it as long as the lease is on record.
//! - **census**: the count of each state matches the leases in that state.
//! - **codes**: every attach code is of the lease that lists it, and a lease that nobody can join has none.
//!
//! Generations, proof, states and tenants are checked at every change of a lease and at every order, capacity where a
//! part is taken or given back: there the check costs no more than the step. If one fails, the step stops and the resource of the lease is fenced, with a note; the node goes on.
//! [`LeaseTable::check`] checks all of them; tests call it after every step.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use fabricbios_wire::{LeaseId, ResourceId, ResourceType};

use crate::{
    Event, FenceRecord, LeaseTable, Note, Now, Order, State, StepError,
    lease::{Lease, Making, OldKey, Remaking, Stage},
    resource::Resource,
    timers::Timer,
};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// No two leases hold the same position.
    Overlap,
    /// The held and the free part add up to the whole.
    Capacity,
    /// Orders never name an older binding.
    Generations,
    /// No end is reported to a client, and no part is released, before the cut is proved.
    Proof,
    /// A lease has a cause of its end exactly when it is not in use any more, and gets only orders that its state wants.
    States,
    /// Every lease has the timers of its state, and there are no others.
    Timers,
    /// The counts of a tenant match its leases.
    Tenants,
    /// A request with a token has one lease, which is found by the token.
    Requests,
    /// The count of each state matches the leases in that state.
    Census,
    /// Every attach code is of the lease that lists it, and a lease that nobody can join has none.
    Codes,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overlap => "overlap",
            Self::Capacity => "capacity",
            Self::Generations => "generations",
            Self::Proof => "proof",
            Self::States => "states",
            Self::Timers => "timers",
            Self::Tenants => "tenants",
            Self::Requests => "requests",
            Self::Census => "census",
            Self::Codes => "codes",
        })
    }
}

/// An invariant that failed, with its lease and resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    invariant: Invariant,
    lease_id: LeaseId,
    resource_id: ResourceId,
    kind: ResourceType,
    detail: &'static str,
}

/// Checks as the table runs.
impl LeaseTable {
    /// Counts the part of the lease as held, or as free again, and checks **capacity**.
    pub(crate) fn change_held(&mut self, lease: &Lease, more: bool) {
        let resource = self.resources.get(&lease.resource_id);
        let taken = resource.map_or(0, |it| it.free.taken_by(&lease.placement));
        let held = self.held.entry(lease.resource_id).or_default();
        let sum = match more {
            true => held.checked_add(taken),
            false => held.checked_sub(taken),
        };
        *held = sum.unwrap_or(*held);
        let all = |it: &Resource| {
            let sum = it.free_of_leases().and_then(|free| free.checked_add(*held));
            sum == Some(it.empty.free())
        };
        let adds_up = sum.is_some() && resource.is_none_or(all);
        if !adds_up {
            let detail = "free and held are not all of it";
            self.broken.push(lease.broken(Invariant::Capacity, detail));
        }
    }

    /// Checks **generations**, **proof** and **states** for an order. An order that breaks them is dropped, except a
    /// cut, which then names the newest binding.
    pub(crate) fn may_order(&mut self, order: &mut Order) -> bool {
        let Some(lease) = order.lease_id().and_then(|id| self.leases.get_mut(&id)) else {
            return true;
        };
        let ordered = lease.ordered.max(lease.generation);
        let grows = lease.generation >= lease.ordered;
        (lease.ordered, lease.generation) = (ordered, ordered);
        let broken = if !grows {
            lease.broken(Invariant::Generations, "an order names an older binding")
        } else if lease.waits_for(order) {
            return true;
        } else if matches!(order, Order::Release(..)) {
            lease.broken(Invariant::Proof, "released before its cut was proved")
        } else {
            lease.broken(Invariant::States, "an order that its state does not want")
        };
        self.broken.push(broken);
        match order {
            Order::Cut(binding_id, _) => {
                binding_id.generation = ordered;
                true
            }
            _ => false,
        }
    }

    /// Checks **proof** before an end is reported to a client.
    pub(crate) fn may_tell_end(&mut self, id: LeaseId) -> bool {
        let is_cut = |lease: &Lease| matches!(lease.state(), State::Grace | State::Releasing);
        let Some(lease) = self.leases.get(&id).filter(|lease| !is_cut(lease)) else {
            return true;
        };
        let broken = lease.broken(Invariant::Proof, "told before its cut was proved");
        self.broken.push(broken);
        false
    }

    /// Fences the resources of failed invariants.
    pub(crate) fn fence_broken(&mut self, now: Now) {
        while let Some(broken) = self.broken.pop() {
            let (invariant, detail) = (broken.invariant, broken.detail);
            let (lease_id, resource_id) = (broken.lease_id, broken.resource_id);
            let reason = StepError::new(
                "invariant",
                format!("{invariant}: {detail}; this is a mistake in the node's program"),
            );
            self.note(Note::Broken {
                invariant,
                lease_id,
                resource_id,
                detail: detail.to_string(),
            });
            if let Some(resource) = self.resources.get_mut(&resource_id) {
                resource.whole_in_doubt = true;
            }
            if self.leases.contains_key(&lease_id) {
                self.fence(now, lease_id, Event::Stranded, reason);
            } else {
                self.fence_resource(FenceRecord {
                    resource_id,
                    resource_type: broken.kind,
                    lease_id,
                    since_unix_ms: now.unix_ms,
                    reason,
                    by_release: false,
                });
            }
        }
    }

    /// Checks the lease after a change, and updates the counts by its state and the log of changes.
    pub(crate) fn count(&mut self, id: LeaseId) {
        self.changes.add(id);
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        self.broken.extend(lease.check());
        let is = (
            Some((lease.state(), lease.is_told_over())),
            lease.is_on_its_way(),
        );
        let was = core::mem::replace(&mut lease.counted, is);
        if was == is {
            return;
        }
        let before = was.0.map(|(state, _)| state);
        let (of, state, now) = (lease.resource_id, lease.state(), self.now);
        if before != Some(state) {
            let since = core::mem::replace(&mut lease.state_since, now);
            if let Some(before) = before {
                self.figures.leaves(of, id, (before, since), now);
            }
            self.figures.enters(of, id, state, now);
        }
        self.recount(was.0, is.0);
        let Some(lease) = self.leases.get(&id) else {
            return;
        };
        let resource = self.resources.get_mut(&lease.resource_id);
        let mut tenant = self.tenants.get_mut(&lease.tenant);
        let left = tenant.as_mut().and_then(|tenant| {
            let more = tenant.on_their_way + usize::from(is.1);
            let left = more.checked_sub(was.1.into());
            tenant.on_their_way = left.unwrap_or(0);
            left
        });
        let of_resource = resource.map(|it| &mut it.leaving);
        let of_tenant = tenant.map(|it| &mut it.leaving);
        for leaving in of_resource.into_iter().chain(of_tenant) {
            match lease.leaves() {
                true => leaving.insert(id),
                false => leaving.remove(&id),
            };
        }
        if left.is_none() {
            let detail = "nothing of its tenant was on its way";
            self.broken.push(lease.broken(Invariant::Tenants, detail));
        }
    }

    /// How many leases are being cut.
    pub(crate) fn cutting(&self) -> usize {
        let told_over = [false, true].map(|told| (State::Cutting, told));
        told_over.iter().filter_map(|is| self.census.get(is)).sum()
    }

    pub(crate) fn recount(&mut self, was: Option<(State, bool)>, is: Option<(State, bool)>) {
        if let Some(number) = was.and_then(|was| self.census.get_mut(&was)) {
            *number = number.saturating_sub(1);
        }
        if let Some(is) = is {
            *self.census.entry(is).or_default() += 1;
        }
    }
}

impl Lease {
    /// For [`LeaseTable::broken`]: the resource of the lease is fenced at the end of the step.
    pub(crate) fn broken(&self, invariant: Invariant, detail: &'static str) -> Broken {
        Broken {
            invariant,
            lease_id: self.id,
            resource_id: self.resource_id,
            kind: self.kind,
            detail,
        }
    }

    /// Checks **generations** and **states** of this lease alone.
    fn check(&self) -> Option<Broken> {
        let bound = self.binding().map(|it| it.generation);
        let ends = match self.state() {
            State::New => return Some(self.broken(Invariant::States, "it has not begun")),
            State::Binding | State::Active | State::Rebinding => false,
            State::Cutting | State::Grace | State::Releasing | State::Fenced => true,
            // A bind that failed leaves no end.
            State::Ended => self.end.is_some(),
        };
        if self.ordered.max(bound.unwrap_or(self.ordered)) > self.generation {
            return Some(self.broken(Invariant::Generations, "a newer binding is in use"));
        }
        let detail = "its end does not fit its state";
        (self.end.is_some() != ends).then(|| self.broken(Invariant::States, detail))
    }

    /// Whether the state waits for the report of this order.
    fn waits_for(&self, order: &Order) -> bool {
        match (order, self.stage()) {
            (Order::Extend(_, to), _) => self.extends_to() == Some(*to),
            (Order::RetireKey(_), _) => matches!(self.old_key(), Some(OldKey::Retiring { .. })),
            (Order::Bind(_), Stage::Binding(Making::Ordered))
            | (Order::Bind(_), Stage::Rebinding(_, Remaking::Bind(_)))
            | (Order::Rotate(_), Stage::Rebinding(_, Remaking::Rotation(_)))
            | (Order::ChangePeers(..), Stage::Rebinding(_, Remaking::Peers))
            | (Order::Cut(..), Stage::Cutting(_) | Stage::Fenced(_))
            | (Order::Release(..), Stage::Releasing)
            | (Order::Fenced(_), Stage::Fenced(_)) => true,
            _ => false,
        }
    }
}

/// The full check.
impl LeaseTable {
    /// Returns the invariants that do not hold, with details. For tests: looks at every lease several times.
    #[must_use]
    pub fn check(&self) -> Vec<(Invariant, String)> {
        let mut broken = Vec::new();
        let mut holds = |invariant, holds: bool, detail: &dyn Fn() -> String| {
            if !holds {
                broken.push((invariant, detail()));
            }
        };
        for resource in self.resources.values() {
            let id = resource.id;
            let mut held: Vec<_> = self.holders(id).map(|(_, placement)| placement).collect();
            let sum: u64 = held.iter().map(|it| resource.free.taken_by(it)).sum();
            let free = resource.free_of_leases();
            let counted = self.held.get(&id).copied().unwrap_or(0);
            let all = free.and_then(|free| free.checked_add(sum));
            let adds_up = sum == counted && all == Some(resource.empty.free());
            holds(Invariant::Capacity, adds_up, &|| {
                let whole = resource.empty.free();
                format!("{id}: {sum} held, {counted} counted, {free:?} free or aside of {whole}")
            });
            held.extend(&resource.set_aside);
            let disjoint = resource.empty.has_room_for(&held);
            holds(Invariant::Overlap, disjoint, &|| format!("{id}: {held:?}"));
        }
        let mut census = BTreeMap::new();
        for lease in self.leases.values() {
            let id = lease.id;
            if let Some(broken) = lease.check() {
                holds(broken.invariant, false, &|| {
                    format!("{}: {lease:?}", broken.detail)
                });
            }
            let listed = lease.attach_codes.iter();
            let mut owners = listed.map(|code| self.attach_codes.get(code));
            let right = lease.codes_fit() && owners.all(|owner| owner == Some(&id));
            holds(Invariant::Codes, right, &|| format!("{lease:?}"));
            let wants = (lease.next_deadline(), lease.patience_ends(&self.policy));
            let owner = Some(lease.tenant.clone());
            let is_set =
                |timers: &crate::timers::Timers, at| timers.at(&owner, Timer::Lease(id)) == at;
            let right = lease.timers == wants
                && is_set(&self.deadlines, wants.0)
                && is_set(&self.patience, wants.1);
            holds(Invariant::Timers, right, &|| {
                format!("wants {wants:?}: {lease:?}")
            });
            *census
                .entry((lease.state(), lease.is_told_over()))
                .or_insert(0) += 1;
        }
        let limit = |it: &&Resource| it.resetting.as_ref().is_some_and(|it| it.by.is_some());
        let resets = self.resources.values().filter(limit);
        let set = self.leases.values().map(|lease| lease.timers);
        let (terms, patience) = set.fold((0, resets.count()), |(terms, patience), timers| {
            (
                terms + usize::from(timers.0.is_some()),
                patience + usize::from(timers.1.is_some()),
            )
        });
        let all = (self.deadlines.len(), self.patience.len(), self.forget.len());
        let no_more = all == (terms, patience, self.ended.len());
        holds(Invariant::Timers, no_more, &|| format!("{all:?} are set"));
        let listed: usize = self.leases.values().map(|it| it.attach_codes.len()).sum();
        let all = self.attach_codes.len();
        holds(Invariant::Codes, all == listed, &|| {
            format!("{all} codes, {listed} listed")
        });
        let mut counted = self.census.clone();
        counted.retain(|_, number| *number > 0);
        holds(Invariant::Census, counted == census, &|| {
            format!("{counted:?}, not {census:?}")
        });
        let figures = self.figures.all(&self.leases);
        holds(Invariant::Census, figures, &|| {
            format!("{:?}", self.figures)
        });
        for resource in self.resources.values() {
            let its = self
                .leases
                .values()
                .filter(|it| it.resource_id == resource.id);
            let its: BTreeSet<LeaseId> = its.filter(|it| it.leaves()).map(|it| it.id).collect();
            holds(Invariant::Census, its == resource.leaving, &|| {
                format!("{its:?} leave, not {:?}", resource.leaving)
            });
        }
        for (name, tenant) in &self.tenants {
            let its = self.leases.values().filter(|lease| lease.tenant == *name);
            let its: Vec<&Lease> = its.map(|it| &**it).collect();
            holds(Invariant::Tenants, tenant.counts(&its), &|| {
                format!("{name}: {tenant:?}")
            });
            let ended = self.ended.values().map(|ended| &ended.record);
            let ended = ended.filter(|record| record.tenant == *name);
            let ended = ended.map(|it| (it.requested, it.lease_id, it.granted_at_unix_ms != 0));
            let live = its.iter().map(|it| (it.requested, it.id, it.granted()));
            let of_requests: Vec<_> = live.chain(ended).collect();
            let of = |token| tenant.requests.get(&token).copied();
            let mut granted = of_requests.iter().filter(|(.., granted)| *granted);
            let all_known =
                granted.all(|(it, id, _)| it.is_none_or(|it| of(it.token) == Some(*id)));
            let mut known = tenant.requests.iter();
            let no_more = known.all(|(token, lease)| {
                let mut all = of_requests.iter();
                all.any(|(it, id, _)| id == lease && it.is_some_and(|it| it.token == *token))
            });
            holds(Invariant::Requests, all_known && no_more, &|| {
                format!("{name}: {:?}, not {of_requests:?}", tenant.requests)
            });
        }
        let known = |lease: &Lease| self.tenants.contains_key(&lease.tenant);
        let all_known = self.leases.values().all(|it| known(it));
        holds(Invariant::Tenants, all_known, &|| {
            "a lease of nobody".into()
        });
        broken
    }
}

#[cfg(test)]
mod tests;
