//! The hardware as it is now: read when an inventory is asked for, and at most once a second.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use fabricbios_wire::Size;
use nix::sys::statvfs::statvfs;
use tokio::{sync::watch, time::timeout};

use crate::{
    config::Settings,
    detect::{CpuFound, Detected, NicFound, Sources, detect, detect_cpu, detect_nic},
    gpu::FoundGpus,
    net,
};

/// What was read counts for so long.
const FRESH: Duration = Duration::from_secs(1);

/// An inventory waits for the kernel for so long. Then it tells what was read before.
const PATIENCE: Duration = Duration::from_secs(2);

/// With less than this the journal cannot grow, and no lease can be granted.
const STATE_BYTES_MIN: u64 = 1 << 20;

/// What one look found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// What inventories list although it is not on offer.
    pub listed: Detected,
    /// The processors, if they are listed or on offer.
    pub cpu: Option<CpuFound>,
    /// The interfaces on offer, physical or not.
    pub interfaces: Vec<NicFound>,
    /// Why the file system of the state directory is a problem.
    pub state_dir: Option<String>,
}

/// Looks at the hardware. The kernel may block it for any time.
pub type Look = dyn Fn() -> Found + Send + Sync;

/// See the module.
pub struct Detection {
    look: Arc<Look>,
    reading: Arc<Mutex<Option<Instant>>>,
    latest: Arc<watch::Sender<Latest>>,
}

#[derive(Clone)]
struct Latest {
    found: Arc<Found>,
    /// When the look began.
    at: Instant,
}

impl fmt::Debug for Detection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detection").finish_non_exhaustive()
    }
}

impl Detection {
    /// Looks once, and again when it is asked to.
    #[must_use]
    pub fn new(look: impl Fn() -> Found + Send + Sync + 'static) -> Self {
        let at = Instant::now();
        let found = Arc::new(look());
        found.warn_unlike(&Found::default());
        Self {
            look: Arc::new(look),
            reading: Arc::default(),
            latest: Arc::new(watch::Sender::new(Latest { found, at })),
        }
    }

    /// Hardware that does not change, for tests.
    #[must_use]
    pub fn fixed(found: Found) -> Self {
        Self::new(move || found.clone())
    }

    /// What the settings offer and list of this machine.
    #[must_use]
    pub fn of_this_machine(settings: &Settings, gpus: FoundGpus) -> Self {
        let lists = settings.auto_detect;
        let offers_cpus = settings.cpus.is_some();
        let names = net::interfaces(settings);
        let vendors = settings.advertise_vendor.clone();
        let state_dir: PathBuf = settings.state_dir().into();
        Self::new(move || {
            let sources = Sources::of_this_machine();
            let mut listed = Detected::default();
            if lists {
                listed = detect(&sources);
                listed.list_gpus(&gpus.list());
            }
            listed.vendors.clone_from(&vendors);
            let cpu = listed.cpus.first().cloned();
            let interface = |name: &String| {
                let known = listed.nics.iter().find(|it| it.name == *name).cloned();
                known.unwrap_or_else(|| detect_nic(&sources, name).0)
            };
            Found {
                cpu: cpu.or_else(|| detect_cpu(&sources).0.filter(|_| offers_cpus)),
                interfaces: names.iter().map(interface).collect(),
                state_dir: lack_of_room(&state_dir),
                listed,
            }
        })
    }

    /// Waits for a look that is at most a second old, if the kernel gives one in time.
    pub async fn refresh(&self) {
        let mut latest = self.latest.subscribe();
        if self.begin() {
            // Without an answer the inventory says so.
            timeout(PATIENCE, latest.changed()).await.ok();
        }
    }

    /// True if no look is needed.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.latest.borrow().at.elapsed() < FRESH
    }

    /// The last look, and why it is an old one, if the kernel has not answered since.
    #[must_use]
    pub fn latest(&self) -> (Arc<Found>, Option<String>) {
        let latest = self.latest.borrow().clone();
        let silent = lock(&self.reading).is_some_and(|since| since.elapsed() >= PATIENCE);
        let why = silent.then(|| {
            let seconds = latest.at.elapsed().as_secs();
            format!("the kernel has told nothing of the hardware for {seconds} s")
        });
        (latest.found, why)
    }

    /// Returns whether a look goes on that may end soon.
    fn begin(&self) -> bool {
        let mut reading = lock(&self.reading);
        if let Some(since) = *reading {
            return since.elapsed() < PATIENCE;
        }
        if self.is_fresh() {
            return false;
        }
        let at = Instant::now();
        let (look, latest, done) = (self.look.clone(), self.latest.clone(), self.reading.clone());
        let thread = thread::Builder::new().name("detection".into());
        let started = thread.spawn(move || {
            let found = Arc::new(look());
            found.warn_unlike(&latest.borrow().found);
            // Under the lock: who finds no look under way finds this one.
            let mut reading = lock(&done);
            *reading = None;
            latest.send_replace(Latest { found, at });
        });
        match started {
            Ok(_) => *reading = Some(at),
            Err(error) => tracing::warn!(%error, "no thread to look at the hardware"),
        }
        reading.is_some()
    }
}

