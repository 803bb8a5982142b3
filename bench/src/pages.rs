//! Pages over HTTP as a browser or a collector asks for them, and a node that serves them while leases live.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use fabricbios_client::Node;
use fabricbios_wire::{LeaseAllocRequest, ResourceType};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{
    churn::at_once,
    daemon::Daemon,
    figure::{Better, Of, micros, record},
    place::{place_in, runtime},
    report::Spread,
};

const TERM_SECS: u32 = 3600;
const LEASE_BYTES: u64 = 4096;
/// Longer than figures are kept for others who ask.
const PAUSE: Duration = Duration::from_millis(600);

/// The pages of a node or a scheduler, for somebody who has logged in.
#[derive(Debug)]
pub(crate) struct Pages {
    at: String,
    cookie: String,
}

impl Pages {
    /// Opens the address that `fabricctl page` prints.
    pub(crate) fn log_in(url: &str) -> anyhow::Result<Self> {
        let rest = url.trim().strip_prefix("http://");
        let (at, path) = rest.and_then(|it| it.split_once('/')).context("no URL")?;
        let mut pages = Self {
            at: at.to_owned(),
            cookie: String::new(),
        };
        let told = pages.ask(&format!("/{path}"))?;
        let cookie = told.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            let cookie = value.split(';').next()?;
            (name.eq_ignore_ascii_case("set-cookie")).then(|| cookie.to_owned())
        });
        pages.cookie = cookie.with_context(|| format!("no cookie: {told}"))?;
        Ok(pages)
    }

    /// Header and body.
    fn ask(&self, path: &str) -> anyhow::Result<String> {
        let Self { at, cookie } = self;
        let mut stream = TcpStream::connect(at)?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nCookie: {cookie}\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    }

    /// Asks for a page, and returns it with its header.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<String> {
        let page = self.ask(path)?;
        ensure!(page.starts_with("HTTP/1.1 200 "), "{page}");
        Ok(page)
    }

    /// Asks for a page so many times, each time for new figures, and prints the time until it is there, and its size.
    /// `name` is that of the figure.
    pub(crate) fn measure(
        &self,
        name: &str,
        path: &str,
        of: &str,
        times: u32,
    ) -> anyhow::Result<()> {
        let (mut took, mut bytes) = (Vec::new(), 0);
        for _ in 0..times {
            sleep(PAUSE);
            let begun = Instant::now();
            bytes = self.get(path)?.len();
            took.push(begun.elapsed());
        }
        if let Some(spread) = Spread::of_times(&took) {
            println!("{path} at {of}: µs {spread}; {bytes} bytes");
        }
        let of = Of {
            name,
            what: &format!("{path} at {of}, {bytes} bytes"),
            unit: "µs",
            better: Better::Lower,
        };
        record(of.rounds(&micros(&took)))
    }
}

/// A node with live leases, and its pages.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) pages: Pages,
    pub(crate) tenant: Node,
    pub(crate) runtime: Runtime,
    _daemon: Daemon,
    _place: TempDir,
}

impl Watched {
    /// Starts a node with its state in `dir`, grants so many leases, and has room for so many `more`.
    pub(crate) fn start(dir: &Path, leases: u32, more: u32) -> anyhow::Result<Self> {
        let place = place_in(dir)?;
        let runtime = runtime()?;
        let count = u64::from(leases + more) + 1024;
        let arguments = format!(
            "--metrics-listen=127.0.0.1:0 --mem-bytes={} --leases-per-tenant-max={count} --requests-per-tenant-max=0",
            count * LEASE_BYTES
        );
        let daemon = Daemon::start(place.path(), &arguments)?;
        let tenant = daemon.tenant("bench")?;
        at_once(&runtime, leases, |_| {
            let node = tenant.clone();
            async move {
                node.alloc_async(wanted()).await?;
                Ok(())
            }
        })?;
        Ok(Self {
            pages: Pages::log_in(&daemon.page_url()?)?,
            tenant,
            runtime,
            _daemon: daemon,
            _place: place,
        })
    }
}

/// A lease that lives as long as the bench.
pub(crate) fn wanted() -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Mem, LEASE_BYTES, TERM_SECS)
}
