//! Block storage on offer: its pools and the transports to them.

mod belonging;
pub(super) mod detect;
mod end;
mod foreign_exports;
pub(crate) mod hosts;
pub mod nvme_host;
pub mod nvmet_port;
mod offer;
mod pool_record;
mod pools;
mod readable;
mod settings;
mod stale_exports;
mod store;
mod verdict;
mod withheld;

use std::{cell::LazyCell, io::ErrorKind, path::Path, sync::Arc};

use anyhow::{Context, bail};
use fabricbios_contract::{Provider, Store};
use fabricbios_fallback_udp::{FbbuConfig, FbbuPath};
use fabricbios_helper::Handler;
use fabricbios_lease::{BindingId, Durability, FenceScope, Offer};
use fabricbios_nvmet::{HostOwners, Target, TargetConfig};
use fabricbios_pool::Pool;
use fabricbios_wire::{BlockTerms, NvmeofTransport, ResourceType, Transport};
use nix::unistd::geteuid;

use crate::{
    kinds::{Kind, Offered, OfferedResource, Opened, Opening, close, settings::KindSettings},
    process::{
        check::{Checking, Findings},
        clock,
    },
};

use foreign_exports::ListExports;
use nvme_host::{NvmeHost, refuse_taken};
use offer::OfferedPool;
use pool_record::PoolRecord;
use pools::{OpenPool, is_same, refuse_forgotten};
use store::PoolStore;
#[cfg(test)]
pub(crate) use store::store_in;
use verdict::Known;
use withheld::Withheld;

pub use settings::BlockSettings;

/// See [`crate::kinds::KINDS`].
pub(super) const KIND: Kind = Kind {
    resource_type: ResourceType::Block,
    conflicts: settings::conflicts,
    datagrams: settings::datagrams,
    calls,
    open,
    check,
    detect: detect::detect,
    end: Some(end::end),
    #[cfg(test)]
    examples: &settings::tests::EXAMPLES,
};

/// The kernel's NVMe target.
pub(crate) const CONFIGFS: &str = "/sys/kernel/config/nvmet";

fn calls() -> Vec<Handler> {
    let mut calls = fabricbios_nvmet::calls();
    calls.extend(fabricbios_pool::calls());
    calls.push(Handler::of::<ListExports>());
    calls
}

/// The hosts of `--nvme-host`: only one tenant may name each.
#[derive(Debug)]
struct NamedHosts(Vec<NvmeHost>);

impl HostOwners for NamedHosts {
    /// Logs which tenant named which host, so that an operator can revoke wrong leases.
    fn admits(
        &self,
        binding_id: BindingId,
        tenant: &str,
        terms: &BlockTerms,
    ) -> Result<(), String> {
        refuse_taken(&self.0, tenant, terms)?;
        if let Some(host_nqn) = &terms.host_nqn {
            tracing::info!(lease_id = %binding_id.lease_id, %tenant, %host_nqn, "a tenant named its host");
        }
        Ok(())
    }
}

/// The open paths.
#[derive(Debug)]
struct Paths {
    target: Option<Arc<Target>>,
    datagrams: Option<Arc<FbbuPath>>,
}

