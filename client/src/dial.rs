//! From a node's name to a QUIC connection, or to why there is none.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, IdleTimeout, TransportConfig, VarInt,
    crypto::rustls::QuicClientConfig,
};
use tokio::{net::UdpSocket, time::timeout};

use crate::{Error, address};

/// For all addresses of a node together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Silence of the node after which it counts as gone.
const IDLE_TIMEOUT: Duration = Duration::from_secs(12);
/// Often enough that a node's own idle timeout never strikes.
const KEEP_ALIVE: Duration = Duration::from_secs(4);
/// The name in every node certificate, whatever address was dialled.
const NODE_DNS_NAME: &str = "node.fabricbios";

/// How to reach one node.
#[derive(Debug)]
pub(crate) struct Dialler {
    node: String,
    config: ClientConfig,
}

/// A connection and the socket under it.
#[derive(Clone, Debug)]
pub(crate) struct Connected {
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: Connection,
}

/// Why there is no connection.
pub(crate) enum Undialled {
    /// There was nothing to dial, or nothing to dial with.
    Address(Error),
    /// Somebody answered, and it did not work out.
    Refused(ConnectionError),
    /// Nobody answered.
    Silent(String),
}

impl Dialler {
    pub(crate) fn new(node: &str, crypto: QuicClientConfig) -> Self {
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport()));
        Self {
            node: node.to_owned(),
            config,
        }
    }

    /// As it was given.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Tries the node's addresses in turn.
    pub(crate) async fn dial(&self) -> Result<Connected, Undialled> {
        let addresses = address::resolve(&self.node)
            .await
            .map_err(Undialled::Address)?;
        let share = CONNECT_TIMEOUT / u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let mut last = Undialled::Silent("it has no address".to_owned());
        for address in addresses {
            match timeout(share, self.dial_one(address)).await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(problem)) => last = problem,
                Err(_) => last = Undialled::Silent(silence(address, share)),
            }
        }
        Err(last)
    }

    async fn dial_one(&self, address: SocketAddr) -> Result<Connected, Undialled> {
        let endpoint = Endpoint::client(address::any_local(address)).map_err(no_socket)?;
        let connecting = endpoint
            .connect_with(self.config.clone(), address, NODE_DNS_NAME)
            .map_err(|e| Undialled::Silent(format!("{address}: {e}")))?;
        tokio::select! {
            connection = connecting => match connection {
                Ok(connection) => Ok(Connected { endpoint, connection }),
                Err(error) => Err(Undialled::Refused(error)),
            },
            () = port_is_closed(address) => {
                let why = format!("nothing listens on UDP {address}; is the daemon running?");
                Err(Undialled::Silent(why))
            }
        }
    }
}

/// Returns when the peer's kernel says that nobody listens. QUIC itself may not believe that and
/// would wait for the whole timeout; a caller with a wrong port should not have to.
async fn port_is_closed(address: SocketAddr) {
    if probe(address)
        .await
        .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// One byte that no QUIC server takes for a packet: only a closed port answers it.
async fn probe(address: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(address::any_local(address)).await?;
    socket.connect(address).await?;
    socket.send(&[0]).await?;
    socket.recv(&mut [0; 1]).await.map(drop)
}

fn no_socket(error: io::Error) -> Undialled {
    Undialled::Address(Error::Local {
        what: "open a UDP socket",
        why: error.to_string(),
    })
}

fn silence(address: SocketAddr, waited: Duration) -> String {
    format!(
        "no answer from UDP {address} within {waited:?}; is the daemon running, and the port open?"
    )
}

fn transport() -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(IdleTimeout::try_from(IDLE_TIMEOUT).ok());
    config
}
