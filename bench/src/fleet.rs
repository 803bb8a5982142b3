//! Leases through schedulers, against etcd, against a node that is asked itself, and beside an etcd that has stopped. Nodes,
//! schedulers and etcd are those of `cargo xtask fleet-sim`: the daemon's own code on simulated machines, without a disk.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use fabricbios_client::{Error, Node};
use fabricbios_fleet_sim::{Options as FleetOptions, fleet::Fleet};
use fabricbios_wire::{LeaseAllocRequest, Reply, Request, ResourceType};
use nix::sys::signal::Signal;
use tokio::{runtime::Runtime, task::JoinSet, time::sleep};

use crate::{
    churn::{AT_ONCE, at_once},
    daemon::Daemon,
    etcd::Etcd,
    figure::{Better, Figure, Of, record, skipped},
    pairs::interleaved_pairs,
    place::{place_in, runtime},
};

/// Requests of a round, one after the other.
const IN_A_ROW: u32 = 50;
/// Nodes to which a client stays connected.
const FEW_NODES: u32 = 8;
/// Leases that each client holds at once, and their size.
const HELD: usize = 4;
const BYTES: u64 = 4 << 20;
const TERM_SECS: u32 = 600;
/// Grants and frees of a round with many at once.
const MANY: u32 = 3_200;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Nodes of the large fleet
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(3..=10_000))]
    nodes: u32,
    /// Clients of the large fleet, and the leases that each gets
    #[arg(long, default_value_t = 64)]
    clients: u32,
    #[arg(long, default_value_t = 50)]
    leases: u32,
    /// Pairs of rounds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Directory of etcd's and the daemons' state; a file system in memory makes the result worthless
    #[arg(long, default_value = "target", value_name = "DIRECTORY")]
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let beside = scheduler_program()?;
    let of = |nodes, schedulers| FleetOptions {
        nodes,
        schedulers,
        scheduler_program: beside.clone(),
        ..FleetOptions::default()
    };
    few(options, &runtime, &of(FEW_NODES, 1))?;
    many(options, &runtime, &of(options.nodes, 3))?;
    daemons(options, &runtime, &of(0, 3))
}

/// The program beside this one.
pub(crate) fn scheduler_program() -> anyhow::Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("fabricbios-scheduler");
    anyhow::ensure!(
        beside.is_file(),
        "{} is not there: cargo build --release -p fabricbios-scheduler",
        beside.display()
    );
    Ok(beside)
}

fn wanted() -> LeaseAllocRequest {
    LeaseAllocRequest {
        follows_redirect: true,
        ..LeaseAllocRequest::new(ResourceType::Mem, BYTES, TERM_SECS)
    }
}

async fn free(node: &Node, lease_id: fabricbios_wire::LeaseId) -> anyhow::Result<()> {
    node.call_async(Request::LeaseFree(lease_id)).await?;
    Ok(())
}

/// A fleet with a client that stays connected to all of its nodes.
fn few(options: &Options, runtime: &Runtime, of: &FleetOptions) -> anyhow::Result<()> {
    let mut random = fastrand::Rng::with_seed(1);
    let fleet = runtime.block_on(async { Fleet::start(of, &mut random) })?;
    let scheduler = runtime.block_on(fleet.reported(0))?;
    let redirects = || {
        let begin = Instant::now();
        for _ in 0..IN_A_ROW {
            match runtime.block_on(scheduler.call_async(Request::LeaseAlloc(wanted())))? {
                Reply::Redirect(_) => {}
                other => anyhow::bail!("no redirect: {other:?}"),
            }
        }
        Ok(begin.elapsed() / IN_A_ROW)
    };
    match Etcd::version() {
        None => skipped("fleet/redirect", Etcd::ABSENT)?,
        Some(version) => {
            let place = place_in(&options.dir)?;
            let etcd = runtime.block_on(Etcd::start(place.path()))?;
            let puts = || {
                let begin = Instant::now();
                for number in 0..IN_A_ROW {
                    runtime.block_on(etcd.put(u64::from(number)))?;
                }
                Ok(begin.elapsed() / IN_A_ROW)
            };
            println!(
                "\nLEASE_ALLOC to Redirect, against one Put of {version}, without TLS, one server"
            );
            let pairs = interleaved_pairs(options.rounds.into(), redirects, puts)?;
            pairs.print("redirect", "put");
            let (name, what) = ("fleet/redirect", "LEASE_ALLOC to a scheduler's Redirect");
            Figure::record_times(name, what, &pairs, &format!("one Put of {version}"))?;
        }
    }

    println!(
        "\na lease through a scheduler, against one of a node that is asked itself; all connections are there, and no node has a disk"
    );
    let figure = (
        "fleet/lease-no-disk",
        "a lease through a scheduler, of a node without a disk",
    );
    through(options, runtime, &scheduler, figure)?;

    let churn = || {
        let begin = Instant::now();
        at_once(runtime, MANY / 4, |_| {
            let scheduler = scheduler.clone();
            async move {
                let granted = scheduler.acquire_async(wanted()).await?;
                free(&granted.node, granted.info.lease_id).await
            }
        })?;
        Ok(begin.elapsed())
    };
    let stopped = || {
        fleet.signal_etcd(Signal::SIGSTOP);
        let took = churn();
        fleet.signal_etcd(Signal::SIGCONT);
        took
    };
    println!(
        "\nleases through a scheduler, {AT_ONCE} at once: etcd runs, against etcd has stopped"
    );
    let pairs = interleaved_pairs(options.rounds.into(), &churn, stopped)?;
    pairs.print("etcd runs", "etcd has stopped");
    Figure::record_times(
        "fleet/etcd-runs",
        "leases through a scheduler, 64 at once, while etcd runs",
        &pairs,
        "while etcd is stopped",
    )
}

