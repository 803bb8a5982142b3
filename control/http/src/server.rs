//! The port and its connections.

use std::{
    convert::Infallible,
    future::{Future, pending},
    io,
    net::{self, SocketAddr},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    thread,
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
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    runtime,
    sync::oneshot,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    Answer, json,
    places::{Connection, Places, Stage},
};

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

/// The port. All of its work is on a thread of its own, so that whoever floods it takes nothing from the program's other
/// ports. Dropping it closes the port and its connections.
#[derive(Debug)]
pub struct Http {
    listen: SocketAddr,
    tls: Option<Arc<Mutex<Arc<ServerConfig>>>>,
    /// Dropped, it ends the thread.
    goes_on: oneshot::Sender<()>,
    /// Closed when the thread has ended.
    ended: oneshot::Receiver<()>,
}

impl Http {
    /// Serves the pages of `site` to who connects here; with `tls` over HTTPS only.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn serve(
        listener: net::TcpListener,
        tls: Option<Arc<ServerConfig>>,
        site: Arc<impl Site>,
    ) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        listener.set_nonblocking(true)?;
        let listener = {
            let _within = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let listen = listener.local_addr()?;
        let tls = tls.map(|it| Arc::new(Mutex::new(it)));
        let port = Port {
            listener,
            tls: tls.clone(),
            site: Arc::clone(&site),
        };
        let (goes_on, stop) = oneshot::channel::<()>();
        let (tell_end, ended) = oneshot::channel();
        thread::Builder::new().name("http".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stop => {}
                    () = port.serve() => {}
                    // Its owner may stop before the port does.
                    () = async { site.run().await; pending().await } => {}
                }
            });
            drop(runtime);
            drop(tell_end);
        })?;
        Ok(Self {
            listen,
            tls,
            goes_on,
            ended,
        })
    }

    /// New connections get this TLS. A port without TLS stays as it is.
    pub fn replace_tls(&self, new: Arc<ServerConfig>) {
        if let Some(tls) = &self.tls {
            *tls.lock().unwrap_or_else(PoisonError::into_inner) = new;
        }
    }

    /// With the real port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listen
    }

    /// Closes the port and its connections.
    pub async fn stop(self) {
        drop(self.goes_on);
        // The channel closes without a value.
        self.ended.await.ok();
    }
}

struct Port<S> {
    listener: TcpListener,
    tls: Option<Arc<Mutex<Arc<ServerConfig>>>>,
    site: Arc<S>,
}

impl<S: Site> Port<S> {
    async fn serve(self) {
        let mut connections = JoinSet::new();
        let mut places = Places::default();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let place = Arc::default();
                        let task = connections.spawn(self.take(stream, Arc::clone(&place)));
                        places.add(task, place);
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
    fn take(
        &self,
        stream: TcpStream,
        place: Arc<Connection>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let site = Arc::clone(&self.site);
        let tls = self.tls.as_ref().map(|it| {
            let now = it.lock().unwrap_or_else(PoisonError::into_inner);
            TlsAcceptor::from(Arc::clone(&now))
        });
        async move {
            let Some(tls) = tls else {
                return converse(stream, site, place).await;
            };
            // The client may have no certificate, or speak something else.
            if let Ok(Ok(stream)) = timeout(HEADER_TIMEOUT, tls.accept(stream)).await {
                converse(stream, site, place).await;
            }
        }
    }
}

async fn converse<S: Site>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    site: Arc<S>,
    place: Arc<Connection>,
) {
    let service = service_fn(async |request| {
        place.reaches(Stage::Asked);
        let answer = answer(&site, &request).await;
        if answer.body().is_stream() {
            place.reaches(Stage::Watches);
        }
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
    if cut_off.is_err() && place.stage() == Stage::Watches {
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
