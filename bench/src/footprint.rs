//! What live leases take of a node: memory, threads and descriptors of the daemon's processes, the journal's file, and
//! processor time. Grants step by step, frees all and grants again; prints them after each step, and before the first lease for
//! comparison.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::mpsc::{Sender, channel},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::{Args, ValueEnum};
use fabricbios_client::Node;
use fabricbios_kernfs::Tree;
use fabricbios_wire::{LeaseAllocRequest, LeaseId, Request, ResourceType};
use tokio::runtime::Runtime;

use crate::{
    churn::at_once,
    daemon::Daemon,
    figure::{Better, Of, record},
    place::{place_in, runtime},
};

const TERM_SECS: u32 = 3600;
const LEASE_BYTES: u64 = 4096;
/// Of a lease of a macvlan interface.
const RATE_BPS: u64 = 1_000_000;
/// How long the daemon is watched while nobody asks it for anything.
const IDLE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What is leased
    #[arg(long, value_enum, default_value_t = Kind::Memory)]
    kind: Kind,
    /// Leases in the last step; the steps before have a hundredth and a tenth of them
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    leases: u32,
    /// How often all are then freed and as many granted again
    #[arg(long, default_value_t = 3)]
    rounds: u16,
    /// The interface to lease macvlan interfaces on; needs root
    #[arg(long, value_name = "IFNAME", required_if_eq("kind", "macvlan"))]
    macvlan_parent: Option<String>,
    /// Directory of the state
    #[arg(long, default_value = "target", value_name = "DIRECTORY")]
    dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Memory over UDP, 4 KiB each
    Memory,
    /// Blocks over UDP, a file of 4 KiB each in a directory
    Blocks,
    /// The same over NVMe/TCP, port 4420 of loopback; needs root and the kernel's target
    NvmeTcp,
    /// Macvlan interfaces that stay with the node, 1 Mbit/s each
    Macvlan,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let place = place_in(&options.dir)?;
    let runtime = runtime()?;
    let daemon = Daemon::start(place.path(), &arguments(options, place.path())?)?;
    let tenant = daemon.tenant("bench")?;
    println!("directory {}; {:?}", options.dir.display(), options.kind);
    let meter = Meter {
        daemon: &daemon,
        journal: place.path().join("state/journal.redb"),
        machine: available()?,
    };
    let empty = meter.print("no lease")?;
    let (leases, granted) = channel();
    let mut before = 0;
    for count in [options.leases / 100, options.leases / 10, options.leases] {
        let (cpu, more) = (daemon.running.cpu_time()?, count - before);
        before = count;
        grant(&runtime, &tenant, options.kind, more, &leases)?;
        let own = meter.print(&format!("{count} granted"))?;
        if count == options.leases {
            record_each(options, own.saturating_sub(empty))?;
        }
        each_took(daemon.running.cpu_time()? - cpu, more);
    }
    let cpu = daemon.running.cpu_time()?;
    sleep(IDLE);
    let idle = daemon.running.cpu_time()? - cpu;
    println!(
        "  idle: {:.1} ms of processor time a second",
        idle.as_secs_f64() * 1e3 / IDLE.as_secs_f64()
    );
    for round in 1..=options.rounds {
        let ids: Vec<LeaseId> = granted.try_iter().collect();
        free(&runtime, &tenant, &ids)?;
        meter.print("all freed")?;
        grant(&runtime, &tenant, options.kind, options.leases, &leases)?;
        meter.print(&format!("as many granted again, {round}"))?;
    }
    Ok(())
}

fn free(runtime: &Runtime, tenant: &Node, ids: &[LeaseId]) -> anyhow::Result<()> {
    at_once(runtime, u32::try_from(ids.len())?, |number| {
        let (node, lease_id) = (tenant.clone(), ids[number as usize]);
        async move {
            node.call_async(Request::LeaseFree(lease_id)).await?;
            Ok(())
        }
    })
}

