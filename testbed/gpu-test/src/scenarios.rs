//! The scenarios, each with leases of its own.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use fabricbios_client::{
    GpuBuilder, GpuLease, GpuSession, Node,
    wire::{
        GPU_CUDA, GpuExclusivityClass, GpuInfo, InventoryForm, LeaseId, LeasePhase, Reply, Request,
        ResourceInventory, health::OK,
    },
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    Arguments, faults,
    kernels::{self, spin},
    launches,
    node::{Daemon, keep_nodes},
    programs,
    report::Report,
    shared, speed, tenants,
};

/// Long enough for the wipe of a device on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The daemon's latest warnings, which are printed where a scenario fails.
const WARNINGS: usize = 3;

type Scenario = fn(&Arguments, &mut Daemon, &mut Report) -> Result<()>;

/// For each share mode of the node its scenarios.
const SCENARIOS: [(&str, &[(&str, Scenario)]); 2] = [
    (
        "exclusive",
        &[
            ("discovery", discovery),
            ("vector_add", kernels::vector_add),
            ("matrix", kernels::matrix),
            ("two_tenants", tenants::two_tenants),
            ("reconnect", tenants::reconnect),
            ("expiry_in_a_launch", expiry_in_a_launch),
            ("worker_that_stops", worker_that_stops),
            ("fault", faults::alone),
            ("program", programs::program),
            ("container", programs::container),
            ("speed", speed::measure),
            ("launches", launches::ahead),
        ],
    ),
    (
        "fractional",
        &[
            ("shared", shared::two_at_once),
            ("shared_ends", shared::ends),
            ("shared_fault", faults::beside_another),
        ],
    ),
];

/// Runs the requested scenarios.
pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<()> {
    let has_own_nodes = keep_nodes()?;
    for (share_mode, scenarios) in SCENARIOS {
        let is_wanted = |name| arguments.only.is_empty() || arguments.only.contains(&name);
        let mut wanted = scenarios.iter().filter(|it| is_wanted(it.0.to_owned()));
        if let Some(first) = wanted.next() {
            run_in(
                share_mode,
                [first].into_iter().chain(wanted),
                arguments,
                report,
            )?;
        }
    }
    if has_own_nodes {
        report.limit(
            "the driver was loaded without NVreg_ModifyDeviceFiles=0: the node had device nodes of its own",
        );
    }
    Ok(())
}

/// Runs scenarios with a node of this share mode.
fn run_in<'a>(
    share_mode: &str,
    scenarios: impl Iterator<Item = &'a (&'a str, Scenario)>,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<()> {
    let mut daemon = Daemon::start(share_mode)?;
    for (name, scenario) in scenarios {
        eprintln!("== {name}");
        if let Err(error) = scenario(arguments, &mut daemon, report) {
            report.failed(name, &format!("{error:#}"));
            let log = daemon.log();
            let warnings = log.lines().rev().filter(|line| line.contains(" WARN "));
            for line in warnings.take(WARNINGS) {
                eprintln!("   the daemon: {line}");
            }
            end_leases(&daemon).unwrap_or_else(|error| eprintln!("   its leases: {error:#}"));
        }
    }
    for line in daemon
        .log()
        .lines()
        .filter(|line| line.contains("does not allow"))
    {
        report.limit(line);
    }
    daemon.signal(Signal::SIGTERM)?;
    let ended_well = daemon.wait()?;
    report.check("the daemon ends with nothing left", ended_well, share_mode);
    Ok(())
}

/// Ends what a scenario that broke off has left, so that the next one need not wait for the end of its terms.
fn end_leases(daemon: &Daemon) -> Result<()> {
    let node = daemon.operator()?;
    let (after, ended) = (LeaseId(0), false);
    if let Reply::Leases(page) = node.call(Request::LeaseList { after, ended })? {
        for lease in page.leases {
            node.call(Request::LeaseRevoke(lease.lease_id))?;
        }
    }
    Ok(())
}

/// Leases the first GPU that accepts PTX. After an earlier lease the GPU is wiped first, so this may take a while.
pub(crate) fn lease(node: &Node, secs: u32) -> Result<GpuLease> {
    let gpu = gpu(node)?;
    let class = GpuExclusivityClass::DeviceExclusive;
    granted(|| request(node, &gpu, class, 1 << 20, secs))
}

/// The first GPU that accepts PTX.
pub(crate) fn gpu(node: &Node) -> Result<GpuInfo> {
    let gpus = inventory(node)?.gpus;
    let mut of_nvidia = gpus.into_iter().filter(|gpu| gpu.flags & GPU_CUDA != 0);
    let gpu = of_nvidia.next();
    gpu.context("no GPU of NVIDIA, and the kernels of this test are PTX")
}

