//! One check of the health of devices, which waits for errors.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use fabricbios_helper::{Call, Caller, Failure};
use fabricbios_wire::GpuVendor;
use serde::{Deserialize, Serialize};

use super::{Roots, amd, nvidia};
use crate::{Device, Health, Libraries};

/// How often the watch reads the state that a device does not report by itself.
const READ_EVERY: Duration = Duration::from_secs(10);

/// The longest time of a reset, with a little time to begin and end.
const RESET_MAX: Duration = Duration::from_secs(200);

/// The watching process holds this lock: a device that it has open cannot be reset.
const LOCK: &str = "gpu-watch";

/// Waits for an error, then answers with the UUID and health of each device. The first call in a process does not wait.
/// The health that errors imply counts as long as the process lives; [`super::Reset`] ends the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Watch {
    /// The management libraries.
    pub libraries: Libraries,
    /// Devices and partitions of one vendor; every call in a process must have the same ones.
    pub devices: Vec<Device>,
    /// The longest time that the call waits.
    pub patience: Duration,
}

/// Watches devices of one vendor.
pub(super) trait Watcher {
    /// Waits for an error, for this time at most. True: an error has come, so the health of a device may have changed.
    fn wait(&mut self, patience: Duration) -> bool;

    /// The health of a device.
    fn health(&self, device: &Device) -> Health;
}

/// The state of a watching process.
struct Watching {
    watcher: Box<dyn Watcher>,
    read: Instant,
    known: Vec<(String, Health)>,
}

thread_local! {
    static WATCHING: RefCell<Option<Watching>> = const { RefCell::new(None) };
}

impl Call for Watch {
    const NAME: &'static str = "gpu-watch";
    type Answer = Vec<(String, Health)>;

    fn make(self, caller: &Caller) -> Result<Self::Answer, Failure> {
        let watching = match WATCHING.take() {
            None => self.begin(caller)?,
            Some(mut watching) => {
                caller.progress("waiting for errors")?;
                if watching.watcher.wait(self.patience) || watching.read.elapsed() >= READ_EVERY {
                    watching.known = self.read(&*watching.watcher, caller)?;
                    watching.read = Instant::now();
                }
                watching
            }
        };
        let known = watching.known.clone();
        WATCHING.set(Some(watching));
        Ok(known)
    }
}

impl Watch {
    fn begin(&self, caller: &Caller) -> Result<Watching, Failure> {
        let vendor = self
            .devices
            .first()
            .map_or(GpuVendor::Nvidia, |it| it.vendor);
        let watcher = match vendor {
            GpuVendor::Nvidia => {
                let since = Instant::now();
                caller.lock_telling(LOCK, |pid| {
                    // A process that keeps the devices for longer does not end; the caller reports that as silence.
                    if since.elapsed() > RESET_MAX {
                        return Ok(());
                    }
                    let what = "which resets a device, or does not end: waiting for it";
                    caller.progress(format!("process {pid} has the devices, {what}"))
                })?;
                nvidia::watcher
            }
            // AMD's watcher keeps no device open.
            GpuVendor::Amd => amd::watcher,
        };
        caller.progress("loading the management library")?;
        let watcher = watcher(&self.libraries, Roots::real(), &self.devices)?;
        Ok(Watching {
            known: self.read(&*watcher, caller)?,
            read: Instant::now(),
            watcher,
        })
    }

    fn read(
        &self,
        watcher: &dyn Watcher,
        caller: &Caller,
    ) -> Result<Vec<(String, Health)>, Failure> {
        let each = self.devices.iter().map(|device| {
            caller.progress(format!("reading the health of {}", device.uuid))?;
            Ok((device.uuid.clone(), watcher.health(device)))
        });
        each.collect()
    }
}

/// Waits until no other process watches or resets NVIDIA's devices; makes no report meanwhile. `busy` receives the
/// number of the process that has the lock.
pub(super) fn lock(
    caller: &Caller,
    busy: impl FnOnce(i32) -> Result<(), Failure>,
) -> Result<(), Failure> {
    caller.lock(LOCK, busy)
}
