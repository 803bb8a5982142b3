//! A scheduler's decision: which nodes may grant a request, over a fleet that is nine tenths full. Without network and
//! without nodes: the view alone, on one thread.

use std::{
    cell::Cell,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use fabricbios_placement::{Asking, Reporter, View};
use fabricbios_wire::{
    Affinity, BlockDev, Candidate, Epoch, GpuInfo, InventoryExtension, LeaseAllocRequest, MemArena,
    NodeId, NodeReport, ResourceId, ResourceInventory, ResourceType, Transport, admission_most,
    health,
};

use crate::{figure::Figure, pairs::interleaved_pairs, report::Spread};

/// Resources of a node.
const RESOURCES: u64 = 8;
/// Sizes of resources of a kind.
const SIZES: u64 = 7;
const GIB: u64 = 1 << 30;
/// What the first candidate of a look at some nodes has free, against that of a look at all, is at least so much.
const SCORE_GOAL: f64 = 0.95;

/// How much is free of a resource: of this node, in this place.
type Free = fn(u64, u64) -> u64;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Nodes of the large fleet, with eight resources each
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    nodes: u32,
    /// Nodes of the small fleet
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    few: u32,
    /// Decisions of each kind in a round
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    decisions: u16,
    /// Pairs of rounds
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (large, few) = (
        fleet(options.nodes, one_in_ten)?,
        fleet(options.few, one_in_ten)?,
    );
    let shapes = [
        ("a redirect", true, 0),
        ("a refusal", false, 0),
        ("a redirect near 16 things", true, 16),
        ("a refusal near 16 things", false, 16),
    ];
    for (what, is_granted, affinities) in shapes {
        let (mut of_large, mut of_few) = (Vec::new(), Vec::new());
        let seeds = Cell::new(0);
        let round = |view: &View, times: &mut Vec<Duration>| {
            let begin = Instant::now();
            for _ in 0..options.decisions {
                let seed = seeds.get() + 1;
                seeds.set(seed);
                let mut request = request(seed, is_granted);
                request.intent.affinities = (0..affinities).map(|at| near(seed + at)).collect();
                let start = Instant::now();
                let placed = view.place(&request, seed);
                times.push(start.elapsed());
                anyhow::ensure!(placed.is_ok() == is_granted, "{what}: {placed:?}");
            }
            Ok(begin.elapsed() / u32::from(options.decisions))
        };
        let pairs = interleaved_pairs(
            options.rounds.into(),
            || round(&large, &mut of_large),
            || round(&few, &mut of_few),
        )?;
        let name = format!("decision/{}", what.replace("a ", "").replace(' ', "-"));
        let said = format!("a scheduler's choice over {} nodes: {what}", options.nodes);
        let peer = format!("over {} nodes", options.few);
        Figure::record_times(&name, &said, &pairs, &peer)?;
        println!("{what}");
        tell(options.nodes, &of_large);
        tell(options.few, &of_few);
        if let Some(ratio) = pairs.ratio() {
            println!("    ratio: {ratio}");
        }
    }
    drop((large, few));
    score(options)
}

/// Compares what is free where the first candidate of a redirect sends to, in shares of the resource, with what a look at all
/// nodes would have chosen.
fn score(options: &Options) -> anyhow::Result<()> {
    let view = fleet(options.nodes, by_lot)?;
    let shapes = 3 * SIZES;
    // By shape of request: of the redirects, and of the looks at all.
    let mut free = vec![(0.0, 0.0); usize::try_from(shapes)?];
    let decisions = u64::from(options.decisions) * u64::from(options.rounds);
    for seed in 1..=decisions {
        let mut request = request(seed, true);
        request.capacity /= 4;
        let asking = Asking {
            seed,
            ..Asking::default()
        };
        let redirect = view.place_for(&request, &asking)?;
        let (best, _) = view.explain(&request, &asking)?;
        let of_shape = &mut free[usize::try_from(seed % shapes)?];
        of_shape.0 += free_share(&redirect)?;
        of_shape.1 += free_share(&best)?;
    }
    let (some, all) = { free.iter() }.fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    let ratios = free.iter().filter(|it| it.1 > 0.0).map(|it| it.0 / it.1);
    let (least, count) = (ratios.fold(f64::MAX, f64::min), decisions as f64);
    println!(
        "the first candidate of {decisions} redirects: {:.4} of its resource is free, {:.4} if all nodes are looked at",
        some / count,
        all / count
    );
    println!(
        "    ratio: {:.4}, the worst of {shapes} shapes of requests {least:.4}; the goal is {SCORE_GOAL}: {}",
        some / all,
        if some / all >= SCORE_GOAL {
            "met"
        } else {
            "missed"
        }
    );
    Ok(())
}

/// How much of the resource of the first candidate is free by [`by_lot`].
fn free_share(candidates: &[Candidate]) -> anyhow::Result<f64> {
    let first = candidates.first().context("no candidate")?;
    let id = u64::try_from(first.resource_id.0)?;
    let (node, at) = (id >> 8, (id & 0xff) - 1);
    Ok(by_lot(node, at) as f64 / capacity(node, at) as f64)
}

