//! A lease of blocks as one thing: its volume, its export and its entry on the UDP road are made in this
//! order, cut together, and taken away backwards.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
};

use fabricbios_lease::{
    Backend, BindError, BindOrder, BootTime, Condition, Custody, Extent, Farewell, FenceScope,
    Offer, Outlives, Proof, StepError, Tag,
};
use fabricbios_pool::Volume;
use fabricbios_wire::{Binding, LeaseId, ResourceId, Transport};

use super::{
    known::{Entry, Lease, lock},
    parts::{Datagrams, Exports, Ledger, Volumes},
};
use crate::{
    inventory::OfferedPool, nvme_host::NvmeHost, roads::stranded_unless, watchdog::Watchdog,
};

/// See the module.
pub struct BlockBackend {
    pools: HashMap<ResourceId, Arc<dyn Volumes>>,
    ledger: Arc<dyn Ledger>,
    pub(super) hosts: Vec<NvmeHost>,
    pub(super) exports: Option<Arc<dyn Exports>>,
    pub(super) datagrams: Option<Arc<dyn Datagrams>>,
    /// The kernel, which serves the exports, looks at no clock.
    pub(super) watchdog: Option<Watchdog>,
    pub(super) custody: Mutex<Custody<Entry>>,
}

impl fmt::Debug for BlockBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockBackend")
            .field("pools", &self.pools.keys())
            .finish_non_exhaustive()
    }
}

impl BlockBackend {
    /// No pools yet.
    #[must_use]
    pub fn new(
        ledger: Arc<dyn Ledger>,
        exports: Option<Arc<dyn Exports>>,
        datagrams: Option<Arc<dyn Datagrams>>,
    ) -> Self {
        Self {
            pools: HashMap::new(),
            ledger,
            hosts: Vec::new(),
            exports,
            datagrams,
            watchdog: None,
            custody: Mutex::default(),
        }
    }

    /// Which hosts only one tenant may name.
    #[must_use]
    pub fn with_hosts(self, hosts: Vec<NvmeHost>) -> Self {
        Self { hosts, ..self }
    }

    /// What ends access to exports when this process cannot.
    #[must_use]
    pub fn watched_by(self, watchdog: Option<Watchdog>) -> Self {
        Self { watchdog, ..self }
    }

    /// Offers `pool` as `resource_id`.
    pub fn add(&mut self, resource_id: ResourceId, pool: Arc<dyn Volumes>) {
        self.pools.insert(resource_id, pool);
    }

    /// What inventories say of the pools.
    #[must_use]
    pub fn pools(&self) -> Vec<OfferedPool> {
        let described = self.pools.iter().map(|(&resource_id, pool)| OfferedPool {
            resource_id,
            facts: pool.facts().clone(),
            transports: self.roads(pool.facts().read_only),
        });
        described.collect()
    }

    /// Best first. What is read-only goes over UDP only: the kernel's target opens no device that is,
    /// and has no way to protect one that is not.
    fn roads(&self, read_only: bool) -> Vec<Transport> {
        let mut roads = match &self.exports {
            Some(exports) if !read_only => exports.transports(),
            _ => Vec::new(),
        };
        if self.datagrams.is_some() {
            let both = (!roads.is_empty()).then_some(Transport::Both);
            roads.push(Transport::Udp);
            roads.extend(both);
        }
        roads
    }

    pub(super) fn volumes(&self) -> impl Iterator<Item = (ResourceId, &dyn Volumes)> {
        self.pools.iter().map(|(id, pool)| (*id, &**pool))
    }

    fn pool(&self, resource_id: ResourceId) -> Result<&dyn Volumes, StepError> {
        let pool = self.pools.get(&resource_id).map(|pool| &**pool);
        pool.ok_or_else(|| StepError::new("find pool", format!("no pool is {resource_id}")))
    }

    /// The cut of every road that the lease may have.
    pub(super) fn cut_roads(&self, tag: Tag, road: Option<Transport>) -> Result<Proof, StepError> {
        let over_udp = matches!(road, None | Some(Transport::Udp | Transport::Both));
        let over_nvmeof = road != Some(Transport::Udp);
        let udp = self.datagrams.as_ref().filter(|_| over_udp);
        let udp = udp.map(|road| road.cut(tag));
        let nvmeof = self.exports.as_ref().filter(|_| over_nvmeof);
        let nvmeof = nvmeof.map(|road| road.cut(tag));
        // Both were tried, whatever came of the first.
        let both = udp.into_iter().chain(nvmeof);
        let proof = both.reduce(|first, second| Ok(first?.and(second?)));
        let proof = proof.unwrap_or_else(|| Ok(Proof::nothing_to_cut("no road leads to it")))?;
        if let Some(watchdog) = &self.watchdog {
            watchdog.over(tag);
        }
        Ok(proof)
    }