/// Requests a lease.
pub(crate) fn request(
    node: &Node,
    gpu: &GpuInfo,
    class: GpuExclusivityClass,
    bytes: u64,
    secs: u32,
) -> GpuBuilder {
    GpuBuilder::new()
        .on(node)
        .resource(gpu.resource_id)
        .min_vram(bytes)
        .exclusivity(class)
        .lease_secs(secs)
        .auto_renew(false)
}

/// The lease of a request, which is repeated until the node grants it.
pub(crate) fn granted(request: impl Fn() -> GpuBuilder) -> Result<GpuLease> {
    let until = Instant::now() + PATIENCE;
    loop {
        match request().acquire() {
            Ok(lease) => return Ok(lease),
            Err(error) if Instant::now() > until => return Err(error.into()),
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Records whether the device can go on: it is healthy and not fenced.
pub(crate) fn check_device(name: &str, daemon: &Daemon, report: &mut Report) -> Result<()> {
    let node = daemon.operator()?;
    let health = gpu(&node)?.health;
    let Reply::Fences(fences) = node.call(Request::FenceList)? else {
        bail!("the node answers a request for its fences with something else");
    };
    let log = daemon.log();
    let mut told = log.lines().filter(|it| it.contains("health of a GPU"));
    let detail = format!("health {health}, fences {fences:?}, {:?}", told.next_back());
    report.check(name, health == OK && fences.is_empty(), detail);
    Ok(())
}

pub(crate) fn inventory(node: &Node) -> Result<ResourceInventory> {
    match node.call(Request::GetInventory(InventoryForm::Structured))? {
        Reply::Inventory(inventory) => Ok(inventory),
        other => bail!("no inventory: {other:?}"),
    }
}

fn discovery(_: &Arguments, daemon: &mut Daemon, report: &mut Report) -> Result<()> {
    let node = daemon.operator()?;
    let inventory = inventory(&node)?;
    let has_memory = inventory
        .gpus
        .iter()
        .all(|gpu| gpu.vram_bytes > 0 && gpu.compute_units > 0);
    report.check(
        "GPUs are listed with memory and compute units",
        !inventory.gpus.is_empty() && has_memory,
        format!("{:?}", inventory.gpus),
    );
    let lease = lease(&node, 60)?;
    let session = GpuSession::new(&lease)?;
    report.on(&session.info().device);
    report.check("a session opens", session.id() != 0, &session.info().device);
    session.close()?;
    lease.free()?;
    Ok(())
}

fn expiry_in_a_launch(_: &Arguments, daemon: &mut Daemon, report: &mut Report) -> Result<()> {
    let tenant = daemon.tenant("blue")?;
    // Long enough for a worker to start, open the device and compile.
    let short = lease(&tenant, 10)?;
    let session = GpuSession::new(&short)?;
    let _spin = spin(&session, u64::MAX)?;
    let until = Instant::now() + short.remaining();
    let synced = session.sync();
    let late = Instant::now().saturating_duration_since(until);
    report.check(
        "expiry in the middle of a launch ends the session",
        synced.is_err(),
        format!("{synced:?}"),
    );
    report.figure(
        "session ends after the deadline",
        "ms",
        vec![late.as_secs_f64() * 1e3],
    );
    let id = short.lease_id();
    let phase = until_some(|| {
        let info = tenant.lease(Request::LeaseQuery(id)).ok()?;
        Some(info.phase).filter(|phase| *phase == LeasePhase::Expired)
    });
    report.check("the lease is expired, and not fenced", phase.is_some(), "");
    let next = lease(&tenant, 60);
    let why = format!("{:?}", next.as_ref().err());
    report.check("the device is leased again", next.is_ok(), why);
    next?.free()?;
    Ok(())
}

/// A stopped worker ends like any other.
fn worker_that_stops(_: &Arguments, daemon: &mut Daemon, report: &mut Report) -> Result<()> {
    let tenant = daemon.tenant("blue")?;
    let held = lease(&tenant, 60)?;
    // Another node may run on this machine.
    let others = workers();
    let session = GpuSession::new(&held)?;
    let mut workers_now = workers().into_iter();
    let worker = workers_now.find(|it| !others.contains(it));
    let worker = worker.context("no worker is to be seen")?;
    kill(worker, Signal::SIGSTOP)?;
    held.free()?;
    report.check(
        "a stopped worker is gone when the end of the lease is told",
        !workers().contains(&worker),
        worker,
    );
    drop(session);
    let next = lease(&tenant, 60);
    let why = format!("{:?}", next.as_ref().err());
    report.check("the device is leased again", next.is_ok(), why);
    next?.free()?;
    Ok(())
}

/// The worker processes on this machine.
fn workers() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_worker = |pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(b"gpu-worker")
    };
    pids.filter(is_worker).map(Pid::from_raw).collect()
}

/// The first value of `look` that is `Some`, within the patience for slow machines.
pub(crate) fn until_some<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        match look() {
            Some(found) => return Some(found),
            None if Instant::now() > until => return None,
            None => thread::sleep(Duration::from_millis(20)),
        }
    }
}
