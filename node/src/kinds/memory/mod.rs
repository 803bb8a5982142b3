//! Memory on offer: its arenas and the transports to them.

mod arenas;
mod claim;
pub(super) mod detect;
mod mem_arena;
mod offer;
mod path;
mod rdma_cm;
mod settings;

use std::sync::Arc;

use anyhow::bail;
use fabricbios_arena::{ArenaStore, Arenas};
use fabricbios_contract::Provider;
use fabricbios_lease::{AllocationMode, BindingId, Offer, Placement};
use fabricbios_wire::ResourceType;

use arenas::OpenArena;
use claim::{claim, scrub_unheld};

use crate::kinds::{Continuity, Kind, Offered, OfferedResource, Opened, Opening};

pub(crate) use detect::total_bytes;

use arenas::check;
use offer::described;
use path::{Paths, open_rdma, open_udp};
use settings::SLOT_BYTES;

pub use mem_arena::{BadMemArena, MemArena};
pub use settings::{MemorySettings, RdmaStrategy};

/// See [`crate::kinds::KINDS`].
pub(super) const KIND: Kind = Kind {
    resource_type: ResourceType::Mem,
    conflicts: settings::conflicts,
    datagrams: settings::datagrams,
    per_tenant_max: |settings| settings.memory.mem_per_tenant_max.map(|it| it.0),
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
    let resource = OfferedResource {
        described: described(MemArena::MEM0, &offer, message_bytes_max),
        offer,
        continuity: Continuity::Fresh,
    };
    Offered::new(ResourceType::Mem, vec![resource], provider)
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
    match (settings.memory.rdma_cm_listen, &paths.rdma) {
        (Some(at), Some(rdma)) => rdma_cm::start(at, rdma, past.driver.clone())?,
        (Some(at), None) => bail!(
            "--rdma-cm-listen {at}: no memory is leased over RDMA on this node; name its device with --rdma-device, or leave this out"
        ),
        (None, _) => {}
    }
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
    let on_disk = { arenas.values() }.any(|it| !it.backing().in_memory);
    past.journal.count_commits_with(on_disk, move |number| {
        arenas.values().for_each(|it| it.set_commits(number));
    });
    let offered = Offered {
        kind: ResourceType::Mem,
        resources,
        provider: Arc::new(provider),
        watchdog: paths.rdma.is_some().then(|| watchdog.clone()),
        ready: Box::new(move |held| open.iter().try_for_each(|it| make_ready(it, held))),
        changes,
    };
    let datagrams = paths.udp.as_ref().map(|it| Arc::clone(it.counters()));
    Ok(Opened {
        offered: Some(offered),
        datagrams,
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
