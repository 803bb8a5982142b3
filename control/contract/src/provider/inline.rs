//! Which orders the driver's own thread carries out.

use fabricbios_lease::{BindingId, Order};

use super::{PathEntry, Provider};
use crate::Inline;

impl Provider {
    /// Whether the caller may carry out the order itself, because no step of it waits for anything: see [`Inline`]. All
    /// paths of the lease must allow this, and the store where the order reaches it. A lease that another thread makes
    /// or removes at the moment, an adopted one and an unknown one are left to the workers.
    #[must_use]
    pub fn is_inline(&self, order: &Order) -> bool {
        match order {
            Order::Bind(order) => {
                let mut paths = self.paths_over(Some(order.transport));
                let resource_id = order.binding_id.resource_id;
                let allows = |(_, it): (usize, &PathEntry)| {
                    it.path.inline(resource_id) == Inline::Everything
                };
                let store = self.stores.get(&resource_id);
                let is_free = match self.leases().find(order.binding_id.lease_id).here() {
                    Some(lease) => lease.making.try_lock().is_ok(),
                    None => true,
                };
                is_free
                    && !order.adopts
                    && store.is_some_and(|it| it.is_inline(&order.placement))
                    && paths.all(allows)
            }
            Order::Cut(id, _) => self.all_allow(*id, Inline::Cut),
            Order::Rotate(id) | Order::RetireKey(id) => self.all_allow(*id, Inline::Everything),
            Order::Release(id, placement) => {
                let store = self.stores.get(&id.resource_id);
                store.is_some_and(|it| it.is_inline(placement))
                    && self.all_allow(*id, Inline::Everything)
            }
            _ => false,
        }
    }

    fn all_allow(&self, id: BindingId, least: Inline) -> bool {
        let Some(lease) = self.leases().find(id.lease_id).here() else {
            return false;
        };
        // Cuts and changes of keys never take this lock.
        let is_free = lease.making.try_lock().is_ok();
        let transport = lease.state().transport;
        is_free && transport.is_some() && { self.paths_over(transport) }
            .all(|(_, it)| it.path.inline(id.resource_id) >= least)
    }
}
