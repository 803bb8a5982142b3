//! Memory on offer: its bytes and the transports to them.

use std::{fs, io::ErrorKind, net::Ipv6Addr, path::Path, sync::Arc};

use anyhow::{Context, anyhow, bail};
use fabricbios_arena::{Arena, ArenaStore, Mark, Source, check_file};
use fabricbios_contract::Provider;
use fabricbios_fallback_udp::{FbmuConfig, FbmuPath, ReplayWindow};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{AllocationMode, Extent, Offer};
use fabricbios_rdma::{RdmaConfig, RdmaOpened, RdmaPath, Strategy, numa_node};
use fabricbios_wire::{DATA_PAYLOAD_MAX, ResourceId, ResourceType, Transport};

use crate::{
    check::{Checking, Findings},
    clock,
    config::{RdmaStrategy, SLOT_BYTES, Settings},
    detect::{self, resource_id},
    inventory::OfferedArena,
    journal::{Change, Key},
    past::Past,
    providers::{Continuity, Offered, Opened, Opening, close},
    watchdog::Watchdog,
};

/// Offers the memory of `provider`. `message_bytes_max`: most bytes in one operation of its data plane.
#[must_use]
pub fn offered(offer: Offer, provider: Arc<Provider>, message_bytes_max: u32) -> Offered {
    let arena = OfferedArena {
        resource_id: offer.resource_id,
        name: NAME.into(),
        align_bytes: u32::try_from(offer.align).unwrap_or(u32::MAX),
        message_bytes_max,
        transports: offer.transports.clone(),
    };
    Offered::new(ResourceType::Mem, offer, Arc::new(arena), provider)
}

