//! Connections to nodes that a scheduler has named: the leases of one node share one.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use fabricbios_wire::NodeId;

use crate::link::Link;

/// Nodes that stay connected when their leases are over; those that granted last do.
const KEPT_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Handles of nodes keep theirs.
    all: HashMap<(NodeId, SocketAddr), Weak<Link>>,
    /// The last one last.
    kept: Vec<Arc<Link>>,
}

impl Links {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link to this node at this address; `make` makes one if there is none.
    pub(crate) fn of<E>(
        &self,
        node: (NodeId, SocketAddr),
        make: impl FnOnce() -> Result<Link, E>,
    ) -> Result<Arc<Link>, E> {
        let known = &mut *self.lock();
        if let Some(link) = known.all.get(&node).and_then(Weak::upgrade) {
            return Ok(link);
        }
        known.all.retain(|_, it| it.strong_count() > 0);
        let link = Arc::new(make()?);
        known.all.insert(node, Arc::downgrade(&link));
        Ok(link)
    }

    /// Keeps the link of a node that has granted a lease.
    pub(crate) fn keep(&self, link: &Arc<Link>) {
        let kept = &mut self.lock().kept;
        kept.retain(|it| !Arc::ptr_eq(it, link));
        kept.push(Arc::clone(link));
        link.keep(true);
        if kept.len() > KEPT_MAX {
            kept.remove(0).keep(false);
        }
    }

    /// Keeps none any more, and returns those that nobody else uses.
    pub(crate) fn unused(&self) -> Vec<Arc<Link>> {
        let mut known = self.lock();
        let mut kept = std::mem::take(&mut known.kept);
        kept.iter().for_each(|it| it.keep(false));
        drop(known);
        kept.retain(|it| Arc::strong_count(it) == 1);
        kept
    }
}
