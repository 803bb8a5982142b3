//! The kinds of resource that this daemon leases: a folder each, and a line in [`KINDS`].
//! docs/adding-a-kind.md says how one is made.

use std::{collections::BTreeSet, fmt, sync::Arc};

use anyhow::Context;
use fabricbios_contract::Provider;
use fabricbios_helper::Supervisor;
use fabricbios_lease::{BindingId, FenceRecord, LeaseTable, Offer, Placement, StepError};
use fabricbios_wire::{LeaseId, NodeId, ResourceId, ResourceType};

use crate::{
    backends::Backends,
    block, clock,
    config::Settings,
    inventory::{Described, Inventory},
    journal::Change,
    memory,
    past::Past,
    watchdog::Watchdog,
};

/// Every kind that this daemon can lease.
pub const KINDS: [Kind; 2] = [
    Kind {
        of: ResourceType::Mem,
        open: memory::open,
    },
    Kind {
        of: ResourceType::Block,
        open: block::open,
    },
];

/// A kind of resource.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Which.
    pub of: ResourceType,
    /// Finds what the settings offer of the kind, opens the stores and the paths to them, and judges by the journal
    /// whether leases of before go on. A start that fails leaves nothing behind.
    pub open: fn(&Opening<'_>) -> anyhow::Result<Opened>,
}

/// What a kind is opened with.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// What the operator says.
    pub settings: &'a Settings,
    /// Whose resources these are.
    pub node_id: NodeId,
    /// What is remembered.
    pub past: &'a Past,
    /// Who ends access when this process cannot.
    pub watchdog: &'a Watchdog,
    /// Who makes calls that may hang.
    pub supervisor: &'a Supervisor,
}

/// What is open of a kind.
pub struct Opened {
    /// What is on offer; none: nothing of the kind is.
    pub offered: Option<Offered>,
    /// Gives devices, ports and sockets back, when the node has stopped and nobody else uses them.
    pub close: Box<dyn FnOnce()>,
}

impl Opened {
    /// Nothing.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            offered: None,
            close: Box::new(|| ()),
        }
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("offered", &self.offered)
            .finish_non_exhaustive()
    }
}

/// Gives back what was opened, if there is something and nobody else uses it.
pub(crate) fn close<T>(
    opened: Option<Arc<T>>,
    what: &str,
    close: impl FnOnce(T) -> Result<(), StepError>,
) {
    let Some(opened) = opened else { return };
    match Arc::into_inner(opened).map(close) {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::warn!(%error, "the {what} could not be given back"),
        // A call that is stuck in the kernel still holds it; the end of the process takes it.
        None => tracing::warn!("the {what} is still in use; it is left to the end of the process"),
    }
}

/// Opens every kind.
pub fn open_all(opening: &Opening<'_>) -> anyhow::Result<Vec<Opened>> {
    KINDS.iter().map(|kind| (kind.open)(opening)).collect()
}

/// Is told who holds which part of the kind's resources.
pub type Ready = dyn FnOnce(&[(BindingId, Placement)]) -> anyhow::Result<()>;

/// Resources of one kind on offer.
pub struct Offered {
    /// Which kind.
    pub kind: ResourceType,
    /// Each of them.
    pub resources: Vec<OfferedResource>,
    /// Makes their leases real.
    pub provider: Arc<Provider>,
    /// The most that leases of one tenant may hold of the kind, in its unit.
    pub per_tenant_max: Option<u64>,
    /// Who ends access when this process cannot; none: nothing goes on then.
    pub watchdog: Option<Watchdog>,
    /// What is left to do when it is known who holds what, and nothing is advertised yet.
    pub ready: Box<Ready>,
    /// What the journal has to say from now on, written together with what became of leases of before.
    pub changes: Vec<Change>,
}

/// One resource on offer.
#[derive(Debug)]
pub struct OfferedResource {
    /// What the table may give out.
    pub offer: Offer,
    /// What inventories say of it.
    pub described: Arc<dyn Described>,
    /// What an earlier run knew of it.
    pub continuity: Continuity,
}

