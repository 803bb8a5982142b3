//! Who was tried in a search, as the request says. It counts for this request alone.

use std::collections::BTreeMap;

use fabricbios_wire::{NodeId, Tried};

/// What is known of a node that was tried, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Try {
    /// It was not tried.
    None,
    /// It refused for now.
    Refused,
    /// It did not answer.
    Unanswered,
    /// It is not named.
    LeftOut,
}

/// The nodes that were tried; if one comes several times, the worst counts.
#[derive(Debug, Default)]
pub(crate) struct Tries(BTreeMap<NodeId, Try>);

impl Tries {
    pub(crate) fn new(tried: &[Tried]) -> Self {
        let mut all = BTreeMap::new();
        for it in tried {
            let now = match it.refused {
                _ if it.is_left_out() => Try::LeftOut,
                Some(_) => Try::Refused,
                None => Try::Unanswered,
            };
            let worst = all.entry(it.node_id).or_insert(now);
            *worst = now.max(*worst);
        }
        Self(all)
    }

    pub(crate) fn of(&self, node_id: NodeId) -> Try {
        self.0.get(&node_id).copied().unwrap_or(Try::None)
    }
}
