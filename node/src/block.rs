//! The block storage that the operator offers: its pools, and the roads over which they are reached.

mod answers;
mod backend;
mod belonging;
mod give_up;
pub(crate) mod hosts;
mod known;
mod ledger;
mod opening;
mod others;
mod parts;
mod pools;
mod reconcile;
#[cfg(test)]
mod tests;
mod verdict;
mod withheld;

use std::{collections::HashMap, fmt, io::ErrorKind, path::Path, sync::Arc};

use anyhow::{Context, bail};
use fabricbios_fallback_udp::{FbbuBackend, FbbuConfig, FbmuConfig};
use fabricbios_helper::Supervisor;
use fabricbios_lease::{Backend, LeaseTable, Offer};
use fabricbios_nvmet::{Target, TargetConfig};
use fabricbios_wire::{NodeId, NvmeofTransport, ResourceId, ResourceType};

use crate::{clock, config::Settings, inventory::OfferedPool, past::Past, watchdog::Watchdog};

pub use backend::BlockBackend;
use ledger::JournalLedger;
pub(crate) use others::ListExports;
use parts::Fbbu;
pub use parts::{Datagrams, Exports, Ledger, Volumes};
use pools::Standing;
pub use reconcile::Stray;

/// The kernel's NVMe target.
pub(crate) const CONFIGFS: &str = "/sys/kernel/config/nvmet";

/// Block storage on offer.
pub struct OfferedBlocks {
    /// What inventories say of it.
    pub pools: Vec<OfferedPool>,
    /// What makes its leases real.
    pub backend: Arc<BlockBackend>,
    offers: Vec<(Offer, Standing)>,
}

impl OfferedBlocks {
    fn of(
        backend: Arc<BlockBackend>,
        standings: &HashMap<ResourceId, Standing>,
    ) -> anyhow::Result<Self> {
        let offers = backend.probe()?.into_iter().filter_map(|offer| {
            let standing = standings.get(&offer.resource_id)?;
            Some((offer, *standing))
        });
        Ok(Self {
            offers: offers.collect(),
            pools: backend.pools(),
            backend,
        })
    }

    /// What the table may give out.
    pub fn offers(&self) -> impl Iterator<Item = &Offer> {
        self.offers.iter().map(|(offer, _)| offer)
    }

    /// Before leases on record are taken up: what they are of.
    pub(crate) fn offer_known(&self, table: &mut LeaseTable) {
        self.offer(table, Standing::has_leases);
    }

    /// Afterwards: the other pools, whose leases of before are over by that.
    pub(crate) fn offer_anew(&self, table: &mut LeaseTable) {
        self.offer(table, |standing| !standing.has_leases());
    }

    fn offer(&self, table: &mut LeaseTable, is_meant: impl Fn(Standing) -> bool) {
        for (offer, standing) in self.offers.iter().filter(|(_, it)| is_meant(*it)) {
            table.offer(ResourceType::Block, offer.clone());
            if standing.is_withheld() {
                table.withhold(offer.resource_id);
            }
        }
    }

    /// What is to end access when this process cannot, told of the leases that go on; `None`: nothing goes on then.
    pub(crate) fn watched(&self, table: &LeaseTable) -> Option<&Watchdog> {
        let watchdog = self.backend.watchdog.as_ref()?;
        for offer in self.offers() {
            let reachable = table.reachable(offer.resource_id);
            reachable.for_each(|(tag, deadline)| watchdog.extend(tag, deadline));
        }
        Some(watchdog)
    }
}

impl fmt::Debug for OfferedBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfferedBlocks")
            .field("offers", &self.offers)
            .finish_non_exhaustive()
    }
}

/// The roads that are open, to be given back when the node has stopped.
#[derive(Debug, Default)]
pub struct OpenBlocks {
    target: Option<Arc<Target>>,
    datagrams: Option<Arc<Fbbu>>,
}