fn tell(nodes: u32, times: &[Duration]) {
    let micros = |it: &Duration| it.as_secs_f64() * 1e6;
    let total: Duration = times.iter().sum();
    let rate = times.len() as f64 / total.as_secs_f64();
    if let Some(spread) = Spread::of(times.iter().map(micros)) {
        println!("    with {nodes} nodes: µs {spread}, {rate:.0} a second");
    }
}

fn capacity(node: u64, at: u64) -> u64 {
    (1 + (node + at) % SIZES) * 16 * GIB
}

/// One of ten is free, the others are full but for a little.
fn one_in_ten(node: u64, at: u64) -> u64 {
    match (node + at).is_multiple_of(10) {
        true => capacity(node, at),
        false => GIB / 4,
    }
}

/// A tenth is free on average, and seldom much of one: of a thousand resources seven have more than 15 of 16 parts free.
fn by_lot(node: u64, at: u64) -> u64 {
    let lot = fastrand::Rng::with_seed(node * RESOURCES + at).u16(..1 << 10);
    let capacity = capacity(node, at);
    let free = (u128::from(capacity) * u128::from(lot).pow(9)) >> 90;
    u64::try_from(free).unwrap_or(capacity)
}

/// Nodes with three arenas, two block devices and three GPUs, of 21 shapes.
fn fleet(nodes: u32, free: Free) -> anyhow::Result<View> {
    let mut view = View::default();
    for number in 1..=nodes {
        let mut id = [0; 32];
        // Ids are hashes: they do not ascend with the shapes.
        id[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
        let from = Reporter {
            node_id: NodeId(id),
            labels: vec![format!("rack=r{}", number / 40)],
            connection: u64::from(number),
        };
        let report = NodeReport {
            sequence: 1,
            endpoint: SocketAddr::from(([10, 0, 0, 1], 5701)).into(),
            inventory: inventory(NodeId(id), u64::from(number), free),
        };
        let taken = view.report(&from, 0, report);
        taken.context("a report of the bench is refused")?;
    }
    Ok(view)
}

fn inventory(node_id: NodeId, number: u64, free: Free) -> ResourceInventory {
    let mut inventory = ResourceInventory {
        node_id,
        epoch: Epoch(1),
        health: health::OK,
        mem_arenas: vec![],
        block_devs: vec![],
        cpu_caps: vec![],
        nics: vec![],
        gpus: vec![],
        extensions: vec![InventoryExtension::Limits {
            lease_secs_max: 3600,
            grace_secs_max: 3600,
            bare_metal: false,
        }],
    };
    for at in 0..RESOURCES {
        let resource_id = ResourceId(u128::from(number) << 8 | u128::from(at + 1));
        let (capacity, available) = (capacity(number, at), free(number, at));
        let transports = match at {
            0..3 => {
                inventory.mem_arenas.push(MemArena {
                    resource_id,
                    base: 0,
                    len: capacity,
                    align: 4096,
                    max_read: 0,
                    max_write: 0,
                    health: health::OK,
                });
                vec![Transport::Rdma, Transport::Udp]
            }
            3..5 => {
                inventory.block_devs.push(BlockDev {
                    resource_id,
                    capacity,
                    block_size: 4096,
                    flags: 0,
                    health: health::OK,
                });
                vec![Transport::NvmeTcp]
            }
            _ => {
                inventory.gpus.push(GpuInfo {
                    resource_id,
                    vram_bytes: capacity,
                    compute_units: 100,
                    flags: 0,
                    health: health::OK,
                });
                vec![]
            }
        };
        inventory.extensions.extend([
            InventoryExtension::Available(resource_id, available),
            InventoryExtension::Transports(resource_id, transports),
            InventoryExtension::Admission {
                resource_id,
                flags: 0,
                forbidden: vec![],
                most: vec![(admission_most::ALONE, available, capacity)],
            },
        ]);
    }
    inventory
}

/// The request of this number: of a kind and a size that some nodes have free; otherwise a size that no resource has.
fn request(number: u64, is_granted: bool) -> LeaseAllocRequest {
    let kinds = [ResourceType::Mem, ResourceType::Block, ResourceType::Gpu];
    let kind = kinds[usize::try_from(number % 3).unwrap_or(0)];
    let capacity = match is_granted {
        true => (1 + number % SIZES) * 16 * GIB,
        false => (SIZES + 1) * 16 * GIB,
    };
    LeaseAllocRequest {
        follows_redirect: true,
        ..LeaseAllocRequest::new(kind, capacity, 60)
    }
}

/// A preferred affinity of this number: to a rack of the large fleet, or to one of its resources.
fn near(number: u64) -> Affinity {
    let (category, target_type, target) = match number % 2 {
        0 => (3, 4, format!("r{}", number % 250).into_bytes()),
        _ => (
            1,
            1,
            u128::from((1 + number) << 8 | 1).to_be_bytes().to_vec(),
        ),
    };
    Affinity {
        category,
        strength: 2,
        target_type,
        target,
    }
}
