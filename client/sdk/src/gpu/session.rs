//! The state that all streams and handles of a session share: where the session is reached, and whether it is over.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};

use fabricbios_local::{AskError, SharedMemory, gpu_session};
use fabricbios_wire::{GpuOpened, GpuReply, GpuRequest, LeaseError, LeaseId, Request};

use super::{
    Wiped,
    queue::Queue,
    stream::{Broken, Failed, Stream},
};
use crate::{
    Error,
    patience::{PATIENCE, is_momentary, patiently},
    runtime,
    shared::SharedLease,
    transfer,
};

/// How many times a node is asked whether a lease is over.
const LOOKS: u32 = 25;
const LOOK: Duration = Duration::from_millis(20);

/// Where the streams of a session are opened.
#[derive(Debug)]
pub(super) enum Origin {
    /// At the node, over the connection of the lease.
    Lease(Arc<SharedLease>),
    /// At the local socket of the node.
    Socket { lease_id: LeaseId, path: PathBuf },
}

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) origin: Arc<Origin>,
    pub(super) info: GpuOpened,
    /// How the session ended, if known.
    over: OnceLock<String>,
    /// The queues of this program.
    queues: Mutex<Vec<Weak<Queue>>>,
}

impl Session {
    pub(super) fn new(origin: Arc<Origin>, info: GpuOpened) -> Arc<Self> {
        Arc::new(Self {
            origin,
            info,
            over: OnceLock::new(),
            queues: Mutex::default(),
        })
    }

    /// Counts a queue as one of this session.
    pub(super) fn add(&self, queue: &Arc<Queue>) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|it| it.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }

    /// The queues that are in use.
    pub(super) fn queues(&self) -> Vec<Arc<Queue>> {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.iter().filter_map(Weak::upgrade).collect()
    }

    /// Fails if the session or its lease is known to be over.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(why) = self.over.get() {
            return Err(self.ended(why.clone()));
        }
        match &*self.origin {
            Origin::Lease(lease) => lease.check_not_lost(),
            Origin::Socket { .. } => Ok(()),
        }
    }

    /// Ends the session for this program: nothing is sent to it from now on.
    pub(super) fn end(&self, why: String) {
        // Only the first reason counts.
        self.over.set(why).ok();
    }

    /// Opens another stream of exactly this session.
    pub(super) async fn open(&self, shared: Option<Arc<SharedMemory>>) -> Result<Stream, Error> {
        match open(&self.origin, self.info.session, shared).await {
            Ok((stream, _)) => Ok(stream),
            Err(Error::Refused(refusal)) if refusal.error == LeaseError::NotFound => {
                self.end(refusal.message.clone());
                Err(self.ended(refusal.message))
            }
            Err(error) => Err(error),
        }
    }

    /// The error for a stream that broke. A worker ends with its lease, so the node is asked about that.
    pub(super) async fn explain(&self, broken: Broken) -> Error {
        match broken {
            Broken::Ended(why) => {
                let (origin, session) = (Arc::clone(&self.origin), self.info.session);
                let ended = async move { Ok(origin.ended(session, why).await) };
                runtime::run(ended).await.unwrap_or_else(|error| error)
            }
            other => self.origin.error(other),
        }
    }

    fn ended(&self, why: String) -> Error {
        Error::SessionEnded {
            lease_id: self.origin.lease_id(),
            session: self.info.session,
            why,
        }
    }
}

/// Opens a stream and with it the session; 0: the session of the lease. If the worker does not accept `shared`, all
/// bytes go through the stream.
pub(super) async fn open(
    origin: &Arc<Origin>,
    session: u64,
    shared: Option<Arc<SharedMemory>>,
) -> Result<(Stream, GpuOpened), Error> {
    let origin = Arc::clone(origin);
    runtime::run(async move {
        let (mut stream, info) = origin.open(session).await?;
        if let Some(memory) = shared {
            let length = memory.bytes() as u64;
            let request = GpuRequest::MemShare { length };
            match stream.ask_sharing(&request, &memory).await {
                Ok(_) => stream.shared = Some(memory),
                Err(Failed::Refused(refusal)) => {
                    tracing::warn!(lease_id = %origin.lease_id(), "copies go through the socket: {refusal}");
                }
                Err(Failed::Broken(broken)) => return Err(origin.error(broken)),
            }
        }
        Ok((stream, info))
    })
    .await
}

/// Closes a session; 0: the session of the lease.
pub(super) async fn close(origin: Origin, session: u64) -> Result<Wiped, Error> {
    runtime::run(async move { origin.close(session).await }).await
}

impl Origin {
    pub(super) fn lease_id(&self) -> LeaseId {
        match self {
            Self::Lease(lease) => lease.lease_id,
            Self::Socket { lease_id, .. } => *lease_id,
        }
    }

    /// Runs on the background runtime.
    async fn open(&self, session: u64) -> Result<(Stream, GpuOpened), Error> {
        self.patiently(|| async move {
            let mut stream = self.connect(session).await?;
            let info = self.begin(&mut stream, session).await?;
            Ok((stream, info))
        })
        .await
    }

