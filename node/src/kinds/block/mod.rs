//! Block storage on offer: its pools and the transports to them.

mod belonging;
pub(super) mod detect;
mod end;
mod foreign_exports;
mod hosts;
pub mod nvme_host;
pub mod nvmet_port;
mod offer;
mod path;
mod pools;
mod readable;
mod record;
mod settings;
mod store;
mod verdict;
mod withheld;

use std::{cell::LazyCell, path::Path, sync::Arc};

use anyhow::{Context, anyhow, bail};
use fabricbios_contract::Store;
use fabricbios_helper::Handler;
use fabricbios_lease::{Durability, FenceScope, Offer};
use fabricbios_nvmet::Target;
use fabricbios_pool::Pool;
use fabricbios_wire::{NvmeofTransport, ResourceType};
use nix::unistd::geteuid;

use crate::{
    kinds::{Kind, Offered, OfferedResource, Opened, Opening},
    process::{
        check::{Checking, Findings},
        helpers,
    },
};

use foreign_exports::ListExports;
use offer::OfferedPool;
use path::{NamedHosts, Paths, open_datagrams, open_target};
use pools::{OpenPool, is_same, refuse_forgotten};
use record::PoolRecord;
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
    per_tenant_max: |settings| settings.block.block_per_tenant_max.map(|it| it.0),
    calls,
    open,
    check,
    detect: detect::detect,
    end: Some(end::end),
    #[cfg(test)]
    examples: &settings::tests::EXAMPLES,
};

/// The kernel's NVMe target.
const CONFIGFS: &str = "/sys/kernel/config/nvmet";

fn calls() -> Vec<Handler> {
    let mut calls = fabricbios_nvmet::calls();
    calls.extend(fabricbios_pool::calls());
    calls.push(Handler::of::<ListExports>());
    calls
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
        end::end_all(open_target(opening, None)?)?;
        return Ok(Opened::nothing());
    }
    if let Some(why) = without_rdma(settings) {
        tracing::warn!("{why}");
    }
    // The kernel's target opens last: a start that fails earlier leaves nothing in the kernel.
    let owners = Arc::new(NamedHosts::of(opening.settings));
    let paths = Paths {
        datagrams: open_datagrams(opening)?,
        target: open_target(opening, Some(&owners))?,
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
            Err(why) => Arc::new(Withheld(why)),
        };
        provider = provider.with_store(resource_id, store);
    }
    let offered = Offered {
        watchdog: paths.target.is_some().then(|| watchdog.clone()),
        ..Offered::new(ResourceType::Block, resources, Arc::new(provider))
    };
    let datagrams = paths.datagrams.as_ref().map(|it| Arc::clone(it.counters()));
    Ok(Opened {
        offered: Some(offered),
        datagrams,
        reread: Box::new(move |settings| owners.change(settings)),
        close: Box::new(|| paths.close()),
        ..Opened::nothing()
    })
}

/// See [`crate::kinds::Kind::check`].
fn check(checking: &Checking<'_>, found: &mut Findings) {
    let Checking { node_id, .. } = checking;
    let (shared, settings) = (&checking.settings.shared, &checking.settings.block);
    let known = LazyCell::new(|| known(checking));
    let supervisor = LazyCell::new(helpers::for_check);
    let look = |path: &Path| {
        let supervisor = supervisor.as_ref().map_err(|why| anyhow!("{why:#}"))?;
        readable::check(supervisor, path)?;
        anyhow::Ok(Pool::check(path, node_id, settings.force)?)
    };
    for path in &settings.block_pool {
        let named = || format!("--block-pool {}", path.display());
        let pool = look(path).with_context(named);
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
