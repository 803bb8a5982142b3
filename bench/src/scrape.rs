//! What watching a node costs: a scrape of its metrics while many leases live, and its grants while a collector scrapes every
//! second, against the same node whose pages nobody reads.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use fabricbios_wire::Request;

use crate::{
    churn::at_once,
    figure::Figure,
    pages::{Pages, Watched, wanted},
    pairs::interleaved_pairs,
};

/// The interval of the collector beside the grants; usual are 15 s and more.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Leases that live
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    leases: u32,
    /// Scrapes
    #[arg(long, default_value_t = 30)]
    scrapes: u32,
    /// Pairs of rounds of grants
    #[arg(long, default_value_t = 15)]
    pairs: usize,
    /// Grants and frees of a round
    #[arg(long, default_value_t = 4_000)]
    grants: u32,
    /// Directory of the state
    #[arg(long, default_value = "target", value_name = "DIRECTORY")]
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let watched = Watched::start(&options.dir, options.leases, options.grants)?;
    let of = format!("{} leases", options.leases);
    let scrape = "scrape/metrics";
    watched
        .pages
        .measure(scrape, "/metrics", &of, options.scrapes)?;
    let pairs = interleaved_pairs(
        options.pairs,
        || grants(&watched, options.grants),
        || beside_a_collector(&watched.pages, || grants(&watched, options.grants)),
    )?;
    pairs.print(
        "grants and frees, nobody watches",
        "the same, a scrape a second",
    );
    Figure::record_rates(
        "scrape/grants",
        "grants and frees, 64 at once, beside a scrape a second",
        (&pairs.b, &pairs.a, "nobody scrapes"),
        options.grants.into(),
        "a second",
    )
}

fn grants(watched: &Watched, count: u32) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    at_once(&watched.runtime, count, |_| {
        let node = watched.tenant.clone();
        async move {
            let lease = node.alloc_async(wanted()).await?;
            node.call_async(Request::LeaseFree(lease.lease_id)).await?;
            Ok(())
        }
    })?;
    Ok(begun.elapsed())
}

/// Runs `work` while a thread scrapes.
fn beside_a_collector(
    pages: &Pages,
    work: impl FnOnce() -> anyhow::Result<Duration>,
) -> anyhow::Result<Duration> {
    let goes_on = AtomicBool::new(true);
    thread::scope(|scope| {
        let collector = scope.spawn(|| {
            while goes_on.load(Ordering::Relaxed) {
                pages.get("/metrics")?;
                thread::park_timeout(EVERY);
            }
            anyhow::Ok(())
        });
        let took = work();
        goes_on.store(false, Ordering::Relaxed);
        collector.thread().unpark();
        collector.join().ok().context("the collector panicked")??;
        took
    })
}
