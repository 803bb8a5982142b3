//! The QUIC server: accepts connections and streams, and answers requests.
//!
//! A bidirectional stream has one request, or leads to a session of a GPU. A request reaches the daemon only after the
//! certificate of the peer was verified and the frame was decoded.

use std::{
    error::Error,
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use fabricbios_fabric::{BadCertificate, Fabric, Peer, Principal};
use fabricbios_wire::{Answer, Request, Role};
use quinn::{
    AsyncUdpSocket, Connection, ConnectionError, Endpoint, Incoming, Runtime as _, TokioRuntime,
    VarInt,
};
use rustls::pki_types::CertificateDer;
use tokio::{
    sync::{oneshot, watch},
    task::{JoinHandle, JoinSet},
    time::{error::Elapsed, timeout},
};

use crate::{
    Limits, Membership, Origin, PeerConnection, RequestPeer, SessionConnector,
    admission::{Admission, Full, Place},
    close,
    conversation::Conversation,
    endpoint::{endpoint, server_config},
    noise::Noise,
    session_places::SessionPlaces,
};

/// How long the close of all connections may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A request of an authenticated peer. If `reply` is dropped, the peer receives the refusal that the server is stopping.
#[derive(Debug)]
pub struct PeerRequest {
    /// Who asks, and in which role.
    pub principal: Principal,
    /// The certificate and the connection of who asks.
    pub peer: RequestPeer,
    /// The address that the node listens on, which may be a wildcard.
    pub listen: SocketAddr,
    /// The local address that the peer reached, if the kernel provided it: a node that listens on a wildcard puts it
    /// into endpoints.
    pub local_ip: Option<IpAddr>,
    /// The request.
    pub request: Request,
    /// The channel of the answer.
    pub reply: oneshot::Sender<Answer>,
}

/// Receives each request where it arrives, on the threads of the runtime. Must not block.
pub type OnRequest = Arc<dyn Fn(PeerRequest) + Send + Sync>;

/// Why the control plane could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is in use, is not of this machine, or is not permitted.
    #[error("cannot listen on UDP {listen}; choose another address with --listen")]
    Listen {
        /// The configured address.
        listen: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Key, certificate and settings of the node do not make a server; the text has the reason.
    #[error("cannot set up TLS: {0}")]
    Tls(Box<dyn Error + Send + Sync>),
}

/// A running control plane.
#[derive(Debug)]
pub struct Server {
    endpoint: Endpoint,
    local_addr: SocketAddr,
    admission: Arc<Admission>,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

/// The state that all connections share.
pub(crate) struct ServerState {
    pub(crate) admission: Arc<Admission>,
    pub(crate) limits: Limits,
    noise: Noise,
    pub(crate) listen: SocketAddr,
    pub(crate) on_request: OnRequest,
    pub(crate) sessions: Arc<SessionPlaces>,
    pub(crate) connector: Arc<dyn SessionConnector>,
    pub(crate) membership: Membership,
    next_connection: AtomicU64,
    served: Served,
}

/// What new connections get: the certificates of an identity. quinn chooses the endpoint's when a packet arrives, which
/// may be before a change of the identity that its sender knows of; so each handshake asks for the present ones.
struct Served(Mutex<(Arc<Fabric>, Arc<quinn::ServerConfig>)>);

impl Served {
    fn now(&self, of: &ServerState) -> Arc<quinn::ServerConfig> {
        let fabric = of.membership.now();
        let mut served = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&served.0, &fabric) {
            match server_config(&fabric, &of.limits) {
                Ok(config) => *served = (fabric, Arc::new(config)),
                Err(error) => {
                    tracing::error!(%error, "the node serves with its former certificate until its next start");
                    served.0 = fabric;
                }
            }
        }
        Arc::clone(&served.1)
    }
}

impl Server {
    /// Listens and serves until [`Server::shutdown`]: requests go to `on_request`, and `connector` connects streams to
    /// sessions of GPUs. Must be called within a tokio runtime.
    pub fn start(
        listen: SocketAddr,
        membership: &Membership,
        limits: Limits,
        on_request: OnRequest,
        connector: Arc<dyn SessionConnector>,
    ) -> Result<Self, ServerError> {
        let listen_error = |source| ServerError::Listen { listen, source };
        let socket = UdpSocket::bind(listen)
            .and_then(|socket| TokioRuntime.wrap_udp_socket(socket))
            .map_err(listen_error)?;
        Self::start_over(socket, membership, limits, on_request, connector)
    }

    /// The same over this socket: a simulation of many nodes has one of the kernel for all of them. Must be called within
    /// a tokio runtime.
    ///
    /// # Errors
    /// The identity makes no server, or the socket has no address.
    pub fn start_over(
        socket: Arc<dyn AsyncUdpSocket>,
        membership: &Membership,
        limits: Limits,
        on_request: OnRequest,
        connector: Arc<dyn SessionConnector>,
    ) -> Result<Self, ServerError> {
        let local_addr = { socket.local_addr() }
            .map_err(|error| ServerError::Tls(format!("the socket: {error}").into()))?;
        let fabric = membership.now();
        let config = server_config(&fabric, &limits)?;
        let endpoint = endpoint(socket, &fabric, config.clone())?;
        let admission = Admission::new(limits.clone());
        let shared = Arc::new(ServerState {
            admission: admission.clone(),
            sessions: SessionPlaces::new(limits.clone()),
            limits,
            noise: Noise::default(),
            listen: local_addr,
            on_request,
            connector,
            membership: membership.clone(),
            next_connection: AtomicU64::new(1),
            served: Served(Mutex::new((fabric, Arc::new(config)))),
        });
        let (stop, stopping) = watch::channel(false);
        let accepting = tokio::spawn(accept(endpoint.clone(), shared, stopping));
        Ok(Self {
            endpoint,
            local_addr,
            admission,
            stop,
            accepting,
        })
    }

    /// The local address, with the real port if 0 was configured.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Takes over the limits of connections: the first three of `limits`. Those that are open stay, also above a new limit.
    pub fn change_limits(&self, limits: Limits) {
        self.admission.change_limits(limits);
    }

    /// Where the server listens, to call another member from there: see [`crate::Caller::connect_from`].
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin(Some(self.endpoint.clone()))
    }

    /// Accepts no more requests, answers the accepted ones, and closes all connections. After `patience` the unanswered
    /// requests are dropped, and streams to sessions are cut: they have no end of their own.
    pub async fn shutdown(mut self, patience: Duration) {
        self.stop.send_replace(true);
        timeout(patience, &mut self.accepting).await.ok();
        // Closes before the remaining streams are dropped: a connection without streams would close with another code.
        self.endpoint
            .close(VarInt::from_u32(close::SHUTTING_DOWN), b"shutting down");
        self.accepting.abort();
        if timeout(CLOSE_TIMEOUT, self.endpoint.wait_idle())
            .await
            .is_err()
        {
            tracing::debug!("some peers did not acknowledge the goodbye");
        }
    }
}