    /// Closes the session even if it has no stream left: a worker that refuses to open one still accepts this request.
    async fn close(&self, session: u64) -> Result<Wiped, Error> {
        let mut stream = self.patiently(|| self.connect(session)).await?;
        let begun = self.begin(&mut stream, session).await;
        let is_full = |error: &Error| {
            let refusal = error.refusal();
            refusal.is_some_and(|refusal| refusal.error == LeaseError::ResourceBusy)
        };
        match begun {
            Err(error) if !is_full(&error) => return Err(error),
            _ => {}
        }
        match (stream.ask(&GpuRequest::Close, &[]).await, begun) {
            (Ok(reply), _) => Wiped::of(&reply),
            (Err(Failed::Refused(refusal)), _) => Err(Error::Refused(refusal)),
            // The node itself refused the request and closed the stream.
            (Err(Failed::Broken(_)), Err(error)) => Err(error),
            (Err(Failed::Broken(Broken::Ended(why))), Ok(info)) => {
                Err(self.ended(info.session, why).await)
            }
            (Err(Failed::Broken(broken)), Ok(_)) => Err(self.error(broken)),
        }
    }

    /// The error for a session whose worker is gone. The worker ends with its lease, so this asks the node whether the
    /// lease is over. It asks again a moment later, since the node kills the worker before it marks the lease as over.
    async fn ended(&self, session: u64, why: String) -> Error {
        if let Self::Lease(lease) = self {
            let (node, query) = (lease.patient_node(), Request::LeaseQuery(lease.lease_id));
            for _ in 0..LOOKS {
                match node.lease_async(query.clone()).await {
                    Ok(info) => match transfer::end_error(&info) {
                        Some(error) => return error,
                        None => tokio::time::sleep(LOOK).await,
                    },
                    Err(error) if error.is_over() => return error,
                    Err(_unknown) => break,
                }
            }
        }
        Error::SessionEnded {
            lease_id: self.lease_id(),
            session,
            why,
        }
    }

    /// Repeats `ask` while the node or the worker is busy for a moment, or while a node that answered before may be
    /// restarting.
    async fn patiently<T, F>(&self, ask: impl FnMut() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        match self {
            Self::Lease(lease) => {
                lease.check_not_lost()?;
                let node = lease.patient_node();
                let comes_back = |error: &Error| {
                    matches!(error, Error::Unreachable { .. }) && node.remote().is_some()
                };
                let may_repeat = |error: &Error| is_momentary(error) || comes_back(error);
                patiently(node.patience, may_repeat, ask).await
            }
            Self::Socket { .. } => patiently(PATIENCE, is_momentary, ask).await,
        }
    }

    async fn connect(&self, session: u64) -> Result<Stream, Error> {
        match self {
            Self::Lease(lease) => Stream::over_quic(lease.node.open_stream().await?),
            Self::Socket { lease_id, path } => {
                let (lease_id, path) = (*lease_id, path.clone());
                let connected = runtime::blocking(move || {
                    gpu_session(&path, lease_id, session).map_err(of_socket)
                });
                Stream::over_socket(connected.await?)
            }
        }
    }

    /// Sends the first frame.
    async fn begin(&self, stream: &mut Stream, session: u64) -> Result<GpuOpened, Error> {
        let lease_id = self.lease_id();
        let open = GpuRequest::Open { lease_id, session };
        let why = match stream.ask(&open, &[]).await {
            Ok(GpuReply::Opened(info)) if session == 0 || session == info.session => {
                return Ok(info);
            }
            Ok(other) => Broken::Protocol(format!("session {session} was opened as {other:?}")),
            Err(Failed::Refused(refusal)) => return Err(Error::Refused(refusal)),
            Err(Failed::Broken(broken)) => broken,
        };
        Err(self.error(why))
    }

    pub(super) fn error(&self, broken: Broken) -> Error {
        let node = match self {
            Self::Lease(lease) => lease.node.address().to_owned(),
            Self::Socket { path, .. } => path.display().to_string(),
        };
        match broken {
            Broken::Ended(why) | Broken::Lost(why) => Error::Unreachable {
                node,
                why,
                may_have_happened: true,
            },
            Broken::Protocol(why) => Error::Protocol { node, why },
        }
    }
}

fn of_socket(error: AskError) -> Error {
    match error {
        AskError::Refused(refusal) => Error::Refused(refusal),
        AskError::Unreachable { socket, error } => Error::Unreachable {
            node: socket.display().to_string(),
            why: format!("no daemon listens there: {error}; name the node's --local-socket"),
            may_have_happened: false,
        },
        AskError::Unanswered { socket, why } => Error::Unreachable {
            node: socket.display().to_string(),
            why: format!("the daemon {why}"),
            may_have_happened: true,
        },
        AskError::Unexpected(why) => Error::Protocol {
            node: "at the local socket".to_owned(),
            why,
        },
        AskError::Local(what, error) => Error::Local {
            what,
            why: error.to_string(),
        },
    }
}
