//! A queue in which owners take turns.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

/// Empty queues that are kept, so that an owner with one item at a time costs no allocation, and most items of one.
const SPARES: usize = 8;
const SPARE_ITEMS: usize = 64;

/// A queue in which owners, such as tenants, take turns: the first item of an owner waits for at most one item of each
/// other owner. Items of one owner keep their order.
#[derive(Debug)]
pub struct FairQueue<O, T> {
    of: HashMap<O, VecDeque<T>>,
    /// Owners of items, in the order in which they are served.
    turns: VecDeque<O>,
    /// Queues of owners that have no items any more, for the next ones.
    spare: Vec<VecDeque<T>>,
    len: usize,
}

impl<O, T> Default for FairQueue<O, T> {
    fn default() -> Self {
        Self {
            of: HashMap::new(),
            turns: VecDeque::new(),
            spare: Vec::new(),
            len: 0,
        }
    }
}

impl<O: Clone + Eq + Hash, T> FairQueue<O, T> {
    /// Appends an item to its owner's queue.
    pub fn push(&mut self, owner: O, item: T) {
        let spare = &mut self.spare;
        let its =
            { self.of.entry(owner.clone()) }.or_insert_with(|| spare.pop().unwrap_or_default());
        if its.is_empty() {
            self.turns.push_back(owner);
        }
        its.push_back(item);
        self.len += 1;
    }

    /// The next item.
    pub fn pop(&mut self) -> Option<T> {
        self.pop_of(|_| true).map(|(_, item)| item)
    }

    /// The next item of an owner for whom `may` returns true. The other owners keep their turns.
    pub fn pop_of(&mut self, may: impl Fn(&O) -> bool) -> Option<(O, T)> {
        let at = self.turns.iter().position(may)?;
        let owner = self.turns.remove(at)?;
        let its = self.of.get_mut(&owner)?;
        let item = its.pop_front()?;
        self.len -= 1;
        if its.is_empty() {
            let its = self.of.remove(&owner);
            let short =
                its.filter(|its| its.capacity() <= SPARE_ITEMS && self.spare.len() < SPARES);
            self.spare.extend(short);
        } else {
            self.turns.push_back(owner.clone());
        }
        Some((owner, item))
    }

    /// The first item of each owner.
    pub fn heads(&self) -> impl Iterator<Item = &T> {
        self.of.values().filter_map(VecDeque::front)
    }

    /// Number of items of one owner.
    #[must_use]
    pub fn len_of(&self, owner: &O) -> usize {
        self.of.get(owner).map_or(0, VecDeque::len)
    }

    /// Number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loud_owner_waits_for_a_quiet_one() {
        let mut queue = FairQueue::default();
        (0..1_000).for_each(|n| queue.push("loud", n));
        queue.push("quiet", 5_000);
        queue.push("third", 6_000);
        assert_eq!(queue.heads().count(), 3);
        let first: Vec<i32> = (0..5).filter_map(|_| queue.pop()).collect();
        assert_eq!(first, [0, 5_000, 6_000, 1, 2]);
        assert_eq!(queue.len(), 997);
        let rest: Vec<i32> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, (3..1_000).collect::<Vec<_>>());
        assert!(queue.is_empty() && queue.of.is_empty() && queue.turns.is_empty());
    }

    #[test]
    fn who_may_not_be_served_keeps_the_turn() {
        let mut queue = FairQueue::default();
        [("a", 1), ("b", 2), ("a", 3)]
            .into_iter()
            .for_each(|(name, n)| queue.push(name, n));
        let b_only = |it: &&str| *it == "b";
        assert_eq!(queue.pop_of(b_only), Some(("b", 2)));
        assert_eq!(queue.pop_of(b_only), None);
        assert_eq!(
            (queue.pop(), queue.pop(), queue.pop()),
            (Some(1), Some(3), None)
        );
    }
}