async fn accept(endpoint: Endpoint, shared: Arc<ServerState>, mut stop: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stop.changed() => break,
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => admit(&shared, incoming, &stop, &mut connections),
                None => break,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drain(&endpoint, connections).await;
}

/// Finishes open connections. New connections are refused at once, so that clients can try another node.
async fn drain(endpoint: &Endpoint, mut connections: JoinSet<()>) {
    loop {
        tokio::select! {
            finished = connections.join_next() => if finished.is_none() {
                return;
            },
            Some(incoming) = endpoint.accept() => incoming.refuse(),
        }
    }
}

/// Refuses a connection, sends a Retry, or begins the handshake.
fn admit(
    shared: &Arc<ServerState>,
    incoming: Incoming,
    stop: &watch::Receiver<bool>,
    connections: &mut JoinSet<()>,
) {
    let from = incoming.remote_address();
    let is_validated = incoming.remote_address_validated();
    match shared.admission.admit(from.ip(), is_validated) {
        Ok(place) => {
            connections.spawn(connection(
                Arc::clone(shared),
                incoming,
                place,
                stop.clone(),
            ));
        }
        Err(Full::Unvalidated) => {
            // quinn: this fails only for a validated address.
            incoming.retry().ok();
        }
        Err(full) => {
            shared.noise.record(from, &full);
            incoming.refuse();
        }
    }
}

