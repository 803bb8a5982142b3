//! What must hold of the table, by name.
//!
//! - **overlap**: no two leases hold the same position, nor more leases a unit than may share it.
//! - **capacity**: what leases hold of a resource and what is free of it are all of it.
//! - **generations**: no order names an older binding than an order before it.
//! - **proof**: nobody is told of an end, and nothing is released, while a binding may be open.
//! - **timers**: each lease has the timers that its state wants, and there are no others.
//! - **tenants**: what is counted of a tenant is what its leases are.
//! - **census**: what is counted of each state is what leases are in it.
//!
//! Capacity, generations, proof and tenants are looked at as the table runs, where it costs no more than the step itself. One
//! that fails there stops the step and fences the resource of its lease, with a note: the node goes on. All of them
//! are looked at by [`LeaseTable::check`], which tests call after every step.

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use fabricbios_wire::{LeaseId, ResourceId, ResourceType};

use crate::{
    Event, FenceRecord, LeaseTable, Note, Now, Order, State, StepError, lease::Lease,
    resource::Resource, timers::Timer,
};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// No two leases hold the same position.
    Overlap,
    /// What is held and what is free are all.
    Capacity,
    /// Orders never name an older binding.
    Generations,
    /// Nobody is told before the proof.
    Proof,
    /// Timers are those that states want.
    Timers,
    /// Tenants are counted right.
    Tenants,
    /// States are counted right.
    Census,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overlap => "overlap",
            Self::Capacity => "capacity",
            Self::Generations => "generations",
            Self::Proof => "proof",
            Self::Timers => "timers",
            Self::Tenants => "tenants",
            Self::Census => "census",
        })
    }
}

/// One that failed, and whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    invariant: Invariant,
    lease_id: LeaseId,
    resource_id: ResourceId,
    kind: ResourceType,
    detail: String,
}

/// As the table runs.
impl LeaseTable {
    /// Whether it holds; else the resource of the lease is fenced when the step is over.
    pub(crate) fn holds(
        &mut self,
        invariant: Invariant,
        lease: &Lease,
        holds: bool,
        detail: &str,
    ) -> bool {
        if !holds {
            self.broken.push(Broken {
                invariant,
                lease_id: lease.id,
                resource_id: lease.resource_id,
                kind: lease.kind,
                detail: detail.to_string(),
            });
        }
        holds
    }

    /// **capacity**, after this much more, or less, of the resource is held.
    pub(crate) fn change_held(&mut self, lease: &Lease, more: bool) {
        let resource = self.resources.get(&lease.resource_id);
        let taken = resource.map_or(0, |it| it.free.taken_by(&lease.placement));
        let held = self.held.entry(lease.resource_id).or_default();
        let sum = match more {
            true => held.checked_add(taken),
            false => held.checked_sub(taken),
        };
        *held = sum.unwrap_or(*held);
        let all = |it: &Resource| it.free.free().checked_add(*held) == Some(it.whole);
        let adds_up = sum.is_some() && resource.is_none_or(all);
        self.holds(
            Invariant::Capacity,
            lease,
            adds_up,
            "free and held are not all of it",
        );
    }

    /// **generations** and **proof** of an order about a lease. One that breaks them is not given, except a cut, which is
    /// of the newest binding then.
    pub(crate) fn may_order(&mut self, order: &mut Order) -> bool {
        let Some(lease) = order.lease_id().and_then(|id| self.leases.get_mut(&id)) else {
            return true;
        };
        let ordered = lease.ordered.max(lease.generation);
        let grows = lease.generation >= lease.ordered;
        (lease.ordered, lease.generation) = (ordered, ordered);
        lease.may_be_open |= matches!(order, Order::Bind(_));
        let proved = !(matches!(order, Order::Release(..)) && lease.may_be_open);
        if grows && proved {
            return true;
        }
        let cuts = match order {
            Order::Cut(binding_id, _) => {
                binding_id.generation = ordered;
                true
            }
            _ => false,
        };
        let lease = lease.clone();
        self.holds(
            Invariant::Generations,
            &lease,
            grows,
            "an order names an older binding",
        );
        self.holds(
            Invariant::Proof,
            &lease,
            proved,
            "released before its cut was proved",
        );
        cuts
    }

