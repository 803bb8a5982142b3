//! Memory on offer: its arenas and the transports to them.

mod arenas;
mod claim;
pub(super) mod detect;
mod mem_arena;
mod offer;
mod settings;

use std::{net::Ipv6Addr, sync::Arc};

use anyhow::Context;
use fabricbios_arena::{ArenaStore, Arenas};
use fabricbios_contract::Provider;
use fabricbios_fallback_udp::{FbmuConfig, FbmuPath, ReplayWindow};
use fabricbios_lease::{AllocationMode, BindingId, Offer, Placement};
use fabricbios_rdma::{RdmaConfig, RdmaOpened, RdmaPath, Strategy};
use fabricbios_wire::{DATA_PAYLOAD_MAX, ResourceType, Transport};

use arenas::OpenArena;
use claim::{claim, scrub_unheld};

use crate::{
    kinds::{
        Continuity, Kind, Offered, OfferedResource, Opened, Opening, close, settings::KindSettings,
    },
    watchdog::Watchdog,
};

pub(crate) use detect::total_bytes;

use arenas::check;
use offer::OfferedArena;
use settings::SLOT_BYTES;

pub use mem_arena::{BadMemArena, MemArena};
pub use settings::{MemorySettings, RdmaStrategy};

/// See [`crate::kinds::KINDS`].
pub(super) const KIND: Kind = Kind {
    resource_type: ResourceType::Mem,
    conflicts: settings::conflicts,
    datagrams: settings::datagrams,
    calls: Vec::new,
    open,
    check,
    detect: detect::detect,
    end: None,
    #[cfg(test)]
    examples: &settings::tests::EXAMPLES,
};

/// Offers only the arena `mem0`; `provider` makes its leases. `message_bytes_max`: most bytes in one operation of the
/// data plane.
#[must_use]
pub fn offered(offer: Offer, provider: Arc<Provider>, message_bytes_max: u32) -> Offered {
    let described = described(MemArena::MEM0, &offer, message_bytes_max);
    Offered::new(ResourceType::Mem, offer, described, provider)
}

fn described(name: &str, offer: &Offer, message_bytes_max: u32) -> Arc<OfferedArena> {
    Arc::new(OfferedArena {
        resource_id: offer.resource_id,
        name: name.into(),
        align_bytes: u32::try_from(offer.align).unwrap_or(u32::MAX),
        message_bytes_max,
        transports: offer.transports.clone(),
    })
}

/// The open paths.
#[derive(Debug, Default)]
struct Paths {
    rdma: Option<Arc<RdmaPath>>,
    udp: Option<Arc<FbmuPath>>,
}

/// Opens the memory of `--mem-bytes` and `--mem-arena`, and its transports by `--rdma-device` and `--fbmu-listen`. One
/// path of each transport serves all arenas. A node without RDMA is a normal node: one line of the log says so.
///
/// # Errors
/// The machine does not have that much memory or no such NUMA node, a file or the named device cannot be opened, or the
/// address is taken.
pub fn open(opening: &Opening<'_>) -> anyhow::Result<Opened> {
    let Opening {
        settings,
        node_id,
        past,
        watchdog,
        ..
    } = *opening;
    let open = arenas::open(settings, &node_id)?;
    if open.is_empty() {
        tracing::info!(
            "no memory is offered for lease; --mem-bytes SIZE or --mem-arena NAME=SIZE offers some"
        );
        return Ok(Opened::nothing());
    }
    let arenas: Arenas = open
        .iter()
        .map(|it| (it.resource_id, Arc::clone(&it.arena)))
        .collect();
    let paths = Paths {
        rdma: open_rdma(settings, &arenas, watchdog)?,
        udp: open_udp(settings, &arenas)?,
    };
    let transports = paths.transports();
    if transports.is_empty() {
        tracing::warn!("{}", arenas::NO_PATH);
        return Ok(Opened::nothing());
    }
    let mut provider = paths.provider();
    let (mut resources, mut changes) = (Vec::new(), Vec::new());
    for OpenArena {
        name,
        resource_id,
        arena,
    } in &open
    {
        let store = ArenaStore::new(Arc::clone(arena));
        let mut offer = store.offer(*resource_id, transports.clone());
        if settings.shared.is_bare_metal() {
            (offer.align, offer.allocation_mode) = (SLOT_BYTES, AllocationMode::Slots);
        }
        provider = provider.with_store(*resource_id, Arc::new(store));
        // Memory without a file gets a mark too: its leases must not go on in a file that a later run offers.
        let (is_known, mark) = claim(arena, name, past, *resource_id)?;
        changes.extend(mark);
        resources.push(OfferedResource {
            described: described(name, &offer, paths.message_bytes_max()),
            offer,
            continuity: match is_known {
                true => Continuity::Known,
                false => Continuity::Fresh,
            },
        });
    }
    past.journal.count_commits_with(move |number| {
        arenas.values().for_each(|it| it.set_commits(number));
    });
    let offered = Offered {
        kind: ResourceType::Mem,
        resources,
        provider: Arc::new(provider),
        per_tenant_max: settings.memory.mem_per_tenant_max.map(|it| it.0),
        watchdog: paths.rdma.is_some().then(|| watchdog.clone()),
        ready: Box::new(move |held| open.iter().try_for_each(|it| make_ready(it, held))),
        changes,
    };
    Ok(Opened {
        offered: Some(offered),
        close: Box::new(|| paths.close()),
        ..Opened::nothing()
    })
}

