//! Grant and free, 64 at once: of one tenant, of eight, and for comparison etcd's grant, put and revoke, if etcd is
//! installed. Each server is a separate process, which commits to the same disk before it answers.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use fabricbios_client::Node;
use fabricbios_wire::{LeaseAllocRequest, Request, ResourceType};
use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    daemon::{Daemon, Running},
    etcd::Etcd,
    pairs::interleaved_pairs,
    place::{place_in, runtime},
    report::Spread,
};

/// The most requests in flight.
pub(crate) const AT_ONCE: u32 = 64;
const TENANTS: u32 = 8;
const LEASE_BYTES: u64 = 4096;
const TERM_SECS: u32 = 60;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Pairs of rounds of each comparison
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Leases granted and freed in a round
    #[arg(long, default_value_t = 6400, value_parser = clap::value_parser!(u32).range(64..))]
    leases: u32,
    /// Directory of the state; a file system in memory makes the result worthless
    #[arg(long, default_value = "target", value_name = "DIRECTORY")]
    dir: PathBuf,
}

/// One side of a comparison: the server, the requests, and the server's processor time.
struct Side<'a> {
    name: &'a str,
    server: &'a Running,
    round: &'a dyn Fn() -> anyhow::Result<()>,
    cpu: Duration,
}

impl<'a> Side<'a> {
    fn new(name: &'a str, server: &'a Running, round: &'a dyn Fn() -> anyhow::Result<()>) -> Self {
        let cpu = Duration::ZERO;
        Self {
            name,
            server,
            round,
            cpu,
        }
    }

    fn run(&mut self) -> anyhow::Result<Duration> {
        let (start, cpu) = (Instant::now(), self.server.cpu_time()?);
        (self.round)()?;
        let took = start.elapsed();
        self.cpu += self.server.cpu_time()?.saturating_sub(cpu);
        Ok(took)
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let place = place_in(&options.dir)?;
    let runtime = runtime()?;
    let daemon = Daemon::start(
        place.path(),
        "--mem-bytes=64MiB --requests-per-tenant-max=0",
    )?;
    let names = (0..TENANTS).map(|number| format!("tenant-{number}"));
    let tenants = names.map(|name| daemon.tenant(&name));
    let tenants: Vec<Node> = tenants.collect::<anyhow::Result<_>>()?;
    let of_one = || grant_and_free(&runtime, &tenants[..1], options.leases);
    let of_eight = || grant_and_free(&runtime, &tenants, options.leases);
    println!("directory {}; {AT_ONCE} at once", options.dir.display());
    let one = || Side::new("one tenant", &daemon.running, &of_one);
    let eight = || Side::new("eight tenants", &daemon.running, &of_eight);
    compare(options, eight(), one())?;
    let Some(version) = Etcd::version() else {
        println!(
            "\nnot run: etcd, because no program `etcd` is in the path; on Debian: apt install etcd-server (its service \
             may be off: this bench starts an etcd of its own)"
        );
        return Ok(());
    };
    let etcd = runtime.block_on(Etcd::start(place.path()))?;
    let etcd = Arc::new(etcd);
    let revoked = || {
        at_once(&runtime, options.leases, |number| {
            let etcd = Arc::clone(&etcd);
            async move { etcd.lease(i64::from(number) + 1).await }
        })
    };
    println!("\n{version}: LeaseGrant, Put and LeaseRevoke, gRPC on one connection");
    let peer = || Side::new("etcd", &etcd.running, &revoked);
    compare(options, one(), peer())?;
    compare(options, eight(), peer())
}

/// Runs the pairs of rounds and prints the results of each side.
fn compare(options: &Options, mut a: Side<'_>, mut b: Side<'_>) -> anyhow::Result<()> {
    let pairs = interleaved_pairs(options.rounds.into(), || a.run(), || b.run())?;
    println!();
    for (side, times) in [(&a, &pairs.a), (&b, &pairs.b)] {
        let leases = f64::from(options.leases);
        let rates = times.iter().map(|time| leases / time.as_secs_f64());
        if let Some(spread) = Spread::of(rates) {
            println!("{}: leases a second {spread}", side.name);
        }
        let all = leases * f64::from(options.rounds);
        let cpu = side.cpu.as_secs_f64() * 1e6 / all;
        println!("  processor time of the server: {cpu:.0} µs a lease");
    }
    if let Some(ratio) = pairs.ratio() {
        println!("time of the first in times that of the second: {ratio}");
    }
    Ok(())
}

fn grant_and_free(runtime: &Runtime, tenants: &[Node], leases: u32) -> anyhow::Result<()> {
    at_once(runtime, leases, |number| {
        let node = tenants[number as usize % tenants.len()].clone();
        async move {
            let request = LeaseAllocRequest::new(ResourceType::Mem, LEASE_BYTES, TERM_SECS);
            let lease = node.alloc_async(request).await?;
            node.call_async(Request::LeaseFree(lease.lease_id)).await?;
            Ok(())
        }
    })
}

/// Does `work` for each number below `count`, [`AT_ONCE`] at the same time.
pub(crate) fn at_once<W: Future<Output = anyhow::Result<()>> + Send + 'static>(
    runtime: &Runtime,
    count: u32,
    work: impl Fn(u32) -> W,
) -> anyhow::Result<()> {
    runtime.block_on(async {
        let mut running = JoinSet::new();
        for number in 0..count {
            if number >= AT_ONCE
                && let Some(done) = running.join_next().await
            {
                done??;
            }
            running.spawn(work(number));
        }
        while let Some(done) = running.join_next().await {
            done??;
        }
        Ok(())
    })
}
