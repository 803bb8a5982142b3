//! Leases of CPU cores: the times of grants and cuts, and how long a busy machine keeps a program from its core, with a
//! core of its own against a share of the others. Needs root and control groups with cpusets:
//! `cargo xtask lab --topology 1x2x1 -- target/release/fabricbios-bench cpu` has them.
//!
//! A guest must not have more CPUs than its host: otherwise the host's scheduler keeps the guest's CPUs waiting, whatever
//! the guest does with them.

use std::{
    fs,
    hint::spin_loop,
    io::{BufRead, BufReader, Read, Write, stdin},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Args;
use fabricbios_client::Node;
use fabricbios_kernfs::Tree;
use fabricbios_wire::{
    CpuIsolationClass, CpuTerms, LeaseAllocRequest, LeaseInfo, LeaseTerms, Request, ResourceType,
};

use crate::{
    daemon::Daemon,
    pairs::interleaved_pairs,
    place::runtime,
    report::{percentile, sorted},
};

const CGROUPS: &str = "/sys/fs/cgroup";
const LEASE_SECS: u32 = 600;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Grants and cuts of leases with a busy process
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..))]
    cycles: u16,
    /// Pairs of rounds of the comparison
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Length of a round
    #[arg(long, default_value_t = 1000, value_name = "MILLISECONDS")]
    round_ms: u32,
    /// Busy threads beside the lease
    #[arg(long, default_value_t = 4)]
    neighbours: u16,
}

#[derive(Debug, Args)]
pub(crate) struct ProbeArguments {
    /// How long to run; stop at a kill if absent
    millis: Option<u64>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let controllers = Tree::new(CGROUPS).read("cgroup.controllers");
    let controllers = controllers.unwrap_or_default();
    if !controllers.split(' ').any(|name| name == "cpuset") {
        println!("not run: {CGROUPS} has no cpuset controller of cgroup v2");
        return Ok(());
    }
    let place = tempfile::tempdir()?;
    let runtime = runtime()?;
    let _inside = runtime.enter();
    let daemon = Daemon::start(place.path(), "--mem-bytes=1MiB --cpus=all")?;
    let tenant = daemon.tenant("bench")?;
    cycles(&tenant, options)?;
    jitter(&tenant, options)
}

/// Grants and cuts, one after the other. The cut ends a busy process.
fn cycles(tenant: &Node, options: &Options) -> anyhow::Result<()> {
    let (mut grants, mut cuts) = (Vec::new(), Vec::new());
    for _ in 0..options.cycles {
        let start = Instant::now();
        let lease = grant(tenant, CpuIsolationClass::WholeCore)?;
        grants.push(start.elapsed());
        let mut busy = Probe::start(&lease, None)?;
        let start = Instant::now();
        tenant.call_blocking(Request::LeaseFree(lease.lease_id))?;
        cuts.push(start.elapsed());
        busy.ensure_killed()?;
    }
    for (name, times) in [("grant", grants), ("cut of a busy process", cuts)] {
        let times = sorted(times.iter().map(|time| time.as_secs_f64() * 1e3));
        println!(
            "{name}: p50 {:.1} ms, p99 {:.1} ms ({} times)",
            percentile(&times, 50),
            percentile(&times, 99),
            times.len()
        );
    }
    Ok(())
}

/// The longest time without the CPU, in each class, beside busy neighbours.
fn jitter(tenant: &Node, options: &Options) -> anyhow::Result<()> {
    let stop = AtomicBool::new(false);
    let pairs = std::thread::scope(|scope| {
        for _ in 0..options.neighbours {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        let millis = options.round_ms.into();
        let round = |class| longest_pause(tenant, class, millis);
        let pairs = interleaved_pairs(
            options.rounds.into(),
            || round(CpuIsolationClass::WholeCore),
            || round(CpuIsolationClass::BestEffort),
        );
        stop.store(true, Ordering::Relaxed);
        pairs
    })?;
    println!(
        "longest pause of a busy thread in {} ms, beside {} busy neighbours",
        options.round_ms, options.neighbours
    );
    pairs.print("whole_core", "best_effort");
    Ok(())
}

fn longest_pause(tenant: &Node, class: CpuIsolationClass, millis: u64) -> anyhow::Result<Duration> {
    let lease = grant(tenant, class)?;
    let pause = Probe::start(&lease, Some(millis))?.longest_pause()?;
    tenant.call_blocking(Request::LeaseFree(lease.lease_id))?;
    Ok(pause)
}

fn grant(tenant: &Node, class: CpuIsolationClass) -> anyhow::Result<LeaseInfo> {
    let terms = CpuTerms {
        isolation: Some(class),
        ..CpuTerms::default()
    };
    let request = LeaseAllocRequest {
        terms: LeaseTerms::Cpu(terms),
        ..LeaseAllocRequest::new(ResourceType::Cpu, 1, LEASE_SECS)
    };
    Ok(tenant.alloc_blocking(request)?)
}

/// A busy process in a lease: this program again, as `cpu-probe`.
struct Probe(Child);

impl Probe {
    /// Returns when the process runs in the lease.
    fn start(lease: &LeaseInfo, millis: Option<u64>) -> anyhow::Result<Self> {
        let binding = lease.binding.cpu();
        let cgroup = &binding.context("the lease has no cgroup")?.cgroup;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("cpu-probe")
            .args(millis.map(|millis| millis.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut probe = Self(command.spawn()?);
        let procs = Path::new(cgroup).join("cgroup.procs");
        fs::write(&procs, probe.0.id().to_string())
            .with_context(|| format!("move a process to {}", procs.display()))?;
        let mut input = probe.0.stdin.take().context("a probe without input")?;
        input.write_all(b"\n")?;
        let mut ready = [0];
        let output = probe.0.stdout.as_mut();
        output
            .context("a probe without output")?
            .read_exact(&mut ready)?;
        Ok(probe)
    }

    fn longest_pause(&mut self) -> anyhow::Result<Duration> {
        let output = self.0.stdout.take().context("a probe without output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let nanos = line.trim().parse().context("a probe without a result")?;
        self.0.wait()?;
        Ok(Duration::from_nanos(nanos))
    }

    fn ensure_killed(&mut self) -> anyhow::Result<()> {
        let status = self.0.wait()?;
        ensure!(
            status.code().is_none(),
            "a busy process ended with {status}"
        );
        Ok(())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Once told to begin, reads the clock all the time and prints the longest time between two reads, in nanoseconds.
pub(crate) fn probe(arguments: &ProbeArguments) -> anyhow::Result<()> {
    stdin().read_exact(&mut [0])?;
    let mut output = std::io::stdout();
    output.write_all(b".")?;
    output.flush()?;
    let start = Instant::now();
    let end = arguments.millis.map(Duration::from_millis);
    let (mut last, mut longest) = (start, Duration::ZERO);
    while end.is_none_or(|end| last - start < end) {
        let now = Instant::now();
        longest = longest.max(now - last);
        last = now;
    }
    println!("{}", longest.as_nanos());
    Ok(())
}