/// Overwrites the bytes of this arena that no lease holds, if an earlier run may have left data in them. `held`: the
/// leases of all arenas.
fn make_ready(open: &OpenArena, held: &[(BindingId, Placement)]) -> anyhow::Result<()> {
    if !open.arena.backing().outlives_process {
        return Ok(());
    }
    let its = { held.iter() }.filter(|(binding_id, _)| binding_id.resource_id == open.resource_id);
    let extents: Vec<_> = its.map(|(_, placement)| placement.extent()).collect();
    scrub_unheld(&open.arena, &open.name, &extents)
}

fn open_rdma(
    settings: &KindSettings,
    arenas: &Arenas,
    watchdog: &Watchdog,
) -> anyhow::Result<Option<Arc<RdmaPath>>> {
    let Some(device) = settings.memory.rdma_device(&settings.shared) else {
        tracing::info!("no memory is leased over RDMA on this node: --rdma-device none");
        return Ok(None);
    };
    let config = RdmaConfig {
        device,
        arenas: arenas.clone(),
        strategy: strategy(settings.memory.rdma_strategy.unwrap_or_default()),
    };
    let path = match RdmaPath::open(config)? {
        RdmaOpened::Ready(path) => path,
        RdmaOpened::Absent(why) => {
            tracing::warn!("no memory is leased over RDMA on this node: {why}");
            return Ok(None);
        }
    };
    let facts = path.inventory();
    tracing::info!(
        device = %facts.device,
        port = facts.port,
        gid = %Ipv6Addr::from(facts.gid),
        mtu_bytes = facts.mtu_bytes,
        atomics = facts.atomics,
        strategy = %facts.strategy,
        "memory is leased over RDMA"
    );
    Ok(Some(Arc::new(path.guarded_by(Arc::new(watchdog.clone())))))
}

fn strategy(wanted: RdmaStrategy) -> Strategy {
    match wanted {
        RdmaStrategy::Auto => Strategy::Auto,
        RdmaStrategy::Window => Strategy::Window,
        RdmaStrategy::Region => Strategy::Region,
    }
}

fn open_udp(settings: &KindSettings, arenas: &Arenas) -> anyhow::Result<Option<Arc<FbmuPath>>> {
    let Some(listen) = settings.memory.fbmu_listen(&settings.shared) else {
        return Ok(None);
    };
    let config = FbmuConfig {
        listen,
        workers: None,
        arenas: arenas.clone(),
        ops_per_second: settings.shared.ops_per_second(),
    };
    let path = FbmuPath::open(config).with_context(|| {
        format!("--fbmu-listen {listen}; choose another address, or `none` for no such transport")
    })?;
    tracing::info!(listen = %path.local_addr(), "memory is leased over UDP");
    let window = match settings.shared.is_bare_metal() {
        true => ReplayWindow::SHORTEST,
        false => ReplayWindow::LONGEST,
    };
    Ok(Some(Arc::new(path.with_window(window))))
}

impl Paths {
    /// Binds RDMA first, because it may refuse; cuts UDP first, because that is immediate.
    fn provider(&self) -> Provider {
        let mut provider = Provider::new();
        if let Some(rdma) = &self.rdma {
            provider = provider.with_path("RDMA", &[Transport::Rdma], rdma.clone());
        }
        if let Some(udp) = &self.udp {
            provider = provider.with_path("UDP", &[Transport::Udp], udp.clone());
        }
        provider
    }

    /// Best first.
    fn transports(&self) -> Vec<Transport> {
        let rdma = self.rdma.as_ref().map(|_| Transport::Rdma);
        let udp = self.udp.as_ref().map(|_| Transport::Udp);
        let both = rdma.and(udp).map(|_| Transport::Both);
        [rdma, udp, both].into_iter().flatten().collect()
    }

    fn message_bytes_max(&self) -> u32 {
        let rdma = self
            .rdma
            .as_ref()
            .map(|rdma| rdma.inventory().message_bytes);
        rdma.unwrap_or(u32::try_from(DATA_PAYLOAD_MAX).unwrap_or(u32::MAX))
    }

    /// Closes socket and device after the node has stopped.
    fn close(self) {
        close(self.udp, "UDP socket", |udp| {
            udp.close();
            Ok(())
        });
        close(self.rdma, "RDMA device", RdmaPath::close);
    }
}
