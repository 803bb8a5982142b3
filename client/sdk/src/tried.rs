//! Who was tried in a search for a lease, and what they said.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use fabricbios_wire::{LeaseError, NodeId, RefusalClass, TRIED_MAX, Tried};

use crate::Error;

/// How long a node that gave no answer of use comes behind the others.
const REMEMBERED: Duration = Duration::from_secs(300);

/// The nodes that were tried in one search, the last one last.
#[derive(Debug, Default)]
pub(crate) struct Search(Mutex<Vec<Tried>>);

impl Search {
    /// The node did not grant the lease. What it said before counts no more.
    pub(crate) fn add(&self, node_id: NodeId, error: &Error) {
        let (refused, class) = match error {
            Error::Refused(refusal) => (Some(refusal.error), refusal.class),
            // It would grant less than requested again.
            Error::FailedClosed { .. } => (Some(LeaseError::Unsupported), RefusalClass::Permanent),
            _ => (None, RefusalClass::Transient),
        };
        let mut tried = lock(&self.0);
        tried.retain(|it| it.node_id != node_id);
        tried.push(Tried {
            node_id,
            refused,
            class,
        });
    }

    /// Whether the node was tried in this search.
    pub(crate) fn has(&self, node_id: NodeId) -> bool {
        lock(&self.0).iter().any(|it| it.node_id == node_id)
    }

    /// What a scheduler is told: the nodes of the caller, then those of this search and those that did not answer an
    /// earlier one, the last ones first. Each node comes once, and there are no more than a request can have.
    pub(crate) fn told(&self, callers: &[Tried], unanswering: &Unanswering) -> Vec<Tried> {
        let searched = lock(&self.0);
        let silent = unanswering.now().into_iter().map(|node_id| Tried {
            node_id,
            refused: None,
            class: RefusalClass::Transient,
        });
        let all = callers.iter().chain(searched.iter().rev()).copied();
        let mut told: Vec<Tried> = Vec::new();
        for it in all.chain(silent) {
            if told.len() < TRIED_MAX && told.iter().all(|before| before.node_id != it.node_id) {
                told.push(it);
            }
        }
        told
    }
}

/// The nodes that gave no answer of use to a request of a handle or its clones within the last minutes, the last one last.
#[derive(Debug, Default)]
pub(crate) struct Unanswering(Mutex<Vec<(NodeId, Instant)>>);

impl Unanswering {
    pub(crate) fn add(&self, node_id: NodeId) {
        let mut all = lock(&self.0);
        all.retain(|(id, _)| *id != node_id);
        all.push((node_id, Instant::now()));
        if all.len() > TRIED_MAX {
            all.remove(0);
        }
    }

    /// The node has answered, or another one at its address.
    pub(crate) fn forget(&self, node_id: NodeId) {
        lock(&self.0).retain(|(id, _)| *id != node_id);
    }

    /// The last one first.
    fn now(&self) -> Vec<NodeId> {
        let mut all = lock(&self.0);
        all.retain(|(_, since)| since.elapsed() < REMEMBERED);
        all.iter().rev().map(|(id, _)| *id).collect()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::Refusal;

    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId([number; 32])
    }

    #[test]
    fn each_node_is_told_once_the_callers_first_and_not_more_than_fit() {
        let (search, unanswering) = (Search::default(), Unanswering::default());
        for number in 0..=20 {
            unanswering.add(node(number));
        }
        let busy = |class| Refusal::new(LeaseError::ResourceBusy, class, "later").into();
        search.add(node(3), &busy(RefusalClass::Transient));
        search.add(node(20), &busy(RefusalClass::Transient));
        search.add(node(3), &busy(RefusalClass::Policy));
        unanswering.forget(node(19));
        let told = search.told(&[Tried::avoided(node(99))], &unanswering);
        let ids: Vec<u8> = told.iter().map(|it| it.node_id.0[0]).collect();
        let expected = [99, 3, 20, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6];
        assert_eq!(ids, expected);
        let said = |it: &Tried| (it.refused, it.class);
        let busy = Some(LeaseError::ResourceBusy);
        assert_eq!(said(&told[1]), (busy, RefusalClass::Policy));
        assert_eq!(said(&told[2]), (busy, RefusalClass::Transient));
        assert_eq!(said(&told[3]), (None, RefusalClass::Transient));
    }
}
