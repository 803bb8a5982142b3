//! Strays: objects without a lease on record. A crash between the making of an object and its record leaves them. No
//! client received such a lease, so the objects have no data of a tenant. They are cut and removed like any others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_lease::{BindingId, Placement, StepError};
use fabricbios_wire::{Generation, LeaseId, ResourceId};

use super::Provider;

/// The removal of one stray, which may block.
pub type Removal = Box<dyn FnOnce() + Send>;

/// A stray that could not be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The resource.
    pub resource_id: ResourceId,
    /// The lease in the name of the objects.
    pub lease_id: LeaseId,
    /// The part that the store has for it, see [`super::Store::place_of`].
    pub place: Option<Placement>,
    /// The reason.
    pub why: StepError,
    /// Access is proved ended.
    pub is_cut: bool,
}

impl Stray {
    /// The strays of one lease.
    fn of(
        lease_id: LeaseId,
        resources: &[ResourceId],
        why: &StepError,
        is_cut: bool,
    ) -> impl Iterator<Item = Self> {
        tracing::error!(%lease_id, %why, "it is not taken away yet");
        resources.iter().map(move |id| Self {
            resource_id: *id,
            lease_id,
            place: None,
            why: why.clone(),
            is_cut,
        })
    }
}

impl Provider {
    /// At start: removes all objects of leases that are not in `known`, the set of leases on record that hold
    /// something. All strays are cut before the first is removed. `side_by_side` gets one removal for each stray, and
    /// returns when all are done, or when the start waits no longer: deadlines of other leases do not wait. A removal
    /// that takes longer goes on. Returns the strays that still exist, to be fenced.
    ///
    /// # Errors
    /// A store or a path cannot be read.
    pub fn reconcile(
        self: &Arc<Self>,
        known: &BTreeSet<LeaseId>,
        side_by_side: impl FnOnce(Vec<Removal>),
    ) -> Result<Vec<Stray>, StepError> {
        for id in known {
            let lease = self.leases().find_or_make(*id);
            if let Some(lease) = lease {
                lease.state().has_part = true;
            }
        }
        let mut found = Vec::new();
        for lease_id in self.everything()?.difference(known) {
            found.push((*lease_id, self.resources_of(*lease_id)?));
        }
        let mut strays = Vec::new();
        found.retain(|(lease_id, resources)| {
            let Some(first) = resources.first() else {
                return false;
            };
            tracing::warn!(%lease_id, "something is left of a lease that holds nothing any more, or is not on record; taking it away");
            let cut = self.cut_by_name(stray_binding_id(*first, *lease_id));
            if let Err(why) = &cut {
                strays.extend(Stray::of(*lease_id, resources, why, false));
            }
            cut.is_ok()
        });
        let failed = Arc::<Mutex<Vec<Stray>>>::default();
        let removals = found.iter().map(|(lease_id, resources)| {
            self.taking_away().insert(*lease_id);
            let not_tried = StepError::new("remove", "the removal stopped before its end");
            let going = Going {
                provider: Arc::clone(self),
                lease_id: *lease_id,
                left: resources
                    .iter()
                    .map(|id| (*id, not_tried.clone()))
                    .collect(),
                failed: Arc::clone(&failed),
            };
            Box::new(move || going.remove()) as Removal
        });
        side_by_side(removals.collect());
        let taking_away = self.taking_away();
        strays.append(&mut failed.lock().unwrap_or_else(PoisonError::into_inner));
        for (lease_id, resources) in found {
            if taking_away.contains(&lease_id) {
                strays.extend(Stray::of(
                    lease_id,
                    &resources,
                    &still_going(lease_id),
                    true,
                ));
            }
        }
        for stray in &mut strays {
            let store = self.stores.get(&stray.resource_id);
            stray.place = store.and_then(|store| store.place_of(stray.lease_id));
        }
        Ok(strays)
    }

    /// In a remediation of these leases: removes the strays that this process does not know.
    pub(super) fn remove_strays(
        &self,
        resource_id: ResourceId,
        leases: &[(BindingId, Placement)],
    ) -> Result<(), StepError> {
        let is_stray = |id: &LeaseId| {
            self.leases().find(*id).here().is_none()
                && leases
                    .iter()
                    .all(|(binding_id, _)| binding_id.lease_id != *id)
        };
        for lease_id in self.everything()?.into_iter().filter(is_stray) {
            if self.resources_of(lease_id)?.contains(&resource_id) {
                if self.taking_away().contains(&lease_id) {
                    return Err(still_going(lease_id));
                }
                let binding_id = stray_binding_id(resource_id, lease_id);
                self.cut_by_name(binding_id)?;
                self.take_away(binding_id, None, &|| ())?;
            }
        }
        Ok(())
    }

    fn taking_away(&self) -> MutexGuard<'_, BTreeSet<LeaseId>> {
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

/// The removal of a stray. It ends as failed for what is left when it is dropped, even by a panic.
struct Going {
    provider: Arc<Provider>,
    lease_id: LeaseId,
    /// The resources that still have a part, and why.
    left: BTreeMap<ResourceId, StepError>,
    failed: Arc<Mutex<Vec<Stray>>>,
}

impl Going {
    fn remove(mut self) {
        self.left.retain(|id, reason| {
            let binding_id = stray_binding_id(*id, self.lease_id);
            let removed = self.provider.take_away(binding_id, None, &|| ());
            removed.map_err(|why| *reason = why).is_err()
        });
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        // Both change under one lock: a stray is still going or has failed, never both.
        let mut taking_away = self.provider.taking_away();
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, why) in &self.left {
            failed.extend(Stray::of(self.lease_id, &[*id], why, true));
        }
        taking_away.remove(&self.lease_id);
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
