//! One queue of a session: its stream is opened again after a loss, and serves one operation at a time.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fabricbios_local::SharedMemory;
use fabricbios_wire::{GpuReply, GpuRequest};
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};

use super::{
    ahead::{Failure, Kept, What},
    session::Session,
    stream::{Broken, Failed, Stream},
};
use crate::{Error, runtime};

/// When launches and copies that were sent ahead are written, if no other operation writes them before.
const SOON: Duration = Duration::from_millis(1);

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
    /// A task will write what was sent ahead.
    is_writing_soon: AtomicBool,
    /// Of launches and copies that were sent ahead.
    kept: Arc<Kept>,
    releases: Mutex<Releases>,
}

/// Memory and modules to free before the next operation.
#[derive(Debug, Default)]
struct Releases {
    waiting: Vec<GpuRequest>,
    /// How many were taken from `waiting` so far.
    taken: usize,
    /// Before these, of all so far, other queues were waited for: the worker has their launches, which it lets end first.
    settled: usize,
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
        mut stream: Stream,
        shared: Option<Arc<SharedMemory>>,
    ) -> Arc<Self> {
        let kept = Arc::new(Kept::default());
        stream.keep_in(&kept);
        let queue = Arc::new(Self {
            session,
            shared,
            stream: AsyncMutex::new(Some(stream)),
            is_reopened: AtomicBool::new(false),
            is_writing_soon: AtomicBool::new(false),
            kept,
            releases: Mutex::default(),
        });
        queue.session.add(&queue);
        queue
    }

    /// Takes the stream for one operation that waits, after all that was sent ahead was answered.
    ///
    /// # Errors
    /// The first failure of what was sent ahead, too.
    pub(super) async fn hold(&self) -> Result<Held<'_>, Error> {
        let mut held = self.hold_ahead().await?;
        let settled = held.stream.settle(0).await;
        let held = match settled {
            Ok(()) => held,
            Err(broken) => return held.done(Err(Failed::Broken(broken))).await,
        };
        match self.failure() {
            None => Ok(held),
            Some(failure) => {
                held.done(Ok(())).await?;
                Err(failure)
            }
        }
    }

    /// The first failure of what was sent ahead since the last call.
    pub(super) fn failure(&self) -> Option<Error> {
        self.kept.take().map(|failure| match failure {
            Failure::Refused(refusal) => Error::Refused(refusal),
            Failure::Unanswered(why) => self.session.origin.error(Broken::Lost(why)),
        })
    }

    /// Takes the stream for one operation, after earlier operations have returned and memory without a handle is freed.
    pub(super) async fn hold_ahead(&self) -> Result<Held<'_>, Error> {
        self.prepare_releases().await;
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
        self.hold().await?.ask(request).await
    }

    /// Sends one operation with its data, and does not wait for its answer.
    pub(super) async fn ask_ahead(
        self: &Arc<Self>,
        request: &GpuRequest,
        data: &[u8],
        what: What,
    ) -> Result<(), Error> {
        let mut held = self.hold_ahead().await?;
        let sent = held.stream.ask_ahead(request, data, what).await;
        let is_unwritten = held.stream.has_unwritten();
        held.done(sent.map_err(Failed::Broken)).await?;
        if is_unwritten && !self.is_writing_soon.swap(true, Ordering::AcqRel) {
            let queue = Arc::clone(self);
            runtime::background()?.spawn(async move { queue.write_soon().await });
        }
        Ok(())
    }

    /// Writes what was sent ahead, if no other operation has.
    async fn write_soon(&self) {
        tokio::time::sleep(SOON).await;
        self.is_writing_soon.store(false, Ordering::Release);
        let mut place = self.stream.lock().await;
        if let Some(mut stream) = place.take()
            && stream.write().await.is_ok()
        {
            *place = Some(stream);
        }
    }

    /// Waits until the worker has all that other queues of the session have sent ahead in this program.
    pub(super) async fn settle_others(&self) {
        for queue in self.session.queues() {
            if !std::ptr::eq(&*queue, self) && queue.kept.is_ahead() {
                // In the background: a caller who stops waiting breaks no stream of another queue.
                let settling = async move {
                    queue.settle().await;
                    Ok(())
                };
                runtime::run(settling).await.ok();
            }
        }
    }

    async fn settle(&self) {
        let mut place = self.stream.lock().await;
        if let Some(mut stream) = place.take()
            && stream.settle(0).await.is_ok()
        {
            *place = Some(stream);
        }
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
        self.releases().waiting.push(request);
        let queue = Arc::clone(self);
        if let Ok(runtime) = runtime::background() {
            runtime.spawn(async move { queue.free_now().await });
        }
    }

    async fn free_now(&self) {
        self.prepare_releases().await;
        let mut place = self.stream.lock().await;
        if let Some(mut stream) = place.take()
            && self.free(&mut stream).await.is_ok()
        {
            *place = Some(stream);
        }
    }

    /// Waits for other queues whose launches may use what is freed next.
    async fn prepare_releases(&self) {
        let (due, settled) = {
            let releases = self.releases();
            (releases.taken + releases.waiting.len(), releases.settled)
        };
        if due > settled {
            self.settle_others().await;
            let mut releases = self.releases();
            releases.settled = releases.settled.max(due);
        }
    }

    /// Frees what is prepared. If the worker refuses, the object does not exist any more.
    async fn free(&self, stream: &mut Stream) -> Result<(), Broken> {
        let releases = self.releases().prepared();
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
        let mut stream = self.session.open(self.shared.clone()).await?;
        stream.keep_in(&self.kept);
        self.is_reopened.store(true, Ordering::Relaxed);
        Ok(stream)
    }

    /// A panic under the lock leaves a complete list.
    fn releases(&self) -> MutexGuard<'_, Releases> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Releases {
    /// Takes those before which other queues were waited for.
    fn prepared(&mut self) -> Vec<GpuRequest> {
        let count = self.settled.saturating_sub(self.taken);
        let prepared: Vec<_> = self.waiting.drain(..count).collect();
        self.taken += prepared.len();
        prepared
    }
}

impl Held<'_> {
    /// Does the operation, which has no data.
    pub(super) async fn ask(mut self, request: &GpuRequest) -> Result<GpuReply, Error> {
        let answered = self.stream.ask(request, &[]).await;
        self.done(answered).await
    }

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
