//! Current hardware: detected when a client requests an inventory, and at most once a second.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use fabricbios_wire::Size;
use nix::{sys::statvfs::statvfs, unistd::Uid};
use tokio::{sync::watch, time::timeout};

use crate::inventory::hardware::{Hardware, Warnings};

/// How long a detection result counts as current.
const FRESH: Duration = Duration::from_secs(1);

/// How long a start and an inventory wait for the kernel. After that an inventory uses the last result, if there is
/// one.
const PATIENCE: Duration = Duration::from_secs(2);

/// Free bytes below which the journal cannot be opened or grow, so no lease can be granted.
const STATE_BYTES_MIN: u64 = 4 << 20;

/// The result of one detection.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Hardware that inventories list although it is not on offer.
    pub listed: Vec<Arc<dyn Hardware>>,
    /// Hardware on offer that is not in `listed`.
    pub offered: Vec<Arc<dyn Hardware>>,
    /// Of `listed`.
    pub warnings: Warnings,
    /// What of the node itself is a problem: the file system of the state directory, or the port of its pages.
    pub of_node: Option<String>,
}

/// Detects the hardware. The kernel may block this call for any time.
pub type Look = dyn Fn() -> Found + Send + Sync;

/// See the module.
pub struct Detection {
    /// `None`: the first result never changes.
    look: Option<Arc<Look>>,
    reading: Arc<Mutex<Option<Instant>>>,
    latest: Arc<watch::Sender<Latest>>,
}

#[derive(Clone)]
struct Latest {
    found: Arc<Found>,
    /// When the detection of `found` began; before the first result, the time of the start.
    at: Instant,
    /// False until a detection has succeeded.
    is_known: bool,
    /// Why the last detection failed.
    failed: Option<String>,
}

impl fmt::Debug for Detection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detection").finish_non_exhaustive()
    }
}

impl Detection {
    /// Detects at once, and again on each [`Detection::refresh`] that needs it. This call waits for the first detection
    /// for a limited time.
    #[must_use]
    pub fn new(look: impl Fn() -> Found + Send + Sync + 'static) -> Self {
        let detection = Self {
            look: Some(Arc::new(look)),
            ..Self::fixed(Found::default())
        };
        detection.latest.send_modify(|it| it.is_known = false);
        let started = detection.start_look(&mut lock(&detection.reading));
        if let Some(ended) = started {
            // The thread sends nothing: its end disconnects the channel.
            ended.recv_timeout(PATIENCE).ok();
        }
        if let Some(why) = detection.latest().1 {
            tracing::warn!("the node starts without knowing its hardware: {why}");
        }
        detection
    }

    /// A detection whose result never changes, for a simulated node.
    #[must_use]
    pub fn fixed(found: Found) -> Self {
        Self {
            look: None,
            reading: Arc::default(),
            latest: Arc::new(watch::Sender::new(Latest {
                found: Arc::new(found),
                at: Instant::now(),
                is_known: true,
                failed: None,
            })),
        }
    }

    /// Waits until a result is at most one second old, for a limited time.
    pub async fn refresh(&self) {
        let mut latest = self.latest.subscribe();
        if self.begin() {
            // If the kernel does not answer, the inventory contains a note.
            timeout(PATIENCE, latest.changed()).await.ok();
        }
    }

