//! The health of a device. The vendor's library reports it, and the store keeps a failure.

use fabricbios_lease::Condition;

use super::{GpuStore, StoreState};
use crate::{Health, management::worst};

impl StoreState {
    pub(super) fn health(&self) -> Health {
        worst([self.health.clone(), self.nodes.clone()])
    }

    pub(super) fn changed(&self) {
        if let Some(tell) = &self.tell {
            tell(condition(&self.health()));
        }
    }
}

impl GpuStore {
    /// The current health.
    #[must_use]
    pub fn health(&self) -> Health {
        self.state().health()
    }

    /// Sets a changed health. Only a reset clears a failure: the library forgets errors when another device is reset,
    /// and when another process watches. So the store keeps a failure until a reset, or a reboot.
    pub fn set_health(&self, health: Health) {
        let mut state = self.state();
        let is_failed = |it: &Health| matches!(it, Health::Failed(_));
        if health == state.health {
            return;
        }
        if is_failed(&health) || !is_failed(&state.health) {
            self.keep(&health, &mut state);
        }
    }

    /// Sets the health after a reset of the device.
    pub(super) fn was_reset(&self, health: Health) {
        if let Err(error) = self.gpus.records.set_reset(&self.device.uuid) {
            tracing::error!(%error, uuid = self.device.uuid, "after a restart the device has failed again, although it was reset");
        }
        self.keep(&health, &mut self.state());
    }

    fn keep(&self, health: &Health, state: &mut StoreState) {
        if let Health::Failed(why) = health
            && let Err(error) = self.gpus.records.set_failed(&self.device.uuid, why)
        {
            tracing::error!(%error, uuid = self.device.uuid, "a restart forgets that the device has failed");
        }
        state.health = health.clone();
        state.changed();
    }
}

pub(super) fn condition(health: &Health) -> Condition {
    match health {
        Health::Good => Condition::Good,
        Health::Degraded(why) => Condition::Degraded(why.clone()),
        Health::Silent(why) => Condition::Unavailable(why.clone()),
        Health::Failed(why) => Condition::Failed(why.clone()),
    }
}
