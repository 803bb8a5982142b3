//! What belongs to no lease: a crash between the making of something and its record leaves it. Nobody was
//! told of such a lease, so nothing of a tenant is in it; it is cut and taken away like any other.

use std::collections::BTreeSet;

use fabricbios_lease::{FenceRecord, StepError, Tag};
use fabricbios_wire::{Generation, LeaseId, ResourceId, ResourceType};

use super::{BlockBackend, parts::Volumes};

/// Something of a lease that nobody knows, which could not be taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// On what.
    pub resource_id: ResourceId,
    /// Whose name it has.
    pub lease_id: LeaseId,
    /// Why it is still there.
    pub why: StepError,
}

impl Stray {
    /// As it is written down.
    pub(crate) fn fence(self, since_unix_ms: u64) -> FenceRecord {
        FenceRecord {
            resource_id: self.resource_id,
            resource_type: ResourceType::Block,
            lease_id: self.lease_id,
            since_unix_ms,
            reason: self.why,
            by_release: false,
        }
    }
}

impl BlockBackend {
    /// At start: takes away what is there of leases that are not in `known`, which is every lease on
    /// record that holds something. What cannot be taken away is said, to be fenced.
    pub fn reconcile(&self, known: &BTreeSet<LeaseId>) -> Result<Vec<Stray>, StepError> {
        known.iter().for_each(|id| self.known.take_over(*id));
        let is_stray = |id: &LeaseId| !known.contains(id);
        let mut strays = Vec::new();
        for lease_id in self.everything()?.into_iter().filter(is_stray) {
            tracing::warn!(%lease_id, "something of a lease that is not on record; taking it away");
            for (resource_id, pool) in self.pools_of(lease_id)? {
                if let Err(why) = self.remove_stray(resource_id, pool, lease_id) {
                    tracing::error!(%lease_id, %why, "it could not be taken away");
                    strays.push(Stray {
                        resource_id,
                        lease_id,
                        why,
                    });
                }
            }
        }
        Ok(strays)
    }

    /// In a remediation: the same for what this process does not know either.
    pub(super) fn remove_strays(&self, resource_id: ResourceId) -> Result<(), StepError> {
        let is_stray = |id: &LeaseId| self.known.find(*id).is_none();
        for lease_id in self.everything()?.into_iter().filter(is_stray) {
            for (its, pool) in self.pools_of(lease_id)? {
                if its == resource_id {
                    self.remove_stray(its, pool, lease_id)?;
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

    fn remove_stray(
        &self,
        resource_id: ResourceId,
        pool: &dyn Volumes,
        lease_id: LeaseId,
    ) -> Result<(), StepError> {
        let tag = Tag {
            lease_id,
            generation: Generation(u32::MAX),
            resource_id,
        };
        self.cut_roads(tag, None)?;
        if let Some(exports) = &self.exports {
            exports.remove(lease_id, &|| ())?;
        }
        pool.destroy(lease_id, None, &|| ())
    }
}
