//! The node's identity, which can change while the node serves.

use std::sync::Arc;

use fabricbios_fabric::Fabric;
use tokio::sync::watch;

/// The identity that the node has now. Clones share it.
#[derive(Clone, Debug)]
pub struct Membership(Arc<watch::Sender<Arc<Fabric>>>);

impl Membership {
    /// Begins with this identity.
    #[must_use]
    pub fn new(fabric: Fabric) -> Self {
        Self(Arc::new(watch::Sender::new(Arc::new(fabric))))
    }

    /// The identity now.
    #[must_use]
    pub fn now(&self) -> Arc<Fabric> {
        Arc::clone(&self.0.borrow())
    }

    /// Replaces the identity: the same node in another fabric. Connections stay; new ones get the new certificates.
    pub fn replace(&self, fabric: Fabric) {
        self.0.send_replace(Arc::new(fabric));
    }

    /// Tells of each change of the identity.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Arc<Fabric>> {
        self.0.subscribe()
    }
}
