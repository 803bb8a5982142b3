//! The memory that the operator offers: its bytes, and the roads over which they are reached.

use std::{fmt, fs, io::ErrorKind, net::Ipv6Addr, sync::Arc};

use anyhow::{Context, anyhow, bail};
use fabricbios_arena::{Arena, Mark, Source};
use fabricbios_fallback_udp::{FbmuBackend, FbmuConfig};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{Backend, Extent, Offer, StepError, Tag};
use fabricbios_premium::rdma::{RdmaBackend, RdmaConfig, RdmaOpened, Strategy, numa_node};
use fabricbios_wire::{DATA_PAYLOAD_MAX, NodeId, ResourceId, ResourceType};

use crate::{
    config::{RdmaStrategy, Settings},
    detect::{self, resource_id},
    inventory::OfferedArena,
    past::Past,
    roads::{Guest, Roads},
    watchdog::Watchdog,
};

/// Memory on offer.
pub struct OfferedMemory {
    /// What the table may give out.
    pub offer: Offer,
    /// What inventories say of it.
    pub arena: OfferedArena,
    /// What makes its leases real.
    pub backend: Arc<dyn Backend>,
    /// The bytes, where an earlier run may have left something in them.
    pub used_before: Option<Arc<Arena>>,
    /// Whether they are those of this node's last run.
    pub is_known: bool,
    /// What ends access over RDMA when this process cannot.
    pub watchdog: Option<Watchdog>,
}

impl OfferedMemory {
    /// What `backend` offers. `message_bytes_max`: most bytes in one operation of its data plane.
    pub fn of(backend: Arc<dyn Backend>, message_bytes_max: u32) -> anyhow::Result<Self> {
        let Some(offer) = backend.probe()?.into_iter().next() else {
            bail!("the memory backend offers no memory");
        };
        let arena = OfferedArena {
            resource_id: offer.resource_id,
            name: NAME.into(),
            align_bytes: u32::try_from(offer.align).unwrap_or(u32::MAX),
            message_bytes_max,
            transports: offer.transports.clone(),
        };
        Ok(Self {
            offer,
            arena,
            backend,
            used_before: None,
            is_known: false,
            watchdog: None,
        })
    }

    /// Overwrites everything that no lease holds: what an earlier run did not get to.
    pub fn scrub_unheld(&self, held: &[Extent]) -> anyhow::Result<()> {
        let Some(arena) = &self.used_before else {
            return Ok(());
        };
        let unheld = gaps(held, arena.bytes());
        let bytes: u64 = unheld.iter().map(|gap| gap.length).sum();
        tracing::info!(
            bytes,
            leases = held.len(),
            "scrubbing what no lease of before holds"
        );
        for gap in unheld {
            arena
                .scrub(gap.offset, gap.length, &|| ())
                .context("scrub the memory on offer")?;
        }
        Ok(())
    }
}

impl fmt::Debug for OfferedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfferedMemory")
            .field("offer", &self.offer)
            .finish_non_exhaustive()
    }
}

/// What of `0..end` lies in none of the extents, which may come in any order.
fn gaps(held: &[Extent], end: u64) -> Vec<Extent> {
    let mut held = held.to_vec();
    held.sort_unstable();
    held.push(Extent {
        offset: end,
        length: 0,
    });
    let mut from = 0;
    let mut gaps = Vec::new();
    for extent in held {
        if extent.offset > from {
            gaps.push(Extent {
                offset: from,
                length: extent.offset - from,
            });
        }
        from = from.max(extent.end());
    }
    gaps
}

/// Name of the one memory resource of a node, detected or offered.
const NAME: &str = "mem0";

/// The roads that are open, to be given back when the node has stopped.
#[derive(Debug, Default)]
pub struct OpenRoads {
    rdma: Option<Arc<RdmaBackend>>,
    udp: Option<Arc<FbmuBackend>>,
}

impl Guest for FbmuBackend {
    fn retire(&self, tag: Tag) -> Result<(), StepError> {
        Self::retire(self, tag)
    }
}

