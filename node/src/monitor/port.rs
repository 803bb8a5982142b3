//! The port of the pages. It opens as soon as it can: a node whose port is taken starts without it, because leases of an
//! earlier run must be adopted and cut in time.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use anyhow::Context;
use fabricbios_fabric::PortTls;
use fabricbios_http::{OpenedPort, Opening, Trouble};

use super::Monitor;

/// The port. Dropping it closes it.
#[derive(Debug)]
pub struct Port {
    opened: Arc<OpenedPort>,
    /// With it the port speaks HTTPS.
    identity: Option<PathBuf>,
    /// What was read of the identity.
    tls: Arc<Mutex<Option<PortTls>>>,
}

impl Port {
    /// Opens the port, or goes on trying. Must be called within a tokio runtime.
    pub(super) fn open(
        listen: SocketAddr,
        identity: Option<PathBuf>,
        monitor: Arc<Monitor>,
        trouble: Trouble,
    ) -> Self {
        let tls = Arc::<Mutex<Option<PortTls>>>::default();
        let (file, now, site) = (identity.clone(), Arc::clone(&tls), Arc::clone(&monitor));
        let opening = Opening {
            flag: "--metrics-listen",
            listen,
            goes_on: "leases go on",
            site,
            tls: Box::new(move || {
                let read = read(file.as_deref()).map_err(|error| format!("{error:#}"))?;
                let config = read.as_ref().map(|it| Arc::clone(&it.config));
                *now.lock().unwrap_or_else(PoisonError::into_inner) = read;
                Ok(config)
            }),
            opened: Box::new(move |listen| {
                let state_dir = &monitor.watched.state_dir;
                let written = monitor.page.write_address(state_dir, listen);
                written.map_err(|error| {
                    format!(
                        "page.url cannot be written in --state-dir {}, so nobody can log in at the page: {error}",
                        state_dir.display()
                    )
                })
            }),
            trouble,
        };
        Self {
            opened: Arc::new(OpenedPort::open(opening)),
            identity,
            tls,
        }
    }

    /// Where the pages are, with the real port, once it is open.
    #[must_use]
    pub fn url(&self) -> Option<String> {
        let scheme = match self.identity {
            Some(_) => "https",
            None => "http",
        };
        Some(format!("{scheme}://{}", self.opened.local_addr()?))
    }

    /// What reads the file of `metrics-identity` again. `true`: it has other certificates, which new connections get.
    pub(crate) fn reread(&self) -> Box<Reread> {
        let (opened, identity) = (Arc::downgrade(&self.opened), self.identity.clone());
        let now = Arc::clone(&self.tls);
        Box::new(move || {
            let opened = opened.upgrade();
            // The next try reads it.
            let (Some(new), Some(http)) = (
                read(identity.as_deref())?,
                opened.as_ref().and_then(|it| it.http()),
            ) else {
                return Ok(false);
            };
            let mut now = now.lock().unwrap_or_else(PoisonError::into_inner);
            let before = now.as_ref().map(|it| &it.certificates);
            let is_other = before != Some(&new.certificates);
            http.replace_tls(Arc::clone(&new.config));
            *now = Some(new);
            Ok(is_other)
        })
    }
}

/// See [`Port::reread`].
pub(crate) type Reread = dyn Fn() -> anyhow::Result<bool> + Send + Sync;

fn read(identity: Option<&Path>) -> anyhow::Result<Option<PortTls>> {
    let read = |path| PortTls::read(path, SystemTime::now()).context("--metrics-identity");
    identity.map(read).transpose()
}
