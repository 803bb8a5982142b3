//! The QUIC connection to a node, opened again after it was lost. It runs on the background runtime only.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use fabricbios_wire::{
    HEADER_LEN, Header, LeaseError, MAX_PAYLOAD, NodeId, Refusal, RefusalClass, Reply, Request,
    ResourceType, decode_answer, encode_request,
};
use quinn::{
    Connection, ConnectionError, ReadError, ReadToEndError, RecvStream, SendStream,
    TransportErrorCode, VarInt, WriteError,
};
use tokio::{sync::Mutex as AsyncMutex, time::timeout};

use crate::{
    Error, Identity,
    dial::{CONNECT_TIMEOUT, Connected, DialError, Dialler, port_closes},
    patience::{is_momentary, patiently},
    pin::Pin,
    search::Search,
};

/// How long a node may take to answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a node may take to answer a request that ends a lease: it waits for the cut, which fails after ten minutes with
/// the largest `cut-within-ms`.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(660);
/// How long a node may take to grant a lease of blocks: the first one of an extent waits until that is zeroed.
const GRANT_TIMEOUT: Duration = Duration::from_secs(86_400);
/// How long closing may take.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(20);
/// How long a stream for a session waits until the node allows one more.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);
/// The codes with which a node closes a connection whose certificate names no tenant or has expired.
const IDENTITY_REFUSED: [VarInt; 2] = [VarInt::from_u32(3), VarInt::from_u32(4)];
/// The code with which a node closes a connection above the limit of a tenant.
const TOO_MANY: VarInt = VarInt::from_u32(2);
/// TLS alerts arrive as QUIC errors in this range (RFC 9001, section 4.8).
const TLS_ALERTS: std::ops::RangeInclusive<u64> = 0x100..=0x1ff;

/// The connection to one node.
#[derive(Debug)]
pub(crate) struct Link {
    dialler: Dialler,
    pin: Arc<Pin>,
    identity: Identity,
    current: AsyncMutex<Option<Connected>>,
    next_request_id: AtomicU32,
    remote: Mutex<Option<SocketAddr>>,
    /// Several handles use it.
    is_shared: bool,
    /// One of those who have it is no handle: [`crate::links::Links`] keeps it.
    is_kept: AtomicBool,
}

/// Both directions of a stream, and the connection that it belongs to.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) send: SendStream,
    pub(crate) recv: RecvStream,
    pub(crate) connection: Connection,
}

/// Why a request has no answer.
enum Lost {
    /// It was not sent.
    Unsent(ConnectionError),
    /// It was sent, and the connection was lost; the node may have done it.
    Unanswered(ConnectionError),
    /// The connection is alive, and the node took the request and did not answer for this long.
    Silence(Duration),
    /// The connection is alive, and the node did not take the request for this long.
    NotTaken(Duration),
    /// The answer was invalid, or the stream was reset.
    Protocol(String),
}

impl Link {
    /// `node_id`: no other node is connected to; `None`: no other than the first that answers.
    pub(crate) fn new(
        node: &str,
        identity: &Identity,
        node_id: Option<NodeId>,
    ) -> Result<Self, Error> {
        let pin = Arc::new(Pin::new(node_id));
        let crypto = identity.client_config(Arc::clone(&pin))?;
        Ok(Self {
            dialler: Dialler::new(node, Search::of(node, identity)?, crypto, Arc::clone(&pin)),
            pin,
            identity: identity.clone(),
            current: AsyncMutex::new(None),
            next_request_id: AtomicU32::new(1),
            remote: Mutex::new(None),
            is_shared: false,
            is_kept: AtomicBool::new(false),
        })
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    pub(crate) fn keep(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::Relaxed);
    }

    /// Whether one handle has it, or clones of one.
    pub(crate) fn is_of_one(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 + usize::from(self.is_kept.load(Ordering::Relaxed))
    }

    /// For several handles. Sessions then have connections of their own: a session whose worker reads nothing would hold up
    /// the requests of others, such as renewals.
    pub(crate) fn shared(self) -> Self {
        Self {
            is_shared: true,
            ..self
        }
    }

    pub(crate) fn node(&self) -> &str {
        self.dialler.node()
    }

    /// The id of the node that answered.
    pub(crate) fn node_id(&self) -> Option<NodeId> {
        self.pin.answered()
    }

