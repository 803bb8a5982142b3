//! A queue in which tenants take turns: the first item of a tenant waits for at most one item of each other tenant.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// The owner of an item: a tenant, or `None` for the node itself.
pub type Owner = Option<Arc<str>>;

/// See the module. Items of one owner keep their order.
#[derive(Debug)]
pub struct FairQueue<T> {
    of: HashMap<Owner, VecDeque<T>>,
    /// Owners of items, in the order in which they are served.
    turns: VecDeque<Owner>,
    len: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            of: HashMap::new(),
            turns: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> FairQueue<T> {
    /// Appends an item to its owner's queue.
    pub fn push(&mut self, owner: Owner, item: T) {
        let its = self.of.entry(owner.clone()).or_default();
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
    pub fn pop_of(&mut self, may: impl Fn(&Owner) -> bool) -> Option<(Owner, T)> {
        let at = self.turns.iter().position(may)?;
        let owner = self.turns.remove(at)?;
        let its = self.of.get_mut(&owner)?;
        let item = its.pop_front()?;
        self.len -= 1;
        if its.is_empty() {
            self.of.remove(&owner);
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
    pub fn len_of(&self, owner: &Owner) -> usize {
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

    fn owner(name: &str) -> Owner {
        Some(name.into())
    }

    #[test]
    fn a_loud_owner_waits_for_a_quiet_one() {
        let mut queue = FairQueue::default();
        (0..1_000).for_each(|n| queue.push(owner("loud"), n));
        queue.push(owner("quiet"), 5_000);
        queue.push(None, 6_000);
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
            .for_each(|(name, n)| queue.push(owner(name), n));
        let b_only = |it: &Owner| *it == owner("b");
        assert_eq!(queue.pop_of(b_only), Some((owner("b"), 2)));
        assert_eq!(queue.pop_of(b_only), None);
        assert_eq!(
            (queue.pop(), queue.pop(), queue.pop()),
            (Some(1), Some(3), None)
        );
    }
}
