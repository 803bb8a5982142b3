//! The node watched from outside over HTTP (`--metrics-listen`): metrics for a collector, health for a load balancer.

mod health;
mod machine;
mod metrics;
mod page;
mod port;

use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use fabricbios_control::Membership;
use fabricbios_helper::InFlight;
use fabricbios_http::{
    Answer, Incoming, Latest, Request, Site, StatusCode,
    header::HeaderMap,
    json,
    metrics::{Format, encode},
    text,
};
use tokio::sync::oneshot;

pub use fabricbios_http::Trouble;
pub use machine::DataPaths;
pub use port::Port;
pub(crate) use port::Reread;

use crate::{
    driver::{Input, mailbox::Sender, tally::DriverFigures},
    inventory::detection::Detection,
    monitor::{
        health::{Health, Silent},
        machine::MachineFigures,
        metrics::METRICS,
        page::Page,
    },
};

/// How long the driver may take: it works off what waits for it in milliseconds.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(5);

/// What the pages are made of.
#[derive(Debug)]
pub struct Watched {
    /// The node's identity.
    pub membership: Membership,
    /// The node's driver.
    pub driver: Sender<Input>,
    /// The detected hardware, which is looked at first, as for an inventory.
    pub detection: Arc<Detection>,
    /// The paths over UDP.
    pub data_paths: DataPaths,
    /// Calls of helper processes.
    pub helper_calls: InFlight,
    /// The state directory, which tells its owner how to log in.
    pub state_dir: PathBuf,
}

/// Serves the pages as soon as the address is free; `trouble` has the reason while it is not. With `identity`, a file of
/// [`fabricbios_fabric::PortTls`], over HTTPS. Must be called within a tokio runtime.
///
/// # Errors
/// The system has no randomness.
pub fn start(
    listen: SocketAddr,
    identity: Option<PathBuf>,
    watched: Watched,
    trouble: Trouble,
) -> io::Result<Port> {
    let page = Page::new(watched.membership.now().node_id(), identity.is_some())?;
    let monitor = Arc::new(Monitor {
        watched,
        figures: Latest::default(),
        page: Arc::new(page),
    });
    Ok(Port::open(listen, identity, monitor, trouble))
}

#[derive(Debug)]
struct Monitor {
    watched: Watched,
    /// The driver is asked once for all who ask within a moment.
    figures: Latest<Arc<Figures>>,
    page: Arc<Page>,
}

/// The figures of one moment.
#[derive(Debug)]
struct Figures {
    driver: DriverFigures,
    machine: MachineFigures,
    /// The pages of metrics in both formats, written once for all who ask.
    pages: [OnceLock<String>; 2],
}

impl Site for Monitor {
    const PAGES: &'static str = "there are /metrics, /healthz and /readyz, and / for people";

    async fn answer(self: &Arc<Self>, request: &Request<Incoming>) -> Option<Answer> {
        match request.uri().path() {
            "/metrics" => Some(self.metrics(request.headers()).await),
            "/healthz" => Some(self.health(|_| true).await),
            "/readyz" => Some(self.health(|health| health.ready).await),
            _ => self.page(request).await,
        }
    }

    async fn run(&self) {
        let figures = async || {
            let figures = self.watched.figures().await?;
            self.page.sample(&figures);
            Some(figures)
        };
        tokio::join!(
            self.figures.refresh(figures),
            self.page.refresh(&self.watched.driver, &self.figures),
        );
    }
}

impl Monitor {
    async fn metrics(&self, headers: &HeaderMap) -> Answer {
        let format = Format::of(headers);
        match self.figures.get(DRIVER_TIMEOUT).await {
            Some(figures) => {
                let page = figures.pages[format as usize]
                    .get_or_init(|| encode(METRICS, &figures, format));
                text(StatusCode::OK, format.media_type(), page.clone())
            }
            None => json(StatusCode::SERVICE_UNAVAILABLE, &self.silent()),
        }
    }

    /// The page of the health, and whether it is good.
    async fn health(&self, is_good: impl Fn(&Health) -> bool) -> Answer {
        let Some(figures) = self.figures.get(DRIVER_TIMEOUT).await else {
            return json(StatusCode::SERVICE_UNAVAILABLE, &self.silent());
        };
        let health = Health::of(&figures, false);
        let status = match is_good(&health) {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        json(status, &health)
    }

    fn silent(&self) -> Silent {
        Silent::of(&self.watched.membership.now(), DRIVER_TIMEOUT)
    }
}

impl Watched {
    /// `None`: the node is stopping.
    async fn figures(&self) -> Option<Arc<Figures>> {
        self.detection.refresh().await;
        let (reply, figures) = oneshot::channel();
        // A notice, because a full queue of requests is when somebody wants to know.
        if !self.driver.notify(Input::AboutNode(reply)) {
            return None;
        }
        let driver = figures.await.ok()?;
        let machine = MachineFigures::now(&self.membership, &self.data_paths, &self.helper_calls);
        Some(Arc::new(Figures {
            driver,
            machine,
            pages: Default::default(),
        }))
    }
}

#[cfg(test)]
mod tests;