/// Overwrites the bytes that no lease holds, which an earlier run may have left dirty.
fn scrub_unheld(arena: &Arena, held: &[Extent]) -> anyhow::Result<()> {
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

/// The parts of `0..end` outside the extents, which may be in any order.
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

/// Name of a node's only memory resource, detected or offered.
const NAME: &str = "mem0";

/// The open paths.
#[derive(Debug, Default)]
struct Paths {
    rdma: Option<Arc<RdmaPath>>,
    udp: Option<Arc<FbmuPath>>,
}

/// Opens what `--mem-bytes`, `--rdma-device` and `--fbmu-listen` ask for. A node without RDMA is a normal node: one
/// line of the log says so.
///
/// # Errors
/// The machine has not that much memory, the file or the named device cannot be opened, or the address is taken.
pub fn open(opening: &Opening<'_>) -> anyhow::Result<Opened> {
    let Opening {
        settings,
        node_id,
        past,
        watchdog,
        ..
    } = *opening;
    let Some(bytes) = settings.mem_bytes() else {
        tracing::info!("no memory is offered for lease; --mem-bytes SIZE offers some");
        return Ok(Opened::nothing());
    };
    let resource_id = resource_id(&node_id, ResourceType::Mem, NAME);
    let arena = Arc::new(open_arena(settings, bytes)?);
    let paths = Paths {
        rdma: open_rdma(settings, &arena, resource_id, watchdog)?,
        udp: open_udp(settings, &arena)?,
    };
    let transports = paths.transports();
    if transports.is_empty() {
        tracing::warn!("memory is not leasable on this node: no transport leads to it");
        return Ok(Opened::nothing());
    }
    let store = ArenaStore::new(Arc::clone(&arena));
    let mut offer = store.offer(resource_id, transports);
    if settings.is_bare_metal() {
        (offer.align, offer.allocation_mode) = (SLOT_BYTES, AllocationMode::Slots);
    }
    let provider = paths.provider().with_store(resource_id, Arc::new(store));
    // Also for memory without a file: its leases must not go on in a file that a later run offers.
    let (is_known, mark) = claim(&arena, settings.state_dir(), past, resource_id)?;
    let outlives_process = arena.backing().outlives_process;
    let mut offered = Offered {
        per_tenant_max: settings.mem_per_tenant_max.map(|it| it.0),
        watchdog: paths.rdma.is_some().then(|| watchdog.clone()),
        changes: mark.into_iter().collect(),
        ready: Box::new(move |held| match outlives_process {
            true => {
                let held = held.iter().map(|(_, placement)| placement.extent());
                scrub_unheld(&arena, &held.collect::<Vec<_>>())
            }
            false => Ok(()),
        }),
        ..offered(offer, Arc::new(provider), paths.message_bytes_max())
    };
    for resource in offered.resources.iter_mut().filter(|_| is_known) {
        resource.continuity = Continuity::Known;
    }
    Ok(Opened {
        offered: Some(offered),
        close: Box::new(|| paths.close()),
        ..Opened::nothing()
    })
}

/// Tells whether the bytes belong to the leases in the journal, and returns the change that the journal needs for them.
///
/// Journal and bytes have the same mark, and the bytes have the number of the journal's last commit. A journal with a
/// lower number was restored from a copy: leases that it calls live may have bytes that belong to others now. If the
/// two do not match, the bytes get a new mark, which no copy of a journal has. The journal gets the new mark in the
/// commit that ends the earlier leases, so a start that fails before leaves the two different.
fn claim(
    arena: &Arc<Arena>,
    state_dir: &Path,
    past: &Past,
    resource_id: ResourceId,
) -> anyhow::Result<(bool, Option<Change>)> {
    let recovered = &past.recovered;
    let key = Key::Mark(resource_id);
    let found = recovered.records.get(&key);
    let ours = match found {
        Some(mark) => Some(mark.to_vec()),
        None => earlier_mark(state_dir)?,
    };
    let same_mark = arena.mark().filter(|it| ours.as_deref() == Some(it));
    let counted_beside = arena.commits();
    let is_older = recovered.commits < counted_beside;
    if is_older && same_mark.is_some() {
        tracing::error!(
            journal = recovered.commits,
            memory = counted_beside,
            "the journal is older than the memory file: it was put back from a copy; leases of memory that it knows \
             are over, and their bytes are overwritten"
        );
    }
    // A reboot ends leases of memory and loses bytes that the file system had not written.
    let same_boot = recovered.last_boot_id == Some(clock::boot_id());
    let known = same_mark.filter(|_| same_boot && !is_older);
    let mark = match known {
        Some(mark) => mark,
        None => new_mark(arena)?,
    };
    // After a change of the mark a lower number is correct.
    arena.set_commits(recovered.commits);
    let counted = Arc::clone(arena);
    past.journal
        .count_commits_with(move |number| counted.set_commits(number));
    let is_news = known.is_none() || found.is_none();
    let change = is_news.then(|| Change::put(key, mark.to_vec()));
    Ok((known.is_some(), change))
}

fn new_mark(arena: &Arena) -> anyhow::Result<Mark> {
    let mut mark = Mark::default();
    getrandom::fill(&mut mark).map_err(|error| anyhow!("make a mark for the memory: {error}"))?;
    arena.set_mark(&mark);
    Ok(mark)
}

/// The mark file of earlier versions. It counts if the journal has no mark, and is never written.
fn earlier_mark(state_dir: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    let path = state_dir.join("arena.mark");
    match fs::read(&path) {
        Ok(mark) => Ok(Some(mark)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{}", path.display())),
    }
}

/// Refuses more memory than the machine has: the daemon would be killed when tenants use it.
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

/// See [`crate::providers::Kind::check`].
pub(crate) fn check(checking: &Checking<'_>, found: &mut Findings) {
    let settings = checking.settings;
    let Some(bytes) = settings.mem_bytes() else {
        return;
    };
    match &settings.mem_file {
        Some(path) => {
            let file = check_file(path);
            found.refused_if(file.with_context(|| format!("--mem-file {}", path.display())));
        }
        None if checking.has_daemon => {}
        None => {
            found.lacks_if(check_there_is(bytes));
        }
    }
    let devices = Tree::new("/sys/class")
        .list("infiniband")
        .unwrap_or_default();
    match settings.rdma_device() {
        Some(Some(name)) if !devices.contains(&name) => found.lacks(format_args!(
            "--rdma-device {name}: this machine has no such RDMA device; it has {}",
            match devices.is_empty() {
                true => "none".to_owned(),
                false => devices.join(", "),
            }
        )),
        Some(None) if devices.is_empty() => {
            found.warns("no memory is leased over RDMA: this machine has no RDMA device");
        }
        _ => {}
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
) -> anyhow::Result<Option<Arc<RdmaPath>>> {
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

fn open_udp(settings: &Settings, arena: &Arc<Arena>) -> anyhow::Result<Option<Arc<FbmuPath>>> {
    let Some(listen) = settings.fbmu_listen() else {
        return Ok(None);
    };
    let config = FbmuConfig {
        listen,
        workers: None,
        arena: arena.clone(),
        ops_per_second: settings.fbmu_ops_max.unwrap_or(FbmuConfig::OPS_PER_SECOND),
    };
    let path = FbmuPath::open(config).with_context(|| {
        format!("--fbmu-listen {listen}; choose another address, or `none` for no such transport")
    })?;
    tracing::info!(listen = %path.local_addr(), "memory is leased over UDP");
    let window = match settings.is_bare_metal() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        journal::{self, Journal},
        mailbox::Mailbox,
    };

    const RESOURCE: ResourceId = ResourceId(7);

    /// The outcome of a start on this boot id in the directory.
    fn past(directory: &Path, boot_id: &str) -> Past {
        let (mailbox, driver) = Mailbox::new().unwrap();
        let path = directory.join(journal::FILE);
        let (journal, recovered) = Journal::open_here(&path, boot_id, Box::new(|_| ())).unwrap();
        Past {
            mailbox,
            driver,
            journal,
            recovered,
        }
    }

    fn write(past: &Past, change: Change) {
        let writer = past.journal.writer();
        writer.wait(writer.submit(vec![change])).unwrap();
    }

    fn arena(directory: &Path) -> Arc<Arena> {
        let source = Source {
            file: Some(directory.join("arena")),
            ..Source::default()
        };
        Arc::new(Arena::open(&source, 4096).unwrap())
    }

    #[test]
    fn a_mark_of_an_earlier_version_is_read_once() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let boot = clock::boot_id();
        drop(past(at, &boot));
        fs::write(at.join("arena.mark"), [9; 16]).unwrap();
        arena(at).set_mark(&[9; 16]);

        let upgraded = past(at, &boot);
        let (is_known, change) = claim(&arena(at), at, &upgraded, RESOURCE).unwrap();
        let expected = Change::put(Key::Mark(RESOURCE), vec![9; 16]);
        assert_eq!((is_known, change.as_ref()), (true, Some(&expected)));
        write(&upgraded, expected);
        drop(upgraded);
        fs::remove_file(at.join("arena.mark")).unwrap();
        let next = past(at, &boot);
        assert_eq!(
            claim(&arena(at), at, &next, RESOURCE).unwrap(),
            (true, None)
        );
    }

    #[test]
    fn bytes_of_before_a_reboot_stay_unknown_after_a_start_in_vain() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let before = past(at, "another boot");
        write(&before, Change::put(Key::Mark(RESOURCE), vec![9; 16]));
        arena(at).set_mark(&[9; 16]);
        drop(before);
        for _ in 0..2 {
            let past = past(at, &clock::boot_id());
            let (is_known, change) = claim(&arena(at), at, &past, RESOURCE).unwrap();
            assert!(!is_known && change.is_some());
        }
    }

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
