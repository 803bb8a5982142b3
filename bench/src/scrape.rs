//! What watching a node costs: a scrape of its metrics while many leases live, and its grants while a collector scrapes every
//! second, against the same node whose pages nobody reads.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Args;
use fabricbios_client::Node;
use fabricbios_wire::{LeaseAllocRequest, Request, ResourceType};
use tokio::runtime::Runtime;

use crate::{
    churn::at_once,
    daemon::Daemon,
    pairs::interleaved_pairs,
    place::{place_in, runtime},
    report::Spread,
};

const TERM_SECS: u32 = 3600;
const LEASE_BYTES: u64 = 4096;
/// Longer than a page is kept for others who ask.
const PAUSE: Duration = Duration::from_millis(600);
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
    let place = place_in(&options.dir)?;
    let runtime = runtime()?;
    let count = u64::from(options.leases + options.grants) + 1024;
    let arguments = format!(
        "--metrics-listen=127.0.0.1:0 --mem-bytes={} --leases-per-tenant-max={count} --requests-per-tenant-max=0",
        count * LEASE_BYTES
    );
    let daemon = Daemon::start(place.path(), &arguments)?;
    let at = daemon.metrics().context("no pages are served")?.to_owned();
    let tenant = daemon.tenant("bench")?;
    at_once(&runtime, options.leases, |_| {
        let node = tenant.clone();
        async move {
            node.alloc_async(request()).await?;
            Ok(())
        }
    })?;
    let (mut times, mut bytes) = (Vec::new(), 0);
    for _ in 0..options.scrapes {
        sleep(PAUSE);
        let begun = Instant::now();
        bytes = scrape(&at)?;
        times.push(begun.elapsed());
    }
    if let Some(spread) = Spread::of_times(&times) {
        println!(
            "scrape at {} leases: µs {spread}; {bytes} bytes",
            options.leases
        );
    }
    let pairs = interleaved_pairs(
        options.pairs,
        || grants(&runtime, &tenant, options.grants),
        || beside_a_collector(&at, || grants(&runtime, &tenant, options.grants)),
    )?;
    pairs.print(
        "grants and frees, nobody watches",
        "the same, a scrape a second",
    );
    Ok(())
}

fn request() -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Mem, LEASE_BYTES, TERM_SECS)
}

fn grants(runtime: &Runtime, tenant: &Node, count: u32) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    at_once(runtime, count, |_| {
        let node = tenant.clone();
        async move {
            let lease = node.alloc_async(request()).await?;
            node.call_async(Request::LeaseFree(lease.lease_id)).await?;
            Ok(())
        }
    })?;
    Ok(begun.elapsed())
}

/// Runs `work` while a thread scrapes.
fn beside_a_collector(
    at: &str,
    work: impl FnOnce() -> anyhow::Result<Duration>,
) -> anyhow::Result<Duration> {
    let goes_on = Arc::new(AtomicBool::new(true));
    let (is_wanted, at) = (Arc::clone(&goes_on), at.to_owned());
    let collector = thread::spawn(move || {
        while is_wanted.load(Ordering::Relaxed) {
            scrape(&at)?;
            thread::park_timeout(EVERY);
        }
        anyhow::Ok(())
    });
    let took = work();
    goes_on.store(false, Ordering::Relaxed);
    collector.thread().unpark();
    collector.join().ok().context("the collector panicked")??;
    took
}

/// The bytes of the page.
fn scrape(at: &str) -> anyhow::Result<usize> {
    let mut stream = TcpStream::connect(at)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    ensure!(page.starts_with("HTTP/1.1 200 "), "{page}");
    Ok(page.len())
}
