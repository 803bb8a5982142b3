//! Who has sent a request, and over which connection.

use std::{net::SocketAddr, sync::Arc};

use fabricbios_fabric::Label;
use fabricbios_wire::NodeId;
use tokio::sync::watch;

/// The sender of a request, as its certificate and its connection show it.
#[derive(Clone, Debug)]
pub struct RequestPeer {
    /// SHA-256 of the SubjectPublicKeyInfo of its certificate: a node's id.
    pub key: NodeId,
    /// The labels that the CA has signed for a node; others have none.
    pub labels: Arc<[Label]>,
    /// The connection.
    pub connection: PeerConnection,
}

/// A connection of a peer. Clones are the same connection.
#[derive(Clone, Debug)]
pub struct PeerConnection {
    /// Counts the connections of a server from 1, in the order in which their handshakes were done.
    pub number: u64,
    /// The peer's address.
    pub remote: SocketAddr,
    /// The sender is gone when the connection has ended.
    ended: watch::Receiver<()>,
}

impl PeerConnection {
    /// A connection, and what to drop at its end.
    #[must_use]
    pub fn new(number: u64, remote: SocketAddr) -> (Self, watch::Sender<()>) {
        let (until_end, ended) = watch::channel(());
        let connection = Self {
            number,
            remote,
            ended,
        };
        (connection, until_end)
    }

    /// Returns once the connection has ended, at once if it has already: no new request comes over it; one that came before may still be answered.
    pub async fn closed(mut self) {
        while self.ended.changed().await.is_ok() {}
    }
}
