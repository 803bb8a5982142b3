//! What a kind has on offer, and how it starts.

use std::{collections::BTreeSet, fmt, sync::Arc};

use anyhow::Context;
use fabricbios_contract::Provider;
use fabricbios_lease::{BindingId, FenceRecord, LeaseTable, Now, Offer, Placement};
use fabricbios_wire::{LeaseId, ResourceId, ResourceType};

use crate::{
    driver::dispatcher::Dispatcher,
    inventory::{Described, Inventory},
    journal::Change,
    watchdog::Watchdog,
};

/// Called with the leases that hold a part of the kind's resources.
pub type Ready = dyn FnOnce(&[(BindingId, Placement)]) -> anyhow::Result<()>;

/// Resources of one kind on offer.
pub struct Offered {
    /// The kind.
    pub kind: ResourceType,
    /// The resources.
    pub resources: Vec<OfferedResource>,
    /// The provider of their leases.
    pub provider: Arc<Provider>,
    /// Ends access when this process cannot; `None`: access ends with the process.
    pub watchdog: Option<Watchdog>,
    /// Called at the start when the holders are known, before the control plane opens.
    pub ready: Box<Ready>,
    /// Changes of the journal, written in one commit with the restored leases.
    pub changes: Vec<Change>,
}

/// One resource on offer.
#[derive(Debug)]
pub struct OfferedResource {
    /// The offer for the table.
    pub offer: Offer,
    /// Describes it in inventories.
    pub described: Arc<dyn Described>,
    /// How it relates to the leases on record.
    pub continuity: Continuity,
}

/// How a resource relates to the leases on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// The record is complete: leases of the resource go on, as far as the durability of the resource allows.
    Known,
    /// The leases are over: this is another resource, or grants since the record are unknown.
    Fresh,
    /// The resource is not available now. Its leases keep their parts.
    Absent,
    /// The resource has stored grants that the record lacks: its leases are over, and the resource is not offered.
    JournalIsOlder,
}

impl Continuity {
    /// True if leases on record go on.
    #[must_use]
    pub fn has_leases(self) -> bool {
        matches!(self, Self::Known | Self::Absent)
    }
}

impl fmt::Debug for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offered")
            .field("kind", &self.kind)
            .field("resources", &self.resources)
            .finish_non_exhaustive()
    }
}

impl Offered {
    /// These resources, without a watchdog and further work.
    #[must_use]
    pub fn new(
        kind: ResourceType,
        resources: Vec<OfferedResource>,
        provider: Arc<Provider>,
    ) -> Self {
        Self {
            kind,
            resources,
            provider,
            watchdog: None,
            ready: Box::new(|_| Ok(())),
            changes: Vec::new(),
        }
    }

    /// Offers resources to the table. Resources with leases are offered before the records are restored, the others
    /// afterwards, so that earlier leases of the others are over.
    pub(crate) fn offer(&self, table: &mut LeaseTable, has_leases: bool) {
        for OfferedResource {
            offer, continuity, ..
        } in &self.resources
        {
            // Unknown resources whose leases do not stay are offered first too, and [`Offered::knows`] ends their
            // leases. If their leases stay, they are offered later: the kernel state of such a lease belongs to no
            // tenant.
            let is_first = continuity.has_leases() || !offer.durability.leases_stay();
            if is_first != has_leases {
                continue;
            }
            table.offer(self.kind, offer.clone());
        }
    }

    /// True if the resource is the same as in the last run.
    pub(crate) fn knows(&self, resource_id: ResourceId) -> bool {
        let mut resources = self.resources.iter();
        resources.any(|it| it.offer.resource_id == resource_id && it.continuity.has_leases())
    }

    /// Announces to the paths the leases that clients may still reach. Returns the watchdog, which must begin then.
    pub(crate) fn watched(&self, table: &LeaseTable) -> Option<&Watchdog> {
        let watchdog = self.watchdog.as_ref()?;
        for resource in self
            .resources
            .iter()
            .filter(|it| it.offer.durability.leases_stay())
        {
            for (binding_id, deadline, transport) in table.reachable(resource.offer.resource_id) {
                if let Some(transport) = transport {
                    self.provider.expect(binding_id.lease_id, transport);
                }
                // A path that was just opened has cut no lease.
                self.provider.extend(binding_id, deadline).ok();
            }
        }
        Some(watchdog)
    }

    /// Removes or fences the state of leases that are not on record, before anything is advertised.
    pub(crate) fn start(
        self,
        table: &mut LeaseTable,
        dispatcher: &mut Dispatcher,
        inventory: &mut Inventory,
        now: Now,
    ) -> anyhow::Result<()> {
        let Self {
            kind,
            resources,
            provider,
            ready,
            ..
        } = self;
        let ids = resources.iter().map(|it| it.offer.resource_id);
        let held = ids.flat_map(|id| table.holders(id));
        let held: Vec<(BindingId, Placement)> = held
            .map(|(binding_id, it)| (binding_id, it.clone()))
            .collect();
        ready(&held)?;
        let known: BTreeSet<LeaseId> = held
            .iter()
            .map(|(binding_id, _)| binding_id.lease_id)
            .collect();
        for stray in provider.reconcile(&known, |it| dispatcher.side_by_side(it))? {
            let fence = FenceRecord {
                resource_id: stray.resource_id,
                resource_type: kind,
                lease_id: stray.lease_id,
                since_unix_ms: now.unix_ms,
                reason: stray.why,
                by_release: stray.is_cut,
            };
            table.restore_stray(now, fence, stray.place);
        }
        for resource in &resources {
            let offer = &resource.offer;
            dispatcher.add(kind, offer, provider.clone());
            if offer.durability.leases_stay() {
                let unreleased = table.unreleased(offer.resource_id);
                unreleased
                    .for_each(|(binding_id, it)| dispatcher.release_later(binding_id, it.clone()));
            }
        }
        provider.tell_conditions(&dispatcher.on_condition());
        for resource in resources {
            inventory.describe(resource.offer.resource_id, resource.described);
        }
        Ok(())
    }
}

/// Starts the watchdog: from then on leases end on time even if this process dies or hangs. Without the watchdog the
/// node does not start.
pub(crate) fn watch_over(offered: &[Offered], table: &LeaseTable) -> anyhow::Result<()> {
    let watched = offered.iter().filter_map(|it| it.watched(table));
    // All kinds share one watchdog.
    let Some(watchdog) = watched.collect::<Vec<_>>().pop() else {
        return Ok(());
    };
    watchdog
        .begin()
        .context("without its watchdog, leases would outlive a daemon that dies or hangs")
}
