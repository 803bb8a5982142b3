//! Strays: objects without a lease on record. A crash between the making of an object and its record leaves them. No
//! client received such a lease, so the objects have no data of a tenant. They are cut and removed like any others.

use std::{
    collections::BTreeSet,
    sync::{Arc, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use fabricbios_lease::{BindingId, StepError};
use fabricbios_wire::{Generation, LeaseId, ResourceId};

use super::Provider;

/// Longest wait of a start for the removal of strays.
const PATIENCE: Duration = Duration::from_secs(3);

/// A stray that could not be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The resource.
    pub resource_id: ResourceId,
    /// The lease in the name of the objects.
    pub lease_id: LeaseId,
    /// The reason.
    pub why: StepError,
    /// Access is proved ended.
    pub is_cut: bool,
}

impl Stray {
    fn new(resource_id: ResourceId, lease_id: LeaseId, why: StepError, is_cut: bool) -> Self {
        tracing::error!(%lease_id, %why, "it is not taken away yet");
        Self {
            resource_id,
            lease_id,
            why,
            is_cut,
        }
    }
}

impl Provider {
    /// At start: removes all objects of leases that are not in `known`, the set of leases on record that hold
    /// something. All strays are cut before the first is removed. A long removal goes on in the background, because
    /// deadlines of other leases do not wait. Returns the strays that still exist, to be fenced.
    ///
    /// # Errors
    /// A store or a path cannot be read.
    pub fn reconcile(self: &Arc<Self>, known: &BTreeSet<LeaseId>) -> Result<Vec<Stray>, StepError> {
        for id in known {
            let lease = self.leases().find_or_make(*id);
            if let Some(lease) = lease {
                lease.state().has_part = true;
            }
        }
        let mut found = Vec::new();
        for lease_id in self.everything()?.difference(known) {
            let resources = self.resources_of(*lease_id)?;
            found.extend(resources.into_iter().map(|id| (id, *lease_id)));
        }
        let mut strays = Vec::new();
        found.retain(|&(resource_id, lease_id)| {
            tracing::warn!(%lease_id, "something is left of a lease that holds nothing any more, or is not on record; taking it away");
            let cut = self.cut_by_name(stray_binding_id(resource_id, lease_id));
            let is_cut = cut.is_ok();
            let why = cut.err();
            strays.extend(why.map(|why| Stray::new(resource_id, lease_id, why, false)));
            is_cut
        });
        strays.extend(self.remove_within(PATIENCE, found));
        Ok(strays)
    }

    /// The strays that still exist after `patience`.
    fn remove_within(
        self: &Arc<Self>,
        patience: Duration,
        mut left: Vec<(ResourceId, LeaseId)>,
    ) -> Vec<Stray> {
        let (tell, told) = mpsc::channel();
        for &(resource_id, lease_id) in &left {
            let (provider, tell) = (Arc::clone(self), tell.clone());
            self.taking_away().insert((resource_id, lease_id));
            thread::spawn(move || {
                let removed =
                    provider.take_away(stray_binding_id(resource_id, lease_id), None, &|| ());
                provider.taking_away().remove(&(resource_id, lease_id));
                // When the patience is over, there is no receiver any more.
                tell.send((resource_id, lease_id, removed)).ok();
            });
        }
        let until = Instant::now() + patience;
        let mut strays = Vec::new();
        while !left.is_empty() {
            let wait = until.saturating_duration_since(Instant::now());
            let Ok((resource_id, lease_id, removed)) = told.recv_timeout(wait) else {
                break;
            };
            left.retain(|it| *it != (resource_id, lease_id));
            let why = removed.err();
            strays.extend(why.map(|why| Stray::new(resource_id, lease_id, why, true)));
        }
        for (resource_id, lease_id) in left {
            strays.push(Stray::new(
                resource_id,
                lease_id,
                still_going(lease_id),
                true,
            ));
        }
        strays
    }

    /// In a remediation: removes the strays that this process does not know.
    pub(super) fn remove_strays(&self, resource_id: ResourceId) -> Result<(), StepError> {
        let is_stray = |id: &LeaseId| self.leases().find(*id).here().is_none();
        for lease_id in self.everything()?.into_iter().filter(is_stray) {
            if self.resources_of(lease_id)?.contains(&resource_id) {
                if self.taking_away().contains(&(resource_id, lease_id)) {
                    return Err(still_going(lease_id));
                }
                let binding_id = stray_binding_id(resource_id, lease_id);
                self.cut_by_name(binding_id)?;
                self.take_away(binding_id, None, &|| ())?;
            }
        }
        Ok(())
    }

    fn taking_away(&self) -> MutexGuard<'_, BTreeSet<(ResourceId, LeaseId)>> {
        let strays = self.taking_away.lock();
        strays.unwrap_or_else(PoisonError::into_inner)
    }

    /// Every lease that has something in a path or a store.
    fn everything(&self) -> Result<BTreeSet<LeaseId>, StepError> {
        let mut all = BTreeSet::new();
        for entry in &self.paths {
            all.extend(entry.path.leases()?);
        }
        for store in self.stores.values() {
            all.extend(store.leases()?);
        }
        Ok(all)
    }

    /// The stores that have a part of the lease. If there is none, the first store, so that the paths are cleaned.
    fn resources_of(&self, lease: LeaseId) -> Result<Vec<ResourceId>, StepError> {
        let mut having = Vec::new();
        for (id, store) in &self.stores {
            if store.leases()?.contains(&lease) {
                having.push(*id);
            }
        }
        if having.is_empty() {
            having.extend(self.stores.keys().next());
        }
        Ok(having)
    }
}

fn still_going(lease: LeaseId) -> StepError {
    let why = format_args!("lease {lease} is still being taken away");
    StepError::new("remove", why)
}

/// The id of a stray's binding, newer than every real generation.
#[must_use]
pub fn stray_binding_id(resource_id: ResourceId, lease_id: LeaseId) -> BindingId {
    BindingId {
        lease_id,
        generation: Generation(u32::MAX),
        resource_id,
    }
}
