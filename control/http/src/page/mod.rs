//! What pages for people with a browser have in common: who may read what, the document, its style and script, charts, and
//! the events that keep it live. It can only be read.

mod access;
mod samples;

use std::{
    fmt::Display,
    future::Future,
    io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use maud::{DOCTYPE, Markup, html};
use tokio::{sync::Semaphore, time::sleep};

use crate::{
    Answer, Content, Incoming, Request, StatusCode, answer,
    header::{
        CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY, SET_COOKIE,
    },
    text,
};
use access::Access;
use samples::Samples;

/// Browsers that watch at once, of operators and of others: on loopback the others are any local users.
const STREAMS_MAX: usize = 8;
/// How often a browser that watches is told.
const EVERY: Duration = Duration::from_secs(2);
/// What a page may load: its own style and script, and the events. Nobody frames it, and it sends nothing.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";
const SAME_ORIGIN: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The words of a program's page. `N`: the number of charts.
#[derive(Debug)]
pub struct Words<const N: usize> {
    /// The title of the page at `/`.
    pub title: &'static str,
    /// The link back to it, and the name of the program in sentences, as `node`.
    pub program: &'static str,
    /// How an operator logs in, and what for.
    pub log_in: &'static str,
    /// The counts of which a chart shows the rate, with the unit of their amounts.
    pub charts: [(&'static str, &'static str); N],
}

/// The page of a program. Everybody sees what the program tells all; who has the token of this run is an operator.
#[derive(Debug)]
pub struct Page<const N: usize> {
    words: &'static Words<N>,
    access: Access,
    samples: Mutex<Samples<N>>,
    /// Of others and of operators.
    streams: [Arc<Semaphore>; 2],
}

/// What a request for the page is.
#[derive(Debug)]
pub enum Asked {
    /// It is answered.
    Answered(Answer),
    /// The program answers. `is_operator`: the request has the token of this run.
    Path {
        /// Whether all may be shown.
        is_operator: bool,
    },
}

impl<const N: usize> Page<N> {
    /// `id`: of the program, 64 hexadecimal digits. `is_tls`: the port speaks HTTPS.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn new(words: &'static Words<N>, id: &str, is_tls: bool) -> io::Result<Self> {
        Ok(Self {
            words,
            access: Access::new(id, is_tls)?,
            samples: Mutex::default(),
            streams: [(); 2].map(|()| Arc::new(Semaphore::new(STREAMS_MAX))),
        })
    }

    /// Writes the address to log in at into the file `page.url` of this directory, where only the program's user can read
    /// it. `listen`: with the real port.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_address(&self, directory: &Path, listen: SocketAddr) -> io::Result<()> {
        self.access.write(directory, listen)
    }

    /// Takes a sample of the counts for the charts.
    pub fn sample(&self, counts: [u64; N]) {
        self.samples().push(Instant::now(), counts);
    }

    /// The charts.
    pub fn charts(&self) -> Markup {
        self.samples().charts(Instant::now(), &self.words.charts)
    }

    fn samples(&self) -> MutexGuard<'_, Samples<N>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers what does not depend on the program: another host, style, script, and the way in.
    pub fn begin(&self, request: &Request<Incoming>) -> Asked {
        let headers = request.headers();
        if !self.access.is_host_ours(headers) {
            let program = self.words.program;
            let why = format!(
                "This {program} is asked by its address or as localhost, not by another name."
            );
            let status = StatusCode::MISDIRECTED_REQUEST;
            return Asked::Answered(self.refused(status, "Another host", &why));
        }
        match (request.uri().path(), parameter(request, "token")) {
            ("/page.css", _) => Asked::Answered(file("text/css", include_str!("page.css"))),
            ("/page.js", _) => Asked::Answered(file("text/javascript", include_str!("page.js"))),
            ("/", Some(token)) => Asked::Answered(self.log_in(token)),
            _ => Asked::Path {
                is_operator: self.access.is_operator(headers),
            },
        }
    }

    /// Has the browser keep the token, and takes it out of the address.
    fn log_in(&self, token: &str) -> Answer {
        let cookie = HeaderValue::try_from(self.access.set_cookie());
        match cookie {
            Ok(mut cookie) if self.access.is_token(token) => {
                cookie.set_sensitive(true);
                let status = StatusCode::SEE_OTHER;
                let mut answer = self.refused(status, "Logged in", "The page is at /.");
                let headers = answer.headers_mut();
                headers.insert(SET_COOKIE, cookie);
                headers.insert(LOCATION, HeaderValue::from_static("/"));
                answer
            }
            _ => self.refused(StatusCode::FORBIDDEN, "Another token", self.words.log_in),
        }
    }

    /// A whole page with the part that changes.
    pub fn overview(&self, status: StatusCode, live: &Markup) -> Answer {
        let body = html! {
            p class="note" { span id="said" role="status" { "as of the time of loading" } }
            div id="live" { (live) }
            script src="/page.js" defer {}
        };
        self.html(status, self.words.title, &body)
    }

    /// Tells a browser that watches what `live` makes, until it goes, or the connection has lasted its time.
    pub fn events<F>(
        &self,
        is_operator: bool,
        live: impl Fn() -> F + Send + Sync + 'static,
    ) -> Answer
    where
        F: Future<Output = Markup> + Send + 'static,
    {
        let streams = &self.streams[usize::from(is_operator)];
        let Ok(place) = Arc::clone(streams).try_acquire_owned() else {
            let program = self.words.program;
            let why = format!(
                "As many browsers watch as can; reload the page to see the {program} as it is."
            );
            return self.refused(StatusCode::SERVICE_UNAVAILABLE, "Too many watch", &why);
        };
        let content = Content::stream(move || {
            let _held = &place;
            let live = live();
            async move {
                sleep(EVERY).await;
                Some(event(&live.await.into_string()).into())
            }
        });
        answer(StatusCode::OK, "text/event-stream", content)
    }

    /// A page of words.
    pub fn refused(&self, status: StatusCode, title: &str, why: &str) -> Answer {
        self.html(status, title, &html! { p { (prose(why)) } })
    }

    /// A page.
    pub fn html(&self, status: StatusCode, title: &str, body: &Markup) -> Answer {
        let document = self.document(title, body).into_string();
        text(status, "text/html; charset=utf-8", document)
    }

    /// The text of a page.
    pub fn document(&self, title: &str, body: &Markup) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (title) }
                    link rel="stylesheet" href="/page.css";
                }
                body {
                    a class="skip" href="#main" { "To the content" }
                    main id="main" {
                        h1 { (title) }
                        @if title != self.words.title { p { a href="/" { "To the " (self.words.program) } } }
                        (body)
                    }
                }
            }
        }
    }
}

