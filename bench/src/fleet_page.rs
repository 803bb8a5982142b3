//! The page of a scheduler for people, and its metrics, while many nodes report and some are away: bytes, and the time until
//! they are there. Nodes and etcd are those of `cargo xtask fleet-sim`, and share the processors.

use std::time::Duration;

use clap::Args;
use fabricbios_fleet_sim::{Options as FleetOptions, fleet::Fleet};
use tokio::time::sleep;

use crate::{fleet::scheduler_program, pages::Pages, place::runtime};

const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Nodes
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: u32,
    /// Leases of each node
    #[arg(long, default_value_t = 1)]
    leases: u32,
    /// Nodes that are lost before the page is asked for
    #[arg(long, default_value_t = 100)]
    away: usize,
    /// Times that each page is asked for
    #[arg(long, default_value_t = 30)]
    times: u32,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let of = FleetOptions {
        nodes: options.nodes,
        schedulers: 1,
        figures: true,
        scheduler_program: scheduler_program()?,
        ..FleetOptions::default()
    };
    let mut random = fastrand::Rng::with_seed(4);
    let runtime = runtime()?;
    let fleet = runtime.block_on(async {
        let mut fleet = Fleet::start(&of, &mut random)?;
        while fleet.whole_nodes(0) != Some(fleet.nodes()) {
            sleep(LOOK).await;
        }
        fleet.fill(options.leases, 9).await?;
        fleet.lose(options.away).await;
        let left = fleet.nodes().saturating_sub(options.away);
        while fleet.whole_nodes(0) != Some(left) {
            sleep(LOOK).await;
        }
        anyhow::Ok(fleet)
    })?;
    let pages = Pages::log_in(&fleet.page_url(0)?)?;
    let of = format!("{} nodes, {} away", options.nodes, options.away);
    for (name, path) in [
        ("fleet-page/overview", "/"),
        ("fleet-page/metrics", "/metrics"),
    ] {
        pages.measure(name, path, &of, options.times)?;
    }
    runtime.block_on(async { drop(fleet) });
    Ok(())
}
