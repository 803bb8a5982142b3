//! The port of the pages. It opens as soon as it can: a node whose port is taken starts without it, because leases of an
//! earlier run must be adopted and cut in time.

use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::Context;
use fabricbios_fabric::PortTls;
use fabricbios_http::Http;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::sleep,
};

use super::Monitor;

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

    fn now(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The port. Dropping it closes it.
#[derive(Debug)]
pub struct Port {
    opening: Arc<Opening>,
    /// Tries again.
    _tries: JoinSet<()>,
}

/// What it takes to open the port.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) listen: SocketAddr,
    /// With it the port speaks HTTPS.
    pub(super) identity: Option<PathBuf>,
    pub(super) state_dir: PathBuf,
    pub(super) monitor: Arc<Monitor>,
    pub(super) trouble: Trouble,
    pub(super) http: OnceLock<Http>,
    pub(super) tls: Mutex<Option<PortTls>>,
}

impl Port {
    /// Opens the port, or goes on trying. Must be called within a tokio runtime.
    pub(super) fn open(opening: Opening) -> Self {
        let opening = Arc::new(opening);
        let mut tries = JoinSet::new();
        if !opening.try_now() {
            let opening = Arc::clone(&opening);
            tries.spawn(async move {
                loop {
                    sleep(AGAIN).await;
                    let opening = Arc::clone(&opening);
                    if let Ok(true) = spawn_blocking(move || opening.try_now()).await {
                        return;
                    }
                }
            });
        }
        Self {
            opening,
            _tries: tries,
        }
    }

    /// Where the pages are, with the real port, once it is open.
    #[must_use]
    pub fn url(&self) -> Option<String> {
        let scheme = match self.opening.identity {
            Some(_) => "https",
            None => "http",
        };
        let http = self.opening.http.get()?;
        Some(format!("{scheme}://{}", http.local_addr()))
    }

    /// What reads the file of `metrics-identity` again. `true`: it has other certificates, which new connections get.
    pub(crate) fn reread(&self) -> Box<Reread> {
        let opening = Arc::clone(&self.opening);
        Box::new(move || opening.reread())
    }
}

/// See [`Port::reread`].
pub(crate) type Reread = dyn Fn() -> anyhow::Result<bool> + Send + Sync;

impl Opening {
    /// Whether all is open now.
    fn try_now(&self) -> bool {
        let outcome = self.open();
        let why = outcome.as_ref().err().map(|error| format!("{error:#}"));
        let before = std::mem::replace(&mut *self.trouble.now(), why.clone());
        match why {
            Some(why) if before.as_ref() != Some(&why) => {
                tracing::error!("{why}; leases go on, and this is tried again every {AGAIN:?}");
            }
            None if before.is_some() => {
                tracing::info!(listen = %self.listen, "pages and metrics are served now");
            }
            _ => {}
        }
        outcome.is_ok()
    }

    fn open(&self) -> anyhow::Result<()> {
        let http = match self.http.get() {
            Some(http) => http,
            None => {
                let tls = self.read()?;
                let config = tls.as_ref().map(|it| Arc::clone(&it.config));
                let listener = TcpListener::bind(self.listen).with_context(|| {
                    format!("--metrics-listen {} cannot be opened, so no pages are served: end what listens there, or name another address at the next start", self.listen)
                })?;
                let http = Http::serve(listener, config, Arc::clone(&self.monitor));
                let http = http.context("start the thread of --metrics-listen")?;
                *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls;
                self.http.get_or_init(|| http)
            }
        };
        let page = &self.monitor.page;
        page.write_address(&self.state_dir, http.local_addr())
            .with_context(|| {
                format!(
                    "page.url cannot be written in --state-dir {}, so nobody can log in at the page",
                    self.state_dir.display()
                )
            })
    }

    fn read(&self) -> anyhow::Result<Option<PortTls>> {
        let read =
            |path: &PathBuf| PortTls::read(path, SystemTime::now()).context("--metrics-identity");
        self.identity.as_ref().map(read).transpose()
    }

    fn reread(&self) -> anyhow::Result<bool> {
        let Some(new) = self.read()? else {
            return Ok(false);
        };
        let Some(http) = self.http.get() else {
            // The next try reads it.
            return Ok(false);
        };
        let mut now = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
        let is_other = now
            .as_ref()
            .is_none_or(|it| it.certificates != new.certificates);
        http.replace_tls(Arc::clone(&new.config));
        *now = Some(new);
        Ok(is_other)
    }
}
