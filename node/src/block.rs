//! The block storage that the operator offers: its pools, and the roads over which they are reached.

mod answers;
mod backend;
mod give_up;
mod known;
mod parts;
mod reconcile;
mod seen;
#[cfg(test)]
mod tests;
mod watched;

use std::{fmt, io::ErrorKind, path::Path, sync::Arc};

use anyhow::{Context, bail};
use fabricbios_fallback_udp::{FbbuBackend, FbbuConfig, FbmuConfig};
use fabricbios_lease::{Backend, LeaseTable, Offer};
use fabricbios_pool::{Pool, PoolConfig};
use fabricbios_premium::nvmet::{Target, TargetConfig};
use fabricbios_wire::{NodeId, ResourceType};

use crate::{
    clock, config::Settings, detect::resource_id, inventory::OfferedPool, watchdog::Watchdog,
};

pub use backend::BlockBackend;
pub use parts::{Datagrams, Exports, Volumes};
pub use reconcile::Stray;
use seen::Seen;
use watched::Watched;

/// Block storage on offer.
pub struct OfferedBlocks {
    /// What the table may give out.
    pub offers: Vec<Offer>,
    /// What inventories say of it.
    pub pools: Vec<OfferedPool>,
    /// What makes its leases real.
    pub backend: Arc<BlockBackend>,
    /// What ends them in the kernel's target when the daemon cannot.
    pub watchdog: Option<Watchdog>,
}

impl OfferedBlocks {
    /// What `backend` offers.
    pub fn of(backend: Arc<BlockBackend>) -> anyhow::Result<Self> {
        Ok(Self {
            offers: backend.probe()?,
            pools: backend.pools(),
            backend,
            watchdog: None,
        })
    }
}

impl OfferedBlocks {
    /// From here on leases that go on end on time even if this process does not live to see it.
    pub fn watch_over(&self, table: &LeaseTable) {
        let Some(watchdog) = &self.watchdog else {
            return;
        };
        for offer in &self.offers {
            let goes_on = table.going_on(offer.resource_id);
            goes_on.for_each(|(tag, deadline)| watchdog.extend(tag, deadline));
        }
        if let Err(error) = watchdog.begin() {
            tracing::error!("leases over NVMe-oF are cut only while this daemon runs: {error:#}");
        }
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
    datagrams: Option<Arc<FbbuBackend>>,
}

/// Opens what `--block-pool`, `--nvmet` and `--fbbu-listen` ask for.
pub fn open(
    settings: &Settings,
    node_id: NodeId,
) -> anyhow::Result<(Option<OfferedBlocks>, OpenBlocks)> {
    let pools = open_pools(settings, node_id)?;
    if pools.is_empty() {
        tracing::info!("no block storage is offered for lease; --block-pool PATH offers some");
        // Its leases are given up in this run.
        Seen::write(settings.state_dir(), &[])?;
        give_up::exports(open_target(settings, node_id)?)?;
        return Ok((None, OpenBlocks::default()));
    }
    let roads = OpenBlocks {
        target: open_target(settings, node_id)?,
        datagrams: open_datagrams(settings)?,
    };
    if settings.nvmet.is_empty() && roads.datagrams.is_none() {
        bail!("no road leads to the block storage: give --nvmet tcp:ADDR:PORT, or --fbbu-listen");
    }
    let watchdog = Watchdog::new(settings.state_dir(), node_id)?;
    let watched = roads.target.clone().map(|target| Watched {
        target,
        watchdog: watchdog.clone(),
    });
    let is_watched = watched.is_some();
    let mut backend = BlockBackend::new(
        watched.map(|it| Arc::new(it) as Arc<dyn Exports>),
        roads.datagrams.clone().map(|it| it as Arc<dyn Datagrams>),
    );
    let names: Vec<String> = pools.iter().map(|it| hex(&it.facts().identity)).collect();
    let seen = Seen::read(settings.state_dir())?;
    for (pool, name) in pools.into_iter().zip(&names) {
        if !seen.has(name) {
            pool.distrust()?;
        }
        backend.add(resource_id(&node_id, ResourceType::Block, name), pool);
    }
    Seen::write(settings.state_dir(), &names)?;
    let mut offered = OfferedBlocks::of(Arc::new(backend))?;
    offered.watchdog = is_watched.then_some(watchdog);
    Ok((Some(offered), roads))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn open_pools(settings: &Settings, node_id: NodeId) -> anyhow::Result<Vec<Arc<Pool>>> {
    let program = std::env::current_exe().context("find the daemon's own program")?;
    let open = |path: &std::path::PathBuf| {
        if let Err(why) = answers::within_patience(path) {
            // What is broken must not keep the node from what is not.
            tracing::error!(pool = %path.display(), %why, "not offered: it does not answer");
            return Ok(None);
        }
        let config = PoolConfig {
            path: path.clone(),
            node_id,
            force: settings.force,
            wiper: vec![program.clone().into(), "wipe".into()],
        };
        let pool = Pool::open(config)
            .with_context(|| format!("--block-pool {} cannot be offered", path.display()))?;
        let facts = pool.facts();
        tracing::info!(
            pool = %facts.name,
            bytes = facts.capacity,
            block_bytes = facts.block_bytes,
            read_only = facts.read_only,
            "block storage is on offer"
        );
        anyhow::Ok(Some(Arc::new(pool)))
    };
    let pools: anyhow::Result<Vec<_>> = settings.block_pool.iter().map(open).collect();
    Ok(pools?.into_iter().flatten().collect())
}

fn open_target(settings: &Settings, node_id: NodeId) -> anyhow::Result<Option<Arc<Target>>> {
    let configfs = Path::new("/sys/kernel/config/nvmet");
    if settings.nvmet.is_empty() && !Target::has_leftovers(configfs, node_id) {
        tracing::info!("no block storage is leased over NVMe-oF; --nvmet tcp:ADDR:PORT does that");
        return Ok(None);
    }
    let config = TargetConfig {
        configfs: configfs.into(),
        ports: settings.nvmet.iter().map(|port| port.0).collect(),
        credentials: settings.state_dir().join("nvme-hosts"),
        node_id,
    };
    let target = Target::open(config).context("--nvmet: the kernel's NVMe target")?;
    tracing::info!(roads = ?target.transports(), "block storage is leased over NVMe-oF");
    Ok(Some(Arc::new(target)))
}

fn open_datagrams(settings: &Settings) -> anyhow::Result<Option<Arc<FbbuBackend>>> {
    let Some(listen) = settings.fbbu_listen() else {
        return Ok(None);
    };
    let config = FbbuConfig {
        listen,
        workers: None,
        ops_per_second: settings.fbmu_ops_max.unwrap_or(FbmuConfig::OPS_PER_SECOND),
        write_verifier: clock::boot_number(),
    };
    match FbbuBackend::open(&config) {
        Ok(backend) => {
            tracing::info!(listen = %backend.local_addr(), "block storage is leased over UDP");
            Ok(Some(Arc::new(backend)))
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
            datagrams.close();
        }
        let Some(target) = self.target else { return };
        match Arc::into_inner(target).map(Target::close) {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::warn!(%error, "the NVMe target's ports stay"),
            None => tracing::warn!("the NVMe target is still in use; its ports stay"),
        }
    }
}
