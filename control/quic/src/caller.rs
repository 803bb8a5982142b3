//! The client with which one member of a fabric asks another: a node its scheduler.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use fabricbios_fabric::{BadCertificate, Fabric, NODE_DNS_NAME};
use fabricbios_wire::{
    ALPN, Answer, HEADER_LEN, Header, MAX_PAYLOAD, Rejected, Request, Role, decode_answer,
    encode_request,
};
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, IdleTimeout, TransportConfig, VarInt,
    crypto::rustls::QuicClientConfig,
};
use rustls::{RootCertStore, client::Resumption, pki_types::CertificateDer};
use tokio::{net::lookup_host, time::timeout};

use crate::{close, verifier::NamesItsCa};

/// Longest time for the connection to one address. A scheduler that has started anew makes thousands of handshakes: whoever
/// gave up after half of this made it begin again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time until an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection is closed after this long without a packet.
const IDLE_TIMEOUT: Duration = Duration::from_secs(12);
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Why a member could not ask another one.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The name has no address.
    #[error("cannot resolve {to}: {why}")]
    Resolve {
        /// Host and port.
        to: String,
        /// The reason.
        why: String,
    },
    /// No socket, or no TLS from this identity.
    #[error("{what}: {why}")]
    Local {
        /// The step that failed.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// No answer in time.
    #[error("no answer from UDP {at} within {waited:?}")]
    Silent {
        /// The address.
        at: SocketAddr,
        /// How long this side has waited.
        waited: Duration,
    },
    /// The certificate of the server is not of the fabric of this identity, or the server does not take that of this
    /// identity. The text has the reason.
    #[error("{at} is of another fabric, or does not take this identity: {why}")]
    NotOfFabric {
        /// The address.
        at: SocketAddr,
        /// The TLS alert.
        why: String,
    },
    /// The server is another kind of member.
    #[error("{at} is a {found}, and no {expected}")]
    OtherRole {
        /// The address.
        at: SocketAddr,
        /// The role in its certificate.
        found: Role,
        /// The role that was asked for.
        expected: Role,
    },
    /// The certificate of the server names nobody.
    #[error("{at}: {why}")]
    Certificate {
        /// The address.
        at: SocketAddr,
        /// What is wrong with it.
        why: BadCertificate,
    },
    /// The connection has ended.
    #[error("connection to {at} ended: {why}")]
    Lost {
        /// The address.
        at: SocketAddr,
        /// The reason.
        why: String,
    },
    /// The server's bytes are no answer to the request.
    #[error("{at} answered with something unexpected: {why}; do the versions match?")]
    Protocol {
        /// The address.
        at: SocketAddr,
        /// The unexpected part.
        why: String,
    },
}

/// From where a member calls another one: from a new socket for each connection, unless it is the address of a server of
/// its own ([`crate::Server::origin`]).
#[derive(Clone, Debug, Default)]
pub struct Origin(pub(crate) Option<Endpoint>);

impl Origin {
    /// The open connections of the server, and those that are being opened; 0: it is no server's.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.0.as_ref().map_or(0, Endpoint::open_connections)
    }

    fn endpoint(&self, to: SocketAddr) -> std::io::Result<Endpoint> {
        match &self.0 {
            Some(endpoint) => Ok(endpoint.clone()),
            None => Endpoint::client(any_local(to)),
        }
    }
}

/// A connection to another member. Dropping this closes it.
#[derive(Debug)]
pub struct Caller {
    connection: Connection,
    _endpoint: Endpoint,
    at: SocketAddr,
    next_request_id: AtomicU32,
}

impl Caller {
    /// Connects to `HOST:PORT` with this identity. The certificate of the server must be of the identity's present fabric
    /// and have the role `expected`. Tries all addresses of the host, 10 s each.
    ///
    /// # Errors
    /// No address has such a server; the error is about the last one.
    pub async fn connect(to: &str, fabric: &Fabric, expected: Role) -> Result<Self, CallError> {
        Self::connect_from(&Origin::default(), to, fabric, expected).await
    }

