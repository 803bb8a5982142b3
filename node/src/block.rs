//! The block storage that the operator offers: its pools, and the roads over which they are reached.

mod answers;
mod belonging;
mod give_up;
pub(crate) mod hosts;
mod ledger;
mod others;
mod pools;
mod store;
mod verdict;
mod withheld;

use std::{fmt, io::ErrorKind, path::Path, sync::Arc};

use anyhow::{Context, bail};
use fabricbios_contract::{Provider, Store};
use fabricbios_fallback_udp::{FbbuConfig, FbbuPath, FbmuConfig};
use fabricbios_helper::Supervisor;
use fabricbios_lease::{BootTime, FenceScope, LeaseTable, Offer, Outlives, Tag};
use fabricbios_nvmet::{Guard, Target, TargetConfig};
use fabricbios_wire::{BlockTerms, NodeId, NvmeofTransport, ResourceType, Transport};

use crate::{
    clock,
    config::Settings,
    inventory::OfferedPool,
    nvme_host::{NvmeHost, refuse_taken},
    past::Past,
    watchdog::Watchdog,
};

use ledger::JournalLedger;
pub(crate) use others::ListExports;
use pools::{OpenPool, Standing};
use store::PoolStore;
use withheld::Withheld;

/// The kernel's NVMe target.
pub(crate) const CONFIGFS: &str = "/sys/kernel/config/nvmet";

/// Block storage on offer.
pub struct OfferedBlocks {
    /// What inventories say of it.
    pub pools: Vec<OfferedPool>,
    /// What makes its leases real.
    pub provider: Arc<Provider>,
    offers: Vec<(Offer, Standing)>,
    /// What ends access over NVMe-oF when this process cannot.
    watchdog: Option<Watchdog>,
}

impl OfferedBlocks {
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
        let watchdog = self.watchdog.as_ref()?;
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

/// What ends access over NVMe-oF when this process cannot, and hosts that only one tenant may name.
#[derive(Debug)]
struct BlockGuard {
    watchdog: Watchdog,
    hosts: Vec<NvmeHost>,
}

impl Guard for BlockGuard {
    fn watches(&self) -> bool {
        self.watchdog.watches()
    }

    fn extend(&self, tag: Tag, deadline: BootTime) {
        self.watchdog.extend(tag, deadline);
    }

    fn over(&self, tag: Tag) {
        self.watchdog.over(tag);
    }

    /// Who has which is in the log, so that an operator can end what should not be.
    fn admits(&self, tag: Tag, tenant: &str, terms: &BlockTerms) -> Result<(), String> {
        refuse_taken(&self.hosts, tenant, terms)?;
        if let Some(host_nqn) = &terms.host_nqn {
            tracing::info!(lease_id = %tag.lease_id, %tenant, %host_nqn, "a tenant named its host");
        }
        Ok(())
    }
}

/// The roads that are open, to be given back when the node has stopped.
#[derive(Debug, Default)]
pub struct OpenBlocks {
    target: Option<Arc<Target>>,
    datagrams: Option<Arc<FbbuPath>>,
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
        give_up::exports(open_target(settings, node_id, past, None, supervisor)?)?;
        return Ok((None, OpenBlocks::default()));
    }
    warn_without_rdma(settings);
    // In this order: a start that ends here leaves nothing in the kernel.
    let roads = OpenBlocks {
        datagrams: open_datagrams(settings, supervisor)?,
        target: open_target(settings, node_id, past, Some(watchdog), supervisor)?,
    };
    if settings.nvmet.is_empty() && roads.datagrams.is_none() {
        bail!("no road leads to the block storage: give --nvmet tcp:ADDR:PORT, or --fbbu-listen");
    }
    let watchdog = roads.target.is_some().then(|| watchdog.clone());
    let records = pools.iter().map(|it| (it.resource_id, it.record.clone()));
    let ledger = Arc::new(JournalLedger::new(past.writer(), records.collect()));
    let mut provider = roads.provider();
    let (mut offers, mut described) = (Vec::new(), Vec::new());
    for pool in pools {
        let OpenPool {
            resource_id,
            facts,
            pool,
            standing,
            ..
        } = pool;
        let transports = roads.transports(facts.read_only);
        let offer = Offer {
            resource_id,
            capacity: facts.capacity,
            align: facts.align,
            transports: transports.clone(),
            outlives: Outlives::Machine,
            fence_scope: FenceScope::Part,
            layout: facts.layout.clone(),
            read_only: facts.read_only,
        };
        offers.push((offer, standing));
        described.push(OfferedPool {
            resource_id,
            facts,
            transports,
        });
        let store: Arc<dyn Store> = match pool {
            Ok(pool) => Arc::new(PoolStore::new(resource_id, pool, Arc::clone(&ledger))),
            Err(why) => Arc::new(Withheld::new(why)),
        };
        provider = provider.with_store(resource_id, store);
    }
    let offered = OfferedBlocks {
        pools: described,
        provider: Arc::new(provider),
        offers,
        watchdog,
    };
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
    watchdog: Option<&Watchdog>,
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
    let mut target = Target::open(config).context("--nvmet: the kernel's NVMe target")?;
    if let Some(watchdog) = watchdog {
        target = target.guarded_by(Arc::new(BlockGuard {
            watchdog: watchdog.clone(),
            hosts: settings.nvme_host.clone(),
        }));
    }
    tracing::info!(roads = ?target.transports(), "block storage is leased over NVMe-oF");
    Ok(Some(Arc::new(target)))
}

fn open_datagrams(
    settings: &Settings,
    supervisor: &Supervisor,
) -> anyhow::Result<Option<Arc<FbbuPath>>> {
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
    match FbbuPath::open(&config) {
        Ok(backend) => {
            tracing::info!(listen = %backend.local_addr(), "block storage is leased over UDP");
            let supervisor = supervisor.clone();
            // It reads, too, on a thread of the daemon.
            let look = move |path: &Path| answers::within_patience(&supervisor, path);
            Ok(Some(Arc::new(backend.looking_first(look))))
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
    /// NVMe-oF first, which may refuse; UDP is cut at once.
    fn provider(&self) -> Provider {
        let mut provider = Provider::new();
        if let Some(target) = &self.target {
            let transports = [Transport::NvmeRdma, Transport::NvmeTcp];
            provider = provider.with_path("NVMe-oF", &transports, target.clone());
        }
        if let Some(datagrams) = &self.datagrams {
            provider = provider.with_path("UDP", &[Transport::Udp], datagrams.clone());
        }
        provider
    }

    /// Best first. What is read-only goes over UDP only: the kernel's target opens no device that is,
    /// and has no way to protect one that is not.
    fn transports(&self, read_only: bool) -> Vec<Transport> {
        let mut transports = match &self.target {
            Some(target) if !read_only => target.transports(),
            _ => Vec::new(),
        };
        if self.datagrams.is_some() {
            let both = (!transports.is_empty()).then_some(Transport::Both);
            transports.push(Transport::Udp);
            transports.extend(both);
        }
        transports
    }

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

/// A pool in a directory, for tests.
#[cfg(test)]
fn facts(identity: u128) -> fabricbios_pool::Facts {
    fabricbios_pool::Facts {
        identity: identity.to_be_bytes(),
        name: "/pool".into(),
        device: None,
        capacity: 1 << 30,
        align: 4096,
        block_bytes: 4096,
        layout: fabricbios_lease::Layout::Amounts,
        read_only: false,
        removable: false,
    }
}
