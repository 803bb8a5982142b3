//! A scheduler's decision: which nodes may grant a request, over a fleet that is nine tenths full. Without network and
//! without nodes: the view alone, on one thread.

use std::{
    cell::Cell,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use fabricbios_placement::{Reporter, View};
use fabricbios_wire::{
    Affinity, BlockDev, Epoch, GpuInfo, InventoryExtension, LeaseAllocRequest, MemArena, NodeId,
    NodeReport, ResourceId, ResourceInventory, ResourceType, Transport, admission_most, health,
};

use crate::{pairs::interleaved_pairs, report::Spread};

/// Resources of a node.
const RESOURCES: u64 = 8;
/// Sizes of resources of a kind.
const SIZES: u64 = 7;
const GIB: u64 = 1 << 30;

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
    let (large, few) = (fleet(options.nodes)?, fleet(options.few)?);
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
            Ok(begin.elapsed())
        };
        let pairs = interleaved_pairs(
            options.rounds.into(),
            || round(&large, &mut of_large),
            || round(&few, &mut of_few),
        )?;
        println!("{what}");
        tell(options.nodes, &of_large);
        tell(options.few, &of_few);
        if let Some(ratio) = pairs.ratio() {
            println!("    ratio: {ratio}");
        }
    }
    Ok(())
}

fn tell(nodes: u32, times: &[Duration]) {
    let micros = |it: &Duration| it.as_secs_f64() * 1e6;
    let total: Duration = times.iter().sum();
    let rate = times.len() as f64 / total.as_secs_f64();
    if let Some(spread) = Spread::of(times.iter().map(micros)) {
        println!("    with {nodes} nodes: µs {spread}, {rate:.0} a second");
    }
}

/// Nodes with three arenas, two block devices and three GPUs, of 21 shapes. One of ten is free, the others are full but for a
/// little.
fn fleet(nodes: u32) -> anyhow::Result<View> {
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
            inventory: inventory(NodeId(id), u64::from(number)),
        };
        let taken = view.report(&from, 0, report);
        taken.context("a report of the bench is refused")?;
    }
    Ok(view)
}

fn inventory(node_id: NodeId, number: u64) -> ResourceInventory {
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
        let capacity = (1 + (number + at) % SIZES) * 16 * GIB;
        let is_free = (number + at).is_multiple_of(10);
        let available = if is_free { capacity } else { GIB / 4 };
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
