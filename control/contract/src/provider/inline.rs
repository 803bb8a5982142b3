//! Which orders the driver's own thread carries out.

use fabricbios_lease::Order;

use super::Provider;
use crate::Inline;

impl Provider {
    /// Whether the caller may carry out the order itself, because no step of it waits for anything: see [`Inline`]. All
    /// paths of the lease must allow this, and the store where the order reaches it. A lease that another thread makes
    /// or removes at the moment, an adopted one and an unknown one are left to the workers.
    #[must_use]
    pub fn is_inline(&self, order: &Order) -> bool {
        let (id, least, part) = match order {
            Order::Bind(order) if !order.adopts => {
                let part = Some(&order.placement);
                (order.binding_id, Inline::Everything, part)
            }
            Order::Cut(id, _) => (*id, Inline::Cut, None),
            Order::Rotate(id) | Order::RetireKey(id) => (*id, Inline::Everything, None),
            Order::Release(id, placement) => (*id, Inline::Everything, Some(placement)),
            _ => return false,
        };
        let lease = self.leases().find(id.lease_id).here();
        let is_busy = { lease.as_ref() }.is_some_and(|it| it.making.try_lock().is_err());
        let transport = match order {
            Order::Bind(order) => Some(order.transport),
            _ => lease.and_then(|it| it.state().transport),
        };
        let store = self.stores.get(&id.resource_id);
        let store_allows = part.is_none_or(|part| store.is_some_and(|it| it.is_inline(part)));
        let mut paths = self.paths_over(transport);
        let paths_allow = paths.all(|(_, it)| it.path.inline(id.resource_id) >= least);
        !is_busy && transport.is_some() && store_allows && paths_allow
    }
}