    /// Whether a scheduler has answered.
    pub(crate) fn is_scheduler(&self) -> bool {
        self.pin.is_scheduler()
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The address of the last connection.
    pub(crate) fn remote(&self) -> Option<SocketAddr> {
        *self.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request; repeats it for up to `patience` while the node is busy, or cannot be reached although it had
    /// answered before: it may be restarting. A request that the node may have done is repeated only if it is idempotent.
    /// `limit`: waits no longer than this for each answer, and no longer than [`answer_limit`].
    pub(crate) async fn call(
        &self,
        request: &Request,
        patience: Duration,
        limit: Option<Duration>,
    ) -> Result<Reply, Error> {
        let comes_back = |error: &Error| {
            matches!(error, Error::Unreachable { .. })
                && self.remote().is_some()
                && (!error.may_have_happened() || is_idempotent(request))
        };
        let may_repeat = |error: &Error| is_momentary(error) || comes_back(error);
        patiently(patience, may_repeat, || self.call_once(request, limit)).await
    }

    /// Sends a request; sends it again over a new connection if the old one was lost and the request was not sent or is
    /// idempotent.
    async fn call_once(&self, request: &Request, limit: Option<Duration>) -> Result<Reply, Error> {
        let (connection, fresh) = self.connection().await?;
        let longest = match self.is_scheduler() {
            true => ANSWER_TIMEOUT,
            false => answer_limit(request),
        };
        let limit = limit.map_or(longest, |it| it.min(longest));
        let lost = match self.ask(&connection, request, limit).await {
            Ok(answer) => return answer,
            Err(lost) => lost,
        };
        let again = match &lost {
            Lost::Unsent(_) => !fresh,
            Lost::Unanswered(_) => !fresh && is_idempotent(request),
            Lost::Silence(_) | Lost::NotTaken(_) | Lost::Protocol(_) => false,
        };
        if !again {
            return Err(self.explain(lost));
        }
        let (connection, _) = self.connection().await?;
        self.ask(&connection, request, limit)
            .await
            .unwrap_or_else(|lost| Err(self.explain(lost)))
    }

    /// Connects if there is no connection; tries again for up to `patience` while the node has too many connections.
    pub(crate) async fn connect(&self, patience: Duration) -> Result<(), Error> {
        patiently(patience, is_momentary, || self.connection())
            .await
            .map(drop)
    }

    /// Opens a stream for a session, over a new connection if the old one was lost.
    pub(crate) async fn open_stream(&self) -> Result<Stream, Error> {
        loop {
            let (connection, fresh) = match self.is_shared {
                true => (self.dial(CONNECT_TIMEOUT).await?.connection, true),
                false => self.connection().await?,
            };
            match timeout(STREAM_TIMEOUT, connection.open_bi()).await {
                Ok(Ok((send, recv))) => {
                    return Ok(Stream {
                        send,
                        recv,
                        connection,
                    });
                }
                Ok(Err(error)) if fresh => return Err(self.explain(Lost::Unsent(error))),
                Ok(Err(_)) => {}
                Err(_) => {
                    let node = self.node();
                    let busy = format!(
                        "this connection to node {node} has as many requests open as the node takes; try again later"
                    );
                    return Err(refused(LeaseError::ResourceBusy, busy));
                }
            }
        }
    }

    /// Closes the connection; the next call connects again.
    pub(crate) async fn close(&self) {
        let Some(Connected {
            endpoint,
            connection,
        }) = self.current.lock().await.take()
        else {
            return;
        };
        connection.close(VarInt::from_u32(0), b"");
        // The close must leave this machine before the process ends.
        timeout(CLOSE_TIMEOUT, endpoint.wait_idle()).await.ok();
    }

    /// Connects within this time, unless it is connected.
    pub(crate) async fn connect_within(&self, within: Duration) -> Result<(), Error> {
        self.connection_within(within).await.map(drop)
    }

    /// Connects, unless the node answers a PING over its connection. Within this time for both.
    pub(crate) async fn reach(&self, within: Duration) -> Result<(), Error> {
        let reached = timeout(within, self.reach_at_last(within)).await;
        reached.unwrap_or_else(|_late| {
            let why = format!("no answer within {within:?}");
            Err(self.unreachable(why, false))
        })
    }

    async fn reach_at_last(&self, within: Duration) -> Result<(), Error> {
        let (connection, fresh) = self.connection_within(within).await?;
        let quarter = within / 4;
        let ping = self.ask(&connection, &Request::Ping(0), quarter);
        if fresh || matches!(timeout(quarter, ping).await, Ok(Ok(_))) {
            return Ok(());
        }
        // The node may have been started anew, or is slow: requests that wait for an answer keep their connection.
        let mut current = self.current.lock().await;
        let has_newer = current.as_ref().is_some_and(|it| {
            let it = &it.connection;
            it.stable_id() != connection.stable_id() && it.close_reason().is_none()
        });
        if !has_newer {
            *current = None;
            *current = Some(self.dial(within - quarter).await?);
        }
        Ok(())
    }

    /// The connection, and whether it is new.
    async fn connection(&self) -> Result<(Connection, bool), Error> {
        self.connection_within(CONNECT_TIMEOUT).await
    }

    async fn connection_within(&self, within: Duration) -> Result<(Connection, bool), Error> {
        let mut current = self.current.lock().await;
        if let Some(Connected { connection, .. }) = &*current
            && connection.close_reason().is_none()
        {
            return Ok((connection.clone(), false));
        }
        let connected = self.dial(within).await?;
        let connection = connected.connection.clone();
        *current = Some(connected);
        Ok((connection, true))
    }

    async fn dial(&self, within: Duration) -> Result<Connected, Error> {
        let connected = self.dialler.dial(within).await;
        let connected = connected.map_err(|problem| self.dial_error(problem))?;
        *self.remote.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(connected.connection.remote_address());
        Ok(connected)
    }

    /// Sends a request and waits for its answer, or until the daemon has ended; then the connection is closed.
    async fn ask(
        &self,
        connection: &Connection,
        request: &Request,
        limit: Duration,
    ) -> Result<Result<Reply, Error>, Lost> {
        tokio::select! {
            biased;
            answer = self.exchange(connection, request, limit) => answer,
            () = port_closes(connection.remote_address()) => {
                connection.close(VarInt::from_u32(0), b"");
                Err(Lost::Unanswered(ConnectionError::LocallyClosed))
            }
        }
    }

    async fn exchange(
        &self,
        connection: &Connection,
        request: &Request,
        limit: Duration,
    ) -> Result<Result<Reply, Error>, Lost> {
        let (header, frame) = self.frame(request)?;
        let opening = limit.min(ANSWER_TIMEOUT);
        let (send, recv) = match timeout(opening, connection.open_bi()).await {
            Ok(opened) => opened.map_err(Lost::Unsent)?,
            Err(_) => return Err(Lost::NotTaken(opening)),
        };
        let bytes = match timeout(limit, transfer(send, recv, &frame)).await {
            Ok(read) => read?,
            Err(_) => return Err(Lost::Silence(limit)),
        };
        let answer = decode_answer(&header, &bytes)
            .map_err(|rejected| Lost::Protocol(rejected.refusal().message))?;
        Ok(answer.map_err(Error::from))
    }

    /// Encodes the request with a new request id and a random nonce.
    fn frame(&self, request: &Request) -> Result<(Header, Vec<u8>), Lost> {
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(|e| Lost::Protocol(format!("no randomness: {e}")))?;
        let request_id = self.next_request_id.fetch_add(1, Ordering::Relaxed);
        let frame = encode_request(request_id, u64::from_ne_bytes(nonce), request);
        let header = frame
            .first_chunk::<HEADER_LEN>()
            .ok_or_else(|| Lost::Protocol("a request without a header".into()))?;
        let header =
            Header::parse(header).map_err(|rejected| Lost::Protocol(rejected.refusal().message))?;
        Ok((header, frame))
    }

    fn dial_error(&self, problem: DialError) -> Error {
        match problem {
            DialError::Local(error) => error,
            DialError::Handshake(error) => self.explain(Lost::Unsent(error)),
            DialError::OtherNode(why) => Error::UntrustedNode {
                node: self.node().to_owned(),
                why,
            },
            DialError::NoAnswer(why) => self.unreachable(why, false),
        }
    }

    fn unreachable(&self, why: String, may_have_happened: bool) -> Error {
        Error::Unreachable {
            node: self.node().to_owned(),
            why,
            may_have_happened,
        }
    }

    fn explain(&self, lost: Lost) -> Error {
        let node = self.node().to_owned();
        let (error, sent) = match lost {
            Lost::Protocol(why) => return Error::Protocol { node, why },
            Lost::Silence(waited) => return self.unreachable(silence("answered", waited), true),
            Lost::NotTaken(waited) => return self.unreachable(silence("taken", waited), false),
            Lost::Unsent(error) => (error, false),
            Lost::Unanswered(error) => (error, true),
        };
        match &error {
            // The first is an alert of this side about the node, the second an alert of the node about this side.
            ConnectionError::TransportError(e) if is_alert(e.code) => Error::UntrustedNode {
                node,
                why: format!("it is not a node of this identity's fabric: {}", e.reason),
            },
            ConnectionError::ConnectionClosed(e) if is_alert(e.error_code) => {
                Error::IdentityRefused {
                    node,
                    why: meaning_of_alert(e.error_code.into()),
                }
            }
            ConnectionError::ApplicationClosed(e) if IDENTITY_REFUSED.contains(&e.error_code) => {
                Error::IdentityRefused {
                    node,
                    why: String::from_utf8_lossy(&e.reason).into_owned(),
                }
            }
            ConnectionError::ApplicationClosed(e) if e.error_code == TOO_MANY => {
                let why = String::from_utf8_lossy(&e.reason);
                let busy = format!(
                    "node {node} refused this connection: {why}; close some, or try again later"
                );
                refused(LeaseError::ResourceBusy, busy)
            }
            // This packet has no field for a reason.
            ConnectionError::ConnectionClosed(e)
                if e.error_code == TransportErrorCode::CONNECTION_REFUSED =>
            {
                let busy = format!(
                    "node {node} is there and refused this connection: the node has as many connections as it takes, \
                     altogether or from this address, or is stopping; close some, or try again later"
                );
                refused(LeaseError::Unavailable, busy)
            }
            ConnectionError::ApplicationClosed(e) if !e.reason.is_empty() => {
                self.unreachable(String::from_utf8_lossy(&e.reason).into_owned(), sent)
            }
            ConnectionError::LocallyClosed => {
                let why = "nothing listens at the node's address any more, or this side closed the connection";
                self.unreachable(why.to_owned(), sent)
            }
            other => self.unreachable(other.to_string(), sent),
        }
    }
}

/// How long a node may take to answer the request. A scheduler waits for nothing.
fn answer_limit(request: &Request) -> Duration {
    match request {
        Request::LeaseAlloc(wanted) if wanted.resource_type() == ResourceType::Block => {
            GRANT_TIMEOUT
        }
        Request::LeaseFree(_) | Request::LeaseRevoke(_) => END_TIMEOUT,
        _ => ANSWER_TIMEOUT,
    }
}

/// The problem of a node that keeps its connection and has not `done` anything with a request.
fn silence(done: &str, waited: Duration) -> String {
    format!(
        "it keeps the connection alive and has not {done} this request for {waited:?}: its daemon is stuck or has too much to do; \
         look at its log, or ask another node"
    )
}

/// Sends a request and reads the answer.
async fn transfer(
    mut send: SendStream,
    mut recv: RecvStream,
    frame: &[u8],
) -> Result<Vec<u8>, Lost> {
    match send.write_all(frame).await {
        // The node may answer before it has read the whole frame.
        Ok(()) | Err(WriteError::Stopped(_)) => {}
        Err(WriteError::ConnectionLost(error)) => return Err(Lost::Unanswered(error)),
        Err(other) => return Err(Lost::Protocol(other.to_string())),
    }
    send.finish().ok();
    let answer = recv.read_to_end(HEADER_LEN + MAX_PAYLOAD).await;
    answer.map_err(read_error)
}

fn refused(error: LeaseError, message: String) -> Error {
    Error::Refused(Refusal::new(error, RefusalClass::Transient, message))
}

fn is_alert(code: TransportErrorCode) -> bool {
    TLS_ALERTS.contains(&u64::from(code))
}

/// The meaning of a TLS alert (RFC 8446, section 6.2).
fn meaning_of_alert(code: u64) -> String {
    let meaning = match code & 0xff {
        42 => "the certificate cannot be read",
        43 => "the certificate is not for clients",
        44 => "the certificate was revoked",
        45 => "the certificate has expired; issue a new one with `fabricctl identity issue`",
        46 => "the certificate is not acceptable",
        48 => "the certificate is of another fabric",
        51 => "the signature does not verify; was the identity made for this fabric?",
        116 => "a client certificate is required",
        120 => "the node does not speak fabricbios/0",
        other => return format!("TLS alert {other}"),
    };
    meaning.to_owned()
}

fn read_error(error: ReadToEndError) -> Lost {
    match error {
        ReadToEndError::TooLong => {
            Lost::Protocol("an answer of more than the largest frame".into())
        }
        ReadToEndError::Read(ReadError::ConnectionLost(error)) => Lost::Unanswered(error),
        ReadToEndError::Read(other) => Lost::Protocol(other.to_string()),
    }
}

/// Whether doing a request twice has the same effect as doing it once. A LEASE_ALLOC has where the node knows request
/// tokens: `Node::acquire_async` finds out, and repeats it. A report replaces the one before.
fn is_idempotent(request: &Request) -> bool {
    match request {
        Request::LeaseAlloc(_)
        | Request::LeaseRenew { .. }
        | Request::LeaseRotate { .. }
        | Request::LeasePeers { .. }
        | Request::NodeForget(_)
        | Request::LeaseAttach(_) => false,
        Request::Ping(_)
        | Request::GetIdentity
        | Request::GetInventory(_)
        | Request::LeaseQuery(_)
        | Request::LeaseFree(_)
        | Request::LeaseList { .. }
        | Request::LeaseBind { .. }
        | Request::LeaseRevoke(_)
        | Request::FenceList
        | Request::FenceClear(_)
        | Request::IdentityIssue(_)
        | Request::NodeReport(_)
        | Request::NodeList(_)
        | Request::NodeLeases(_)
        | Request::FleetLeases { .. } => true,
    }
}