    /// The same from this origin.
    ///
    /// # Errors
    /// As of [`Caller::connect`].
    pub async fn connect_from(
        origin: &Origin,
        to: &str,
        fabric: &Fabric,
        expected: Role,
    ) -> Result<Self, CallError> {
        let config = client_config(fabric).map_err(|why| local("set up TLS", &why))?;
        let unresolved = |why: String| CallError::Resolve {
            to: to.to_owned(),
            why,
        };
        let found = timeout(CONNECT_TIMEOUT, lookup_host(to)).await;
        let found = found.map_err(|_late| unresolved("no answer of the name service".into()))?;
        let mut last = unresolved("it has no address".into());
        for at in found.map_err(|error| unresolved(error.to_string()))? {
            match Self::connect_to(origin, at, &config, fabric, expected).await {
                Ok(caller) => return Ok(caller),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn connect_to(
        origin: &Origin,
        at: SocketAddr,
        config: &ClientConfig,
        fabric: &Fabric,
        expected: Role,
    ) -> Result<Self, CallError> {
        let endpoint = origin
            .endpoint(at)
            .map_err(|e| local("open a UDP socket", &e))?;
        let connecting = endpoint.connect_with(config.clone(), at, NODE_DNS_NAME);
        let connecting = connecting.map_err(|e| local("connect", &e))?;
        let waited = CONNECT_TIMEOUT;
        let connected = timeout(waited, connecting).await;
        let connected = connected.map_err(|_late| CallError::Silent { at, waited })?;
        let connection = connected.map_err(|error| lost(at, &error))?;
        let found =
            role_of(&connection, fabric).map_err(|why| CallError::Certificate { at, why })?;
        if found != expected {
            connection.close(VarInt::from_u32(close::DONE), b"another role was asked for");
            return Err(CallError::OtherRole {
                at,
                found,
                expected,
            });
        }
        Ok(Self {
            connection,
            _endpoint: endpoint,
            at,
            next_request_id: AtomicU32::new(1),
        })
    }

    /// Sends a request and waits for its answer, for 10 s at most.
    ///
    /// # Errors
    /// There was no answer. The server may have done the request.
    pub async fn call(&self, request: &Request) -> Result<Answer, CallError> {
        let waited = ANSWER_TIMEOUT;
        let answer = timeout(waited, self.ask(request)).await;
        answer.unwrap_or(Err(CallError::Silent {
            at: self.at,
            waited,
        }))
    }

    async fn ask(&self, request: &Request) -> Result<Answer, CallError> {
        let request_id = self.next_request_id.fetch_add(1, Ordering::Relaxed);
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(|e| local("get randomness", &e))?;
        let frame = encode_request(request_id, u64::from_ne_bytes(nonce), request);
        let opened = self.connection.open_bi().await;
        let (mut send, mut recv) = opened.map_err(|error| lost(self.at, &error))?;
        // The server may answer before it has read the whole frame. A lost connection shows below.
        send.write_all(&frame).await.ok();
        send.finish().ok();
        let bytes = match recv.read_to_end(HEADER_LEN + MAX_PAYLOAD).await {
            Ok(bytes) => bytes,
            Err(error) => {
                return Err(match self.connection.close_reason() {
                    Some(reason) => lost(self.at, &reason),
                    None => self.unexpected(error.to_string()),
                });
            }
        };
        decode(&frame, &bytes).map_err(|rejected| self.unexpected(rejected.refusal().message))
    }

    fn unexpected(&self, why: String) -> CallError {
        CallError::Protocol { at: self.at, why }
    }

    /// Waits until the connection has ended.
    pub async fn closed(&self) -> CallError {
        lost(self.at, &self.connection.closed().await)
    }

    /// The address of the server.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.at
    }

    /// The address of this machine from which the server is reached. `None`: the kernel does not say.
    #[must_use]
    pub fn local_ip(&self) -> Option<IpAddr> {
        let socket = UdpSocket::bind(any_local(self.at)).ok()?;
        socket.connect(self.at).ok()?;
        Some(socket.local_addr().ok()?.ip().to_canonical())
    }
}

/// The role in the certificate of the server, which TLS has verified.
fn role_of(connection: &Connection, fabric: &Fabric) -> Result<Role, BadCertificate> {
    let identity = connection.peer_identity();
    let chain = identity.and_then(|it| it.downcast::<Vec<CertificateDer<'static>>>().ok());
    let leaf = chain.as_ref().and_then(|chain| chain.first());
    let leaf = leaf.ok_or(BadCertificate::Signer)?;
    fabric.peer(leaf).map(|peer| peer.principal.role)
}

fn decode(frame: &[u8], answer: &[u8]) -> Result<Answer, Rejected> {
    let header = frame.first_chunk().copied().unwrap_or([0; HEADER_LEN]);
    decode_answer(&Header::parse(&header)?, answer)
}

fn local(what: &'static str, why: &dyn ToString) -> CallError {
    CallError::Local {
        what,
        why: why.to_string(),
    }
}

fn lost(at: SocketAddr, error: &ConnectionError) -> CallError {
    let (code, why) = match error {
        ConnectionError::TransportError(it) => (u64::from(it.code), it.reason.clone()),
        ConnectionError::ConnectionClosed(it) => (u64::from(it.error_code), it.to_string()),
        ConnectionError::ApplicationClosed(it) => (0, it.to_string()),
        other => (0, other.to_string()),
    };
    match TLS_ALERTS.contains(&code) {
        true => CallError::NotOfFabric { at, why },
        false => CallError::Lost { at, why },
    }
}

/// The codes of QUIC for TLS alerts (RFC 9001 §4.8).
const TLS_ALERTS: std::ops::Range<u64> = 0x100..0x200;

/// TLS 1.3, the CA of the present fabric only, no resumption.
fn client_config(
    fabric: &Fabric,
) -> Result<ClientConfig, Box<dyn std::error::Error + Send + Sync>> {
    let certified = fabric
        .certified()
        .first()
        .ok_or("the identity has no certificate")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certified.ca.clone())?;
    let verifier = NamesItsCa::new(roots, Arc::clone(&provider))?;
    let chain = vec![certified.certificate.clone()];
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, fabric.key().der().clone_key())?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.resumption = Resumption::disabled();
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(IdleTimeout::try_from(IDLE_TIMEOUT)?));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// The unspecified address of the family of `to`, to send from.
fn any_local(to: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}