/// What the leases on record are to a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// They are all that there are, and go on as far as the resource outlives what has happened since.
    Known,
    /// They are over: this is not what they were of, or nobody knows any more what was given out since.
    Anew,
    /// They keep what they have; the resource itself cannot be had now.
    Absent,
    /// They are over, and the resource cannot be had either.
    Ahead,
}

impl Continuity {
    /// The table gives out nothing of it.
    #[must_use]
    pub fn is_withheld(self) -> bool {
        matches!(self, Self::Absent | Self::Ahead)
    }

    /// Leases on record go on.
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
    /// One resource, of which there was nothing before.
    #[must_use]
    pub fn new(
        kind: ResourceType,
        offer: Offer,
        described: Arc<dyn Described>,
        provider: Arc<Provider>,
    ) -> Self {
        Self {
            kind,
            resources: vec![OfferedResource {
                offer,
                described,
                continuity: Continuity::Anew,
            }],
            provider,
            per_tenant_max: None,
            watchdog: None,
            ready: Box::new(|_| Ok(())),
            changes: Vec::new(),
        }
    }

    /// Has the table know what it may give out: what has leases before those on record are taken up, the rest afterwards,
    /// so that leases of before are over by that.
    pub(crate) fn offer(&self, table: &mut LeaseTable, has_leases: bool) {
        for OfferedResource {
            offer, continuity, ..
        } in &self.resources
        {
            // What was made for each lease and is not known is nobody's; bytes that are not known are offered all the same,
            // and their leases are over by [`Offered::knows`].
            let is_first = continuity.has_leases() || !offer.durability.leases_stay();
            if is_first != has_leases {
                continue;
            }
            table.offer(self.kind, offer.clone());
            if continuity.is_withheld() {
                table.withhold(offer.resource_id);
            }
        }
    }

    /// Whether a resource is that of the last run.
    pub(crate) fn knows(&self, resource_id: ResourceId) -> bool {
        let mut resources = self.resources.iter();
        resources.any(|it| it.offer.resource_id == resource_id && it.continuity.has_leases())
    }

    /// Tells paths with a watchdog of the leases that somebody may still reach; it is to begin then.
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
                // Paths that have just been opened have cut nothing.
                self.provider.extend(binding_id, deadline).ok();
            }
        }
        Some(watchdog)
    }

    /// What belongs to no lease on record goes before anything is advertised, or is fenced.
    pub(crate) fn start(
        self,
        table: &mut LeaseTable,
        backends: &mut Backends,
        inventory: &mut Inventory,
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
        for stray in provider.reconcile(&known)? {
            let fence = FenceRecord {
                resource_id: stray.resource_id,
                resource_type: kind,
                lease_id: stray.lease_id,
                since_unix_ms: clock::now().unix_ms,
                reason: stray.why,
                by_release: stray.is_cut,
            };
            // The remediation goes on with it at once.
            table.restore_fence(clock::now(), fence, true);
        }
        for resource in &resources {
            let offer = &resource.offer;
            backends.add(kind, offer, provider.clone());
            if offer.durability.leases_stay() {
                let unreleased = table.unreleased(offer.resource_id);
                unreleased
                    .for_each(|(binding_id, it)| backends.release_later(binding_id, it.clone()));
            }
        }
        provider.tell_conditions(&backends.on_condition());
        for resource in resources {
            inventory.describe(resource.offer.resource_id, resource.described);
        }
        Ok(())
    }
}

/// From here on leases end on time even if this process does not live to see it, or does not run. A node that cannot
/// promise this does not start as if it could.
pub(crate) fn watch_over(offered: &[Offered], table: &LeaseTable) -> anyhow::Result<()> {
    let watched = offered.iter().filter_map(|it| it.watched(table));
    // It is one watchdog for all.
    let Some(watchdog) = watched.collect::<Vec<_>>().pop() else {
        return Ok(());
    };
    watchdog.begin().context(
        "without its watchdog, leases over RDMA and NVMe-oF would outlive a daemon that dies or hangs",
    )
}
