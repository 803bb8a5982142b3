//! The invariants of the table, by name.
//!
//! - **overlap**: no two leases hold the same position, and no more leases share the cores than allowed.
//! - **capacity**: the held and the free part of a resource add up to the whole.
//! - **generations**: no order names an older binding than an order before it.
//! - **proof**: no end is reported to a client and no part is released while a binding may be open.
//! - **timers**: each lease has the timers that its state wants, and there are no others.
//! - **tenants**: the counts of a tenant match its leases.
//! - **census**: the count of each state matches the leases in that state.
//!
//! Capacity, generations, proof and tenants are checked as the table runs, where the check costs no more than the
//! step. If one fails, the step stops and the resource of the lease is fenced, with a note; the node goes on.
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
    Event, FenceRecord, LeaseTable, Note, Now, Order, State, StepError, lease::Lease,
    resource::Resource, timers::Timer,
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
    /// Every lease has the timers of its state, and there are no others.
    Timers,
    /// The counts of a tenant match its leases.
    Tenants,
    /// The count of each state matches the leases in that state.
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

/// An invariant that failed, with its lease and resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    invariant: Invariant,
    lease_id: LeaseId,
    resource_id: ResourceId,
    kind: ResourceType,
    detail: String,
}

/// Checks as the table runs.
impl LeaseTable {
    /// Returns `holds`. If false, the resource of the lease is fenced at the end of the step.
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
        let all = |it: &Resource| it.free.free().checked_add(*held) == Some(it.empty.free());
        let adds_up = sum.is_some() && resource.is_none_or(all);
        self.holds(
            Invariant::Capacity,
            lease,
            adds_up,
            "free and held are not all of it",
        );
    }

    /// Checks **generations** and **proof** for an order. An order that breaks them is dropped, except a cut, which
    /// then names the newest binding.
    pub(crate) fn may_order(&mut self, order: &mut Order) -> bool {
        let Some(lease) = order.lease_id().and_then(|id| self.leases.get_mut(&id)) else {
            return true;
        };
        let ordered = lease.ordered.max(lease.generation);
        let grows = lease.generation >= lease.ordered;
        (lease.ordered, lease.generation) = (ordered, ordered);
        let proved = !matches!(order, Order::Release(..)) || lease.state() == State::Releasing;
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

    /// Checks **proof** before an end is reported to a client.
    pub(crate) fn may_tell_end(&mut self, id: LeaseId) -> bool {
        let is_cut = |lease: &Lease| matches!(lease.state(), State::Grace | State::Releasing);
        let open = self.leases.get(&id).filter(|lease| !is_cut(lease));
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

    /// Fences the resources of failed invariants.
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
            if let Some(resource) = self.resources.get_mut(&resource_id) {
                resource.whole_in_doubt = true;
            }
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

    /// Updates the counts by the state of the lease.
    pub(crate) fn count(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let is = (
            Some((lease.state(), lease.is_told_over())),
            lease.is_on_its_way(),
        );
        let was = core::mem::replace(&mut lease.counted, is);
        if was == is {
            return;
        }
        self.recount(was.0, is.0);
        let Some(lease) = self.leases.get(&id).cloned() else {
            return;
        };
        self.note_leaving(&lease);
        let tenant = self.tenants.get_mut(&lease.tenant);
        let counts = tenant.is_some_and(|tenant| {
            let more = tenant.on_their_way + usize::from(is.1);
            let left = more.checked_sub(was.1.into());
            tenant.on_their_way = left.unwrap_or(0);
            left.is_some()
        });
        let detail = "nothing of its tenant was on its way";
        self.holds(Invariant::Tenants, &lease, counts, detail);
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
            let held: Vec<_> = self.holders(id).map(|(_, placement)| placement).collect();
            let sum: u64 = held.iter().map(|it| resource.free.taken_by(it)).sum();
            let free = resource.free.free();
            let counted = self.held.get(&id).copied().unwrap_or(0);
            let adds_up = sum == counted && sum.checked_add(free) == Some(resource.empty.free());
            holds(Invariant::Capacity, adds_up, &|| {
                let whole = resource.empty.free();
                format!("{id}: {sum} held, {counted} counted, {free} free of {whole}")
            });
            let disjoint = resource.empty.has_room_for(&held);
            holds(Invariant::Overlap, disjoint, &|| format!("{id}: {held:?}"));
        }
        let mut census = BTreeMap::new();
        for lease in self.leases.values() {
            let id = lease.id;
            let bound = lease.binding().map(|it| it.generation);
            let never_back = lease.ordered <= lease.generation && bound <= Some(lease.generation);
            holds(Invariant::Generations, never_back, &|| format!("{lease:?}"));
            let in_use = matches!(
                lease.state(),
                State::Binding | State::Active | State::Rebinding
            );
            let ends = lease.end.is_some() != in_use;
            holds(Invariant::Proof, ends, &|| format!("{lease:?}"));
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