fn arguments(options: &Options, place: &Path) -> anyhow::Result<String> {
    // Freed memory is available again only a moment later.
    let count = u64::from(options.leases) + 64;
    let kind = match options.kind {
        Kind::Memory => format!("--mem-bytes={}", count * LEASE_BYTES),
        Kind::Blocks | Kind::NvmeTcp => {
            let pool = place.join("pool");
            fs::create_dir(&pool)?;
            fs::set_permissions(&pool, Permissions::from_mode(0o700))?;
            let transport = match options.kind {
                Kind::Blocks => "--fbbu-listen=127.0.0.1:0",
                _ => "--nvmet=tcp:127.0.0.1:4420",
            };
            format!("{transport} --block-pool={}", pool.display())
        }
        Kind::Macvlan => {
            let parent = options.macvlan_parent.as_deref().context("no parent")?;
            format!("--macvlan-parent={parent}=10000 --net-vlan=bench=0")
        }
    };
    Ok(format!(
        "{kind} --leases-per-tenant-max={count} --requests-per-tenant-max=0"
    ))
}

fn grant(
    runtime: &Runtime,
    tenant: &Node,
    kind: Kind,
    count: u32,
    leases: &Sender<LeaseId>,
) -> anyhow::Result<()> {
    let (resource_type, capacity) = match kind {
        Kind::Memory => (ResourceType::Mem, LEASE_BYTES),
        Kind::Blocks | Kind::NvmeTcp => (ResourceType::Block, LEASE_BYTES),
        Kind::Macvlan => (ResourceType::Net, RATE_BPS),
    };
    at_once(runtime, count, |_| {
        let (node, leases) = (tenant.clone(), leases.clone());
        let request = LeaseAllocRequest::new(resource_type, capacity, TERM_SECS);
        async move {
            let lease = node.alloc_async(request).await?;
            leases.send(lease.lease_id)?;
            Ok(())
        }
    })
}

/// Records what one lease takes of so many KiB of the daemon's processes.
fn record_each(options: &Options, kib: u64) -> anyhow::Result<()> {
    let Options { kind, leases, .. } = options;
    let of = Of {
        name: &format!("footprint/{kind:?}").to_lowercase(),
        what: &format!(
            "own memory of the daemon's processes for a live lease, {kind:?}, {leases} of them"
        ),
        unit: "KiB",
        better: Better::Lower,
    };
    record(of.alone(kib as f64 / f64::from(*leases)))
}

fn each_took(cpu: Duration, count: u32) {
    let micros = cpu.as_secs_f64() * 1e6 / f64::from(count.max(1));
    println!("  processor time of the daemon: {micros:.0} µs each");
}

struct Meter<'a> {
    daemon: &'a Daemon,
    journal: PathBuf,
    /// Memory that the machine had to spare at the start, bytes.
    machine: u64,
}

impl Meter<'_> {
    /// Prints what each process of the daemon has, without leased memory, and what the machine has less than at the start.
    /// Returns the KiB that the processes have of their own.
    fn print(&self, when: &str) -> anyhow::Result<u64> {
        settle(self.daemon)?;
        println!("{when}");
        let mut own = 0;
        for pid in self.daemon.running.processes()? {
            // A helper process may have ended meanwhile.
            let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
                continue;
            };
            let field = |name| field(&status, name).unwrap_or_default();
            let number = |name| field(name).parse::<u64>().unwrap_or_default();
            own += number("RssAnon");
            println!(
                "  {}: {} KiB, {} of them its own, {} threads, {} descriptors",
                field("Name"),
                number("RssAnon") + number("RssFile"),
                number("RssAnon"),
                number("Threads"),
                fs::read_dir(format!("/proc/{pid}/fd"))
                    .into_iter()
                    .flatten()
                    .count(),
            );
        }
        println!(
            "  journal: {} KiB",
            fs::metadata(&self.journal)?.len() / 1024
        );
        let less = self.machine.saturating_sub(available()?);
        println!(
            "  machine: {} KiB less to spare than at the start",
            less / 1024
        );
        Ok(own)
    }
}

/// Waits until the daemon has written and cleaned what is behind its answers: it takes no processor time any more.
pub(crate) fn settle(daemon: &Daemon) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let cpu = daemon.running.cpu_time()?;
        sleep(Duration::from_millis(500));
        if daemon.running.cpu_time()? - cpu < Duration::from_millis(25) || Instant::now() > end {
            return Ok(());
        }
    }
}

/// A field of a file of /proc, without its unit.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()
}

/// MemAvailable, bytes.
fn available() -> anyhow::Result<u64> {
    let text = Tree::new("/proc").read("meminfo")?;
    let found = field(&text, "MemAvailable").context("no MemAvailable")?;
    Ok(found.parse::<u64>()? * 1024)
}
