//! A node without a lease table, and well-behaved and misbehaving clients.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up should fail loudly"
)]

use std::{
    collections::{HashSet, VecDeque},
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

pub(crate) use fabricbios_wire::ALPN;

use fabricbios_control::{
    Limits, Membership, NoSessions, OnRequest, PeerRequest, Server, ServerError, SessionConnector,
};
use fabricbios_fabric::{Ca, Fabric, FabricDirectory, Principal};
use fabricbios_wire::{
    Answer, HEADER_LEN, Header, IssueRequest, LeaseError, Refusal, RefusalClass, Reply, Request,
    Role, decode_answer, encode_request,
};
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use tokio::{
    net::UdpSocket,
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

/// The behaviour of the daemon in a test.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handler {
    /// Refuses every request at once.
    Refuse,
    /// Refuses every request; the refusal contains the lease id.
    EchoLeaseId,
    /// Keeps requests for [`World::take_held`].
    Hold,
}

type Held = Arc<Mutex<VecDeque<PeerRequest>>>;

/// The parts of a request that the daemon receives.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) principal: Principal,
    pub(crate) local_ip: Option<std::net::IpAddr>,
    pub(crate) request: Request,
}

/// Certificate chain and key of a client.
pub(crate) struct Credentials {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

pub(crate) struct World {
    dir: tempfile::TempDir,
    membership: Membership,
    server: Option<Server>,
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    held: Held,
    on_request: OnRequest,
    connector: Arc<dyn SessionConnector>,
    /// The runtime of the server alone, so that the server can die without closing its connections.
    runtime: Option<Runtime>,
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl World {
    pub(crate) async fn start(handler: Handler) -> Self {
        Self::start_with(handler, Limits::default()).await
    }

    pub(crate) async fn start_with(handler: Handler, limits: Limits) -> Self {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::start_on(loopback, handler, limits).await
    }

    /// A node with this connector for streams to sessions.
    pub(crate) async fn with_sessions(
        limits: Limits,
        connector: Arc<dyn SessionConnector>,
    ) -> Self {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::start_all(loopback, Handler::Refuse, limits, connector).await
    }

    pub(crate) async fn start_on(listen: SocketAddr, handler: Handler, limits: Limits) -> Self {
        Self::start_all(listen, handler, limits, Arc::new(NoSessions)).await
    }

    async fn start_all(
        listen: SocketAddr,
        handler: Handler,
        limits: Limits,
        connector: Arc<dyn SessionConnector>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fabric = Fabric::open_or_create(dir.path(), SystemTime::now()).unwrap();
        Self::start_as(fabric, dir, listen, handler, limits, connector)
    }

    /// A server with the identity of this fabric's scheduler.
    pub(crate) fn scheduler(of: &FabricDirectory, handler: Handler) -> Self {
        let identity = of.scheduler_identity();
        let fabric = Fabric::open_scheduler(&identity, SystemTime::now()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let limits = Limits::default();
        Self::start_as(fabric, dir, loopback, handler, limits, Arc::new(NoSessions))
    }

    fn start_as(
        fabric: Fabric,
        dir: tempfile::TempDir,
        listen: SocketAddr,
        handler: Handler,
        limits: Limits,
        connector: Arc<dyn SessionConnector>,
    ) -> Self {
        let membership = Membership::new(fabric);
        let (seen, held) = (Arc::default(), Held::default());
        let on_request = on_request(handler, &seen, &held);
        let (runtime, server) = serve(listen, &membership, limits, &on_request, &connector);
        let addr = server.local_addr();
        let server = Some(server);
        let runtime = Some(runtime);
        Self {
            dir,
            membership,
            server,
            addr,
            seen,
            held,
            on_request,
            connector,
            runtime,
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    pub(crate) fn state_dir(&self) -> &Path {
        self.dir.path()
    }

    /// The authority of a node that is alone.
    pub(crate) fn own_ca(&self) -> Arc<Ca> {
        self.membership.now().ca().unwrap().clone()
    }

    pub(crate) fn ca(&self) -> CertificateDer<'static> {
        self.own_ca().certificate().clone()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn tenant(&self, tenant: &str) -> Credentials {
        self.issue(tenant, 0, SystemTime::now())
    }

    pub(crate) fn expired(&self) -> Credentials {
        self.issue("late", 60, SystemTime::now() - Duration::from_secs(86_400))
    }

    /// A certificate that is valid for two or three more seconds.
    pub(crate) fn expiring(&self) -> Credentials {
        self.issue("late", 60, SystemTime::now() - Duration::from_secs(57))
    }

    fn issue(&self, tenant: &str, valid_secs: u32, now: SystemTime) -> Credentials {
        issue(&self.own_ca(), tenant, Role::Tenant, valid_secs, now)
    }

    pub(crate) fn admin(&self) -> Credentials {
        credentials(self.membership.now().admin_identity().unwrap())
    }

    /// The node's certificate.
    pub(crate) fn node_as_client(&self) -> Credentials {
        credentials(&self.dir.path().join("node.identity"))
    }

    pub(crate) async fn connect(&self, credentials: &Credentials) -> Client {
        Client::dial(self.addr, Some(credentials), &self.ca(), ALPN)
            .await
            .unwrap()
    }

    /// A client that takes ten bytes of an answer until it reads them.
    pub(crate) async fn connect_reading_little(&self, credentials: &Credentials) -> Client {
        let mut config = client_config(Some(credentials), &self.ca(), ALPN);
        let mut transport = quinn::TransportConfig::default();
        transport.stream_receive_window(10_u32.into());
        config.transport_config(Arc::new(transport));
        Client::dial_as(self.addr, config).await.unwrap()
    }

    /// Connects and sends a request. A refused certificate shows only when the request is sent.
    pub(crate) async fn try_call(
        &self,
        credentials: Option<&Credentials>,
        request: &Request,
    ) -> Result<Answer, String> {
        let client = Client::dial(self.addr, credentials, &self.ca(), ALPN).await?;
        client
            .raw(&encode_request(1, 2, request))
            .await
            .map(|_| Ok(Reply::Pong(0)))
    }

    /// Begins handshakes from an address that may belong to another client, and continues none of them. Returns when
    /// the node has answered each.
    pub(crate) async fn leave_handshakes_unfinished(&self, count: usize) {
        let sink = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let config = client_config(None, &self.ca(), ALPN);
        let mut unanswered = HashSet::new();
        let mut bytes = [0; 2_000];
        let mut begun = Vec::new();
        while begun.len() < count {
            let to = sink.local_addr().unwrap();
            let connecting = endpoint.connect_with(config.clone(), to, "node.fabricbios");
            begun.push(connecting.unwrap());
            let length = sink.recv(&mut bytes).await.unwrap();
            // RFC 9000 §17.2: flags, version, then both connection ids with their lengths.
            let source_id = 6 + usize::from(bytes[5]);
            unanswered.insert(connection_id(&bytes[source_id..]));
            stranger.send_to(&bytes[..length], self.addr).await.unwrap();
        }
        while !unanswered.is_empty() {
            stranger.recv(&mut bytes).await.unwrap();
            unanswered.remove(&connection_id(&bytes[5..]));
        }
    }

    /// The next request that was held; waits for it.
    pub(crate) async fn take_held(&self) -> PeerRequest {
        loop {
            if let Some(held) = self.held.lock().unwrap().pop_front() {
                return held;
            }
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn shutdown(&mut self, patience: Duration) -> JoinHandle<()> {
        tokio::spawn(self.server.take().unwrap().shutdown(patience))
    }

    /// Dies and starts again, as after SIGKILL under a supervisor.
    pub(crate) async fn crash_and_restart(&mut self) {
        let (server, runtime) = (self.server.take().unwrap(), self.runtime.take().unwrap());
        let dying = move || {
            runtime.shutdown_timeout(Duration::from_secs(60));
            drop(server);
        };
        tokio::task::spawn_blocking(dying).await.unwrap();
        let limits = Limits::default();
        let (runtime, server) = serve(
            self.addr,
            &self.membership,
            limits,
            &self.on_request,
            &self.connector,
        );
        (self.runtime, self.server) = (Some(runtime), Some(server));
    }

    pub(crate) fn start_second_server(&self) -> Result<Server, ServerError> {
        Server::start(
            self.addr,
            &self.membership,
            Limits::default(),
            self.on_request.clone(),
            Arc::clone(&self.connector),
        )
    }
}

fn serve(
    listen: SocketAddr,
    membership: &Membership,
    limits: Limits,
    on_request: &OnRequest,
    connector: &Arc<dyn SessionConnector>,
) -> (Runtime, Server) {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let server = {
        let _guard = runtime.enter();
        let (on_request, connector) = (Arc::clone(on_request), Arc::clone(connector));
        Server::start(listen, membership, limits, on_request, connector).unwrap()
    };
    (runtime, server)
}

fn on_request(handler: Handler, seen: &Arc<Mutex<Vec<Seen>>>, held: &Held) -> OnRequest {
    let (seen, held) = (Arc::clone(seen), Arc::clone(held));
    Arc::new(move |asked| {
        if handler == Handler::Hold {
            return held.lock().unwrap().push_back(asked);
        }
        let message = match (&asked.request, handler) {
            (Request::LeaseQuery(id), Handler::EchoLeaseId) => id.to_string(),
            _ => "no".into(),
        };
        seen.lock().unwrap().push(Seen {
            principal: asked.principal,
            local_ip: asked.local_ip,
            request: asked.request,
        });
        asked.reply.send(Err(refusal(&message))).ok();
    })
}

pub(crate) fn refusal(message: &str) -> Refusal {
    Refusal::new(LeaseError::NotFound, RefusalClass::Permanent, message)
}

/// An identity that the CA issues at `now`.
pub(crate) fn issue(
    ca: &Ca,
    tenant: &str,
    role: Role,
    valid_secs: u32,
    now: SystemTime,
) -> Credentials {
    let key = rcgen::KeyPair::generate().unwrap();
    let csr = rcgen::CertificateParams::default()
        .serialize_request(&key)
        .unwrap();
    let request = IssueRequest {
        tenant: tenant.into(),
        role,
        valid_secs,
        csr_der: csr.der().to_vec(),
    };
    let Reply::Issued {
        certificate_pem, ..
    } = ca.issue(&request, now).unwrap()
    else {
        panic!("not issued")
    };
    let chain = vec![CertificateDer::from_pem_slice(certificate_pem.as_bytes()).unwrap()];
    Credentials {
        chain,
        key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
    }
}

pub(crate) fn credentials(path: &Path) -> Credentials {
    let pem = std::fs::read(path).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(&pem).unwrap()];
    Credentials {
        chain,
        key: PrivateKeyDer::from_pem_slice(&pem).unwrap(),
    }
}

/// A client that sends whatever the test wants, also invalid bytes.
#[derive(Clone)]
pub(crate) struct Client {
    connection: Connection,
    _endpoint: Endpoint,
}

impl Client {
    pub(crate) async fn dial(
        to: SocketAddr,
        credentials: Option<&Credentials>,
        ca: &CertificateDer<'static>,
        alpn: &[u8],
    ) -> Result<Self, String> {
        Self::dial_as(to, client_config(credentials, ca, alpn)).await
    }

    async fn dial_as(to: SocketAddr, config: quinn::ClientConfig) -> Result<Self, String> {
        let endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let connecting = endpoint
            .connect_with(config, to, "node.fabricbios")
            .unwrap();
        let connection = connecting.await.map_err(|e| format!("{e:?}"))?;
        Ok(Self {
            connection,
            _endpoint: endpoint,
        })
    }

    pub(crate) async fn call(&self, request: &Request) -> Answer {
        self.send_raw(&encode_request(5, 6, request)).await
    }

    /// Sends bytes and decodes the answer. Its message type must be that of the bytes, if they have a whole header.
    pub(crate) async fn send_raw(&self, bytes: &[u8]) -> Answer {
        let answer = self.raw(bytes).await.unwrap();
        let got = Header::parse(answer.first_chunk::<HEADER_LEN>().unwrap()).unwrap();
        let to = Header {
            flags: 0,
            payload_len: 0,
            ..got
        };
        if let Some([_, _, high, low, ..]) = bytes.first_chunk::<HEADER_LEN>() {
            assert_eq!(got.msg_type, u16::from_be_bytes([*high, *low]));
        }
        decode_answer(&to, &answer).unwrap()
    }

    /// Sends bytes and returns the bytes of the answer.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let opened = self.connection.open_bi().await;
        let (mut send, mut recv) = opened.map_err(|e| format!("{e:?}"))?;
        // A node that has read enough may stop the stream before its end.
        send.write_all(bytes).await.ok();
        send.finish().ok();
        recv.read_to_end(100_000)
            .await
            .map_err(|e| format!("{e:?}"))
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) async fn open(&self) -> (SendStream, RecvStream) {
        self.connection.open_bi().await.unwrap()
    }
}

/// The connection id at the start of these bytes; its first byte is its length.
fn connection_id(bytes: &[u8]) -> Vec<u8> {
    bytes[1..1 + usize::from(bytes[0])].to_vec()
}

fn client_config(
    credentials: Option<&Credentials>,
    ca: &CertificateDer<'static>,
    alpn: &[u8],
) -> quinn::ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(ca.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(NamesItsCa::new(roots)));
    let mut config = match credentials {
        None => builder.with_no_client_auth(),
        Some(Credentials { chain, key }) => builder
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .unwrap(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
    quinn::ClientConfig::new(Arc::new(crypto))
}

/// Verifies as rustls does, and names the CAs that it trusts (RFC 8446 §4.2.4).
#[derive(Debug)]
struct NamesItsCa {
    inner: Arc<WebPkiServerVerifier>,
    names: Vec<DistinguishedName>,
}

impl NamesItsCa {
    fn new(roots: RootCertStore) -> Self {
        let names = roots.subjects();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let inner = inner.build().unwrap();
        Self { inner, names }
    }
}

impl ServerCertVerifier for NamesItsCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let inner = &self.inner;
        inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        Some(&self.names)
    }
}
