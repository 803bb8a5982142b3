//! The daemon's side of the health watch.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
    time::Duration,
};

use fabricbios_helper::{CallError, Session, Supervisor};
use fabricbios_wire::GpuVendor;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::Watch;
use crate::{Device, Health, Libraries};

/// The watching process waits for errors for one seventh of the silence limit, then it answers.
const WAITS: u32 = 7;

/// Pause before another process watches. It gives a process that resets devices time to take the lock of the watching
/// process that it has ended.
const PAUSE: Duration = Duration::from_secs(1);

/// Receives the UUID of a device or partition and its health: when the health has changed, and repeatedly while it is
/// `Failed`.
pub type Tell = Arc<dyn Fn(&str, &Health) + Send + Sync>;

/// Watches the health of devices until dropped. Each vendor has a process, which is replaced when it hangs or dies, and
/// a thread, which talks to the process.
pub struct HealthWatch {
    is_over: Arc<AtomicBool>,
    threads: Vec<Thread>,
}

impl fmt::Debug for HealthWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthWatch").finish_non_exhaustive()
    }
}

impl HealthWatch {
    /// Watches devices and partitions. `tell` receives each change, beginning from the health in `devices`.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(
        supervisor: Supervisor,
        libraries: Libraries,
        devices: Vec<Device>,
        tell: Tell,
        silence: Duration,
    ) -> io::Result<Self> {
        let mut watch = Self {
            is_over: Arc::default(),
            threads: Vec::new(),
        };
        for vendor in [GpuVendor::Nvidia, GpuVendor::Amd] {
            let of_vendor = devices.iter().filter(|it| it.vendor == vendor);
            let devices: Vec<Device> = of_vendor.cloned().collect();
            if devices.is_empty() {
                continue;
            }
            let mut watched = Watched {
                supervisor: supervisor.clone(),
                silence,
                library: match vendor {
                    GpuVendor::Nvidia => "NVML",
                    GpuVendor::Amd => "the driver",
                },
                heard: OffsetDateTime::now_utc(),
                known: { devices.iter() }
                    .map(|it| (it.uuid.clone(), it.health.clone()))
                    .collect(),
                call: Watch {
                    libraries: libraries.clone(),
                    devices,
                    patience: silence / WAITS,
                },
                tell: tell.clone(),
                is_over: watch.is_over.clone(),
            };
            let thread = thread::Builder::new().name("gpu-health".into());
            let thread = thread.spawn(move || watched.run())?;
            watch.threads.push(thread.thread().clone());
        }
        Ok(watch)
    }
}

impl Drop for HealthWatch {
    /// Stops all reports. The threads end later by themselves, because a thread may first have to wait until a library
    /// counts as hung.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        for thread in &self.threads {
            thread.unpark();
        }
    }
}

/// The state of a vendor's thread.
struct Watched {
    supervisor: Supervisor,
    silence: Duration,
    library: &'static str,
    /// When the process answered last, or when the watch began.
    heard: OffsetDateTime,
    call: Watch,
    known: BTreeMap<String, Health>,
    tell: Tell,
    is_over: Arc<AtomicBool>,
}

impl Watched {
    fn run(&mut self) {
        while !self.is_over() {
            let why = match self.supervisor.session() {
                Ok(session) => self.watch(session),
                Err(error) => Some(error.to_string()),
            };
            if let Some(why) = why.filter(|_| !self.is_over()) {
                self.tell_silence(&why);
            }
            // Dropping the watch ends the pause.
            thread::park_timeout(PAUSE);
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Watches with one process, as long as it answers. Returns the reason for people if the process failed.
    fn watch(&mut self, mut session: Session) -> Option<String> {
        let step = RefCell::new(String::new());
        let mut has_answered = false;
        while !self.is_over() {
            let note = |what: &str| what.clone_into(&mut step.borrow_mut());
            match session.ask(&self.call, self.silence, &note) {
                Ok(now) => {
                    has_answered = true;
                    self.heard = OffsetDateTime::now_utc();
                    for (uuid, health) in now {
                        self.tell(&uuid, health);
                    }
                }
                // A reset ends the watching process.
                Err(lost @ CallError::Lost { .. }) if has_answered => {
                    tracing::info!(%lost, "another process watches the health of GPUs from now on");
                    // A device that was reset may fail again in the same way.
                    self.known.clear();
                    return None;
                }
                Err(error) => return Some(format!("{}: {error}", step.borrow())),
            }
        }
        None
    }

    fn tell_silence(&mut self, why: &str) {
        // Every calendar time has this form.
        let heard = self.heard.replace_nanosecond(0).ok();
        let heard = heard.and_then(|it| it.format(&Rfc3339).ok());
        let heard = heard.unwrap_or_default();
        let why = format!("{} does not answer since {heard}: {why}", self.library);
        tracing::warn!("the health of GPUs is not known: {why}");
        let devices = self.call.devices.iter();
        let uuids: Vec<String> = devices.map(|it| it.uuid.clone()).collect();
        for uuid in uuids {
            // A failed device is no better because its library is silent.
            if !matches!(self.known.get(&uuid), Some(Health::Failed(_))) {
                self.tell(&uuid, Health::Silent(why.clone()));
            }
        }
    }

    /// Reports a change. Reports a failure each time: a reset that the watch does not notice may have helped for a
    /// moment only.
    fn tell(&mut self, uuid: &str, health: Health) {
        let is_new = self.known.get(uuid) != Some(&health);
        if self.is_over() || !(is_new || matches!(health, Health::Failed(_))) {
            return;
        }
        if is_new {
            tracing::info!(uuid, ?health, "the health of a GPU has changed");
        }
        (self.tell)(uuid, &health);
        self.known.insert(uuid.to_owned(), health);
    }
}