/// A lease through this scheduler, against one of a node that reports to it.
fn through(
    options: &Options,
    runtime: &Runtime,
    scheduler: &Node,
    (figure, what): (&str, &str),
) -> anyhow::Result<()> {
    let nodes = runtime.block_on(scheduler.nodes_async())?;
    let nodes: Vec<Node> = nodes
        .iter()
        .map(|it| scheduler.reporting(it))
        .collect::<Result<_, Error>>()?;
    let mut turn = nodes.iter().cycle();
    let through = || {
        let mut took = Duration::ZERO;
        for _ in 0..IN_A_ROW {
            let begin = Instant::now();
            let granted = runtime.block_on(scheduler.acquire_async(wanted()))?;
            took += begin.elapsed();
            runtime.block_on(free(&granted.node, granted.info.lease_id))?;
        }
        Ok(took / IN_A_ROW)
    };
    let direct = || {
        let mut took = Duration::ZERO;
        for _ in 0..IN_A_ROW {
            let node = turn.next().context("no node")?;
            let begin = Instant::now();
            let info = runtime.block_on(node.alloc_async(wanted()))?;
            took += begin.elapsed();
            runtime.block_on(free(node, info.lease_id))?;
        }
        Ok(took / IN_A_ROW)
    };
    let pairs = interleaved_pairs(options.rounds.into(), through, direct)?;
    pairs.print("through a scheduler", "at the node");
    Figure::record_times(figure, what, &pairs, "at the node itself")
}

/// A fleet that is nine tenths full: how many of the requests that schedulers send to nodes are granted.
fn many(options: &Options, runtime: &Runtime, of: &FleetOptions) -> anyhow::Result<()> {
    let mut random = fastrand::Rng::with_seed(2);
    let (granted, asked) = runtime.block_on(async {
        let fleet = Fleet::start(of, &mut random)?;
        fleet.fill(100, 9).await?;
        let schedulers = fleet.addresses().len();
        for scheduler in 0..schedulers {
            fleet.reported(scheduler).await?;
        }
        let before = fleet.asked();
        let mut clients = JoinSet::new();
        for number in 0..options.clients {
            let at = number as usize % schedulers;
            let client = fleet.operator(at).await?;
            let leases = options.leases;
            clients.spawn(async move {
                let mut held = Vec::new();
                for _ in 0..leases {
                    let granted = client.acquire_async(wanted()).await?;
                    held.push((granted.node, granted.info.lease_id));
                    if held.len() > HELD {
                        let (node, lease_id) = held.remove(0);
                        free(&node, lease_id).await?;
                    }
                }
                Ok::<_, anyhow::Error>(())
            });
        }
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        fleet.ensure_every_invariant_holds()?;
        let granted = u64::from(options.clients) * u64::from(options.leases);
        anyhow::Ok((granted, fleet.asked() - before))
    })?;
    println!(
        "\n{} nodes, nine tenths full, three schedulers, {} clients: {granted} grants of {asked} requests at nodes, {:.3}",
        options.nodes,
        options.clients,
        granted as f64 / asked as f64
    );
    let of = Of {
        name: "fleet/granted",
        what: "share of the requests that schedulers send to nodes, nine tenths full, that is granted",
        unit: "",
        better: Better::Higher,
    };
    record(of.alone(granted as f64 / asked as f64))
}

/// Daemons with a disk: leases through a scheduler, and what reports to three of them cost.
fn daemons(options: &Options, runtime: &Runtime, of: &FleetOptions) -> anyhow::Result<()> {
    let mut random = fastrand::Rng::with_seed(3);
    let fleet = runtime.block_on(async { Fleet::start(of, &mut random) })?;
    let identity = fleet.admin_identity();
    let start = |place: &std::path::Path, more: &str| {
        let fabric = identity.parent().context("no fabric")?.display();
        let words = format!("--fabric-dir={fabric} --mem-bytes=64MiB {more}");
        Daemon::start_as(place, &words, Some(&identity))
    };
    let [of_one, of_other] = [place_in(&options.dir)?, place_in(&options.dir)?];
    let schedulers = fleet.addresses();
    let words = schedulers.iter().map(|it| format!("--scheduler={it}"));
    let with = start(of_one.path(), &words.collect::<Vec<_>>().join(" "))?;
    let scheduler = runtime.block_on(async {
        let scheduler = fleet.operator(0).await?;
        while scheduler.nodes_async().await?.is_empty() {
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(scheduler)
    })?;
    println!(
        "\na lease through a scheduler, against one of the node that is asked itself: a daemon with a disk; all connections are there"
    );
    let figure = (
        "fleet/lease",
        "a lease through a scheduler, of a daemon with a disk",
    );
    through(options, runtime, &scheduler, figure)?;

    let without = start(of_other.path(), "")?;
    let round = |daemon: &Daemon| {
        let begin = Instant::now();
        at_once(runtime, MANY, |_| {
            let node = daemon.operator.clone();
            async move {
                let request = LeaseAllocRequest::new(ResourceType::Mem, 4096, TERM_SECS);
                let lease = node.alloc_async(request).await?;
                free(&node, lease.lease_id).await
            }
        })?;
        Ok(begin.elapsed())
    };
    println!(
        "\n{MANY} grants and frees of a daemon, {AT_ONCE} at once: it reports to nobody, against to three schedulers"
    );
    let pairs = interleaved_pairs(options.rounds.into(), || round(&without), || round(&with))?;
    pairs.print("to nobody", "to three");
    Figure::record_rates(
        "fleet/reports",
        "grants and frees of a daemon that reports to three schedulers",
        (&pairs.b, &pairs.a, "it reports to nobody"),
        MANY.into(),
        "a second",
    )
}
