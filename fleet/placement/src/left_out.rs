//! The nodes that cannot grant a request: what has left them out, and whose refusal counts for all.

use std::{cmp::Reverse, collections::BTreeMap};

use fabricbios_lease::{Filter, Refuses, Removed, Wordless};
use fabricbios_wire::{LeaseError, NodeId, Refusal, RefusalClass, ResourceId};

/// What leaves a node out, from the farthest from a lease to the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum By {
    /// The request itself: the node was tried, and refused for good.
    Request,
    /// A required affinity.
    Affinity,
    /// What its table would say.
    Table(Filter),
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Request => "the request",
            Self::Affinity => "affinity",
            Self::Table(filter) => filter.name(),
        }
    }
}

/// A node that cannot grant the request, and why.
pub(crate) struct Left<R = Wordless> {
    pub(crate) by: By,
    pub(crate) refusal: R,
}

impl<R: Refuses> Left<R> {
    /// Other nodes may come that are not left out so.
    pub(crate) fn for_now(by: By, why: &str) -> Self {
        let refusal = |why| Refusal::new(LeaseError::Unavailable, RefusalClass::Transient, why);
        let refusal = R::with(refusal, || why.to_owned());
        Self { by, refusal }
    }

    /// A part of this resource is free in a moment.
    pub(crate) fn being_cleaned(by: By, id: ResourceId) -> Self {
        let refusal = |why| Refusal::new(LeaseError::ResourceBusy, RefusalClass::Transient, why);
        let refusal = R::with(refusal, || {
            format!(
                "resource {id} is being cleaned after a lease that is over: ask again in a moment"
            )
        });
        Self { by, refusal }
    }
}

impl Left {
    /// What a table would say counts before what the request itself leaves out. Transient comes before policy, and policy before permanent. Of transient ones a device that becomes free comes
    /// first, because a client waits for it; then the node that is the nearest to a lease.
    fn weight(&self) -> impl Ord + use<> {
        let class = match self.refusal.class {
            RefusalClass::Transient => 2,
            RefusalClass::Policy => 1,
            RefusalClass::Permanent => 0,
        };
        let is_busy = self.refusal.error == LeaseError::ResourceBusy;
        let is_of_table = matches!(self.by, By::Table(_));
        (is_of_table, class, is_busy, self.by)
    }
}

impl<R> From<Removed<R>> for Left<R> {
    fn from(Removed { by, refusal }: Removed<R>) -> Self {
        let by = By::Table(by);
        Self { by, refusal }
    }
}

/// The nodes that cannot grant a request.
#[derive(Default)]
pub(crate) struct LeftOut {
    /// How many by each filter.
    by: BTreeMap<Reverse<By>, usize>,
    /// The one whose refusal counts for all.
    pub(crate) last_word: Option<(NodeId, Left)>,
}

impl LeftOut {
    pub(crate) fn add(&mut self, node_id: NodeId, left: Left) {
        *self.by.entry(Reverse(left.by)).or_default() += 1;
        let last = self.last_word.as_ref();
        if last.is_none_or(|(_, last)| left.weight() > last.weight()) {
            self.last_word = Some((node_id, left));
        }
    }

    /// Such as `1 by capacity, 2 by kind`; the filter that is the nearest to a lease comes first.
    pub(crate) fn told(&self) -> String {
        let told = self.by.iter();
        let told = told.map(|(Reverse(by), count)| format!("{count} by {}", by.name()));
        told.collect::<Vec<_>>().join(", ")
    }
}
