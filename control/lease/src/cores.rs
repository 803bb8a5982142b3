//! Cores of a CPU resource: whole groups for exclusive leases, and time of the other CPUs for sharing leases.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use crate::{CoreGroup, Placement, room::Holding};

/// The groups and what leases have of them. The CPUs of groups without an exclusive lease always suffice for the
/// sharing leases.
#[derive(Clone, Debug)]
pub(crate) struct Cores {
    /// All groups, by number.
    groups: BTreeMap<u32, Group>,
    /// The number of CPUs whose time the sharing leases have.
    shared: u64,
    /// The groups that no new lease gets at the moment.
    missing: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    cpus: u64,
    node: u32,
    /// An exclusive lease has the group.
    held: bool,
}

impl Cores {
    pub(crate) fn new(groups: &[CoreGroup]) -> Self {
        let group = |it: &CoreGroup| Group {
            cpus: it.cpus.into(),
            node: it.node,
            held: false,
        };
        Self {
            groups: groups.iter().map(|it| (it.number, group(it))).collect(),
            shared: 0,
            missing: BTreeSet::new(),
        }
    }

    pub(crate) fn set_missing(&mut self, numbers: &[u32]) {
        self.missing = numbers.iter().copied().collect();
    }

    /// The number of CPUs that a new lease could get; CPUs of missing groups do not count.
    fn spare(&self) -> u64 {
        let open: u64 = self.open(None).iter().map(|(cpus, _)| cpus).sum();
        open.saturating_sub(self.shared)
    }

    /// The number of CPUs that no lease has, missing or not. An exclusive lease has all CPUs of its groups.
    pub(crate) fn free(&self) -> u64 {
        let open = self.groups.values().filter(|group| !group.held);
        let open: u64 = open.map(|group| group.cpus).sum();
        open.saturating_sub(self.shared)
    }

    /// The most that one lease could get: groups, or CPUs' time for a sharing lease.
    pub(crate) fn most(&self, holding: Holding) -> u64 {
        let most = match holding {
            Holding::Shared => return self.spare(),
            Holding::Alone => self.spared(&self.open(None)),
            Holding::AloneInOneNode => {
                let nodes = self.nodes().into_iter();
                let most = nodes.map(|node| self.spared(&self.open(Some(node))));
                most.max().unwrap_or(0)
            }
        };
        most as u64
    }

    /// The CPUs of a placement, as [`Cores::free`] counts.
    pub(crate) fn cpus(&self, placement: &Placement) -> u64 {
        match placement {
            Placement::Cores(numbers) => {
                let groups = numbers.iter().filter_map(|number| self.groups.get(number));
                groups.map(|group| group.cpus).sum()
            }
            other => other.amount(),
        }
    }

    /// Takes this much for one lease. An exclusive lease gets groups of one NUMA node if one suffices, of the one with
    /// the fewest open groups; among these, groups with few CPUs come first.
    pub(crate) fn take(&mut self, amount: u64, holding: Holding) -> Option<Placement> {
        let placement = match holding {
            Holding::Shared if amount > self.spare() => return None,
            Holding::Shared => Placement::Amount(amount),
            Holding::Alone | Holding::AloneInOneNode => {
                let count = usize::try_from(amount).ok()?;
                let nodes = self.nodes().into_iter();
                let of_a_node = nodes.map(|node| self.open(Some(node)));
                let suffices = |open: &Vec<Open>| self.spared(open) >= count;
                let tightest = of_a_node.filter(suffices).min_by_key(Vec::len);
                let of_any = || (holding == Holding::Alone).then(|| self.open(None));
                let open = tightest.or_else(of_any).filter(suffices)?;
                let mut numbers: Box<[u32]> = open.get(..count)?.iter().map(|it| it.1).collect();
                numbers.sort_unstable();
                Placement::Cores(numbers)
            }
        };
        self.take_this(&placement).then_some(placement)
    }

