//! From orders to backends, on the lanes that they belong to, and back as reports.

use std::{collections::HashMap, fmt, sync::Arc};

use fabricbios_lease::{Availability, Backend, BindOrder, Condition, Extent, Order, Report, Tag};
use fabricbios_wire::ResourceId;

use crate::{
    healing::{self, Healing, Unfinished},
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
    healing: Healing,
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
            healing: Healing::start(on_report.clone(), healing::PAUSE),
            on_report,
        }
    }

    /// `backend` owns `resource_id`.
    pub fn add(&mut self, resource_id: ResourceId, backend: Arc<dyn Backend>) {
        self.owners.insert(resource_id, backend);
    }

    /// A release that failed in an earlier run is tried again until it is done.
    pub fn release_later(&self, tag: Tag, extent: Extent) {
        if let Some(backend) = self.owners.get(&tag.resource_id).cloned() {
            self.healing.try_later(Unfinished {
                backend,
                tag,
                extent,
            });
        }
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
        let healing = self.healing.clone();
        lane.run(move || match order {
            Order::Release(tag, extent) => release(backend, tag, extent, &on_report, &healing),
            order => carry_out(&*backend, order, &*on_report),
        });
    }
}

fn carry_out(backend: &dyn Backend, order: Order, on_report: &dyn Fn(Report)) {
    on_report(match order {
        Order::Bind(order) => Report::Bind(order.tag, backend.bind(&order)),
        // Carried out where they are dispatched.
        Order::Extend(..) | Order::Fenced(_) | Order::Release(..) => return,
        Order::Rotate(tag) => Report::Rotate(tag, backend.rotate(tag)),
        Order::RetireKey(tag) => Report::RetireKey(tag, backend.retire_key(tag)),
        Order::Cut(tag, farewell) => Report::Cut(tag, backend.cut(tag, farewell)),
        Order::Reset(resource_id, leases) => {
            Report::Reset(resource_id, backend.reset(resource_id, &leases))
        }
    });
}

/// One that fails is tried again later, where that can help.
fn release(
    backend: Arc<dyn Backend>,
    tag: Tag,
    extent: Extent,
    on_report: &OnReport,
    healing: &Healing,
) {
    let progress = || on_report(Report::ReleaseProgress(tag));
    progress();
    let outcome = backend.release(tag, extent, &progress);
    let failed = outcome.is_err();
    on_report(Report::Release(tag, outcome));
    if failed && backend.may_release_later() {
        healing.try_later(Unfinished {
            backend,
            tag,
            extent,
        });
    }
}
