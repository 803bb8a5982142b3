//! One queue of a session: its stream is opened again after a loss, and serves one operation at a time.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use fabricbios_local::SharedMemory;
use fabricbios_wire::{GpuReply, GpuRequest};
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};

use super::{
    session::Session,
    stream::{Broken, Failed, Stream},
};
use crate::{Error, runtime};

/// A queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) session: Arc<Session>,
    /// Memory shared with the worker; the next stream uses it too.
    pub(super) shared: Option<Arc<SharedMemory>>,
    /// Empty after the stream was lost.
    stream: AsyncMutex<Option<Stream>>,
    /// The stream is not the first: kernels of this queue may still run in the order of an earlier one.
    is_reopened: AtomicBool,
    /// Memory and modules to free before the next operation.
    releases: Mutex<Vec<GpuRequest>>,
}

/// The stream of a queue during one operation. If the operation is cancelled, the stream is closed.
pub(super) struct Held<'a> {
    queue: &'a Queue,
    place: AsyncMutexGuard<'a, Option<Stream>>,
    pub(super) stream: Stream,
}

impl Queue {
    pub(super) fn new(
        session: Arc<Session>,
        stream: Stream,
        shared: Option<Arc<SharedMemory>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            session,
            shared,
            stream: AsyncMutex::new(Some(stream)),
            is_reopened: AtomicBool::new(false),
            releases: Mutex::default(),
        })
    }

    /// Takes the stream for one operation, after earlier operations are over and memory without a handle is freed.
    pub(super) async fn hold(&self) -> Result<Held<'_>, Error> {
        let mut place = self.stream.lock().await;
        self.session.check()?;
        let kept = place.take().filter(|stream| !stream.is_lost());
        let mut stream = match kept {
            Some(stream) => stream,
            None => self.open_again().await?,
        };
        if self.free(&mut stream).await.is_err() {
            stream = self.open_again().await?;
        }
        let queue = self;
        Ok(Held {
            queue,
            place,
            stream,
        })
    }

    /// Does one operation that has no data.
    pub(super) async fn ask(&self, request: &GpuRequest) -> Result<GpuReply, Error> {
        let mut held = self.hold().await?;
        let answered = held.stream.ask(request, &[]).await;
        held.done(answered).await
    }

    /// Whether kernels of this queue may run in the order of an earlier stream.
    pub(super) fn is_reopened(&self) -> bool {
        self.is_reopened.load(Ordering::Relaxed)
    }

    /// Frees memory or a module before the next operation, or soon if no operation comes. Never waits.
    pub(super) fn release(self: &Arc<Self>, request: GpuRequest) {
        if self.session.check().is_err() {
            return;
        }
        self.releases().push(request);
        let queue = Arc::clone(self);
        if let Ok(runtime) = runtime::background() {
            runtime.spawn(async move { queue.free_now().await });
        }
    }

    async fn free_now(&self) {
        let mut place = self.stream.lock().await;
        if let Some(mut stream) = place.take()
            && self.free(&mut stream).await.is_ok()
        {
            *place = Some(stream);
        }
    }

    /// Frees one object. If the worker refuses, the object does not exist any more.
    async fn free(&self, stream: &mut Stream) -> Result<(), Broken> {
        let releases = mem::take(&mut *self.releases());
        if self.session.check().is_err() {
            return Ok(());
        }
        for request in releases {
            match stream.ask(&request, &[]).await {
                Ok(_) => {}
                Err(Failed::Refused(refusal)) => tracing::debug!("not freed: {refusal}"),
                Err(Failed::Broken(broken)) => return Err(broken),
            }
        }
        Ok(())
    }

    async fn open_again(&self) -> Result<Stream, Error> {
        let stream = self.session.open(self.shared.clone()).await?;
        self.is_reopened.store(true, Ordering::Relaxed);
        Ok(stream)
    }

    /// A panic under the lock leaves a complete list.
    fn releases(&self) -> MutexGuard<'_, Vec<GpuRequest>> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held<'_> {
    /// Keeps the stream for the next operation, unless it broke.
    pub(super) async fn done<T>(self, outcome: Result<T, Failed>) -> Result<T, Error> {
        let Self {
            queue,
            mut place,
            stream,
        } = self;
        match outcome {
            Err(Failed::Broken(broken)) => {
                drop((place, stream));
                Err(queue.session.explain(broken).await)
            }
            Err(Failed::Refused(refusal)) => {
                *place = Some(stream);
                Err(Error::Refused(refusal))
            }
            Ok(value) => {
                *place = Some(stream);
                Ok(value)
            }
        }
    }
}
