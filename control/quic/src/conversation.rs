//! One stream: reads a request and sends the answer, or connects the stream to a session.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use fabricbios_fabric::{Peer, Principal};
use fabricbios_wire::{Header, LeaseError, Refusal, RefusalClass, Request, Role, encode_answer};
use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

use crate::{
    PeerRequest, RequestPeer, close,
    frame::{Frame, Received},
    gpu_stream::Windows,
    rights,
    server::ServerState,
};

/// How long the acknowledgement of an answer may take.
pub(crate) const DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Lists of one connection that are made or delivered at once, each of a frame of up to 64 KiB: a peer that reads no
/// answers makes the node hold no more.
pub(crate) const LISTS_MAX: usize = 8;

/// What the streams of a connection share.
pub(crate) struct Conversation {
    pub(crate) shared: Arc<ServerState>,
    pub(crate) peer: Peer,
    of_peer: RequestPeer,
    local_ip: Option<IpAddr>,
    pub(crate) remote: SocketAddr,
    pub(crate) windows: Windows,
    /// [`LISTS_MAX`] of the connection.
    lists: Semaphore,
}

impl Conversation {
    pub(crate) fn new(
        shared: &Arc<ServerState>,
        connection: &Connection,
        peer: Peer,
        of_peer: RequestPeer,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            peer,
            of_peer,
            local_ip: connection.local_ip().map(|ip| ip.to_canonical()),
            remote: connection.remote_address(),
            windows: Windows::of(connection, &shared.limits),
            lists: Semaphore::new(LISTS_MAX),
        }
    }

    pub(crate) async fn answer(self: Arc<Self>, mut send: SendStream, mut recv: RecvStream) {
        let Some(received) = read_frame(&mut recv, self.shared.limits.request_timeout).await else {
            return;
        };
        let (remote, limit) = (self.remote, self.shared.limits.answer_timeout);
        let mut place = None;
        // Once the answer is known, the rest of the request is not needed.
        let mut stop = || recv.stop(VarInt::from_u32(close::DONE)).ok();
        let bytes = match received {
            Received::Session(first) => {
                // Few streams are sessions, and all would take the room of one.
                return Box::pin(self.session(first, send, recv)).await;
            }
            Received::Request(header, request) => {
                stop();
                if is_list(&request) {
                    // It fails only for a closed semaphore, and this one is never closed.
                    place = self.lists.acquire().await.ok();
                }
                self.ask(header, request).await
            }
            Received::Answer(bytes) => {
                stop();
                bytes
            }
        };
        if let Err(problem) = deliver(&mut send, &bytes, limit).await {
            tracing::debug!(%remote, "answer not delivered: {problem}");
        }
        drop(place);
    }

    async fn ask(&self, header: Header, request: Request) -> Vec<u8> {
        let fabric = self.shared.membership.now();
        let role = match rights::role_for(request.message_type(), &self.peer, &fabric) {
            Ok(role) => role,
            Err(refusal) => return encode_answer(&header, &Err(refusal)),
        };
        let (reply, replied) = oneshot::channel();
        (self.shared.on_request)(PeerRequest {
            principal: Principal {
                role,
                tenant: Arc::clone(&self.peer.principal.tenant),
            },
            peer: self.of_peer.clone(),
            listen: self.shared.listen,
            local_ip: self.local_ip,
            request,
            reply,
        });
        let answer = replied
            .await
            .unwrap_or_else(|_| Err(stopping(fabric.role())));
        encode_answer(&header, &answer)
    }
}

fn stopping(server: Role) -> Refusal {
    let message = format!("the {server} is stopping; try again, or another {server}");
    Refusal::new(LeaseError::Unavailable, RefusalClass::Transient, message)
}

/// Reads a frame. `None`: the peer cancelled its request.
async fn read_frame(recv: &mut RecvStream, limit: Duration) -> Option<Received> {
    let mut frame = Frame::default();
    match timeout(limit, read_chunks(recv, &mut frame)).await {
        Ok(Ok(Some(received))) => Some(received),
        Ok(Ok(None)) => Some(frame.end()),
        Ok(Err(_)) => None,
        Err(_) => Some(Received::Answer(frame.timed_out(limit))),
    }
}

async fn read_chunks(
    recv: &mut RecvStream,
    frame: &mut Frame,
) -> Result<Option<Received>, quinn::ReadError> {
    while let Some(chunk) = recv.read_chunk(frame.wants(), true).await? {
        if let Some(received) = frame.push(&chunk.bytes) {
            return Ok(Some(received));
        }
    }
    Ok(None)
}

/// Whether the answer may be as long as a frame.
fn is_list(request: &Request) -> bool {
    matches!(
        request,
        Request::GetInventory(_)
            | Request::LeaseList { .. }
            | Request::FenceList
            | Request::NodeList(_)
            | Request::FleetLeases { .. }
    )
}

/// Waits until the peer has acknowledged the answer, so that a shutdown does not overtake it. A peer that takes no
/// bytes for `limit` loses the answer.
pub(crate) async fn deliver(
    send: &mut SendStream,
    bytes: &[u8],
    limit: Duration,
) -> io::Result<()> {
    match timeout(limit, send.write_all(bytes)).await {
        Ok(written) => written?,
        Err(late) => {
            send.reset(VarInt::from_u32(close::NOT_READ)).ok();
            return Err(late.into());
        }
    }
    send.finish()?;
    timeout(DELIVERY_TIMEOUT, send.stopped()).await??;
    Ok(())
}
