//! A scheduler of a fabric: nodes report to it, and clients that ask it for a lease are redirected to a node.
//!
//! It advises and grants nothing: the node decides, for the client's own certificate. What it knows is in memory, comes
//! from the nodes themselves, and is there again when they have connected anew. One task owns the view; see `owner.rs`.
#![forbid(unsafe_code)]

mod owner;
mod settings;

use std::{net::SocketAddr, sync::Arc, time::Duration, time::SystemTime};

use anyhow::Context;
use fabricbios_control::{Limits, Membership, NoSessions, Server};
use fabricbios_fabric::Fabric;
use fabricbios_wire::NodeId;

use owner::Owner;
pub use settings::Settings;

/// How long a stop waits for requests that are being answered.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A running scheduler.
#[derive(Debug)]
pub struct Scheduler {
    server: Server,
    id: NodeId,
}

impl Scheduler {
    /// Listens and serves. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The identity cannot be used, or the address cannot be listened on.
    pub fn start(settings: &Settings) -> anyhow::Result<Self> {
        let fabric = Fabric::open_scheduler(&settings.identity, SystemTime::now())?;
        let id = fabric.node_id();
        tracing::info!(scheduler_id = %id, fabric = %fabric.id(), "the scheduler's fabric");
        let owner = Owner::start(id);
        let server = Server::start(
            settings.listen,
            &Membership::new(fabric),
            limits(),
            Arc::new(move |request| owner.pass_on(request)),
            Arc::new(NoSessions),
        )
        .context("serve nodes and clients")?;
        Ok(Self { server, id })
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

    /// Closes all connections: clients ask another scheduler, or a node itself.
    pub async fn stop(self) {
        self.server.shutdown(STOP_TIMEOUT).await;
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
