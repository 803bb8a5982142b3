//! The GPUs that the vendors' libraries report, and their health.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fabricbios_gpu::{
    Device, GpuStore, Health, Libraries,
    management::{HealthWatch, discover},
};

use super::PROBE_SILENCE;
use crate::kinds::Opening;

/// The GPUs that the vendors' libraries have found, each with its last reported health.
#[derive(Clone, Debug, Default)]
pub struct FoundGpus(Arc<Mutex<Vec<Device>>>);

impl FoundGpus {
    pub(super) fn new(devices: Vec<Device>) -> Self {
        Self(Arc::new(Mutex::new(devices)))
    }

    /// All GPUs found.
    #[must_use]
    pub fn list(&self) -> Vec<Device> {
        self.devices().clone()
    }

    fn set_health(&self, uuid: &str, health: &Health) {
        let mut devices = self.devices();
        for device in devices.iter_mut().filter(|it| it.uuid == uuid) {
            device.health = health.clone();
        }
    }

    fn devices(&self) -> MutexGuard<'_, Vec<Device>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the vendors' libraries, in helper processes.
pub(super) fn probe(opening: &Opening<'_>) -> Vec<Device> {
    let libraries = Libraries::default();
    let probed = discover(opening.supervisor, &libraries, PROBE_SILENCE);
    for warning in probed.warnings {
        tracing::warn!("{warning}");
    }
    for note in probed.notes {
        tracing::debug!("{note}");
    }
    probed.devices
}

/// A vendor's library that does not report health for this time counts as hung.
const SILENCE: Duration = Duration::from_secs(15);

/// Passes the health that the vendors' libraries report on to the stores.
pub(super) fn watch(
    opening: &Opening<'_>,
    found: FoundGpus,
    stores: Vec<Arc<GpuStore>>,
) -> Option<HealthWatch> {
    if stores.is_empty() {
        return None;
    }
    let devices = found.list();
    let tell = move |uuid: &str, health: &Health| {
        found.set_health(uuid, health);
        for store in stores.iter().filter(|it| it.uuid() == uuid) {
            store.set_health(health.clone());
        }
    };
    let watch = HealthWatch::start(
        opening.supervisor.clone(),
        Libraries::default(),
        devices,
        Arc::new(tell),
        SILENCE,
    );
    watch
        .inspect_err(|error| tracing::error!(%error, "the health of GPUs is not watched"))
        .ok()
}