    /// Takes exactly this placement, also from missing groups. `false`: a part of it is not free, and nothing has
    /// changed.
    pub(crate) fn take_this(&mut self, wanted: &Placement) -> bool {
        let cpus = self.cpus(wanted);
        if cpus == 0 || cpus > self.free() {
            return false;
        }
        match wanted {
            Placement::Amount(_) => self.shared += cpus,
            Placement::Cores(numbers) => {
                let open = |number| self.groups.get(number).is_some_and(|group| !group.held);
                if !numbers.is_sorted_by(|a, b| a < b) || !numbers.iter().all(open) {
                    return false;
                }
                self.hold(numbers, true);
            }
            _ => return false,
        }
        true
    }

    /// Gives back what was taken.
    pub(crate) fn give_back(&mut self, placement: &Placement) {
        match placement {
            Placement::Cores(numbers) => self.hold(numbers, false),
            other => self.shared = self.shared.saturating_sub(other.amount()),
        }
    }

    fn hold(&mut self, numbers: &[u32], held: bool) {
        for number in numbers {
            if let Some(group) = self.groups.get_mut(number) {
                group.held = held;
            }
        }
    }

    fn nodes(&self) -> BTreeSet<u32> {
        self.groups.values().map(|group| group.node).collect()
    }

    /// The groups that are not missing and that no exclusive lease has, of this node or of all nodes. The groups with
    /// the fewest CPUs come first.
    fn open(&self, node: Option<u32>) -> Vec<Open> {
        let of_node = |group: &Group| node.is_none_or(|node| node == group.node);
        let open = self.groups.iter();
        let is_missing = |number: &u32| self.missing.contains(number);
        let open = open.filter(|(number, it)| !it.held && of_node(it) && !is_missing(number));
        let mut open: Vec<Open> = open.map(|(&number, it)| (it.cpus, number)).collect();
        open.sort_unstable();
        open
    }

    /// How many of these groups, from the first on, the sharing leases can spare.
    fn spared(&self, open: &[Open]) -> usize {
        let ends = open.iter().scan(0, |sum: &mut u64, (cpus, _)| {
            *sum += cpus;
            Some(*sum)
        });
        let spare = self.spare();
        ends.take_while(|end| *end <= spare).count()
    }
}