/// Opens the pools of `--block-pool`, and their transports by `--nvmet` and `--fbbu-listen`.
///
/// # Errors
/// A pool that was never offered cannot be opened, the kernel's NVMe target cannot be set up, an address is taken, or
/// there is no transport.
pub fn open(opening: &Opening<'_>) -> anyhow::Result<Opened> {
    let Opening { past, watchdog, .. } = *opening;
    let settings = &opening.settings.block;
    let pools = pools::open(opening)?;
    if pools.is_empty() {
        tracing::info!("no block storage is offered for lease; --block-pool PATH offers some");
        stale_exports::end_all(open_target(opening, false)?)?;
        return Ok(Opened::nothing());
    }
    if let Some(why) = without_rdma(settings) {
        tracing::warn!("{why}");
    }
    // The kernel's target opens last: a start that fails earlier leaves nothing in the kernel.
    let paths = Paths {
        datagrams: open_datagrams(opening)?,
        target: open_target(opening, true)?,
    };
    if settings.nvmet.is_empty() && paths.datagrams.is_none() {
        bail!(NO_TRANSPORT);
    }
    let mut provider = paths.provider();
    let mut resources = Vec::new();
    for pool in pools {
        let OpenPool {
            resource_id,
            facts,
            pool,
            record,
            continuity,
        } = pool;
        let transports = paths.transports(facts.read_only);
        let offer = Offer {
            resource_id,
            capacity: facts.capacity,
            align: facts.align,
            transports: transports.clone(),
            durability: Durability::Machine,
            fence_scope: FenceScope::Part,
            cut_within: None,
            allocation_mode: facts.allocation_mode.clone(),
            read_only: facts.read_only,
            classes: None,
            rate: None,
            needs_vlan: None,
        };
        resources.push(OfferedResource {
            offer,
            described: Arc::new(OfferedPool {
                resource_id,
                facts,
                transports,
            }),
            continuity,
        });
        let store: Arc<dyn Store> = match pool {
            Ok(pool) => Arc::new(PoolStore::new(pool, record, past.journal.writer())),
            Err(why) => Arc::new(Withheld::new(why)),
        };
        provider = provider.with_store(resource_id, store);
    }
    let offered = Offered {
        kind: ResourceType::Block,
        resources,
        provider: Arc::new(provider),
        per_tenant_max: settings.block_per_tenant_max.map(|it| it.0),
        watchdog: paths.target.is_some().then(|| watchdog.clone()),
        ready: Box::new(|_| Ok(())),
        changes: Vec::new(),
    };
    Ok(Opened {
        offered: Some(offered),
        close: Box::new(|| paths.close()),
        ..Opened::nothing()
    })
}

/// See [`crate::kinds::Kind::check`].
fn check(checking: &Checking<'_>, found: &mut Findings) {
    let Checking { node_id, .. } = checking;
    let KindSettings {
        shared,
        block: settings,
        ..
    } = checking.settings;
    let known = LazyCell::new(|| known(checking));
    for path in &settings.block_pool {
        let named = || format!("--block-pool {}", path.display());
        let pool = Pool::check(path, node_id, settings.force).with_context(named);
        if let Err(why) = pool {
            match &*known {
                Ok(known) if known.at(path).is_some() => found.withheld(format_args!(
                    "{why:#}: the node starts without it, and its leases keep their blocks until it is back at a start; put it \
                     back before the start, or replace --block-pool by --without-pool {}, which ends its leases",
                    path.display()
                )),
                Ok(_) => found.refused(format_args!("{why:#}")),
                Err(unknown) => found.refused(format_args!(
                    "{why:#} (withheld instead, if an earlier run offered it, which the journal does not tell now: {unknown:#})"
                )),
            }
        }
        if !settings.nvmet.is_empty() && path.exists() {
            found.refused_if(pools::serves_nvmet(path));
        }
    }
    if let Ok(known) = &*known {
        check_forgotten(checking, known, found);
    }
    if !settings.block_pool.is_empty()
        && settings.nvmet.is_empty()
        && settings.fbbu_listen(shared).is_none()
    {
        found.refused(NO_TRANSPORT);
    }
    if !settings.nvmet.is_empty() && !geteuid().is_root() {
        found.lacks("--nvmet: only root can use the kernel's NVMe target");
    }
    for port in &settings.nvmet {
        let address = port.0.address;
        if !checking.has_address(address.ip()) {
            found.warns(format_args!(
                "--nvmet {}:{address}: no interface has this address yet; nothing is leased there before one has it",
                port.0.transport
            ));
        }
        let target = Target::check(Path::new(CONFIGFS), port.0.transport);
        found.lacks_if(target.with_context(|| format!("--nvmet {}", port.0.transport)));
    }
    if let Some(why) = without_rdma(settings) {
        found.warns(why);
    }
}

/// The pools of earlier runs.
fn known(checking: &Checking<'_>) -> anyhow::Result<Known> {
    match &checking.past {
        Ok(past) => Known::of(past),
        Err(why) => bail!("{why}"),
    }
}

/// Reports the pools of the last run that have live leases and are not in the settings.
fn check_forgotten(checking: &Checking<'_>, known: &Known, found: &mut Findings) {
    let Checking { node_id, .. } = checking;
    let settings = &checking.settings.block;
    let Ok(past) = &checking.past else { return };
    let given = &settings.block_pool;
    let is_given = |record: &PoolRecord| given.iter().any(|it| is_same(it, &record.path));
    let left_out = known.records.values();
    for record in left_out.filter(|it| it.was_offered && !is_given(it)) {
        let Err(why) = refuse_forgotten(settings, node_id, past, record) else {
            continue;
        };
        // A pool is identified by its contents, and the check does not read them.
        match given.iter().find(|it| known.at(it).is_none()) {
            None => found.refused(format_args!("{why:#}")),
            Some(other) => found.warns(format_args!(
                "{why:#}; a start is refused unless {} is that pool at another path",
                other.display()
            )),
        }
    }
}