/// Opens what `--mem-bytes`, `--rdma-device` and `--fbmu-listen` ask for. A node without RDMA is a
/// normal node that offers less; it says so once.
pub fn open(
    settings: &Settings,
    node_id: NodeId,
    past: &Past,
    watchdog: &Watchdog,
) -> anyhow::Result<(Option<OfferedMemory>, OpenRoads)> {
    let Some(bytes) = settings.mem_bytes else {
        tracing::info!("no memory is offered for lease; --mem-bytes SIZE offers some");
        return Ok((None, OpenRoads::default()));
    };
    let resource_id = resource_id(&node_id, ResourceType::Mem, NAME);
    let arena = Arc::new(open_arena(settings, bytes.0)?);
    let roads = OpenRoads {
        rdma: open_rdma(settings, &arena, resource_id, watchdog)?,
        udp: open_udp(settings, &arena, resource_id)?,
    };
    let Some(backend) = roads.backend() else {
        tracing::warn!("memory is not leasable on this node: no road leads to it");
        return Ok((None, roads));
    };
    let is_known = claim(&arena, settings)? & count_commits(&arena, past);
    let used_before = arena.backing().outlives_process.then_some(arena);
    let offered = OfferedMemory {
        used_before,
        is_known,
        watchdog: roads.rdma.is_some().then(|| watchdog.clone()),
        ..OfferedMemory::of(backend, roads.message_bytes_max())?
    };
    Ok((Some(offered), roads))
}

/// Whether the bytes are as this node's last run left them, told by a number that both have; they get
/// a new one. Another file, a file made anew, or one that another daemon used in between, has not the
/// number that is in the state directory: what leases of the last run held is not in it.
fn claim(arena: &Arena, settings: &Settings) -> anyhow::Result<bool> {
    let path = settings.state_dir().join("arena.mark");
    let at = || format!("{}", path.display());
    let ours = match fs::read(&path) {
        Ok(bytes) => Mark::try_from(bytes).ok(),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(at),
    };
    let is_known = ours.is_some() && ours == arena.mark();
    let mut mark = Mark::default();
    getrandom::fill(&mut mark).map_err(|error| anyhow!("make a mark for the memory: {error}"))?;
    // Whatever a crash leaves of the two, they differ.
    arena.set_mark(&mark);
    fs::write(&path, mark).with_context(at)?;
    Ok(is_known)
}

/// Whether the journal is as new as the bytes, which keep the number of its last commit from now on. To an older
/// one, put back from a copy, leases seem to live whose bytes are somebody else's by now.
fn count_commits(arena: &Arc<Arena>, past: &Past) -> bool {
    let (beside, found) = (arena.commits(), past.recovered.commits);
    if beside > found {
        tracing::error!(
            journal = found,
            memory = beside,
            "the journal is older than the memory file: it was put back from a copy; leases of memory that it knows \
             are over, and their bytes are overwritten"
        );
    }
    arena.set_commits(found);
    let arena = Arc::clone(arena);
    past.journal
        .count_beside(move |number| arena.set_commits(number));
    beside <= found
}

/// More than the machine has would be given out, and end the daemon when tenants use it.
fn check_there_is(bytes: u64) -> anyhow::Result<()> {
    let meminfo = Tree::new("/proc").read("meminfo")?;
    match detect::available_bytes(&meminfo) {
        Some(available) if bytes > available => bail!(
            "--mem-bytes {bytes}: this machine has {available} bytes of memory to spare \
             (MemAvailable, and free huge pages); offer less"
        ),
        _ => Ok(()),
    }
}

fn open_arena(settings: &Settings, bytes: u64) -> anyhow::Result<Arena> {
    if settings.mem_file.is_none() {
        check_there_is(bytes)?;
    }
    tracing::info!(bytes, file = ?settings.mem_file, "preparing the memory on offer");
    let source = Source {
        file: settings.mem_file.clone(),
        numa_node: settings
            .rdma_device()
            .and_then(|device| numa_node(device.as_deref())),
    };
    Arena::open(&source, bytes).with_context(|| match &settings.mem_file {
        Some(path) => format!("--mem-file {}: {bytes} bytes of memory", path.display()),
        None => format!("--mem-bytes {bytes}: that much memory"),
    })
}

