//! What belongs to no lease: a crash between the making of something and its record leaves it. Nobody was
//! told of such a lease, so nothing of a tenant is in it; it is cut and taken away like any other.

use std::{
    collections::BTreeSet,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use fabricbios_lease::{FenceRecord, StepError, Tag};
use fabricbios_wire::{Generation, LeaseId, ResourceId, ResourceType};

use super::{BlockBackend, known::lock, parts::Volumes};

/// How long a start waits for what is taken away.
const PATIENCE: Duration = Duration::from_secs(3);

/// Something of a lease that nobody knows, which could not be taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// On what.
    pub resource_id: ResourceId,
    /// Whose name it has.
    pub lease_id: LeaseId,
    /// Why it is still there.
    pub why: StepError,
    /// Nobody has access to it.
    pub is_cut: bool,
}

impl Stray {
    fn new(resource_id: ResourceId, lease_id: LeaseId, why: StepError) -> Self {
        tracing::error!(%lease_id, %why, "it is not taken away yet");
        Self {
            resource_id,
            lease_id,
            why,
            is_cut: true,
        }
    }

    /// As it is written down.
    pub(crate) fn fence(self, since_unix_ms: u64) -> FenceRecord {
        FenceRecord {
            resource_id: self.resource_id,
            resource_type: ResourceType::Block,
            lease_id: self.lease_id,
            since_unix_ms,
            reason: self.why,
            by_release: self.is_cut,
        }
    }
}

impl BlockBackend {
    /// At start: takes away what is there of leases that are not in `known`, which is every lease on
    /// record that holds something. All are cut before anything is taken away, and what takes long goes on
    /// without being waited for: deadlines of other leases do. What is not gone is said, to be fenced.
    pub fn reconcile(self: &Arc<Self>, known: &BTreeSet<LeaseId>) -> Result<Vec<Stray>, StepError> {
        for id in known {
            let entry = self.custody().find_or_make(*id);
            if let Some(entry) = entry {
                lock(&entry).has_volume = true;
            }
        }
        let mut found = Vec::new();
        for lease_id in self.everything()?.difference(known) {
            let pools = self.pools_of(*lease_id)?;
            found.extend(pools.into_iter().map(|(id, _)| (id, *lease_id)));
        }
        let mut strays = Vec::new();
        for &(resource_id, lease_id) in &found {
            tracing::warn!(%lease_id, "something is left of a lease that holds nothing any more, or is not on record; taking it away");
            let cut = self.cut_roads(stray_tag(resource_id, lease_id), None);
            strays.extend(cut.err().map(|why| Stray {
                is_cut: false,
                ..Stray::new(resource_id, lease_id, why)
            }));
        }
        found.retain(|(_, lease_id)| strays.iter().all(|it| it.lease_id != *lease_id));
        strays.extend(self.remove_within(PATIENCE, found));
        Ok(strays)
    }

    /// What is still there after `patience`.
    fn remove_within(
        self: &Arc<Self>,
        patience: Duration,
        mut left: Vec<(ResourceId, LeaseId)>,
    ) -> Vec<Stray> {
        let (tell, told) = mpsc::channel();
        for &(resource_id, lease_id) in &left {
            let (backend, tell) = (Arc::clone(self), tell.clone());
            let remove = move || {
                let removed = backend.remove_stray(resource_id, lease_id);
                // Nobody listens any more when the patience is over.
                tell.send((resource_id, lease_id, removed)).ok();
            };
            thread::spawn(remove);
        }
        let until = Instant::now() + patience;
        let mut strays = Vec::new();
        while !left.is_empty() {
            let wait = until.saturating_duration_since(Instant::now());
            let Ok((resource_id, lease_id, removed)) = told.recv_timeout(wait) else {
                break;
            };
            left.retain(|it| *it != (resource_id, lease_id));
            strays.extend(
                removed
                    .err()
                    .map(|why| Stray::new(resource_id, lease_id, why)),
            );
        }
        let late = || StepError::new("remove", "it is still being taken away");
        strays.extend(
            left.into_iter()
                .map(|(resource_id, lease_id)| Stray::new(resource_id, lease_id, late())),
        );
        strays
    }

    /// In a remediation: the same for what this process does not know either.
    pub(super) fn remove_strays(&self, resource_id: ResourceId) -> Result<(), StepError> {
        let is_stray = |id: &LeaseId| self.custody().find(*id).here().is_none();
        for lease_id in self.everything()?.into_iter().filter(is_stray) {
            for (its, _) in self.pools_of(lease_id)? {
                if its == resource_id {
                    self.cut_roads(stray_tag(its, lease_id), None)?;
                    self.remove_stray(its, lease_id)?;
                }
            }
        }
        Ok(())
    }

    /// Every lease of which there is anything anywhere.
    fn everything(&self) -> Result<BTreeSet<LeaseId>, StepError> {
        let mut all = BTreeSet::new();
        if let Some(exports) = &self.exports {
            all.extend(exports.leases()?);
        }
        for (_, pool) in self.volumes() {
            all.extend(pool.leases()?);
        }
        Ok(all)
    }

    /// The pools that have a volume of it; any, if it has no volume: its export is somebody's to remove.
    fn pools_of(&self, lease: LeaseId) -> Result<Vec<(ResourceId, &dyn Volumes)>, StepError> {
        let mut having = Vec::new();
        for (id, pool) in self.volumes() {
            if pool.leases()?.contains(&lease) {
                having.push((id, pool));
            }
        }
        if having.is_empty() {
            having.extend(self.volumes().min_by_key(|(id, _)| *id));
        }
        Ok(having)
    }

    /// After its cut.
    fn remove_stray(&self, resource_id: ResourceId, lease_id: LeaseId) -> Result<(), StepError> {
        self.take_away(stray_tag(resource_id, lease_id), None, &|| ())
    }
}

/// Newer than whatever it may have had.
pub(super) fn stray_tag(resource_id: ResourceId, lease_id: LeaseId) -> Tag {
    Tag {
        lease_id,
        generation: Generation(u32::MAX),
        resource_id,
    }
}
