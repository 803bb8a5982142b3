//! The page of a node for people, while many leases live, as somebody who has logged in gets it: its bytes, and the time until
//! it is there.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Args;
use fabricbios_wire::{LeaseAllocRequest, ResourceType};

use crate::{
    churn::at_once,
    daemon::Daemon,
    place::{place_in, runtime},
    report::Spread,
};

const TERM_SECS: u32 = 3600;
const LEASE_BYTES: u64 = 4096;
/// Longer than figures are kept for others who ask.
const PAUSE: Duration = Duration::from_millis(600);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Leases that live
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    leases: u32,
    /// Times that each page is asked for
    #[arg(long, default_value_t = 30)]
    times: u32,
    /// Directory of the state
    #[arg(long, default_value = "target", value_name = "DIRECTORY")]
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let place = place_in(&options.dir)?;
    let runtime = runtime()?;
    let count = u64::from(options.leases) + 1024;
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
            let wanted = LeaseAllocRequest::new(ResourceType::Mem, LEASE_BYTES, TERM_SECS);
            node.alloc_async(wanted).await?;
            Ok(())
        }
    })?;
    let cookie = log_in(&at, &daemon.page_url()?)?;
    for path in ["/", "/leases"] {
        let (mut times, mut bytes) = (Vec::new(), 0);
        for _ in 0..options.times {
            sleep(PAUSE);
            let begun = Instant::now();
            let page = get(&at, path, &cookie)?;
            times.push(begun.elapsed());
            ensure!(page.starts_with("HTTP/1.1 200 "), "{page}");
            bytes = page.len();
        }
        if let Some(spread) = Spread::of_times(&times) {
            println!(
                "{path} at {} leases: µs {spread}; {bytes} bytes",
                options.leases
            );
        }
    }
    Ok(())
}

/// The cookie of somebody who opens the address of `fabricctl page`.
fn log_in(at: &str, url: &str) -> anyhow::Result<String> {
    let path = url.trim().split_once(at).context("another address")?.1;
    let told = get(at, path, "")?;
    let cookie = told.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        let cookie = value.split(';').next()?;
        (name.eq_ignore_ascii_case("set-cookie")).then(|| cookie.to_owned())
    });
    cookie.with_context(|| format!("no cookie: {told}"))
}

fn get(at: &str, path: &str, cookie: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(at)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nCookie: {cookie}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}
