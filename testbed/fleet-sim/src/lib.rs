//! Many nodes in one process, with real schedulers and a real etcd, under faults that a seed chooses. The nodes have the
//! daemon's own table, driver, control plane and reports; only their machines are simulated.
//!
//! `bench` measures over the same fleet.
//!
//! Read first: `invariants.rs`, what must hold; then `faults.rs`, what happens; then `node.rs`, what a node is.
#![forbid(unsafe_code)]

mod clients;
mod etcd;
mod faults;
mod figures;
pub mod fleet;
mod invariants;
mod machine;
mod node;
mod scheduler;
mod switch;
mod views;

use std::{
    panic,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{clients::Clients, faults::Faults, fleet::Fleet, invariants::Invariant};

/// How long views may take to agree when all is healed, before the run has failed. Nothing is refused for good in the first 30 s of a
/// scheduler with an etcd.
const PATIENCE: Duration = Duration::from_secs(120);

/// Run many nodes with schedulers and etcd, under faults
#[derive(Clone, Debug, Parser)]
#[command(name = "fleet-sim")]
pub struct Options {
    /// Nodes
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub nodes: u32,
    /// Leases that are there from the beginning, over all nodes
    #[arg(long, default_value_t = 2_000)]
    pub leases: u32,
    /// Schedulers
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub schedulers: u32,
    /// Servers of etcd
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=5))]
    pub etcd_servers: u32,
    /// Clients, which ask, renew and free meanwhile
    #[arg(long, default_value_t = 16)]
    pub clients: u32,
    /// For how long faults come, seconds
    #[arg(long, default_value_t = 30)]
    pub secs: u64,
    /// For how long etcd is dead when the faults begin, seconds
    #[arg(long, default_value_t = 0)]
    pub etcd_away_secs: u64,
    /// Before the faults: requests at etcd while nothing happens, and what a restart of a scheduler costs
    #[arg(long)]
    pub figures: bool,
    /// Chooses sizes, faults and requests [default: random]
    #[arg(long)]
    pub seed: Option<u64>,
    /// The program fabricbios-scheduler
    #[arg(long, value_name = "FILE")]
    pub scheduler_program: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self::parse_from(["fleet-sim", "--scheduler-program=fabricbios-scheduler"])
    }
}

/// Runs the fleet, prints what happens, and returns whether every invariant holds. Must be called within a tokio runtime.
///
/// # Errors
/// The fleet cannot be set up.
pub async fn run(options: &Options) -> anyhow::Result<bool> {
    anyhow::ensure!(
        !options.figures || options.etcd_servers == 1,
        "--figures counts the requests of one server of etcd: leave out --etcd-servers"
    );
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    println!(
        "{} nodes, {} leases, {} schedulers, {} clients, seed {seed}",
        options.nodes, options.leases, options.schedulers, options.clients
    );
    let mut random = fastrand::Rng::with_seed(seed);
    let begin = Instant::now();
    let mut fleet = Fleet::start(options, &mut random)?;
    println!("{:>6.1} s all nodes run", begin.elapsed().as_secs_f64());
    report_panics(&fleet);
    let each = options.leases.div_ceil(options.nodes);
    fleet.fill(each, 6).await?;
    println!(
        "{:>6.1} s all leases are there",
        begin.elapsed().as_secs_f64()
    );
    let whole = Instant::now();
    all_agree(&fleet).await;
    println!(
        "{:>6.1} s all schedulers know them, {:.1} s after the last grant",
        begin.elapsed().as_secs_f64(),
        whole.elapsed().as_secs_f64()
    );
    if options.figures {
        figures::print(&mut fleet).await?;
    }
    let clients = Clients::start(&fleet, options.clients, seed)?;
    let mut faults = Faults::new(seed);
    if options.etcd_away_secs > 0 {
        faults.etcd_is_away(&mut fleet, Duration::from_secs(options.etcd_away_secs));
    }
    faults
        .run(
            &mut fleet,
            Duration::from_secs(options.secs.max(options.etcd_away_secs)),
        )
        .await?;
    let healed = Instant::now();
    let counts = clients.stop().await;
    println!("{counts:?}");
    if options.clients > 0 && options.secs > 0 && !counts.are_of_every_sort() {
        let what = "a sort of request was never answered as it should";
        fleet.invariants.breaks(Invariant::ClientsAreServed, what);
    }
    all_agree(&fleet).await;
    println!(
        "views agree {:.1} s after the last fault was over",
        healed.elapsed().as_secs_f64()
    );
    all_know_all_members(&fleet).await;
    println!(
        "what no node has is refused for good {:.1} s after the last fault was over",
        healed.elapsed().as_secs_f64()
    );
    for (number, scheduler) in fleet.schedulers.iter().enumerate() {
        let mib = scheduler.most_memory_kib().unwrap_or(0) / 1024;
        println!("scheduler {number}: at most {mib} MiB since its last start");
    }
    fleet.look_for_crashes();
    fleet.all.iter().for_each(|it| it.disk.look_for_late());
    let broken = fleet.invariants.broken();
    if broken.is_empty() {
        println!("every invariant holds");
    } else {
        println!(
            "{} times an invariant was broken, first: {}",
            broken.len(),
            broken[0]
        );
        fleet.print_logs();
        println!("again: cargo xtask fleet-sim --seed {seed} with the same numbers");
    }
    Ok(broken.is_empty())
}

/// A task that nobody awaits may panic too.
fn report_panics(fleet: &Fleet) {
    let invariants = Arc::clone(&fleet.invariants);
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |what| {
        invariants.breaks(Invariant::NobodyCrashes, what.to_string());
        print(what);
    }));
}

async fn all_agree(fleet: &Fleet) {
    for scheduler in 0..fleet.schedulers.len() {
        if let Err(why) = views::agree(fleet, scheduler, PATIENCE).await {
            let what = format!("scheduler {scheduler}: {why}");
            fleet.invariants.breaks(Invariant::ViewsAgree, what);
        }
    }
}

async fn all_know_all_members(fleet: &Fleet) {
    for scheduler in 0..fleet.schedulers.len() {
        let known = views::knows_all_members(fleet, scheduler, PATIENCE).await;
        if let Err(why) = known {
            let what = format!("scheduler {scheduler}: {why}");
            fleet.invariants.breaks(Invariant::ViewsAgree, what);
        }
    }
}
