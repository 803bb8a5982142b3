//! How many leases are in each state, and for how long they stay there: for metrics.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::time::Duration;

use fabricbios_wire::{LeaseId, ResourceId, ResourceType};

use crate::{BootTime, LeaseTable, State, lease::Lease};

/// A count of spans of time by their length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// How many spans are at most as long as each of [`Histogram::BOUNDS_US`], and longer than the bound before it.
    pub up_to: [u64; Self::BOUNDS_US.len()],
    /// How many there are.
    pub count: u64,
    /// All of them together.
    pub sum: Duration,
}

impl Histogram {
    /// Microseconds: a cut takes some 100 µs over UDP, and has failed after ten seconds with the default settings.
    pub const BOUNDS_US: [u64; 13] = [
        100,
        300,
        1_000,
        3_000,
        10_000,
        30_000,
        100_000,
        300_000,
        1_000_000,
        3_000_000,
        10_000_000,
        30_000_000,
        100_000_000,
    ];

    /// Counts one span.
    pub fn add(&mut self, span: Duration) {
        self.count += 1;
        self.sum = self.sum.saturating_add(span);
        let is_within = |bound: &u64| span <= Duration::from_micros(*bound);
        if let Some(at) = Self::BOUNDS_US.iter().position(is_within) {
            self.up_to[at] += 1;
        }
    }
}

/// The leases of one resource in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFigures {
    /// The resource.
    pub resource_id: ResourceId,
    /// The kind of the resource.
    pub resource_type: ResourceType,
    /// The state.
    pub state: State,
    /// The leases that are in it.
    pub leases: u64,
    /// Those that are in it for longer than a cut should take, before that fences. `None`: the state may last.
    pub above_bound: Option<u64>,
    /// How long those stayed that have left it.
    pub stays: Histogram,
}

/// The figures of all resources and states that leases were in.
#[derive(Debug, Default)]
pub(crate) struct Figures(BTreeMap<(ResourceId, State), Row>);

#[derive(Debug, Default)]
struct Row {
    leases: u64,
    /// Those of a state with a bound, by the time at which they came into it.
    since: BTreeSet<(BootTime, LeaseId)>,
    stays: Histogram,
}

impl Figures {
    /// A lease came into a state.
    pub(crate) fn enters(&mut self, of: ResourceId, id: LeaseId, state: State, now: BootTime) {
        let row = self.0.entry((of, state)).or_default();
        row.leases += 1;
        if has_bound(state) {
            row.since.insert((now, id));
        }
    }

    /// A lease that has been in a state since `since` leaves it.
    pub(crate) fn leaves(
        &mut self,
        of: ResourceId,
        id: LeaseId,
        (state, since): (State, BootTime),
        now: BootTime,
    ) {
        let row = self.0.entry((of, state)).or_default();
        row.leases = row.leases.saturating_sub(1);
        row.since.remove(&(since, id));
        row.stays.add(since.until(now));
    }
}

/// For the full check.
impl Figures {
    /// Whether all these leases are counted, and no others.
    pub(crate) fn all(&self, leases: &BTreeMap<LeaseId, Box<Lease>>) -> bool {
        let counted = leases
            .values()
            .filter_map(|it| Some((&**it, it.counted.0?.0)));
        let is_counted = |(lease, state): (&Lease, State)| {
            let row = self.0.get(&(lease.resource_id, state));
            row.is_some_and(|row| {
                !has_bound(state) || row.since.contains(&(lease.state_since, lease.id))
            })
        };
        let rows = self.0.iter();
        let no_more =
            rows.clone().map(|(_, row)| row.leases).sum::<u64>() == counted.clone().count() as u64;
        let bounded = rows.filter(|((_, state), _)| has_bound(*state));
        let no_others = bounded.map(|(_, row)| (row.leases, row.since.len() as u64));
        counted.clone().all(is_counted) && no_more && { no_others }
            .all(|(leases, since)| leases == since)
    }
}

/// Whether a lease should leave the state within a time of its own. What is bound or scrubbed may last as long as it progresses.
fn has_bound(state: State) -> bool {
    state == State::Cutting
}

impl LeaseTable {
    /// The figures of all offered resources, by resource and state. Looks at no lease, but at those above a bound.
    #[must_use]
    pub fn figures(&self, now: BootTime) -> Vec<StateFigures> {
        let resources = self.resources.values();
        let of_each = resources.flat_map(|of| State::COUNTED.map(|state| (of, state)));
        let none = Row::default();
        of_each
            .map(|(of, state)| {
                let row = self.figures.0.get(&(of.id, state)).unwrap_or(&none);
                let bound = self.cut_within(of.id);
                let is_above = |(since, _): &&(BootTime, LeaseId)| since.until(now) > bound;
                let above = || row.since.iter().take_while(is_above).count() as u64;
                StateFigures {
                    resource_id: of.id,
                    resource_type: of.kind,
                    state,
                    leases: row.leases,
                    above_bound: has_bound(state).then(above),
                    stays: row.stays.clone(),
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_counted_by_their_length() {
        let mut histogram = Histogram::default();
        for span in [
            Duration::ZERO,
            Duration::from_micros(100),
            Duration::from_micros(101),
            Duration::MAX,
        ] {
            histogram.add(span);
        }
        let mut up_to = [0; Histogram::BOUNDS_US.len()];
        (up_to[0], up_to[1]) = (2, 1);
        assert_eq!((histogram.up_to, histogram.count), (up_to, 4));
        assert_eq!(histogram.sum, Duration::MAX);
    }
}
