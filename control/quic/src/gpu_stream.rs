//! One stream to a session of a GPU: asks the node for the worker of the session, and then copies bytes. This side
//! reads only the first frame; the worker reads the rest.

use std::{
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use fabricbios_fabric::Principal;
use fabricbios_wire::{Header, LeaseError, LeaseId, Refusal, RefusalClass, encode_answer};
use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::{
    io::AsyncWriteExt,
    net::UnixStream as AsyncUnixStream,
    task::spawn_blocking,
    time::{sleep, timeout},
};

use crate::{
    Limits, close,
    conversation::{Conversation, DELIVERY_TIMEOUT, deliver},
    endpoint::{RECEIVE_WINDOW, SEND_WINDOW, SESSION_WINDOW},
    relay::{self, Ended},
    rights,
    session_places::SessionPlace,
};

/// Connects streams to the workers of sessions.
pub trait SessionConnector: Send + Sync + 'static {
    /// Connects to the worker that serves the session. Returns a stream socket; the caller then writes the first frame
    /// of the stream to it. Checks that the lease is one of a GPU, is active and belongs to `principal`. May block, and
    /// comes from several threads at once.
    ///
    /// # Errors
    /// If the session is refused; the refusal is the answer to the client.
    fn connect(&self, principal: &Principal, open: SessionOpen) -> Result<UnixStream, Refusal>;
}

/// The session that the first frame of a stream asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOpen {
    /// The lease.
    pub lease_id: LeaseId,
    /// 0: the session of the lease, which is started if there is none. Else exactly this session.
    pub session: u64,
}

/// The connector of a node without GPUs: refuses every session.
#[derive(Clone, Copy, Debug)]
pub struct NoSessions;

impl SessionConnector for NoSessions {
    fn connect(&self, _principal: &Principal, open: SessionOpen) -> Result<UnixStream, Refusal> {
        let message = format!(
            "this node has no GPU on offer, so lease {} has no session",
            open.lease_id
        );
        Err(Refusal::new(
            LeaseError::NotFound,
            RefusalClass::Permanent,
            message,
        ))
    }
}

/// The first frame of a stream to a session.
#[derive(Debug)]
pub(crate) struct FirstFrame {
    pub(crate) header: Header,
    pub(crate) open: SessionOpen,
    /// The whole frame.
    pub(crate) bytes: Vec<u8>,
}

impl Conversation {
    /// Connects the stream to the worker and copies until the client or the worker is gone.
    pub(crate) async fn session(
        &self,
        first: FirstFrame,
        mut send: SendStream,
        mut recv: RecvStream,
    ) {
        let SessionOpen { lease_id, session } = first.open;
        let remote = self.remote;
        let (mut worker, place) = match self.connect(first.open).await {
            Ok(connected) => connected,
            Err(refusal) => {
                tracing::debug!(%remote, %lease_id, session, %refusal, "a session was refused");
                recv.stop(VarInt::from_u32(close::DONE)).ok();
                let bytes = encode_answer(&first.header, &Err(refusal));
                if let Err(problem) =
                    deliver(&mut send, &bytes, self.shared.limits.answer_timeout).await
                {
                    tracing::debug!(%remote, "answer not delivered: {problem}");
                }
                return;
            }
        };
        let wide = self.windows.widen();
        // If the worker is gone already, the relay ends at once.
        worker.write_all(&first.bytes).await.ok();
        let valid_for = self.peer.not_after.duration_since(SystemTime::now());
        let ended = tokio::select! {
            ended = relay::relay(&mut send, &mut recv, worker) => Some(ended),
            () = sleep(valid_for.unwrap_or_default()) => None,
        };
        tracing::debug!(%remote, %lease_id, session, ?ended, "a stream to a session ended");
        match ended {
            Some(Ended::ByWorker) => {
                recv.stop(VarInt::from_u32(close::DONE)).ok();
                send.finish().ok();
                // A shutdown must not overtake the last answer.
                timeout(DELIVERY_TIMEOUT, send.stopped()).await.ok();
            }
            Some(Ended::ByClient) => abandon(&mut send, &mut recv, close::DONE),
            // The certificate has expired.
            None => abandon(&mut send, &mut recv, close::EXPIRED),
        }
        drop((wide, place));
    }

    async fn connect(&self, open: SessionOpen) -> Result<(AsyncUnixStream, SessionPlace), Refusal> {
        rights::check_session(&self.peer, self.shared.membership.now().role())?;
        let principal = self.peer.principal.clone();
        let mut place = self.shared.sessions.begin(&principal)?;
        let connector = Arc::clone(&self.shared.connector);
        let connected = spawn_blocking(move || connector.connect(&principal, open)).await;
        let failed = |why: String| {
            tracing::warn!(lease_id = %open.lease_id, why, "a session's worker was not connected");
            let message = "the node could not connect the session's worker; its log says why";
            Refusal::new(LeaseError::Internal, RefusalClass::Permanent, message)
        };
        let worker = connected.map_err(|error| failed(error.to_string()))??;
        place.opened();
        let worker = relay::prepare(worker).map_err(|error| failed(error.to_string()))?;
        Ok((worker, place))
    }
}

fn abandon(send: &mut SendStream, recv: &mut RecvStream, code: u32) {
    recv.stop(VarInt::from_u32(code)).ok();
    send.reset(VarInt::from_u32(code)).ok();
}

/// The windows of a connection: larger while the connection has streams to sessions, which carry more than requests.
/// Such a stream stays open and takes no place of a request.
#[derive(Debug)]
pub(crate) struct Windows {
    connection: Connection,
    requests_max: u32,
    sessions: Mutex<u32>,
}

/// A stream to a session. When the last one of a connection is dropped, the windows become small again.
#[derive(Debug)]
pub(crate) struct Wide<'a>(&'a Windows);

impl Windows {
    pub(crate) fn of(connection: &Connection, limits: &Limits) -> Self {
        Self {
            connection: connection.clone(),
            requests_max: limits.requests_per_connection_max,
            sessions: Mutex::default(),
        }
    }

    pub(crate) fn widen(&self) -> Wide<'_> {
        self.count(|sessions| sessions + 1);
        Wide(self)
    }

    /// Changes the count and sets the windows, both under the lock, so that the windows fit the last count.
    fn count(&self, change: impl FnOnce(u32) -> u32) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        *sessions = change(*sessions);
        let (receive, send) = match *sessions {
            0 => (RECEIVE_WINDOW, SEND_WINDOW),
            _ => (SESSION_WINDOW, SESSION_WINDOW),
        };
        self.connection.set_receive_window(receive.into());
        self.connection.set_send_window(send.into());
        let streams = self.requests_max.saturating_add(*sessions);
        self.connection
            .set_max_concurrent_bi_streams(streams.into());
    }
}

impl Drop for Wide<'_> {
    fn drop(&mut self) {
        self.0.count(|sessions| sessions.saturating_sub(1));
    }
}