/// An open group: how many CPUs it has, and its number.
type Open = (u64, u32);

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    fn group((number, &(cpus, node)): (u32, &(u32, u32))) -> CoreGroup {
        CoreGroup { number, cpus, node }
    }

    /// Groups with the numbers 0, 3, 6, …; each pair is the number of CPUs and the NUMA node.
    fn cores(groups: &[(u32, u32)]) -> Cores {
        let groups = (0..).step_by(3).zip(groups).map(group);
        Cores::new(&groups.collect::<Vec<_>>())
    }

    fn groups(numbers: &[u32]) -> Option<Placement> {
        Some(Placement::Cores(numbers.into()))
    }

    #[test]
    fn whole_cores_are_of_the_node_with_the_fewest_open_ones_that_suffice() {
        let mut cores = cores(&[(2, 0), (2, 0), (2, 0), (2, 1), (2, 1)]);
        assert_eq!(cores.take(2, Holding::Alone), groups(&[9, 12]));
        assert_eq!(cores.take(1, Holding::AloneInOneNode), groups(&[0]));
        cores.give_back(&groups(&[9, 12]).unwrap());
        assert_eq!(cores.most(Holding::AloneInOneNode), 2);
        assert_eq!(cores.take(3, Holding::AloneInOneNode), None);
        assert_eq!(cores.take(3, Holding::Alone), groups(&[3, 6, 9]));
    }

    #[test]
    fn an_exclusive_lease_leaves_the_sharing_leases_their_cpus() {
        let mut cores = cores(&[(2, 0), (1, 0), (2, 0)]);
        assert_eq!(cores.take(3, Holding::Shared), Some(Placement::Amount(3)));
        assert_eq!(cores.most(Holding::Alone), 1, "the core with one CPU");
        assert_eq!(cores.take(2, Holding::Alone), None);
        assert_eq!(cores.take(1, Holding::Alone), groups(&[3]));
        assert_eq!((cores.free(), cores.most(Holding::Alone)), (1, 0));
        assert!(!cores.take_this(&Placement::Amount(2)));
        assert!(!cores.take_this(&groups(&[0]).unwrap()));
    }

    /// The sharing leases may have more CPUs than the groups that are not missing.
    #[test]
    fn missing_groups_are_not_taken_and_what_was_taken_of_them_counts() {
        let mut cores = cores(&[(2, 0), (2, 0), (2, 1)]);
        assert_eq!(cores.take(3, Holding::Shared), Some(Placement::Amount(3)));
        cores.set_missing(&[0, 3]);
        let most = |cores: &Cores| [Holding::Shared, Holding::Alone].map(|it| cores.most(it));
        assert_eq!((most(&cores), cores.free()), ([0, 0], 3));
        assert_eq!(cores.take(1, Holding::Shared), None);
        cores.set_missing(&[3]);
        assert_eq!(most(&cores), [1, 0]);
        let taken = cores.take(1, Holding::Alone);
        assert_eq!(taken, None, "the sharing leases need both CPUs");
        cores.give_back(&Placement::Amount(3));
        assert_eq!(cores.take(2, Holding::Alone), groups(&[0, 6]));
        cores.set_missing(&[]);
        assert_eq!(most(&cores), [2, 1]);
    }

    #[test]
    fn groups_that_are_not_there_or_twice_or_somebody_elses_are_not_taken() {
        let mut cores = cores(&[(2, 0), (2, 0), (2, 1)]);
        for numbers in [&[][..], &[1], &[3, 3], &[3, 0], &[0, 99]] {
            assert!(!cores.take_this(&groups(numbers).unwrap()), "{numbers:?}");
        }
        assert!(cores.take_this(&groups(&[0, 6]).unwrap()));
        assert!(!cores.take_this(&groups(&[3, 6]).unwrap()));
        assert!(!cores.take_this(&Placement::Amount(0)));
        for holding in [Holding::Alone, Holding::AloneInOneNode, Holding::Shared] {
            assert_eq!(cores.take(0, holding), None);
            assert_eq!(cores.take(u64::MAX, holding), None);
        }
        assert_eq!(cores.free(), 2, "nothing of what was refused is taken");
    }

    fn holding() -> impl Strategy<Value = Holding> {
        prop_oneof![
            Just(Holding::Alone),
            Just(Holding::AloneInOneNode),
            Just(Holding::Shared)
        ]
    }

    proptest! {
        /// A group has one exclusive lease at most. The open CPUs suffice for the sharing leases. A lease of one NUMA
        /// node has groups of one node only. Everything is free in the end.
        #[test]
        fn no_core_is_given_out_twice(
            all in prop::collection::vec((1u32..4, 0u32..3), 1..8),
            steps in prop::collection::vec((any::<bool>(), holding(), 0usize..8), 1..100),
        ) {
            let mut cores = cores(&all);
            let whole = cores.free();
            let mut held: Vec<Placement> = Vec::new();
            for (take, holding, n) in steps {
                if take || held.is_empty() {
                    let most = cores.most(holding);
                    let got = cores.take(n as u64, holding);
                    prop_assert_eq!(got.is_some(), n > 0 && n as u64 <= most, "{} of {}", n, most);
                    if let (Some(Placement::Cores(numbers)), Holding::AloneInOneNode) = (&got, holding) {
                        let nodes: BTreeSet<u32> = numbers.iter().map(|it| all[*it as usize / 3].1).collect();
                        prop_assert_eq!(nodes.len(), 1);
                    }
                    held.extend(got);
                } else {
                    let placement = held.swap_remove(n % held.len());
                    cores.give_back(&placement);
                }
                let (mut shared, mut exclusive, mut taken) = (0, Vec::new(), 0);
                for placement in &held {
                    taken += cores.cpus(placement);
                    match placement {
                        Placement::Cores(numbers) => exclusive.extend(numbers.iter().copied()),
                        other => shared += other.amount(),
                    }
                }
                let groups: BTreeSet<u32> = exclusive.iter().copied().collect();
                prop_assert_eq!(groups.len(), exclusive.len(), "{:?}", held);
                let open = (0..).step_by(3).zip(&all).filter(|(number, _)| !groups.contains(number));
                let open: u32 = open.map(|(_, (cpus, _))| *cpus).sum();
                prop_assert!(shared <= u64::from(open), "{} of {}", shared, open);
                prop_assert_eq!(cores.free() + taken, whole);
            }
            held.iter().for_each(|placement| cores.give_back(placement));
            prop_assert_eq!(cores.free(), whole);
        }
    }
}