    /// Takes away the roads' leftovers, then the volume.
    pub(super) fn take_away(
        &self,
        tag: Tag,
        extent: Option<Extent>,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        if let Some(datagrams) = &self.datagrams {
            datagrams.retire(tag, progress)?;
        }
        if let Some(exports) = &self.exports {
            exports.remove(tag.lease_id, progress)?;
        }
        self.pool(tag.resource_id)?
            .destroy(tag.lease_id, extent, progress)
    }

    /// The kernel would serve a new lease without anybody who ends that in this process's stead.
    fn check_watchdog(&self, order: &BindOrder, lease: &Lease) -> Result<(), BindError> {
        let is_new = !order.adopts && lease.nvmeof.is_none();
        let over_nvmeof = self.exports.is_some() && order.transport != Transport::Udp;
        let watched = self.watchdog.as_ref().is_none_or(Watchdog::watches);
        if watched || !is_new || !over_nvmeof {
            return Ok(());
        }
        Err(BindError::Failed(StepError::new(
            "reach the watchdog",
            format_args!("{}: there is none; it is being started again", order.tag),
        )))
    }

    fn bind_known(&self, order: &BindOrder, lease: &mut Lease) -> Result<Binding, BindError> {
        self.check_watchdog(order, lease)?;
        let id = order.tag.lease_id;
        let pool = self
            .pool(order.tag.resource_id)
            .map_err(BindError::Failed)?;
        let is_new = !order.adopts && !lease.has_volume;
        let volume = match is_new {
            true => self.create(order, pool),
            false => pool.reopen(id, order.extent()),
        };
        let volume = volume.map_err(BindError::Failed)?;
        lease.has_volume = true;
        lease.road = Some(order.transport);
        match self.open_roads(order, &volume) {
            Ok(binding) => {
                lease.nvmeof.clone_from(&binding.nvmeof);
                lease.limits = binding.limits;
                Ok(binding)
            }
            // An export that stays may still use it.
            Err(error @ BindError::Stranded(_)) => Err(error),
            Err(error) if is_new => {
                let gone = pool.destroy(id, Some(order.extent()), &|| ());
                lease.has_volume = gone.is_err();
                Err(stranded_unless(gone, error))
            }
            Err(error) => Err(error),
        }
    }

    /// Counted before it is made: a journal of before can be told by that.
    fn create(&self, order: &BindOrder, pool: &dyn Volumes) -> Result<Volume, StepError> {
        let Tag {
            lease_id,
            resource_id,
            ..
        } = order.tag;
        if !pool.facts().read_only {
            pool.count_grant(self.ledger.next_grant(resource_id)?)?;
        }
        pool.create(lease_id, order.extent())
    }

    /// Does what ends a lease for good, once.
    fn unless_released(
        &self,
        tag: Tag,
        end: impl FnOnce() -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        let Some(entry) = self.custody().find_or_make(tag.lease_id) else {
            return Ok(());
        };
        let _mine = lock(&entry);
        // Somebody else may have done it while this waited.
        if self.custody().find_or_make(tag.lease_id).is_none() {
            return Ok(());
        }
        end()?;
        self.custody().release(tag.lease_id);
        Ok(())
    }

    fn road_of(&self, id: LeaseId) -> Option<Transport> {
        let entry = self.custody().find(id).here()?;
        // A cut waits for nobody: while the entry is being worked on, every road is cut.
        entry.try_lock().ok().and_then(|lease| lease.road)
    }
}

impl Backend for BlockBackend {
    fn probe(&self) -> Result<Vec<Offer>, StepError> {
        let offers = self.pools.iter().map(|(&resource_id, pool)| {
            let facts = pool.facts();
            Offer {
                resource_id,
                capacity: facts.capacity,
                align: facts.align,
                transports: self.roads(facts.read_only),
                ends: vec![Transport::Udp, Transport::NvmeTcp, Transport::NvmeRdma],
                outlives: Outlives::Machine,
                fence_scope: FenceScope::Part,
                layout: facts.layout.clone(),
                read_only: facts.read_only,
            }
        });
        Ok(offers.collect())
    }

