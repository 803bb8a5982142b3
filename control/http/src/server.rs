//! The port and its connections.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hyper::{
    Method, Request, StatusCode,
    body::Incoming,
    header::{ALLOW, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinHandle, JoinSet},
    time::{sleep, timeout},
};

use crate::{Answer, json};

/// Connections at once. One more ends the oldest, so those that say nothing keep nobody out.
const CONNECTIONS_MAX: usize = 48;
/// How long a client may take to send its request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection lasts, which is one request and its answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection lasts whose answer is a stream. Whoever watches on connects again.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest request.
const REQUEST_BYTES_MAX: usize = 16 * 1024;
/// The pause when no connection can be accepted, as without a free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The pages of a port.
pub trait Site: Send + Sync + 'static {
    /// Which pages there are, for who asks for another.
    const PAGES: &'static str;

    /// Answers a GET, or a HEAD, whose answer is sent without its body. `None`: there is no such page.
    fn answer(
        self: &Arc<Self>,
        request: &Request<Incoming>,
    ) -> impl Future<Output = Option<Answer>> + Send;

    /// Runs as long as the port is open.
    fn run(&self) -> impl Future<Output = ()> + Send;
}

/// The port. Dropping it closes the port and its connections.
#[derive(Debug)]
pub struct Http {
    listen: SocketAddr,
    task: JoinHandle<()>,
}

impl Http {
    /// Serves the pages of `site` at this address. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn start(listen: SocketAddr, site: impl Site) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let listen = listener.local_addr()?;
        let site = Arc::new(site);
        let task = tokio::spawn(async move {
            tokio::join!(serve(listener, Arc::clone(&site)), site.run());
        });
        Ok(Self { listen, task })
    }

    /// With the real port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listen
    }

    /// Closes the port and its connections.
    pub async fn stop(mut self) {
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

async fn serve(listener: TcpListener, site: Arc<impl Site>) {
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
                    oldest_first.push_back(connections.spawn(converse(stream, Arc::clone(&site))));
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

/// Answers one request.
async fn converse<S: Site>(stream: TcpStream, site: Arc<S>) {
    let streams = AtomicBool::new(false);
    let service = service_fn(async |request| {
        let answer = answer(&site, &request).await;
        streams.store(answer.body().is_stream(), Ordering::Relaxed);
        Ok::<_, Infallible>(answer)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(REQUEST_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // The client may be gone, silent, or speak something else.
    let cut_off = timeout(CONNECTION_TIMEOUT, connection.as_mut()).await;
    if cut_off.is_err() && streams.load(Ordering::Relaxed) {
        let rest = STREAM_TIMEOUT.saturating_sub(CONNECTION_TIMEOUT);
        timeout(rest, connection).await.ok();
    }
}

async fn answer<S: Site>(site: &Arc<S>, request: &Request<Incoming>) -> Answer {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = refused(StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD");
        let allow = HeaderValue::from_static("GET, HEAD");
        refused.headers_mut().insert(ALLOW, allow);
        return refused;
    }
    let answer = site.answer(request).await;
    answer.unwrap_or_else(|| refused(StatusCode::NOT_FOUND, S::PAGES))
}

fn refused(status: StatusCode, why: &'static str) -> Answer {
    json(status, &serde_json::json!({ "error": why }))
}
