//! Timers, and turns of the tenants when many timers are due.

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use fabricbios_wire::{LeaseId, ResourceId};

use crate::BootTime;

/// A timer's subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Lease(LeaseId),
    Reset(ResourceId),
}

/// The owner of a timer: a tenant, or `None` for the node.
pub(crate) type Owner = Option<Arc<str>>;

/// Timers of one sort. Tenants take turns: even if many timers of one tenant are due, a due timer of another tenant
/// waits for one of them at most.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    owners: BTreeMap<Owner, OfOwner>,
    /// The earliest timer of each owner that has one and is not in `turns`.
    first: BTreeSet<(BootTime, Owner)>,
    /// Owners that had a timer due at the last look, in the order in which they are served.
    turns: VecDeque<Owner>,
}

#[derive(Debug, Default)]
struct OfOwner {
    timers: BTreeSet<(BootTime, Timer)>,
    in_turns: bool,
}

impl OfOwner {
    fn next(&self) -> Option<BootTime> {
        self.timers.first().map(|&(at, _)| at)
    }
}

impl Timers {
    /// Moves a timer from `old` to `new`; `None` is not set.
    pub(crate) fn set(
        &mut self,
        owner: &Owner,
        timer: Timer,
        old: Option<BootTime>,
        new: Option<BootTime>,
    ) {
        if old == new {
            return;
        }
        let its = self.owners.entry(owner.clone()).or_default();
        let before = its.next();
        if let Some(old) = old {
            its.timers.remove(&(old, timer));
        }
        if let Some(new) = new {
            its.timers.insert((new, timer));
        }
        let (after, in_turns) = (its.next(), its.in_turns);
        if in_turns {
            return;
        }
        if let Some(before) = before.filter(|_| before != after) {
            self.first.remove(&(before, owner.clone()));
        }
        self.wait(owner, after);
    }

    /// The owner waits for its earliest timer; `None`: the owner has none.
    fn wait(&mut self, owner: &Owner, next: Option<BootTime>) {
        match next {
            Some(at) => drop(self.first.insert((at, owner.clone()))),
            None => drop(self.owners.remove(owner)),
        }
    }

    /// When the earliest timer falls due.
    pub(crate) fn next(&self) -> Option<BootTime> {
        let turns = self
            .turns
            .iter()
            .filter_map(|owner| self.owners.get(owner)?.next());
        turns.chain(self.first.first().map(|&(at, _)| at)).min()
    }

    /// The time for which a timer is set.
    pub(crate) fn at(&self, owner: &Owner, timer: Timer) -> Option<BootTime> {
        let mut its = self.owners.get(owner)?.timers.iter();
        its.find(|(_, it)| *it == timer).map(|(at, _)| *at)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.owners.values().map(|its| its.timers.len()).sum()
    }

    /// The earliest timer of one owner.
    pub(crate) fn first_of(&self, owner: &Owner) -> Option<Timer> {
        let first = self.owners.get(owner)?.timers.first();
        first.map(|&(_, timer)| timer)
    }

    /// Removes and returns a due timer: the earliest of the owner whose turn it is.
    pub(crate) fn take_due(&mut self, now: BootTime) -> Option<Timer> {
        while self.first.first().is_some_and(|&(at, _)| at <= now) {
            let (_, owner) = self.first.pop_first()?;
            if let Some(its) = self.owners.get_mut(&owner) {
                its.in_turns = true;
            }
            self.turns.push_back(owner);
        }
        while let Some(owner) = self.turns.pop_front() {
            let Some(its) = self.owners.get_mut(&owner) else {
                continue;
            };
            // The timer may have been removed since the owner got its turn.
            let due = its.timers.first().copied().filter(|&(at, _)| at <= now);
            if let Some(due) = due {
                its.timers.remove(&due);
            }
            if its.next().is_some_and(|at| at <= now) {
                self.turns.push_back(owner);
            } else {
                its.in_turns = false;
                let next = its.next();
                self.wait(&owner, next);
            }
            if let Some((_, timer)) = due {
                return Some(timer);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn lease(number: u128) -> Timer {
        Timer::Lease(LeaseId(number))
    }

    fn set(timers: &mut Timers, owner: &str, number: u128, at: u64) {
        timers.set(&Some(owner.into()), lease(number), None, Some(BootTime(at)));
    }

    #[test]
    fn a_tenant_with_many_timers_holds_up_nobody() {
        let mut timers = Timers::default();
        (0..1_000).for_each(|number| set(&mut timers, "loud", number, 10));
        set(&mut timers, "quiet", 5_000, 12);
        set(&mut timers, "later", 6_000, 99);
        // A timer that is not set.
        timers.set(&None, lease(1), Some(BootTime(5)), None);
        assert!(!timers.owners.contains_key(&None));
        assert_eq!(timers.take_due(BootTime(9)), None);
        assert_eq!(timers.take_due(BootTime(10)), Some(lease(0)));
        // The timer is due behind hundreds of others, and is served second.
        let served: Vec<_> = (0..3)
            .filter_map(|_| timers.take_due(BootTime(12)))
            .collect();
        assert_eq!(served, [lease(1), lease(5_000), lease(2)]);
        let rest = core::iter::from_fn(|| timers.take_due(BootTime(12))).count();
        assert_eq!((rest, timers.next()), (997, Some(BootTime(99))));
    }

    #[test]
    fn what_is_set_anew_or_unset_while_its_owner_has_a_turn_is_as_it_was_set_last() {
        let mut timers = Timers::default();
        let owner = Some("a".into());
        (1..=3).for_each(|number| set(&mut timers, "a", number, 10));
        assert_eq!(timers.take_due(BootTime(10)), Some(lease(1)));
        timers.set(&owner, lease(2), Some(BootTime(10)), None);
        timers.set(&owner, lease(3), Some(BootTime(10)), Some(BootTime(20)));
        assert_eq!(timers.next(), Some(BootTime(20)));
        assert_eq!(timers.take_due(BootTime(10)), None);
        assert_eq!(timers.take_due(BootTime(20)), Some(lease(3)));
        assert_eq!((timers.next(), timers.take_due(BootTime(99))), (None, None));
        assert!(timers.owners.is_empty() && timers.turns.is_empty());
    }
}
