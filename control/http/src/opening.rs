//! A port that is opened as soon as it can be: a program whose port is taken goes on without it.

use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use rustls::ServerConfig;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::sleep,
};

use crate::{Http, Site};

/// How often a port that could not be opened is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Why the pages are not served as they should be; `None`: they are, or shall not be.
#[derive(Clone, Debug, Default)]
pub struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    /// The reason.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        self.now().clone()
    }

    fn now(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What it takes to open a port. An error says what is missing and what to do; the call is repeated.
pub struct Opening<S> {
    /// The flag that names the address, such as `--metrics-listen`.
    pub flag: &'static str,
    /// The address.
    pub listen: SocketAddr,
    /// What goes on without the port, for the log.
    pub goes_on: &'static str,
    /// What is served.
    pub site: Arc<S>,
    /// Reads what the port needs to speak HTTPS; `None`: it speaks HTTP.
    pub tls: Box<dyn Fn() -> Result<Option<Arc<ServerConfig>>, String> + Send + Sync>,
    /// Is told the address, with the real port.
    pub opened: Box<dyn Fn(SocketAddr) -> Result<(), String> + Send + Sync>,
    /// Has the last error.
    pub trouble: Trouble,
}

/// The port of an [`Opening`]. Dropping it closes it.
#[derive(Debug)]
pub struct OpenedPort {
    http: Arc<OnceLock<Http>>,
    /// Tries again.
    tries: JoinSet<()>,
}

impl OpenedPort {
    /// Opens the port, or goes on trying. Must be called within a tokio runtime.
    #[must_use]
    pub fn open<S: Site>(opening: Opening<S>) -> Self {
        let http = Arc::new(OnceLock::new());
        let attempt = Arc::new((opening, Arc::clone(&http)));
        let mut tries = JoinSet::new();
        if !attempt.0.try_now(&attempt.1) {
            tries.spawn(async move {
                loop {
                    sleep(AGAIN).await;
                    let attempt = Arc::clone(&attempt);
                    let tried = spawn_blocking(move || attempt.0.try_now(&attempt.1));
                    if let Ok(true) = tried.await {
                        return;
                    }
                }
            });
        }
        Self { http, tries }
    }

    /// The port, once it is open.
    #[must_use]
    pub fn http(&self) -> Option<&Http> {
        self.http.get()
    }

    /// Where the pages are, with the real port, once it is open.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.http().map(Http::local_addr)
    }

    /// Closes the port and its connections, and tries no more.
    pub async fn stop(mut self) {
        // A try under way closes what it opens.
        self.tries.shutdown().await;
        if let Some(http) = Arc::into_inner(self.http).and_then(OnceLock::into_inner) {
            http.stop().await;
        }
    }
}

impl<S: Site> Opening<S> {
    /// Whether all is open now.
    fn try_now(&self, http: &OnceLock<Http>) -> bool {
        let why = self.open(http).err();
        let before = std::mem::replace(&mut *self.trouble.now(), why.clone());
        match &why {
            Some(why) if before.as_ref() != Some(why) => {
                let goes_on = self.goes_on;
                tracing::error!("{why}; {goes_on}, and this is tried again every {AGAIN:?}");
            }
            None if before.is_some() => {
                tracing::info!(listen = %self.listen, "pages and metrics are served now");
            }
            _ => {}
        }
        why.is_none()
    }

    fn open(&self, opened: &OnceLock<Http>) -> Result<(), String> {
        let http = match opened.get() {
            Some(http) => http,
            None => {
                let tls = (self.tls)()?;
                let (flag, listen) = (self.flag, self.listen);
                let listener = TcpListener::bind(listen).map_err(|error| {
                    format!("{flag} {listen} cannot be opened, so no pages are served: end what listens there, or name another address at the next start: {error}")
                })?;
                let http = Http::serve(listener, tls, Arc::clone(&self.site));
                let http = http.map_err(|error| format!("start the thread of {flag}: {error}"))?;
                opened.get_or_init(|| http)
            }
        };
        (self.opened)(http.local_addr())
    }
}

impl<S> fmt::Debug for Opening<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening")
            .field("flag", &self.flag)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}
