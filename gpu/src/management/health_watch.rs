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

/// A process waits for errors for this part of that time, then it is heard.
const WAITS: u32 = 7;

/// Pause before another process watches. A process that resets devices takes the lock of the one that it has ended.
const PAUSE: Duration = Duration::from_secs(1);

/// Gets the UUID of a device or partition and its health, when that has changed, and again and again while it has failed.
pub type Tell = Arc<dyn Fn(&str, &Health) + Send + Sync>;

/// Watches the health of devices until it is dropped. For each vendor there is a process, which is replaced when it hangs or
/// dies, and a thread, which talks to it.
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
    /// Watches devices and partitions. `tell` hears of each change from the health that they have here on.
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
    /// Nothing is told any more. The threads end by themselves, since they may have to wait until a library hangs for certain.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        for thread in &self.threads {
            thread.unpark();
        }
    }
}

/// What the thread of a vendor has.
struct Watched {
    supervisor: Supervisor,
    silence: Duration,
    library: &'static str,
    /// When it answered last, or when the watch began.
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

    /// Watches by one process, as long as it answers. Returns what people should know of its end.
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
                // A reset ends the process.
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
        // A time of the calendar has this form.
        let heard = self.heard.replace_nanosecond(0).ok();
        let heard = heard.and_then(|it| it.format(&Rfc3339).ok());
        let heard = heard.unwrap_or_default();
        let why = format!("{} does not answer since {heard}: {why}", self.library);
        tracing::warn!("the health of GPUs is not known: {why}");
        let devices = self.call.devices.iter();
        let uuids: Vec<String> = devices.map(|it| it.uuid.clone()).collect();
        for uuid in uuids {
            // A device that has failed has not become better by that.
            if !matches!(self.known.get(&uuid), Some(Health::Failed(_))) {
                self.tell(&uuid, Health::Silent(why.clone()));
            }
        }
    }

    /// A failure is told again and again: a reset that the watch does not notice may have helped for a moment only.
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
