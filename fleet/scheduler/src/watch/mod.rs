//! The scheduler watched from outside over HTTP (`--http-listen`): metrics for a collector, health for a load balancer, and a
//! page for people.

mod metrics;
mod page;

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, OnceLock},
    time::{Duration, UNIX_EPOCH},
};

use fabricbios_control::{Membership, Origin};
use fabricbios_fabric::PortTls;
use fabricbios_http::{
    Answer, Incoming, Latest, OpenedPort, Opening, Request, Site, StatusCode, Trouble, json,
    metrics::{Format, encode},
    process::{self, Process},
    text,
};
use serde::Serialize;

use crate::{
    figures::{Asks, Figures},
    health::Health,
    queue::Depths,
    store::{Calls, OfCall},
};
use metrics::METRICS;
use page::{Shell, WORDS};

/// How long the task that owns the view may take.
const OWNER_TIMEOUT: Duration = Duration::from_secs(2);

/// What the pages are made of.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) asks: Asks,
    pub(crate) membership: Membership,
    pub(crate) depths: Depths,
    pub(crate) calls: Calls,
    /// Of the server for nodes and clients, which starts later.
    pub(crate) origin: Arc<OnceLock<Origin>>,
}

/// Serves the pages as soon as the address is free. `tls`: with it over HTTPS only. `run_dir`: where the address to log in at
/// is written; `None`: nowhere. Must be called within a tokio runtime.
///
/// # Errors
/// The directory is not there, or the system has no randomness.
pub(crate) fn start(
    listen: SocketAddr,
    tls: Option<PortTls>,
    watched: Watched,
    run_dir: Option<&Path>,
) -> io::Result<OpenedPort> {
    if let Some(missing) = run_dir.filter(|it| !it.is_dir()) {
        let missing = missing.display();
        let why = format!("page.url cannot be written: --run-dir {missing} is no directory");
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    let id = watched.membership.now().node_id().to_string();
    let page = Arc::new(Shell::new(&WORDS, &id, tls.is_some())?);
    let monitor = Monitor {
        watched,
        moment: Latest::default(),
        page: Arc::clone(&page),
    };
    let (config, run_dir) = (tls.map(|it| it.config), run_dir.map(Path::to_owned));
    Ok(OpenedPort::open(Opening {
        flag: "--http-listen",
        listen,
        goes_on: "nodes and clients are served",
        site: Arc::new(monitor),
        tls: Box::new(move || Ok(config.clone())),
        opened: Box::new(move |listen| {
            let Some(run_dir) = &run_dir else {
                return Ok(());
            };
            let written = page.write_address(run_dir, listen);
            written.map_err(|error| {
                format!(
                    "page.url cannot be written in --run-dir {}, so nobody can log in at the page: {error}",
                    run_dir.display()
                )
            })
        }),
        trouble: Trouble::default(),
    }))
}

/// Which scheduler it is.
#[derive(Clone, Debug, Serialize)]
struct About {
    scheduler_id: String,
    fabric: String,
    version: &'static str,
}

/// The figures of one moment.
#[derive(Debug)]
struct Moment {
    about: About,
    of_owner: Figures,
    /// Reports and requests: those that wait, and those turned away.
    queues: [(usize, u64); 2],
    calls: BTreeMap<&'static str, OfCall>,
    connections: u64,
    /// When the certificate of the scheduler ends, seconds since 1970.
    certificate_ends: Option<u64>,
    log_lines_dropped: u64,
    descriptors: u64,
    descriptors_max: u64,
    /// `None`: /proc is not there.
    process: Option<Process>,
    /// The pages of metrics in both formats, written once for all who ask.
    pages: [OnceLock<String>; 2],
}

/// A page of health.
#[derive(Debug, Serialize)]
struct Page<'a> {
    #[serde(flatten)]
    about: &'a About,
    #[serde(flatten)]
    told: Told<'a>,
}

/// What the page says besides.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Told<'a> {
    Health(&'a Health),
    Silent { ready: bool, why_not: [String; 1] },
}

/// What is served.
#[derive(Debug)]
struct Monitor {
    watched: Watched,
    /// The task that owns the view looks at every node for each answer.
    moment: Latest<Arc<Moment>>,
    page: Arc<Shell>,
}

impl Site for Monitor {
    const PAGES: &'static str = "there are /metrics, /healthz and /readyz, and / for people";

    async fn answer(self: &Arc<Self>, request: &Request<Incoming>) -> Option<Answer> {
        match request.uri().path() {
            "/metrics" => Some(self.metrics(Format::of(request.headers())).await),
            "/healthz" => Some(self.health(|_| true).await),
            "/readyz" => Some(self.health(|health| health.ready).await),
            _ => self.page(request).await,
        }
    }

    async fn run(&self) {
        let moment = async || {
            let moment = self.watched.moment().await?;
            self.page.sample(page::counts(&moment));
            Some(Arc::new(moment))
        };
        self.moment.refresh(moment).await;
    }
}

impl Monitor {
    async fn metrics(&self, format: Format) -> Answer {
        match self.moment.get(OWNER_TIMEOUT).await {
            Some(moment) => {
                let page =
                    moment.pages[format as usize].get_or_init(|| encode(METRICS, &*moment, format));
                text(StatusCode::OK, format.media_type(), page.clone())
            }
            None => self.silent(),
        }
    }

    /// The page of the health, and whether it is good.
    async fn health(&self, is_good: impl Fn(&Health) -> bool) -> Answer {
        let Some(moment) = self.moment.get(OWNER_TIMEOUT).await else {
            return self.silent();
        };
        let health = &moment.of_owner.health;
        let status = match is_good(health) {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        let (about, told) = (&moment.about, Told::Health(health));
        json(status, &Page { about, told })
    }

    fn silent(&self) -> Answer {
        let told = Told::Silent {
            ready: false,
            why_not: [format!(
                "the scheduler stops, or does not answer within {OWNER_TIMEOUT:?}"
            )],
        };
        let about = &self.watched.about();
        json(StatusCode::SERVICE_UNAVAILABLE, &Page { about, told })
    }
}

impl Watched {
    fn about(&self) -> About {
        let fabric = self.membership.now();
        About {
            scheduler_id: fabric.node_id().to_string(),
            fabric: fabric.id().to_string(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// `None`: the scheduler is stopping.
    async fn moment(&self) -> Option<Moment> {
        let of_owner = self.asks.figures().await?;
        let ends = self.membership.now().not_after();
        let ends = ends.map(|at| at.duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs()));
        Some(Moment {
            about: self.about(),
            of_owner,
            queues: self.depths.now(),
            calls: self.calls.now(),
            connections: self.origin.get().map_or(0, |it| it.connections() as u64),
            certificate_ends: ends,
            log_lines_dropped: fabricbios_log::dropped_lines(),
            descriptors: process::descriptors().unwrap_or(0),
            descriptors_max: process::descriptors_max(),
            process: Process::now().ok(),
            pages: Default::default(),
        })
    }
}

#[cfg(test)]
mod tests;