    /// **proof** of an end that is to be told.
    pub(crate) fn may_tell_end(&mut self, id: LeaseId) -> bool {
        let open = self.leases.get(&id).filter(|lease| lease.may_be_open);
        let Some(lease) = open.cloned() else {
            return true;
        };
        self.holds(
            Invariant::Proof,
            &lease,
            false,
            "told before its cut was proved",
        )
    }

    /// Fences what invariants that failed are about.
    pub(crate) fn fence_broken(&mut self, now: Now) {
        while let Some(broken) = self.broken.pop() {
            let Broken {
                invariant,
                lease_id,
                resource_id,
                kind,
                detail,
            } = broken;
            let reason = StepError::new(
                "invariant",
                format!("{invariant}: {detail}; this is a mistake in the node's program"),
            );
            self.note(Note::Broken {
                invariant,
                lease_id,
                resource_id,
                detail,
            });
            if self.leases.contains_key(&lease_id) {
                self.fence(now, lease_id, Event::Stranded, reason);
            } else {
                self.fence_resource(FenceRecord {
                    resource_id,
                    resource_type: kind,
                    lease_id,
                    since_unix_ms: now.unix_ms,
                    reason,
                    by_release: false,
                });
            }
        }
    }

    /// Counts the lease by what it is now.
    pub(crate) fn count(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let is = Some((lease.state, lease.told_over));
        let was = core::mem::replace(&mut lease.counted, is);
        if was != is {
            self.recount(was, is);
        }
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

/// Everything.
impl LeaseTable {
    /// Which invariants do not hold. Looks at every lease several times: for tests.
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
            let held: Vec<_> = self.holders(id).map(|(_, placement)| placement).collect();
            let sum: u64 = held.iter().map(|it| resource.free.taken_by(it)).sum();
            let free = resource.free.free();
            let counted = self.held.get(&id).copied().unwrap_or(0);
            let adds_up = sum == counted && sum.checked_add(free) == Some(resource.whole);
            holds(Invariant::Capacity, adds_up, &|| {
                let whole = resource.whole;
                format!("{id}: {sum} held, {counted} counted, {free} free of {whole}")
            });
            let disjoint = resource.free.are_apart(&held);
            holds(Invariant::Overlap, disjoint, &|| format!("{id}: {held:?}"));
        }
        let mut census = BTreeMap::new();
        for lease in self.leases.values() {
            let id = lease.id;
            let never_back = lease.ordered <= lease.generation && lease.bound <= lease.generation;
            holds(Invariant::Generations, never_back, &|| format!("{lease:?}"));
            let told = matches!(lease.state, State::Grace | State::Releasing | State::Ended);
            holds(Invariant::Proof, !(told && lease.may_be_open), &|| {
                format!("{lease:?}")
            });
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
            *census.entry((lease.state, lease.told_over)).or_insert(0) += 1;
        }
        let resets = self.resources.values().filter(|it| it.resetting.is_some());
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
        let mut counted = self.census.clone();
        counted.retain(|_, number| *number > 0);
        holds(Invariant::Census, counted == census, &|| {
            format!("{counted:?}, not {census:?}")
        });
        for (name, tenant) in &self.tenants {
            let its = self.leases.values().filter(|lease| lease.tenant == *name);
            let its: Vec<&Lease> = its.collect();
            holds(Invariant::Tenants, tenant.counts(&its), &|| {
                format!("{name}: {tenant:?}")
            });
        }
        let known = |lease: &Lease| self.tenants.contains_key(&lease.tenant);
        let all_known = self.leases.values().all(known);
        holds(Invariant::Tenants, all_known, &|| {
            "a lease of nobody".into()
        });
        broken
    }
}

#[cfg(test)]
mod tests;
