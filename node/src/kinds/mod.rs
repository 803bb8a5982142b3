//! The kinds of resource that this daemon leases: each has a folder and a line in [`KINDS`]. docs/adding-a-kind.md
//! explains how to add one.

pub mod block;
mod cdi;
pub mod cpu;
pub mod detect;
mod end;
pub mod gpu;
pub(crate) mod local_socket;
pub mod memory;
pub mod net;
pub mod settings;
pub mod vendor;

use std::{collections::BTreeSet, env, fmt, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context;
use fabricbios_contract::{LocalAccess, Provider};
use fabricbios_helper::{Handler, Program, Supervisor};
use fabricbios_lease::{BindingId, FenceRecord, LeaseTable, Offer, Placement, StepError};
use fabricbios_wire::{LeaseId, NodeId, ResourceId, ResourceType};

use crate::{
    driver::dispatcher::Dispatcher,
    inventory::{Described, Inventory, detection::Found},
    journal::{Change, past::Past},
    process::{
        check::{Checking, Findings},
        clock,
    },
    watchdog::Watchdog,
};

pub(crate) use end::ends;
pub use end::{Ending, MakeEnd};

use detect::Looking;
use gpu::GpuParts;
use settings::{KindSettings, Named};

/// Every kind that this daemon knows, in the order in which they are opened.
pub const KINDS: &[Kind] = &[
    memory::KIND,
    block::KIND,
    cpu::KIND,
    net::KIND,
    gpu::KIND,
    vendor::KIND,
];

/// A kind of resource.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its code and name.
    pub resource_type: ResourceType,
    /// Refuses settings of the kind that contradict each other, or have no effect without another. The error names them
    /// as [`Named`] does.
    pub conflicts: fn(&KindSettings, &Named<'_>) -> Result<(), String>,
    /// The address of the kind's UDP socket, with its setting; `None`: it opens none.
    pub datagrams: fn(&KindSettings) -> Option<(&'static str, SocketAddr)>,
    /// The calls of the kind that may hang.
    pub calls: fn() -> Vec<Handler>,
    /// Opens the stores and paths that the settings ask for, and decides by the journal whether leases of an earlier
    /// run go on. A failed call leaves nothing behind.
    pub open: fn(&Opening<'_>) -> anyhow::Result<Opened>,
    /// Reports what `open` would refuse, lack or warn of. Changes nothing.
    pub check: fn(&Checking<'_>, &mut Findings),
    /// Looks for the hardware of the kind that inventories list or that is on offer. The kernel may block this call.
    pub detect: fn(&Looking<'_>, &mut Found),
    /// Makes the end of leases by name, in the watchdog's process, from the argument of
    /// [`crate::watchdog::Watchdog::ends`]; `None`: access ends with the daemon's process.
    pub end: Option<MakeEnd>,
    /// What the tests of all settings need to know of the kind's.
    #[cfg(test)]
    pub(crate) examples: &'static settings::tests::Examples,
}

/// The arguments of [`Kind::open`].
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The operator's settings.
    pub settings: &'a KindSettings,
    /// The node that has the resources.
    pub node_id: NodeId,
    /// The journal, and what the earlier runs left in it.
    pub past: &'a Past,
    /// Ends access when this process cannot.
    pub watchdog: &'a Watchdog,
    /// Makes calls that may hang.
    pub supervisor: &'a Supervisor,
    /// The program of this process, for processes that outlive this one.
    pub program: &'a Program,
}

/// The file of this program, which container engines run. A newer version may have replaced it since the start.
///
/// # Errors
/// The path of the running program cannot be read.
pub(crate) fn own_program() -> anyhow::Result<PathBuf> {
    env::current_exe().context("find the file of this program")
}

/// An open kind.
pub struct Opened {
    /// The resources on offer; `None`: there are none of the kind.
    pub offered: Option<Offered>,
    /// Operations of local users on leases of the kind; `None`: there are none.
    pub local: Option<Arc<dyn LocalAccess>>,
    /// The node's GPUs and their sessions; the default for other kinds.
    pub gpus: GpuParts,
    /// Closes devices, ports and sockets after the node has stopped.
    pub close: Box<dyn FnOnce()>,
}

impl Opened {
    /// A kind without resources on offer.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            offered: None,
            local: None,
            gpus: GpuParts::default(),
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

/// Closes a path, if it was opened and nothing else uses it.
pub(crate) fn close<T>(
    opened: Option<Arc<T>>,
    what: &str,
    close: impl FnOnce(T) -> Result<(), StepError>,
) {
    let Some(opened) = opened else { return };
    match Arc::into_inner(opened).map(close) {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::warn!(%error, "the {what} could not be given back"),
        // A call that is stuck in the kernel still holds the path; the end of the process closes it.
        None => tracing::warn!("the {what} is still in use; it is left to the end of the process"),
    }
}

/// Opens every kind.
///
/// # Errors
/// The settings ask for something that a kind cannot open.
pub fn open_all(opening: &Opening<'_>) -> anyhow::Result<Vec<Opened>> {
    KINDS.iter().map(|kind| (kind.open)(opening)).collect()
}

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
    /// The capacity limit of one tenant, in the unit of the kind.
    pub per_tenant_max: Option<u64>,
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
    /// One new resource, without earlier leases.
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
                continuity: Continuity::Fresh,
            }],
            provider,
            per_tenant_max: None,
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
            // The remediation starts at once.
            table.restore_fence(clock::now(), fence, true);
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