    /// True if the last result is at most one second old.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        let latest = self.latest.borrow();
        let is_known = latest.is_known && latest.failed.is_none();
        self.look.is_none() || is_known && latest.at.elapsed() < FRESH
    }

    /// The last successful result. If it is old or empty, also the reason: the kernel has not answered since, or a
    /// detection has failed.
    #[must_use]
    pub fn latest(&self) -> (Arc<Found>, Option<String>) {
        let latest = self.latest.borrow().clone();
        let silent = lock(&self.reading).is_some_and(|since| since.elapsed() >= PATIENCE);
        let seconds = latest.at.elapsed().as_secs();
        let why = match latest.failed {
            _ if silent => Some(format!(
                "the kernel has not described the hardware for {seconds} s"
            )),
            Some(why) if latest.is_known => {
                Some(format!("this is the hardware of {seconds} s ago: {why}"))
            }
            Some(why) => Some(format!("the hardware is unknown: {why}")),
            None => None,
        };
        (latest.found, why)
    }

    /// Starts a detection if needed. Returns whether a detection runs that may end soon.
    fn begin(&self) -> bool {
        let mut reading = lock(&self.reading);
        if let Some(since) = *reading {
            return since.elapsed() < PATIENCE;
        }
        !self.is_fresh() && self.start_look(&mut reading).is_some()
    }

    /// Starts a detection on its own thread. The receiver is disconnected when the detection has ended; `None`: no
    /// thread could be started.
    fn start_look(&self, reading: &mut Option<Instant>) -> Option<mpsc::Receiver<()>> {
        let at = Instant::now();
        let look = self.look.clone()?;
        let (latest, done) = (self.latest.clone(), self.reading.clone());
        let (ends, ended) = mpsc::channel();
        let thread = thread::Builder::new().name("detection".into());
        let started = thread.spawn(move || {
            let _ends: mpsc::Sender<()> = ends;
            let before = latest.borrow().found.clone();
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let found = look();
                found.warn_unlike(&before);
                found
            }));
            // The result is stored under the lock: a caller who finds no running detection finds this result.
            let mut reading = lock(&done);
            *reading = None;
            latest.send_modify(|latest| match outcome {
                Ok(found) => {
                    *latest = Latest {
                        found: Arc::new(found),
                        at,
                        is_known: true,
                        failed: None,
                    }
                }
                Err(panic) => {
                    let panic = told(&*panic);
                    tracing::error!(panic, "a look at the hardware panicked");
                    latest.failed = Some(format!(
                        "the last look at the hardware panicked, which is a defect of fabricbiosd: {panic}"
                    ));
                }
            });
        });
        match started {
            Ok(_) => *reading = Some(at),
            Err(error) => {
                let why = format!("no thread could be started to look at the hardware: {error}");
                tracing::warn!("the hardware: {why}");
                self.latest.send_modify(|it| it.failed = Some(why));
                return None;
            }
        }
        Some(ended)
    }
}

/// The message of a panic.
fn told(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|it| (*it).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into())
}

impl Found {
    /// Logs the warnings that the previous result did not have.
    fn warn_unlike(&self, before: &Self) {
        let known = &before.warnings.0;
        for warning in self.warnings.0.iter().filter(|it| !known.contains(it)) {
            tracing::warn!("{warning}");
        }
        if let Some(why) = self.of_node.as_ref().filter(|_| before.of_node.is_none()) {
            tracing::warn!("{why}");
        }
    }

    pub(crate) fn list(&mut self, hardware: impl Hardware) {
        self.listed.push(Arc::new(hardware));
    }

    pub(crate) fn offer(&mut self, hardware: impl Hardware) {
        self.offered.push(Arc::new(hardware));
    }

    /// The hardware of this type.
    pub(crate) fn of<T: Hardware>(&self) -> impl Iterator<Item = &T> {
        let all = self.listed.iter().chain(&self.offered);
        all.filter_map(|it| (&**it as &dyn Any).downcast_ref())
    }
}

/// Why the journal cannot grow; `None` if it can.
pub(crate) fn lack_of_room(state_dir: &Path) -> Option<String> {
    let at = state_dir.display();
    match statvfs(state_dir) {
        Err(errno) => Some(format!("--state-dir {at}: {errno}")),
        Ok(of) => {
            // File systems reserve blocks for root.
            let blocks = match Uid::effective().is_root() {
                true => of.blocks_free(),
                false => of.blocks_available(),
            };
            let free = Size(blocks.saturating_mul(of.fragment_size()));
            (free < Size(STATE_BYTES_MIN))
                .then(|| format!("--state-dir {at}: its file system has {free} left"))
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
