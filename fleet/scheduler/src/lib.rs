//! A scheduler of a fabric: nodes report to it, and clients that ask it for a lease are redirected to a node.
//!
//! It advises and grants nothing: the node decides, for the client's own certificate. What it knows is in memory, comes
//! from the nodes themselves, and is there again when they have connected anew. One task owns the view; see `owner.rs`.
//! Who belongs to the fabric is in etcd too, if there is one; see `store.rs`.
#![forbid(unsafe_code)]

mod embedded;
mod figures;
mod health;
mod owner;
mod queue;
mod settings;
mod store;
mod watch;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
    time::SystemTime,
};

use anyhow::Context;
use fabricbios_control::{Limits, Membership, NoSessions, Server};
use fabricbios_discovery::Announcing;
use fabricbios_fabric::{Fabric, PortTls};
use fabricbios_http::OpenedPort;
use fabricbios_wire::{FlatEntry, NodeId, ResourceId, ResourceType};

pub use embedded::EmbeddedEtcd;
pub use fabricbios_placement::Policy;
pub use settings::{Cli, EtcdSettings, Settings};

/// How long a stop waits for requests that are being answered.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A running scheduler.
#[derive(Debug)]
pub struct Scheduler {
    server: Server,
    announcing: Option<Announcing>,
    http: Option<OpenedPort>,
    store: Option<store::Running>,
    embedded: Option<EmbeddedEtcd>,
    id: NodeId,
}

impl Scheduler {
    /// Listens and serves, without etcd. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The identity cannot be used, or the address cannot be listened on.
    pub fn start(settings: &Settings) -> anyhow::Result<Self> {
        Self::start_with(settings, &EtcdSettings::default())
    }

    /// The same with etcd.
    ///
    /// # Errors
    /// An identity cannot be used, the address cannot be listened on, or there is no etcd to start.
    pub fn start_with(settings: &Settings, etcd: &EtcdSettings) -> anyhow::Result<Self> {
        let fabric = Fabric::open_scheduler(&settings.identity, SystemTime::now())?;
        let (id, policy) = (fabric.node_id(), settings.policy);
        tracing::info!(scheduler_id = %id, fabric = %fabric.id(), %policy, "the scheduler's fabric");
        let (urls, identity, embedded) = match etcd.read()? {
            settings::Etcd::None => (Vec::new(), PathBuf::new(), None),
            settings::Etcd::At { urls, identity } => (urls, identity, None),
            settings::Etcd::Embedded => {
                let etcd = EmbeddedEtcd::start(&[]).context("--etcd embedded-dev")?;
                (vec![etcd.url()], etcd.identity(), Some(etcd))
            }
        };
        let settles_after = etcd.settles_after.unwrap_or(settings::SETTLES_AFTER);
        let calls = store::Calls::default();
        let (etcd, store) = match urls.is_empty() {
            true => (None, None),
            false => {
                let (store, news, running) =
                    store::start(&urls, &identity, fabric.id(), id, settles_after, &calls)?;
                (Some((store, news)), Some(running))
            }
        };
        let (figures, asks) = figures::channel();
        let queue = owner::start(id, policy, etcd, asks);
        let membership = Membership::new(fabric);
        let origin = Arc::new(OnceLock::new());
        let read = |path| PortTls::read(path, SystemTime::now()).context("--http-identity");
        let tls = settings.http_identity.as_deref().map(read).transpose()?;
        let http = settings.http_listen.map(|at| {
            let watched = watch::Watched {
                asks: figures,
                membership: membership.clone(),
                depths: queue.depths(),
                calls,
                origin: Arc::clone(&origin),
            };
            let started = watch::start(at, tls, watched, settings.run_dir.as_deref());
            started.with_context(|| format!("--http-listen {at}"))
        });
        let http = http.transpose()?;
        let server = Server::start(
            settings.listen,
            &membership,
            limits(),
            Arc::new(move |request| queue.pass_on(request)),
            Arc::new(NoSessions),
        )
        .context("serve nodes and clients")?;
        // It is set once.
        origin.set(server.origin()).ok();
        let announcing = match &settings.announce[..] {
            [] => None,
            links => {
                let (fabric, listen) = (membership.now(), server.local_addr());
                // One that opens later is announced from the next start on.
                let http = http.as_ref().and_then(OpenedPort::local_addr);
                // Another program may listen with this number at the addresses that are announced.
                let http = http.filter(|it| it.ip().is_unspecified() || it.ip() == listen.ip());
                let http_port = http.map_or(0, |it| it.port());
                let entries = vec![entry(id, http_port)];
                let started = Announcing::start(links, fabric, listen, entries);
                Some(started.context("--announce")?)
            }
        };
        Ok(Self {
            server,
            announcing,
            http,
            store,
            embedded,
            id,
        })
    }

    /// SHA-256 of the scheduler's SubjectPublicKeyInfo.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The local address, with the real port if 0 was configured.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Where it serves HTTP, with the real port if 0 was configured; `None`: nowhere, or not yet.
    #[must_use]
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().and_then(OpenedPort::local_addr)
    }

    /// Closes all connections: clients ask another scheduler, or a node itself.
    pub async fn stop(self) {
        if let Some(announcing) = self.announcing {
            announcing.stop().await;
        }
        if let Some(http) = self.http {
            http.stop().await;
        }
        let store = async {
            if let Some(store) = self.store {
                store.stop().await;
            }
        };
        tokio::join!(self.server.shutdown(STOP_TIMEOUT), store);
        drop(self.embedded);
    }
}

/// The scheduler as a resource. Port 0: it serves no HTTP.
fn entry(id: NodeId, http_port: u16) -> FlatEntry {
    let mut start = [0; 16];
    start.copy_from_slice(&id.0[..16]);
    FlatEntry {
        resource_id: ResourceId(u128::from_be_bytes(start).max(1)),
        resource_type: ResourceType::Scheduler,
        flags: 0,
        capacity: http_port.into(),
        available: 1,
    }
}

/// Every node has one connection. All of them may come from one network.
fn limits() -> Limits {
    const NODES_MAX: usize = 16_384;
    Limits {
        connections_max: 2 * NODES_MAX,
        connections_per_source_max: NODES_MAX,
        nodes_max: NODES_MAX,
        ..Limits::default()
    }
}
