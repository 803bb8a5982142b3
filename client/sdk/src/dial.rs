//! Opens a QUIC connection to a node.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, IdleTimeout, TransportConfig, VarInt,
    crypto::rustls::QuicClientConfig,
};
use tokio::{
    net::UdpSocket,
    time::{sleep, timeout},
};

use crate::{Error, address, pin::Pin, search::Search};

/// Longest time for all addresses of a node together, unless another node can be asked.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection is closed after this long without a packet of the node.
const IDLE_TIMEOUT: Duration = Duration::from_secs(12);
/// A request is unanswered for this long before its node's port is probed.
const PROBE_FIRST: Duration = Duration::from_millis(200);
/// How long a probe waits for the answer that the port is closed, and the pause after it.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Shorter than the idle timeout of a node.
const KEEP_ALIVE: Duration = Duration::from_secs(4);
/// The name in every node certificate, independent of the address.
const NODE_DNS_NAME: &str = "node.fabricbios";

/// Opens connections to one node.
#[derive(Debug)]
pub(crate) struct Dialler {
    node: String,
    /// Where it is looked for, if it has no address.
    search: Option<Search>,
    config: ClientConfig,
    pub(crate) pin: Arc<Pin>,
}

/// A connection and the socket under it.
#[derive(Clone, Debug)]
pub(crate) struct Connected {
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: Connection,
}

/// Why no connection was opened.
pub(crate) enum DialError {
    /// The address was not resolved, or no socket was opened.
    Local(Error),
    /// The peer answered, and the handshake failed.
    Handshake(ConnectionError),
    /// Another node of the fabric answered than the one of the pin.
    OtherNode(String),
    /// There was no answer.
    NoAnswer(String),
}

impl Dialler {
    /// `pin` is that of the configuration.
    pub(crate) fn new(
        node: &str,
        search: Option<Search>,
        crypto: QuicClientConfig,
        pin: Arc<Pin>,
    ) -> Self {
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport()));
        Self {
            node: node.to_owned(),
            search,
            config,
            pin,
        }
    }

    /// The node as the caller named it.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Tries the addresses of the node one after the other, within this time for all together. A scheduler that is looked
    /// for takes the time of the search.
    pub(crate) async fn dial(&self, within: Duration) -> Result<Connected, DialError> {
        if let Some(search) = &self.search {
            return search.dial(self).await;
        }
        let addresses = address::resolve(&self.node)
            .await
            .map_err(DialError::Local)?;
        let per_address = within / u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let mut last = DialError::NoAnswer("it has no address".to_owned());
        for address in addresses {
            match timeout(per_address, self.dial_one(address)).await {
                Ok(Ok(connected)) => return Ok(connected),
                // Silence at another address does not hide that the wrong node answers.
                _ if matches!(last, DialError::OtherNode(_)) => {}
                Ok(Err(problem)) => last = problem,
                Err(_) => last = DialError::NoAnswer(no_answer(address, per_address)),
            }
        }
        Err(last)
    }

    pub(crate) async fn dial_one(&self, address: SocketAddr) -> Result<Connected, DialError> {
        let endpoint = Endpoint::client(address::any_local(address)).map_err(no_socket)?;
        let connecting = endpoint
            .connect_with(self.config.clone(), address, NODE_DNS_NAME)
            .map_err(|e| DialError::NoAnswer(format!("{address}: {e}")))?;
        tokio::select! {
            connection = connecting => match connection {
                Ok(connection) => match self.pin.keep(&connection) {
                    Some(_) => Ok(Connected { endpoint, connection }),
                    None => Err(DialError::NoAnswer(format!("{address} answers without a certificate"))),
                },
                Err(error) => Err(match self.pin.why_refused(address) {
                    Some(why) => DialError::OtherNode(why),
                    None => DialError::Handshake(error),
                }),
            },
            () = port_is_closed(address) => {
                let why = format!("nothing listens on UDP {address}; is the daemon running?");
                Err(DialError::NoAnswer(why))
            }
        }
    }
}

/// Returns once nobody listens at the address of a connection any more: its daemon has ended. Until then it probes the port,
/// at first after [`PROBE_FIRST`].
pub(crate) async fn port_closes(address: SocketAddr) {
    sleep(PROBE_FIRST).await;
    while timeout(PROBE_EVERY, port_is_closed(address)).await.is_err() {
        sleep(PROBE_EVERY).await;
    }
}

/// Returns when the kernel of the peer answers that the port is closed (ICMP). QUIC ignores this answer, so a
/// caller with a wrong port would wait for the whole timeout.
async fn port_is_closed(address: SocketAddr) {
    if probe(address)
        .await
        .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// Sends one byte, which is no QUIC packet: only a closed port answers it.
async fn probe(address: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(address::any_local(address)).await?;
    socket.connect(address).await?;
    socket.send(&[0]).await?;
    socket.recv(&mut [0; 1]).await.map(drop)
}

fn no_socket(error: io::Error) -> DialError {
    DialError::Local(Error::Local {
        what: "open a UDP socket",
        why: error.to_string(),
    })
}

pub(crate) fn no_answer(address: SocketAddr, waited: Duration) -> String {
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
