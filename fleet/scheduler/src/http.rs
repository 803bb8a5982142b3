//! The HTTP port (`--http-listen`): whether the scheduler is well, for who has no certificate, such as a monitor or a load
//! balancer. Whoever connects is bounded in number and time, and holds up neither the scheduler nor the others.

use std::{
    collections::VecDeque, convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration,
};

use fabricbios_fabric::FabricId;
use fabricbios_wire::NodeId;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::{AbortHandle, JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

use crate::health::{Asks, Health};

/// Connections at once. One more ends the oldest, so those that say nothing keep nobody out.
const CONNECTIONS_MAX: usize = 48;
/// How long a client may take to send its request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection lasts, which is one request and its answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest request.
const REQUEST_BYTES_MAX: usize = 16 * 1024;
/// How long the task that owns the view may take.
const OWNER_TIMEOUT: Duration = Duration::from_secs(2);
/// How old an answer may be: the task that owns the view looks at every node for each, so it is not asked more often.
const FRESH: Duration = Duration::from_millis(500);
/// The pause when no connection can be accepted, as without a free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The port. Dropping it closes the port and its connections.
#[derive(Debug)]
pub(crate) struct Http {
    listen: SocketAddr,
    task: JoinHandle<()>,
}

impl Http {
    /// # Errors
    /// The address cannot be listened on.
    pub(crate) fn start(listen: SocketAddr, about: About, asks: Asks) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let listen = listener.local_addr()?;
        let (tell, last) = watch::channel(None);
        let pages = Arc::new(Pages {
            about,
            wanted: Notify::new(),
            last,
        });
        let task = tokio::spawn(async move {
            tokio::join!(
                serve(listener, Arc::clone(&pages)),
                refresh(&pages, asks, tell)
            );
        });
        Ok(Self { listen, task })
    }

    /// With the real port.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.listen
    }

    /// Closes the port and its connections.
    pub(crate) async fn stop(mut self) {
        self.task.abort();
        // It was cancelled.
        (&mut self.task).await.ok();
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, pages: Arc<Pages>) {
    let mut connections = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    oldest_first.retain(|it| !it.is_finished());
                    if oldest_first.len() == CONNECTIONS_MAX && let Some(oldest) = oldest_first.pop_front() {
                        oldest.abort();
                    }
                    oldest_first.push_back(connections.spawn(converse(stream, Arc::clone(&pages))));
                    while connections.try_join_next().is_some() {}
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection over HTTP cannot be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Asks the task that owns the view while somebody wants an answer, also when who wanted it has gone.
async fn refresh(pages: &Pages, asks: Asks, tell: watch::Sender<Option<(Instant, Health)>>) {
    loop {
        pages.wanted.notified().await;
        let Some(health) = asks.health().await else {
            return;
        };
        tell.send_replace(Some((Instant::now(), health)));
        sleep(FRESH).await;
    }
}

/// Answers one request.
async fn converse(stream: TcpStream, pages: Arc<Pages>) {
    let service = service_fn(|request| {
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(pages.answer(&request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(REQUEST_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // The client may be gone, silent, or speak something else.
    timeout(CONNECTION_TIMEOUT, connection).await.ok();
}

/// Which scheduler it is.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct About {
    scheduler_id: String,
    fabric: String,
    version: &'static str,
}

impl About {
    pub(crate) fn new(scheduler_id: NodeId, fabric: FabricId) -> Self {
        Self {
            scheduler_id: scheduler_id.to_string(),
            fabric: fabric.to_string(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// A page of either path.
#[derive(Debug, Serialize)]
struct Page<'a> {
    #[serde(flatten)]
    about: &'a About,
    #[serde(flatten)]
    told: Told,
}

/// What the page says besides.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Told {
    Health(Health),
    Silent { ready: bool, why_not: [String; 1] },
}

/// What is served.
#[derive(Debug)]
struct Pages {
    about: About,
    /// Somebody waits for a new answer.
    wanted: Notify,
    /// The last answer, and when it came.
    last: watch::Receiver<Option<(Instant, Health)>>,
}

impl Pages {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        match path {
            "/healthz" | "/readyz" if !is_read => {
                let mut refused = refused(StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD");
                let allow = HeaderValue::from_static("GET, HEAD");
                refused.headers_mut().insert(ALLOW, allow);
                refused
            }
            "/healthz" => self.page(|_| true).await,
            "/readyz" => self.page(|health| health.ready).await,
            _ => refused(StatusCode::NOT_FOUND, "there are /healthz and /readyz"),
        }
    }

    /// The page, and whether it is good.
    async fn page(&self, is_good: impl Fn(&Health) -> bool) -> Response<Full<Bytes>> {
        let health = timeout(OWNER_TIMEOUT, self.health()).await.ok().flatten();
        let status = match &health {
            Some(health) if is_good(health) => StatusCode::OK,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let silent = || Told::Silent {
            ready: false,
            why_not: [format!(
                "the scheduler stops, or does not answer within {OWNER_TIMEOUT:?}"
            )],
        };
        let page = Page {
            about: &self.about,
            told: health.map_or_else(silent, Told::Health),
        };
        json(status, &page)
    }

    /// `None`: the scheduler is stopping.
    async fn health(&self) -> Option<Health> {
        let is_fresh = |last: &Option<(Instant, Health)>| {
            last.as_ref().is_some_and(|(at, _)| at.elapsed() < FRESH)
        };
        let mut last = self.last.clone();
        if !is_fresh(&last.borrow()) {
            self.wanted.notify_one();
        }
        let fresh = last.wait_for(is_fresh).await.ok()?;
        fresh.as_ref().map(|(_, health)| health.clone())
    }
}

fn refused(status: StatusCode, why: &'static str) -> Response<Full<Bytes>> {
    json(status, &serde_json::json!({ "error": why }))
}

fn json(status: StatusCode, page: &impl Serialize) -> Response<Full<Bytes>> {
    // Texts and numbers have no part that cannot be written.
    let mut text = serde_json::to_vec(page).unwrap_or_default();
    text.push(b'\n');
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_scheduler_whose_task_does_not_answer_is_not_well() {
        let (asks, _asked) = crate::health::channel();
        let about = About::new(NodeId([1; 32]), FabricId([7; 16]));
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let http = Http::start(listen, about, asks).unwrap();
        // All wait for one answer, and none for the other's time.
        let ask = async || {
            let mut stream = TcpStream::connect(http.local_addr()).await.unwrap();
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\n\r\n")
                .await
                .unwrap();
            let mut told = String::new();
            stream.read_to_string(&mut told).await.unwrap();
            told
        };
        for told in <[String; 3]>::from(tokio::join!(ask(), ask(), ask())) {
            assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
            assert!(told.contains(r#""ready":false"#), "{told}");
            assert!(told.contains("does not answer within 2s"), "{told}");
        }
        http.stop().await;
    }
}