fn open_rdma(
    settings: &Settings,
    arena: &Arc<Arena>,
    resource_id: ResourceId,
    watchdog: &Watchdog,
) -> anyhow::Result<Option<Arc<RdmaBackend>>> {
    let Some(device) = settings.rdma_device() else {
        tracing::info!("no memory is leased over RDMA on this node: --rdma-device none");
        return Ok(None);
    };
    let config = RdmaConfig {
        device,
        arena: arena.clone(),
        resource_id,
        strategy: strategy(settings.rdma_strategy.unwrap_or_default()),
    };
    let backend = match RdmaBackend::open(config)? {
        RdmaOpened::Ready(backend) => backend,
        RdmaOpened::Absent(why) => {
            tracing::warn!("no memory is leased over RDMA on this node: {why}");
            return Ok(None);
        }
    };
    let facts = backend.inventory();
    tracing::info!(
        device = %facts.device,
        port = facts.port,
        gid = %Ipv6Addr::from(facts.gid),
        mtu_bytes = facts.mtu_bytes,
        atomics = facts.atomics,
        strategy = %facts.strategy,
        "memory is leased over RDMA"
    );
    Ok(Some(Arc::new(
        backend.guarded_by(Arc::new(watchdog.clone())),
    )))
}

fn strategy(wanted: RdmaStrategy) -> Strategy {
    match wanted {
        RdmaStrategy::Auto => Strategy::Auto,
        RdmaStrategy::Window => Strategy::Window,
        RdmaStrategy::Region => Strategy::Region,
    }
}

fn open_udp(
    settings: &Settings,
    arena: &Arc<Arena>,
    resource_id: ResourceId,
) -> anyhow::Result<Option<Arc<FbmuBackend>>> {
    let Some(listen) = settings.fbmu_listen() else {
        return Ok(None);
    };
    let config = FbmuConfig {
        listen,
        workers: None,
        resource_id,
        arena: arena.clone(),
        ops_per_second: settings.fbmu_ops_max.unwrap_or(FbmuConfig::OPS_PER_SECOND),
    };
    let backend = FbmuBackend::open(config).with_context(|| {
        format!("--fbmu-listen {listen}; choose another address, or `none` for no such road")
    })?;
    tracing::info!(listen = %backend.local_addr(), "memory is leased over UDP");
    Ok(Some(Arc::new(backend)))
}

impl OpenRoads {
    fn backend(&self) -> Option<Arc<dyn Backend>> {
        match (self.rdma.clone(), self.udp.clone()) {
            (Some(rdma), Some(udp)) => Some(Arc::new(Roads::new(rdma, udp))),
            (Some(rdma), None) => Some(rdma),
            (None, Some(udp)) => Some(udp),
            (None, None) => None,
        }
    }

    fn message_bytes_max(&self) -> u32 {
        let rdma = self
            .rdma
            .as_ref()
            .map(|rdma| rdma.inventory().message_bytes);
        rdma.unwrap_or(u32::try_from(DATA_PAYLOAD_MAX).unwrap_or(u32::MAX))
    }

    /// Gives socket and device back, when the node has stopped and nobody else uses them.
    pub fn close(self) {
        if let Some(udp) = self.udp {
            close(udp, "UDP socket", |udp| {
                udp.close();
                Ok(())
            });
        }
        if let Some(rdma) = self.rdma {
            close(rdma, "RDMA device", RdmaBackend::close);
        }
    }
}

fn close<B>(backend: Arc<B>, what: &str, close: impl FnOnce(B) -> Result<(), StepError>) {
    let Some(backend) = Arc::into_inner(backend) else {
        // A call that is stuck in the kernel still holds it; the end of the process takes it.
        tracing::warn!("the {what} is still in use; it is left to the end of the process");
        return;
    };
    if let Err(error) = close(backend) {
        tracing::warn!(%error, "the {what} could not be given back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, length: u64) -> Extent {
        Extent { offset, length }
    }

    #[test]
    fn what_no_lease_holds_lies_between_those_that_do() {
        assert_eq!(gaps(&[], 9), [extent(0, 9)]);
        assert_eq!(gaps(&[extent(0, 9)], 9), []);
        let held = [extent(6, 1), extent(0, 2), extent(2, 1)];
        assert_eq!(gaps(&held, 9), [extent(3, 3), extent(7, 2)]);
        // A lease of a larger arena of before.
        assert_eq!(gaps(&[extent(8, 8)], 9), [extent(0, 8)]);
    }
}
