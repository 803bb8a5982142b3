//! Grant and free, some at once: of one tenant, of eight, and for comparison etcd's grant, put and revoke, if etcd is
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
    daemon::{CpuTime, Daemon, Running},
    etcd::Etcd,
    figure::{self, Better, Figure, rates, record, skipped},
    pairs::interleaved_pairs,
    place::{place_in, runtime},
    report::Spread,
};

/// The most requests in flight of other benches.
pub(crate) const AT_ONCE: u32 = 64;
const TENANTS: u32 = 8;
const LEASE_BYTES: u64 = 4096;
const TERM_SECS: u32 = 60;

/// Leases in flight at which figures of processor time and of eight tenants are measured.
const MORE_AT: u32 = AT_ONCE;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Pairs of rounds of each comparison
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Leases in flight; at 64 also eight tenants, and the processor time
    #[arg(long, value_delimiter = ',', default_value = "1,32,64,128", value_parser = clap::value_parser!(u32).range(1..=1000))]
    in_flight: Vec<u32>,
    /// Leases granted and freed in a round, for each in flight
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    leases: u32,
    /// Directory of the state; a file system in memory makes the result worthless
    #[arg(long, default_value = "target", value_name = "DIRECTORY")]
    dir: PathBuf,
}

/// One side of a comparison: the server, the requests of a round, and the server's processor time in each.
struct Side<'a> {
    name: &'a str,
    server: &'a Running,
    round: &'a dyn Fn() -> anyhow::Result<()>,
    cpu: Vec<CpuTime>,
}

impl<'a> Side<'a> {
    fn new(name: &'a str, server: &'a Running, round: &'a dyn Fn() -> anyhow::Result<()>) -> Self {
        Self {
            name,
            server,
            round,
            cpu: Vec::new(),
        }
    }

    fn run(&mut self) -> anyhow::Result<Duration> {
        let (start, before) = (Instant::now(), self.server.cpu_times()?);
        (self.round)()?;
        let took = start.elapsed();
        self.cpu.push(self.server.cpu_times()?.since(before));
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
    println!("directory {}", options.dir.display());
    let etcd = match Etcd::version() {
        Some(version) => {
            println!("{version}: LeaseGrant, Put and LeaseRevoke, gRPC on one connection");
            let etcd = runtime.block_on(Etcd::start(place.path()))?;
            Some((Arc::new(etcd), version))
        }
        None => {
            skipped("churn", Etcd::ABSENT)?;
            None
        }
    };
    for in_flight in options.in_flight.iter().copied() {
        let leases = options.leases * in_flight;
        let of = Of {
            in_flight,
            leases,
            rounds: options.rounds.into(),
        };
        let of_one = || grant_and_free(&runtime, &tenants[..1], in_flight, leases);
        let of_eight = || grant_and_free(&runtime, &tenants, in_flight, leases);
        let mut one = Side::new("one tenant", &daemon.running, &of_one);
        let mut eight = Side::new("eight tenants", &daemon.running, &of_eight);
        if in_flight == MORE_AT {
            of.compare("-eight-against-one", &mut eight, &mut one, "one tenant")?;
            of.record_cpu(&one)?;
        }
        let Some((etcd, version)) = &etcd else {
            continue;
        };
        let revoked = || {
            at_once_of(&runtime, in_flight, leases, |number| {
                let etcd = Arc::clone(etcd);
                async move { etcd.lease(i64::from(number) + 1).await }
            })
        };
        let mut peer = Side::new("etcd", &etcd.running, &revoked);
        of.compare("", &mut one, &mut peer, version)?;
        if in_flight == MORE_AT {
            of.compare("-eight", &mut eight, &mut peer, version)?;
        }
    }
    Ok(())
}

/// The size of a comparison.
struct Of {
    in_flight: u32,
    leases: u32,
    rounds: usize,
}

impl Of {
    /// Runs the pairs of rounds, prints the results of each side and records the ratio of their rates.
    fn compare(
        &self,
        figure: &str,
        a: &mut Side<'_>,
        b: &mut Side<'_>,
        peer: &str,
    ) -> anyhow::Result<()> {
        (a.cpu, b.cpu) = (Vec::new(), Vec::new());
        let pairs = interleaved_pairs(self.rounds, || a.run(), || b.run())?;
        let leases = f64::from(self.leases);
        println!("\n{} in flight", self.in_flight);
        for (side, times) in [(&*a, &pairs.a), (&*b, &pairs.b)] {
            if let Some(spread) = Spread::of(rates(times, leases)) {
                println!("{}: leases a second {spread}", side.name);
            }
            let cpu: Duration = side.cpu.iter().map(|it| it.all).sum();
            let each = cpu.as_secs_f64() * 1e6 / leases / self.rounds as f64;
            println!("  processor time of the server: {each:.0} µs a lease");
        }
        if let Some(ratio) = pairs.ratio() {
            println!("time of the first in times that of the second: {ratio}");
        }
        Figure::record_rates(
            &format!("churn/{}{figure}", self.in_flight),
            &format!(
                "durable grant and free of memory over UDP, {}, {} in flight",
                a.name, self.in_flight
            ),
            (&pairs.a, &pairs.b, peer),
            leases,
            "a second",
        )
    }

    /// Records what a grant and free takes of processors: of daemon and journal, and of that what no thread of the
    /// daemon's runtime for connections takes.
    fn record_cpu(&self, side: &Side<'_>) -> anyhow::Result<()> {
        for (name, where_) in [("cpu", ""), ("cpu-outside", ", outside the QUIC runtime")] {
            let each = |it: &CpuTime| {
                let time = if where_.is_empty() {
                    it.all
                } else {
                    it.outside
                };
                time.as_secs_f64() * 1e6 / f64::from(self.leases)
            };
            let rounds: Vec<f64> = side.cpu.iter().map(each).collect();
            let in_flight = self.in_flight;
            let of = figure::Of {
                name: &format!("churn/{in_flight}-{name}"),
                what: &format!(
                    "processor time of daemon and journal for a grant and free{where_}, {in_flight} in flight"
                ),
                unit: "µs",
                better: Better::Lower,
            };
            record(of.rounds(&rounds))?;
        }
        Ok(())
    }
}

/// Grants and frees so many leases of 4 KiB of memory, of these tenants in turn.
pub(crate) fn grant_and_free(
    runtime: &Runtime,
    tenants: &[Node],
    in_flight: u32,
    leases: u32,
) -> anyhow::Result<()> {
    at_once_of(runtime, in_flight, leases, |number| {
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
    at_once_of(runtime, AT_ONCE, count, work)
}

/// Does `work` for each number below `count`, `in_flight` at the same time.
fn at_once_of<W: Future<Output = anyhow::Result<()>> + Send + 'static>(
    runtime: &Runtime,
    in_flight: u32,
    count: u32,
    work: impl Fn(u32) -> W,
) -> anyhow::Result<()> {
    runtime.block_on(async {
        let mut running = JoinSet::new();
        for number in 0..count {
            if number >= in_flight
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