/// Opens what `--block-pool`, `--nvmet` and `--fbbu-listen` ask for.
pub fn open(
    settings: &Settings,
    node_id: NodeId,
    past: &Past,
    watchdog: &Watchdog,
    supervisor: &Supervisor,
) -> anyhow::Result<(Option<OfferedBlocks>, OpenBlocks)> {
    let pools = pools::open(settings, node_id, past, supervisor)?;
    if pools.is_empty() {
        tracing::info!("no block storage is offered for lease; --block-pool PATH offers some");
        give_up::exports(open_target(settings, node_id, past, supervisor)?)?;
        return Ok((None, OpenBlocks::default()));
    }
    warn_without_rdma(settings);
    // In this order: a start that ends here leaves nothing in the kernel.
    let roads = OpenBlocks {
        datagrams: open_datagrams(settings, supervisor)?,
        target: open_target(settings, node_id, past, supervisor)?,
    };
    if settings.nvmet.is_empty() && roads.datagrams.is_none() {
        bail!("no road leads to the block storage: give --nvmet tcp:ADDR:PORT, or --fbbu-listen");
    }
    let watchdog = roads.target.is_some().then(|| watchdog.clone());
    let records = pools.iter().map(|it| (it.resource_id, it.record.clone()));
    let mut backend = BlockBackend::new(
        Arc::new(JournalLedger::new(past.writer(), records.collect())),
        roads.target.clone().map(|it| it as Arc<dyn Exports>),
        roads.datagrams.clone().map(|it| it as Arc<dyn Datagrams>),
    )
    .with_hosts(settings.nvme_host.clone())
    .watched_by(watchdog);
    let standings = pools.iter().map(|it| (it.resource_id, it.standing));
    let standings = standings.collect();
    for pool in pools {
        backend.add(pool.resource_id, pool.volumes);
    }
    let offered = OfferedBlocks::of(Arc::new(backend), &standings)?;
    Ok((Some(offered), roads))
}

/// The port is tried until it works, which without a device is never.
fn warn_without_rdma(settings: &Settings) {
    let mut ports = settings.nvmet.iter().map(|port| port.0);
    let Some(port) = ports.find(|it| it.transport == NvmeofTransport::Rdma) else {
        return;
    };
    let devices = std::fs::read_dir("/sys/class/infiniband");
    if devices.is_ok_and(|mut it| it.next().is_some()) {
        return;
    }
    tracing::warn!(
        address = %port.address,
        "--nvmet rdma: this machine has no RDMA device: load its driver, or make a soft one (modprobe rdma_rxe; \
         rdma link add rxe0 type rxe netdev IFNAME), or leave the flag out; until then nothing is leased there"
    );
}

fn open_target(
    settings: &Settings,
    node_id: NodeId,
    past: &Past,
    supervisor: &Supervisor,
) -> anyhow::Result<Option<Arc<Target>>> {
    let configfs = Path::new(CONFIGFS);
    if settings.nvmet.is_empty() && !Target::has_leftovers(configfs, node_id) {
        tracing::info!("no block storage is leased over NVMe-oF; --nvmet tcp:ADDR:PORT does that");
        return Ok(None);
    }
    let config = TargetConfig {
        configfs: configfs.into(),
        ports: settings.nvmet.iter().map(|port| port.0).collect(),
        hosts: hosts::known(past, &settings.state_dir().join(hosts::EARLIER))?,
        host_records: Arc::new(past.writer()),
        node_id,
        supervisor: supervisor.clone(),
    };
    let target = Target::open(config).context("--nvmet: the kernel's NVMe target")?;
    tracing::info!(roads = ?target.transports(), "block storage is leased over NVMe-oF");
    Ok(Some(Arc::new(target)))
}

fn open_datagrams(
    settings: &Settings,
    supervisor: &Supervisor,
) -> anyhow::Result<Option<Arc<Fbbu>>> {
    let Some(listen) = settings.fbbu_listen() else {
        return Ok(None);
    };
    let config = FbbuConfig {
        listen,
        workers: None,
        ops_per_second: settings.fbmu_ops_max.unwrap_or(FbmuConfig::OPS_PER_SECOND),
        half_sent_max: settings.fbbu_half_sent_max(),
        write_verifier: clock::boot_number(),
    };
    match FbbuBackend::open(&config) {
        Ok(backend) => {
            tracing::info!(listen = %backend.local_addr(), "block storage is leased over UDP");
            let supervisor = supervisor.clone();
            Ok(Some(Arc::new(Fbbu {
                backend,
                supervisor,
            })))
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            tracing::warn!("no block storage is leased over UDP on this node: {error}");
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| {
            format!("--fbbu-listen {listen}; choose another address, or `none` for no such road")
        }),
    }
}

impl OpenBlocks {
    /// Gives ports and socket back, when the node has stopped and nobody else uses them.
    pub fn close(self) {
        if let Some(datagrams) = self.datagrams.and_then(Arc::into_inner) {
            datagrams.backend.close();
        }
        let Some(target) = self.target else { return };
        match Arc::into_inner(target).map(Target::close) {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::warn!(%error, "the NVMe target's ports stay"),
            None => tracing::warn!("the NVMe target is still in use; its ports stay"),
        }
    }
}
