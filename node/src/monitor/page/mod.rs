//! The page for people with a browser. It can only be read. Everybody sees health and totals; who has the token of this
//! run, which is in the state directory, sees leases, tenants, fences and proofs too.

mod ask;
mod render;

use std::{io, net::SocketAddr, path::Path, sync::Arc};

use fabricbios_http::{
    Answer, Incoming, Latest, Request, StatusCode,
    page::{self, Asked, Words, guarded, parameter},
};
use fabricbios_wire::{LeaseError, LeaseId, NodeId, Reply};
use maud::{Markup, html};
use tokio::time::timeout;

use crate::{
    driver::{Input, mailbox::Sender},
    monitor::{
        DRIVER_TIMEOUT, Figures, Monitor,
        health::Health,
        page::{ask::Told, render::View},
    },
    process::clock,
};

/// For how long an end is shown. The table knows it a little longer.
const KNOWN_MS: u64 = 10 * 60 * 1000;

const WORDS: Words<4> = Words {
    title: "fabricBIOS node",
    program: "node",
    log_in: "Leases, tenants, fences and proofs are for an operator of this node: `fabricctl page`, as the user of the daemon \
             on its machine, prints the address to log in at. Each start of the node makes a new one.",
    charts: [
        ("Grants", ""),
        ("Proved cuts", ""),
        ("Refusals", ""),
        ("Over UDP", "B"),
    ],
};

/// See the module.
#[derive(Debug)]
pub(super) struct Page {
    shell: page::Page<4>,
    /// The driver is asked once for all operators who look within a moment. `None`: it is busy.
    told: Latest<Option<Arc<Told>>>,
}

impl Page {
    /// # Errors
    /// The system has no randomness.
    pub(super) fn new(node_id: NodeId, is_tls: bool) -> io::Result<Self> {
        Ok(Self {
            shell: page::Page::new(&WORDS, &node_id.to_string(), is_tls)?,
            told: Latest::default(),
        })
    }

    /// Writes the address to log in at; see [`page::Page::write_address`].
    pub(super) fn write_address(&self, state_dir: &Path, listen: SocketAddr) -> io::Result<()> {
        self.shell.write_address(state_dir, listen)
    }

    /// Takes a sample for the charts.
    pub(super) fn sample(&self, figures: &Figures) {
        let of_all = figures.driver.tally.resources.values();
        let grants = of_all.clone().map(|it| it.grants).sum();
        let cuts = of_all.flat_map(|it| it.cuts.values()).sum();
        let refusals = figures.driver.tally.refusals.values().sum();
        let paths = figures.machine.data_paths.iter();
        let bytes = paths.map(|(_, it)| it.received_bytes + it.sent_bytes).sum();
        self.shell.sample([grants, cuts, refusals, bytes]);
    }

    /// Asks the driver for operators. `last`: the figures of now.
    pub(super) async fn refresh(&self, driver: &Sender<Input>, last: &Latest<Arc<Figures>>) {
        let ask = async || {
            let figures = last.get(DRIVER_TIMEOUT).await?;
            let is_known = clock::now().unix_ms.saturating_sub(KNOWN_MS);
            let ended = figures.driver.tally.last_ends.iter().rev();
            let ended = ended.filter(|(_, at)| *at >= is_known).map(|(id, _)| *id);
            Some(Told::now(driver, ended).await)
        };
        // The figures may come later.
        self.told
            .refresh(async || Some(ask().await.flatten()))
            .await;
    }
}

impl Monitor {
    /// Answers for the paths of the page.
    pub(super) async fn page(self: &Arc<Self>, request: &Request<Incoming>) -> Option<Answer> {
        let path = request.uri().path();
        let lease = path.strip_prefix("/lease/");
        if !matches!(path, "/" | "/page.css" | "/page.js" | "/events" | "/leases")
            && lease.is_none()
        {
            return None;
        }
        let shell = &self.page.shell;
        let answer = match shell.begin(request) {
            Asked::Answered(answer) => answer,
            Asked::Path { is_operator } => match (path, lease) {
                ("/events", _) => self.events(is_operator),
                ("/", _) => {
                    let (status, live) = self.live(is_operator).await;
                    shell.overview(status, &live)
                }
                _ if !is_operator => {
                    shell.refused(StatusCode::FORBIDDEN, "Not logged in", WORDS.log_in)
                }
                (_, Some(id)) => self.lease(id).await,
                (_, None) => self.leases(parameter(request, "after")).await,
            },
        };
        Some(guarded(answer))
    }

    /// The part of the page that changes.
    async fn live(&self, is_operator: bool) -> (StatusCode, Markup) {
        let Some(figures) = self.figures.get(DRIVER_TIMEOUT).await else {
            let why = html! { p class="bad" { "The node stops, or its driver does not answer." } };
            return (StatusCode::SERVICE_UNAVAILABLE, why);
        };
        let told = match is_operator {
            true => Some(self.page.told.get(DRIVER_TIMEOUT).await.flatten()),
            false => None,
        };
        let view = View {
            health: Health::of(&figures, is_operator),
            figures: &figures,
            charts: self.page.shell.charts(),
            now_unix_ms: clock::now().unix_ms,
            told,
        };
        (StatusCode::OK, view.live())
    }

    /// Tells a browser that watches.
    fn events(self: &Arc<Self>, is_operator: bool) -> Answer {
        let monitor = Arc::clone(self);
        self.page.shell.events(is_operator, move || {
            let monitor = Arc::clone(&monitor);
            async move { monitor.live(is_operator).await.1 }
        })
    }

    async fn leases(&self, after: Option<&str>) -> Answer {
        let Ok(after) = after.map_or(Ok(LeaseId(0)), str::parse) else {
            return self.page.shell.refused(
                StatusCode::BAD_REQUEST,
                "No lease id",
                "An id has 32 hexadecimal digits.",
            );
        };
        let asked = ask::leases(&self.watched.driver, after);
        match timeout(DRIVER_TIMEOUT, asked).await.ok().flatten() {
            Some(page) => {
                let body = render::leases(&page, "Leases");
                self.page.shell.html(StatusCode::OK, "Leases", &body)
            }
            None => self.busy(),
        }
    }

    async fn lease(&self, id: &str) -> Answer {
        let none = || {
            self.page.shell.refused(
                StatusCode::NOT_FOUND,
                "No such lease",
                "The node has none of this id, or no longer knows it.",
            )
        };
        let Ok(id) = id.parse::<LeaseId>() else {
            return none();
        };
        let asked = ask::ask(
            &self.watched.driver,
            fabricbios_wire::Request::LeaseQuery(id),
        );
        match timeout(DRIVER_TIMEOUT, asked).await.ok().flatten() {
            Some(Ok(Reply::Lease(lease))) => {
                let body = render::lease(&lease, clock::now().unix_ms);
                self.page.shell.html(StatusCode::OK, "Lease", &body)
            }
            Some(Err(refusal)) if refusal.error == LeaseError::NotFound => none(),
            _ => self.busy(),
        }
    }

    fn busy(&self) -> Answer {
        self.page.shell.refused(
            StatusCode::SERVICE_UNAVAILABLE,
            "Busy",
            "The node is too busy, or it stops; try again.",
        )
    }
}

#[cfg(test)]
mod tests;
