//! The page for people with a browser. It can only be read. Everybody sees health and totals; who has the token of this
//! run, which is in the state directory, sees leases, tenants, fences and proofs too.

mod access;
mod ask;
mod render;
mod samples;

use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use fabricbios_http::{
    Answer, Content, Incoming, Latest, Request, StatusCode, answer,
    header::{
        CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY, SET_COOKIE,
    },
    text,
};
use fabricbios_wire::{LeaseError, LeaseId, NodeId, Reply};
use maud::{Markup, html};
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{
    driver::{Input, mailbox::Sender},
    monitor::{
        DRIVER_TIMEOUT, Figures, Monitor,
        health::Health,
        page::{access::Access, ask::Told, render::View, samples::Samples},
    },
    process::clock,
};

/// Browsers that watch at once, of operators and of others: on loopback the others are any local users.
const STREAMS_MAX: usize = 8;
/// For how long an end is shown. The table knows it a little longer.
const KNOWN_MS: u64 = 10 * 60 * 1000;
/// How often a browser that watches is told.
const EVERY: Duration = Duration::from_secs(2);
/// What a page may load: its own style and script, and the events. Nobody frames it, and it sends nothing.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";
const SAME_ORIGIN: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// See the module.
#[derive(Debug)]
pub(super) struct Page {
    access: Access,
    samples: Mutex<Samples>,
    /// The driver is asked once for all operators who look within a moment. `None`: it is busy.
    told: Latest<Option<Arc<Told>>>,
    /// Of others and of operators.
    streams: [Arc<Semaphore>; 2],
}

impl Page {
    /// # Errors
    /// The system has no randomness.
    pub(super) fn new(node_id: NodeId, is_tls: bool) -> io::Result<Self> {
        Ok(Self {
            access: Access::new(node_id, is_tls)?,
            samples: Mutex::default(),
            told: Latest::default(),
            streams: [(); 2].map(|()| Arc::new(Semaphore::new(STREAMS_MAX))),
        })
    }

    /// Writes the address to log in at; see [`Access::write`].
    pub(super) fn write_address(&self, state_dir: &Path, listen: SocketAddr) -> io::Result<()> {
        self.access.write(state_dir, listen)
    }

    /// Takes a sample for the charts.
    pub(super) fn sample(&self, figures: &Figures) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.add(Instant::now(), figures);
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
        let (path, query) = (request.uri().path(), request.uri().query());
        let lease = path.strip_prefix("/lease/");
        if !matches!(path, "/" | "/page.css" | "/page.js" | "/events" | "/leases")
            && lease.is_none()
        {
            return None;
        }
        let access = &self.page.access;
        let mut answer = if access.is_host_ours(request.headers()) {
            let is_operator = access.is_operator(request.headers());
            let parameter = |name| {
                let all = query.unwrap_or_default().split('&');
                all.filter_map(|it| it.split_once('='))
                    .find_map(|(of, value)| (of == name).then_some(value))
            };
            match (path, lease) {
                ("/page.css", _) => file("text/css", include_str!("page.css")),
                ("/page.js", _) => file("text/javascript", include_str!("page.js")),
                ("/events", _) => self.events(is_operator),
                ("/", _) => match parameter("token") {
                    Some(token) => self.log_in(token),
                    None => self.overview(is_operator).await,
                },
                _ if !is_operator => {
                    refused(StatusCode::FORBIDDEN, "Not logged in", render::LOG_IN)
                }
                (_, Some(id)) => self.lease(id).await,
                (_, None) => self.leases(parameter("after")).await,
            }
        } else {
            let why = "This node is asked by its address or as localhost, not by another name.";
            refused(StatusCode::MISDIRECTED_REQUEST, "Another host", why)
        };
        for (name, value) in [
            (CONTENT_SECURITY_POLICY, POLICY),
            (REFERRER_POLICY, "no-referrer"),
            (SAME_ORIGIN, "same-origin"),
        ] {
            answer
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        Some(answer)
    }