async fn connection(
    shared: Arc<ServerState>,
    incoming: Incoming,
    mut place: Place,
    stop: watch::Receiver<bool>,
) {
    let from = incoming.remote_address();
    match handshake(&shared, incoming, &mut place).await {
        Ok((connection, peer)) => serve_streams(&shared, connection, peer, stop).await,
        Err(error) => shared.noise.record(from, &error),
    }
}

/// Why a connection has no peer.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error("handshake: {0}")]
    Broken(#[from] ConnectionError),
    #[error("handshake not finished: {0}")]
    Late(#[from] Elapsed),
    #[error("no certificate")]
    NoCertificate,
    #[error(transparent)]
    Certificate(#[from] BadCertificate),
    #[error(transparent)]
    Full(#[from] Full),
}

async fn handshake(
    shared: &ServerState,
    incoming: Incoming,
    place: &mut Place,
) -> Result<(Connection, Peer), HandshakeError> {
    let connecting = incoming.accept_with(shared.served.now(shared))?;
    let connection = timeout(shared.limits.handshake_timeout, connecting).await??;
    match admitted(shared, &connection, place) {
        Ok(peer) => Ok((connection, peer)),
        Err(error) => {
            let code = match error {
                HandshakeError::Full(_) => close::TOO_MANY,
                _ => close::NOT_A_PRINCIPAL,
            };
            connection.close(VarInt::from_u32(code), error.to_string().as_bytes());
            Err(error)
        }
    }
}

/// The peer of a connection, if its tenant may have one more.
fn admitted(
    shared: &ServerState,
    connection: &Connection,
    place: &mut Place,
) -> Result<Peer, HandshakeError> {
    let chain = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    let leaf = chain.as_ref().and_then(|chain| chain.first());
    let leaf = leaf.ok_or(HandshakeError::NoCertificate)?;
    let fabric = shared.membership.now();
    let peer = fabric.peer(leaf)?;
    let mut counted = peer.principal.clone();
    if counted.role == Role::Operator && peer.fabric != fabric.id() {
        counted.role = Role::Tenant;
    }
    place.for_peer(&counted, peer.key)?;
    Ok(peer)
}

/// Serves streams until the peer leaves or the node stops, then finishes the open streams.
async fn serve_streams(
    shared: &Arc<ServerState>,
    connection: Connection,
    peer: Peer,
    mut stop: watch::Receiver<bool>,
) {
    let mut streams = JoinSet::new();
    let number = shared.next_connection.fetch_add(1, Ordering::Relaxed);
    let (of_peer, until_end) = PeerConnection::new(number, connection.remote_address());
    let of_peer = RequestPeer {
        key: peer.key,
        labels: peer.labels.clone().into(),
        connection: of_peer,
    };
    let not_after = peer.not_after;
    let conversation = Arc::new(Conversation::new(shared, &connection, peer, of_peer));
    let (code, reason) = loop {
        tokio::select! {
            _ = stop.changed() => break (close::SHUTTING_DOWN, "shutting down"),
            stream = connection.accept_bi() => match stream {
                Ok(_) if SystemTime::now() > not_after => {
                    break (close::EXPIRED, "the certificate has expired");
                }
                Ok((send, recv)) => {
                    streams.spawn(Arc::clone(&conversation).answer(send, recv));
                }
                Err(_) => break (close::DONE, ""),
            },
            Some(_) = streams.join_next() => {}
        }
    };
    drop(until_end);
    while streams.join_next().await.is_some() {}
    connection.close(VarInt::from_u32(code), reason.as_bytes());
}