const NO_TRANSPORT: &str =
    "no transport leads to the block storage: give --nvmet tcp:ADDR:PORT, or --fbbu-listen";

/// Why `--nvmet rdma` cannot work: without an RDMA device the kernel's port would be retried for ever.
fn without_rdma(settings: &BlockSettings) -> Option<String> {
    let mut ports = settings.nvmet.iter().map(|port| port.0);
    let port = ports.find(|it| it.transport == NvmeofTransport::Rdma)?;
    let devices = std::fs::read_dir("/sys/class/infiniband");
    if devices.is_ok_and(|mut it| it.next().is_some()) {
        return None;
    }
    Some(format!(
        "--nvmet rdma:{}: this machine has no RDMA device: load its driver, or make a soft one (modprobe rdma_rxe; \
         rdma link add rxe0 type rxe netdev IFNAME), or leave the flag out; until then nothing is leased there",
        port.address
    ))
}

/// `serves`: the target will serve leases, under the watchdog.
fn open_target(opening: &Opening<'_>, serves: bool) -> anyhow::Result<Option<Arc<Target>>> {
    let Opening {
        node_id,
        past,
        watchdog,
        supervisor,
        ..
    } = *opening;
    let settings = &opening.settings.block;
    let configfs = Path::new(CONFIGFS);
    if settings.nvmet.is_empty() && !Target::has_leftovers(configfs, node_id) {
        tracing::info!("no block storage is leased over NVMe-oF; --nvmet tcp:ADDR:PORT does that");
        return Ok(None);
    }
    let config = TargetConfig {
        configfs: configfs.into(),
        ports: settings.nvmet.iter().map(|port| port.0).collect(),
        hosts: hosts::known(past),
        host_records: Arc::new(past.journal.writer()),
        node_id,
        supervisor: supervisor.clone(),
    };
    let mut target = Target::open(config).context("--nvmet: the kernel's NVMe target")?;
    target.remove_unrecorded_hosts()?;
    if serves {
        watchdog.ends(ResourceType::Block, node_id.to_string());
        let owners = Arc::new(NamedHosts(settings.nvme_host.clone()));
        target = target.guarded_by(watchdog.guard(ResourceType::Block), owners);
    }
    tracing::info!(transports = ?target.transports(), "block storage is leased over NVMe-oF");
    Ok(Some(Arc::new(target)))
}

fn open_datagrams(opening: &Opening<'_>) -> anyhow::Result<Option<Arc<FbbuPath>>> {
    let KindSettings { shared, block, .. } = opening.settings;
    let Some(listen) = block.fbbu_listen(shared) else {
        return Ok(None);
    };
    let config = FbbuConfig {
        listen,
        workers: None,
        ops_per_second: shared.ops_per_second(),
        half_sent_max: block.fbbu_half_sent_max(),
        write_verifier: clock::boot_number(),
    };
    match FbbuPath::open(&config) {
        Ok(served) => {
            tracing::info!(listen = %served.local_addr(), "block storage is leased over UDP");
            let supervisor = opening.supervisor.clone();
            // The path reads on a thread of the daemon, so a read must not hang.
            let look = move |path: &Path| readable::check(&supervisor, path);
            Ok(Some(Arc::new(served.looking_first(look))))
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            tracing::warn!("no block storage is leased over UDP on this node: {error}");
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| {
            format!(
                "--fbbu-listen {listen}; choose another address, or `none` for no such transport"
            )
        }),
    }
}

impl Paths {
    /// Binds NVMe-oF first, because it may refuse; cuts UDP first, because that is immediate.
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

    /// Best first. Read-only pools are served over UDP only: the kernel's target opens no read-only device and cannot
    /// protect a writable one.
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

    /// Closes socket and ports after the node has stopped.
    fn close(self) {
        close(self.datagrams, "UDP socket of blocks", |datagrams| {
            datagrams.close();
            Ok(())
        });
        close(self.target, "NVMe target", Target::close);
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
        allocation_mode: fabricbios_lease::AllocationMode::Amounts,
        read_only: false,
        removable: false,
    }
}
