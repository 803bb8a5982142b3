//! From orders to backends, on the lanes that they belong to, and back as reports.

use std::{collections::HashMap, fmt, sync::Arc};

use fabricbios_lease::{Availability, Backend, BindOrder, Condition, Order, Report, StepError};
use fabricbios_wire::ResourceId;

use crate::{
    inventory::Standing,
    lanes::{Lane, Urgency},
};

/// Where reports go. Called on the lanes' threads.
pub type OnReport = Arc<dyn Fn(Report) + Send + Sync>;

/// The backends of a node, by the resources that they own.
pub struct Backends {
    owners: HashMap<ResourceId, Arc<dyn Backend>>,
    ending: Lane,
    opening: Lane,
    preparing: Lane,
    cleaning: Lane,
    on_report: OnReport,
}

impl fmt::Debug for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backends")
            .field("resources", &self.owners.keys())
            .finish_non_exhaustive()
    }
}

impl Backends {
    /// No backends yet.
    #[must_use]
    pub fn new(on_report: OnReport) -> Self {
        Self {
            owners: HashMap::new(),
            // Each thread can be lost to one stuck call; the table fences long before all are.
            ending: Lane::new("ending", 64, Urgency::Deadline),
            opening: Lane::new("opening", 64, Urgency::Usual),
            preparing: Lane::new("preparing", 16, Urgency::Usual),
            cleaning: Lane::new("cleaning", 16, Urgency::Usual),
            on_report,
        }
    }

    /// `backend` owns `resource_id`.
    pub fn add(&mut self, resource_id: ResourceId, backend: Arc<dyn Backend>) {
        self.owners.insert(resource_id, backend);
    }

    /// How it is with an offered resource.
    pub fn standing(&self, available: Availability) -> Standing {
        let owner = self.owners.get(&available.resource_id);
        let condition = owner.map(|backend| backend.condition(available.resource_id));
        Standing {
            available,
            degraded: matches!(condition, Some(Condition::Degraded(_))),
        }
    }

    /// Has an order carried out. Never blocks.
    pub fn dispatch(&self, order: Order) {
        let Some(backend) = self.owners.get(&order.resource_id()).cloned() else {
            // Only a fence of an earlier run can name a resource that nobody owns any more.
            tracing::error!(?order, "no backend owns this resource");
            return;
        };
        let lane = match order {
            // Neither blocks, and what they say has to be so before anybody is answered.
            Order::Extend(tag, deadline) => return backend.extend(tag, deadline),
            Order::Fenced(tag) => return backend.fenced(tag),
            Order::Cut(..) | Order::RetireKey(_) => &self.ending,
            // What needs no answer from the network does not wait behind what does.
            Order::Bind(BindOrder { ref peers, .. }) if peers.is_empty() => &self.preparing,
            Order::Rotate(_) => &self.preparing,
            Order::Bind(_) => &self.opening,
            Order::Release(..) | Order::Reset(..) => &self.cleaning,
        };
        let on_report = self.on_report.clone();
        lane.run(move || carry_out(&*backend, order, &*on_report));
    }
}

fn carry_out(backend: &dyn Backend, order: Order, on_report: &dyn Fn(Report)) {
    on_report(match order {
        Order::Bind(order) => Report::Bind(order.tag, backend.bind(&order)),
        // Carried out where they are dispatched.
        Order::Extend(..) | Order::Fenced(_) => return,
        Order::Rotate(tag) => Report::Rotate(tag, backend.rotate(tag)),
        Order::RetireKey(tag) => Report::RetireKey(tag, backend.retire_key(tag)),
        Order::Cut(tag, farewell) => Report::Cut(tag, backend.cut(tag, farewell)),
        Order::Release(tag, extent) => {
            let progress = || on_report(Report::ReleaseProgress(tag));
            progress();
            let outcome: Result<(), StepError> = backend.release(tag, extent, &progress);
            Report::Release(tag, outcome)
        }
        Order::Reset(resource_id, leases) => {
            Report::Reset(resource_id, backend.reset(resource_id, &leases))
        }
    });
}