    /// Has the browser keep the token, and takes it out of the address.
    fn log_in(&self, token: &str) -> Answer {
        let cookie = HeaderValue::try_from(self.page.access.set_cookie());
        match cookie {
            Ok(mut cookie) if self.page.access.is_token(token) => {
                cookie.set_sensitive(true);
                let mut answer = refused(StatusCode::SEE_OTHER, "Logged in", "The page is at /.");
                answer.headers_mut().insert(SET_COOKIE, cookie);
                answer
                    .headers_mut()
                    .insert(LOCATION, HeaderValue::from_static("/"));
                answer
            }
            _ => refused(StatusCode::FORBIDDEN, "Another token", render::LOG_IN),
        }
    }

    async fn overview(&self, is_operator: bool) -> Answer {
        let (status, live) = self.live(is_operator).await;
        let body = html! {
            p class="note" { span id="said" role="status" { "as of the time of loading" } }
            div id="live" { (live) }
            script src="/page.js" defer {}
        };
        html(status, &render::document("fabricBIOS node", &body))
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
        let samples = self
            .page
            .samples
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let view = View {
            health: Health::of(&figures, is_operator),
            figures: &figures,
            charts: samples.charts(Instant::now()),
            now_unix_ms: clock::now().unix_ms,
            told,
        };
        (StatusCode::OK, view.live())
    }

    /// Tells a browser that watches until it goes, or the connection has lasted its time.
    fn events(self: &Arc<Self>, is_operator: bool) -> Answer {
        let streams = &self.page.streams[usize::from(is_operator)];
        let Ok(place) = Arc::clone(streams).try_acquire_owned() else {
            let why = "As many browsers watch as can; reload the page to see the node as it is.";
            return refused(StatusCode::SERVICE_UNAVAILABLE, "Too many watch", why);
        };
        let monitor = Arc::clone(self);
        let content = Content::stream(move || {
            let _held = &place;
            let monitor = Arc::clone(&monitor);
            async move {
                sleep(EVERY).await;
                let (_, live) = monitor.live(is_operator).await;
                Some(event(&live.into_string()).into())
            }
        });
        answer(StatusCode::OK, "text/event-stream", content)
    }

    async fn leases(&self, after: Option<&str>) -> Answer {
        let Ok(after) = after.map_or(Ok(LeaseId(0)), str::parse) else {
            return refused(
                StatusCode::BAD_REQUEST,
                "No lease id",
                "An id has 32 hexadecimal digits.",
            );
        };
        let asked = ask::leases(&self.watched.driver, after);
        match timeout(DRIVER_TIMEOUT, asked).await.ok().flatten() {
            Some(page) => html(
                StatusCode::OK,
                &render::document("Leases", &render::leases(&page, "Leases")),
            ),
            None => busy(),
        }
    }

    async fn lease(&self, id: &str) -> Answer {
        let none = || {
            refused(
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
                html(StatusCode::OK, &render::document("Lease", &body))
            }
            Some(Err(refusal)) if refusal.error == LeaseError::NotFound => none(),
            _ => busy(),
        }
    }
}

fn html(status: StatusCode, document: &Markup) -> Answer {
    text(status, "text/html; charset=utf-8", document.0.clone())
}

fn file(media_type: &'static str, content: &'static str) -> Answer {
    answer(StatusCode::OK, media_type, Content::whole(content))
}

fn refused(status: StatusCode, title: &str, why: &str) -> Answer {
    html(status, &render::document(title, &html! { p { (why) } }))
}

fn busy() -> Answer {
    refused(
        StatusCode::SERVICE_UNAVAILABLE,
        "Busy",
        "The node is too busy, or it stops; try again.",
    )
}

/// A server-sent event. Its lines end in LF alone, as a CR would end one too.
fn event(data: &str) -> String {
    let mut event = String::from("retry: 1000\n");
    for line in data.replace('\r', " ").lines() {
        event.push_str("data: ");
        event.push_str(line);
        event.push('\n');
    }
    event.push('\n');
    event
}

#[cfg(test)]
mod tests;
