//! Connections to nodes that a scheduler has named: the leases of one node share one.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use fabricbios_wire::NodeId;

use crate::link::Link;

/// Nodes that stay connected without a lease; those named last do.
const KEPT_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Leases keep theirs.
    all: HashMap<(NodeId, SocketAddr), Weak<Link>>,
    /// The last used one last.
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
        let link = match known.all.get(&node).and_then(Weak::upgrade) {
            Some(link) => link,
            None => {
                known.all.retain(|_, it| it.strong_count() > 0);
                let link = Arc::new(make()?);
                known.all.insert(node, Arc::downgrade(&link));
                link
            }
        };
        known.kept.retain(|it| !Arc::ptr_eq(it, &link));
        known.kept.push(Arc::clone(&link));
        if known.kept.len() > KEPT_MAX {
            known.kept.remove(0);
        }
        Ok(link)
    }

    /// Forgets all, and returns those that were kept.
    pub(crate) fn take(&self) -> Vec<Arc<Link>> {
        let known = std::mem::take(&mut *self.lock());
        known.kept
    }
}