    fn prepare(&self, order: &BindOrder, progress: &dyn Fn()) -> Result<(), StepError> {
        let is_new = !order.adopts && self.custody().find(order.tag.lease_id).here().is_none();
        match is_new {
            true => self
                .pool(order.tag.resource_id)?
                .prepare(order.extent(), progress),
            false => Ok(()),
        }
    }

    fn bind(&self, order: &BindOrder) -> Result<Binding, BindError> {
        let id = order.tag.lease_id;
        let Some(entry) = self.custody().find_or_make(id) else {
            return Err(BindError::Cancelled);
        };
        let mut lease = lock(&entry);
        let bound = self.bind_known(order, &mut lease);
        if bound.is_err() && !lease.has_volume {
            self.custody().forget(id);
        }
        bound
    }

    fn extend(&self, tag: Tag, deadline: BootTime) {
        if let Some(watchdog) = &self.watchdog {
            watchdog.extend(tag, deadline);
        }
        if let Some(datagrams) = &self.datagrams {
            datagrams.extend(tag, deadline);
        }
    }

    fn fenced(&self, tag: Tag) {
        if let Some(datagrams) = &self.datagrams {
            datagrams.fenced(tag);
        }
    }

    /// NVMe-oF first, which may refuse. Should UDP then fail, the new secret is there and nobody will be
    /// told of it: that is something left behind.
    fn rotate(&self, tag: Tag) -> Result<Binding, BindError> {
        let Some(entry) = self.custody().find_or_make(tag.lease_id) else {
            return Err(BindError::Cancelled);
        };
        let mut lease = lock(&entry);
        let limits = lease.limits;
        if let (Some(exports), Some(_)) = (&self.exports, &lease.nvmeof) {
            lease.nvmeof = Some(Box::new(exports.rekey(tag)?));
        }
        let nvmeof = lease.nvmeof.clone();
        let udp = match (&self.datagrams, lease.road) {
            (Some(datagrams), Some(Transport::Udp | Transport::Both)) => datagrams.rotate(tag),
            _ => Ok(Binding::default()),
        };
        let udp = udp.map_err(|error| match (error, &nvmeof) {
            (BindError::Refused(why) | BindError::Failed(why), Some(_)) => BindError::Stranded(why),
            (error, _) => error,
        })?;
        Ok(Binding {
            nvmeof,
            limits,
            ..udp
        })
    }

    /// Over NVMe-oF the old secret was dead at once.
    fn retire_key(&self, tag: Tag) -> Result<Binding, StepError> {
        let Some(entry) = self.custody().find_or_make(tag.lease_id) else {
            return Ok(Binding::default());
        };
        let lease = lock(&entry);
        let udp = match (&self.datagrams, lease.road) {
            (Some(datagrams), Some(Transport::Udp | Transport::Both)) => {
                datagrams.retire_key(tag)?
            }
            _ => Binding::default(),
        };
        Ok(Binding {
            nvmeof: lease.nvmeof.clone(),
            limits: lease.limits,
            ..udp
        })
    }

    /// Over UDP the end is the proof, so the cut of that road is all of it, and does no harm twice.
    fn sever(&self, tag: Tag) -> bool {
        let road = self.road_of(tag.lease_id);
        let (Some(exports), false) = (&self.exports, road == Some(Transport::Udp)) else {
            return false;
        };
        if let (Some(datagrams), None | Some(Transport::Both)) = (&self.datagrams, road) {
            // What fails is tried again by the cut, which tells it.
            datagrams.cut(tag).ok();
        }
        exports.sever(tag);
        true
    }

    fn cut(&self, tag: Tag, _farewell: Farewell) -> Result<Proof, StepError> {
        self.cut_roads(tag, self.road_of(tag.lease_id))
    }

    fn release(&self, tag: Tag, extent: Extent, progress: &dyn Fn()) -> Result<(), StepError> {
        self.unless_released(tag, || self.take_away(tag, Some(extent), progress))
    }

    fn may_release_later(&self) -> bool {
        true
    }

    fn condition(&self, resource_id: ResourceId) -> Condition {
        let pool = self.pools.get(&resource_id);
        pool.map_or(Condition::Good, |pool| pool.condition())
    }

    fn reset(&self, resource_id: ResourceId, leases: &[(Tag, Extent)]) -> Result<(), StepError> {
        for (tag, extent) in leases {
            // A late release may be at it: one at a time.
            self.unless_released(*tag, || {
                self.cut_roads(*tag, None)?;
                self.take_away(*tag, Some(*extent), &|| ())
            })?;
        }
        self.remove_strays(resource_id)
    }
}
