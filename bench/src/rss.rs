//! Memory of the daemon after many grants and frees of one tenant, when nothing is leased any more.

use std::{fs, path::PathBuf};

use anyhow::Context;
use clap::Args;

use crate::{
    churn::grant_and_free,
    daemon::Daemon,
    figure::{Better, Of, record},
    footprint::{field, settle},
    place::{place_in, runtime},
};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Grants and frees, 64 in flight
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    leases: u32,
    /// Directory of the state
    #[arg(long, default_value = "target", value_name = "DIRECTORY")]
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let place = place_in(&options.dir)?;
    let runtime = runtime()?;
    let daemon = Daemon::start(
        place.path(),
        "--mem-bytes=64MiB --requests-per-tenant-max=0",
    )?;
    let tenant = daemon.tenant("bench")?;
    let before = resident_mb(&daemon)?;
    grant_and_free(&runtime, &[tenant], 64, options.leases)?;
    settle(&daemon)?;
    let after = resident_mb(&daemon)?;
    let leases = options.leases;
    println!("RSS of the daemon: {before:.1} MB, after {leases} grants and frees {after:.1} MB");
    let of = Of {
        name: "rss/grants-and-frees",
        what: &format!("RSS of the daemon after {leases} grants and frees of one tenant"),
        unit: "MB",
        better: Better::Lower,
    };
    record(of.alone(after))
}

/// Of the daemon's own process, without the helpers and the journal.
fn resident_mb(daemon: &Daemon) -> anyhow::Result<f64> {
    let all = daemon.running.processes()?;
    let pid = all.first().context("no daemon")?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib: u64 = field(&status, "VmRSS").context("no VmRSS")?.parse()?;
    Ok((kib * 1024) as f64 / 1e6)
}