impl Found {
    /// Logs the warnings that the look before did not have.
    fn warn_unlike(&self, before: &Self) {
        let known = &before.listed.warnings;
        for warning in self.listed.warnings.iter().filter(|it| !known.contains(it)) {
            tracing::warn!("{warning}");
        }
        if let Some(why) = self
            .state_dir
            .as_ref()
            .filter(|_| before.state_dir.is_none())
        {
            tracing::warn!("{why}");
        }
    }

    /// The interface of this name.
    #[must_use]
    pub fn interface(&self, name: &str) -> Option<&NicFound> {
        self.interfaces.iter().find(|it| it.name == name)
    }
}

/// Why the journal cannot grow.
fn lack_of_room(state_dir: &Path) -> Option<String> {
    let at = state_dir.display();
    match statvfs(state_dir) {
        Err(errno) => Some(format!("--state-dir {at}: {errno}")),
        Ok(of) => {
            // Root may use what is reserved for it.
            let free = of.blocks_free().saturating_mul(of.fragment_size());
            let free = Size(free);
            (free < Size(STATE_BYTES_MIN))
                .then(|| format!("--state-dir {at}: its file system has {free} left"))
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::sync::{
        atomic::{AtomicU32, Ordering},
        mpsc::channel,
    };

    use super::*;

    fn numbered(number: u32) -> Found {
        Found {
            state_dir: Some(number.to_string()),
            ..Found::default()
        }
    }

    fn number(detection: &Detection) -> String {
        detection.latest().0.state_dir.clone().unwrap()
    }

    fn is_old(detection: &Detection) {
        detection.latest.send_modify(|it| it.at -= FRESH);
    }

    #[tokio::test]
    async fn a_look_is_made_when_it_is_asked_for_and_the_last_one_is_old() {
        let looks = AtomicU32::new(0);
        let detection = Detection::new(move || numbered(looks.fetch_add(1, Ordering::Relaxed)));
        is_old(&detection);
        let mut latest = detection.latest.subscribe();
        detection.refresh().await;
        // On a slow machine the look may take longer than an inventory waits.
        latest
            .wait_for(|it| *it.found.state_dir.as_ref().unwrap() == "1")
            .await
            .unwrap();
        // Inventories in a row share one look.
        detection
            .latest
            .send_modify(|it| it.at = Instant::now() + FRESH);
        for _ in 0..1000 {
            detection.refresh().await;
        }
        assert_eq!(number(&detection), "1");
        assert_eq!(detection.latest().1, None);
    }

    #[tokio::test]
    async fn a_kernel_that_hangs_keeps_no_inventory_waiting_for_ever_and_shows() {
        let (go, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        let looks = AtomicU32::new(0);
        let detection = Detection::new(move || {
            let number = looks.fetch_add(1, Ordering::Relaxed);
            if number == 1 {
                lock(&gate).recv().ok();
            }
            numbered(number)
        });
        is_old(&detection);
        detection.refresh().await;
        assert_eq!(number(&detection), "0", "the look before");
        let why = detection.latest().1.unwrap();
        assert!(why.contains("told nothing"), "{why}");
        // No second look begins beside the one that hangs.
        detection.refresh().await;
        let mut latest = detection.latest.subscribe();
        latest.mark_unchanged();
        drop(go);
        latest.changed().await.unwrap();
        assert_eq!(number(&detection), "1");
        assert_eq!(detection.latest().1, None);
    }

    #[test]
    fn a_state_directory_that_is_gone_is_a_problem_and_one_with_room_is_none() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(lack_of_room(directory.path()), None);
        let gone = directory.path().join("gone");
        let why = lack_of_room(&gone).unwrap();
        assert!(why.contains("gone") && why.contains("ENOENT"), "{why}");
    }
}