/// The answer with the headers that keep others out of a page.
#[must_use]
pub fn guarded(mut answer: Answer) -> Answer {
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (SAME_ORIGIN, "same-origin"),
    ] {
        let value = HeaderValue::from_static(value);
        answer.headers_mut().insert(name, value);
    }
    answer
}

/// A parameter of the request's address.
#[must_use]
pub fn parameter<'a>(request: &'a Request<Incoming>, name: &str) -> Option<&'a str> {
    let all = request.uri().query().unwrap_or_default().split('&');
    all.filter_map(|it| it.split_once('='))
        .find_map(|(of, value)| (of == name).then_some(value))
}

/// Words for people, in which commands stand between backquotes.
pub fn prose(text: &str) -> Markup {
    let parts = text.split('`').enumerate();
    html! { @for (at, part) in parts { @if at % 2 == 0 { (part) } @else { code { (part) } } } }
}

/// A table that scrolls by itself where it is too wide, also by keyboard.
pub fn wide(title: &str, rows: &Markup) -> Markup {
    html! { div class="wide" tabindex="0" role="region" aria-label=(title) { table { (rows) } } }
}

/// A bar of how much of `capacity` is in use, and the same in words.
pub fn in_use(name: impl Display, capacity: u64, available: u64) -> Markup {
    let used = capacity.saturating_sub(available);
    let percent = u128::from(used) * 100 / u128::from(capacity.max(1));
    html! { meter min="0" max="100" value=(percent) aria-label={ (name) " in use" } {} " " (percent) " %" }
}

/// A span of time by its two largest units.
#[must_use]
pub fn span(ms: u64) -> String {
    let secs = ms / 1000;
    let (days, hours, mins) = (secs / 86_400, secs / 3600 % 24, secs / 60 % 60);
    match (days, hours, mins) {
        (0, 0, 0) => format!("{} s", secs),
        (0, 0, _) => format!("{mins} min {} s", secs % 60),
        (0, _, _) => format!("{hours} h {mins} min"),
        _ => format!("{days} d {hours} h"),
    }
}

fn file(media_type: &'static str, content: &'static str) -> Answer {
    answer(StatusCode::OK, media_type, Content::whole(content))
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

#[test]
fn an_event_has_one_end_whatever_is_in_it() {
    let event = event("a\r\rdata: b\n\nc");
    assert_eq!(event, "retry: 1000\ndata: a  data: b\ndata: \ndata: c\n\n");
}
