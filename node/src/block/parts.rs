//! What a lease of blocks is made of, so that each part can be stood for by a fake: a volume, an export
//! of the kernel's target, an entry of the UDP road.

use super::answers;
use fabricbios_fallback_udp::{BlockFile, FbbuBackend};
use fabricbios_helper::Supervisor;
use fabricbios_lease::{BindError, BootTime, Condition, Extent, Proof, StepError, Tag};
use fabricbios_nvmet::{Export, Target};
use fabricbios_pool::{Facts, Pool, Volume};
use fabricbios_wire::{Binding, LeaseId, NvmeofBinding, ResourceId, Transport};

/// [`Pool`].
pub trait Volumes: Send + Sync {
    /// [`Pool::facts`].
    fn facts(&self) -> &Facts;
    /// [`Pool::count_grant`].
    fn count_grant(&self, number: u64) -> Result<(), StepError>;
    /// [`Pool::prepare`].
    fn prepare(&self, extent: Extent, progress: &dyn Fn()) -> Result<(), StepError>;
    /// [`Pool::create`].
    fn create(&self, lease: LeaseId, extent: Extent) -> Result<Volume, StepError>;
    /// [`Pool::reopen`].
    fn reopen(&self, lease: LeaseId, extent: Extent) -> Result<Volume, StepError>;
    /// [`Pool::leases`].
    fn leases(&self) -> Result<Vec<LeaseId>, StepError>;
    /// [`Pool::destroy`].
    fn destroy(
        &self,
        lease: LeaseId,
        extent: Option<Extent>,
        progress: &dyn Fn(),
    ) -> Result<(), StepError>;
    /// [`Pool::condition`].
    fn condition(&self) -> Condition;
}

/// Who counts grants, durably.
pub trait Ledger: Send + Sync {
    /// The number of a grant of that pool that is about to be made: greater than any before, and written
    /// down when it returns.
    fn next_grant(&self, resource_id: ResourceId) -> Result<u64, StepError>;
}

/// [`Target`].
pub trait Exports: Send + Sync {
    /// [`Target::transports`].
    fn transports(&self) -> Vec<Transport>;
    /// [`Target::publish`].
    fn publish(&self, export: &Export) -> Result<NvmeofBinding, BindError>;
    /// [`Target::rekey`].
    fn rekey(&self, tag: Tag) -> Result<NvmeofBinding, BindError>;
    /// [`Target::sever`].
    fn sever(&self, tag: Tag);
    /// [`Target::cut`].
    fn cut(&self, tag: Tag) -> Result<Proof, StepError>;
    /// [`Target::remove`].
    fn remove(&self, lease: LeaseId, progress: &dyn Fn()) -> Result<(), StepError>;
    /// [`Target::leases`].
    fn leases(&self) -> Result<Vec<LeaseId>, StepError>;
}

/// [`FbbuBackend`].
pub trait Datagrams: Send + Sync {
    /// [`FbbuBackend::bind`].
    fn bind(&self, tag: Tag, tenant: &str, file: &BlockFile) -> Result<Binding, BindError>;
    /// [`FbbuBackend::extend`].
    fn extend(&self, tag: Tag, deadline: BootTime);
    /// [`FbbuBackend::fenced`].
    fn fenced(&self, tag: Tag);
    /// [`FbbuBackend::rotate`].
    fn rotate(&self, tag: Tag) -> Result<Binding, BindError>;
    /// [`FbbuBackend::retire_key`].
    fn retire_key(&self, tag: Tag) -> Result<Binding, StepError>;
    /// [`FbbuBackend::cut`].
    fn cut(&self, tag: Tag) -> Result<Proof, StepError>;
    /// [`FbbuBackend::retire`].
    fn retire(&self, tag: Tag, progress: &dyn Fn()) -> Result<(), StepError>;
}

impl Volumes for Pool {
    fn facts(&self) -> &Facts {
        Self::facts(self)
    }
    fn count_grant(&self, number: u64) -> Result<(), StepError> {
        Self::count_grant(self, number)
    }
    fn prepare(&self, extent: Extent, progress: &dyn Fn()) -> Result<(), StepError> {
        Self::prepare(self, extent, progress)
    }
    fn create(&self, lease: LeaseId, extent: Extent) -> Result<Volume, StepError> {
        Self::create(self, lease, extent)
    }
    fn reopen(&self, lease: LeaseId, extent: Extent) -> Result<Volume, StepError> {
        Self::reopen(self, lease, extent)
    }
    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Self::leases(self)
    }
    fn destroy(
        &self,
        lease: LeaseId,
        extent: Option<Extent>,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        Self::destroy(self, lease, extent, progress)
    }
    fn condition(&self) -> Condition {
        Self::condition(self)
    }
}

impl Exports for Target {
    fn transports(&self) -> Vec<Transport> {
        Self::transports(self)
    }
    fn publish(&self, export: &Export) -> Result<NvmeofBinding, BindError> {
        Self::publish(self, export)
    }
    fn rekey(&self, tag: Tag) -> Result<NvmeofBinding, BindError> {
        Self::rekey(self, tag)
    }
    fn sever(&self, tag: Tag) {
        Self::sever(self, tag);
    }
    fn cut(&self, tag: Tag) -> Result<Proof, StepError> {
        Self::cut(self, tag)
    }
    fn remove(&self, lease: LeaseId, progress: &dyn Fn()) -> Result<(), StepError> {
        Self::remove(self, lease, progress)
    }
    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Self::leases(self)
    }
}

/// FBBU, and who looks first whether the storage answers.
#[derive(Debug)]
pub(super) struct Fbbu {
    pub(super) backend: FbbuBackend,
    pub(super) supervisor: Supervisor,
}

impl Datagrams for Fbbu {
    fn bind(&self, tag: Tag, tenant: &str, file: &BlockFile) -> Result<Binding, BindError> {
        // It reads, too, on a thread of the daemon.
        answers::within_patience(&self.supervisor, &file.path).map_err(BindError::Stranded)?;
        self.backend.bind(tag, tenant, file)
    }
    fn extend(&self, tag: Tag, deadline: BootTime) {
        self.backend.extend(tag, deadline);
    }
    fn fenced(&self, tag: Tag) {
        self.backend.fenced(tag);
    }
    fn rotate(&self, tag: Tag) -> Result<Binding, BindError> {
        self.backend.rotate(tag)
    }
    fn retire_key(&self, tag: Tag) -> Result<Binding, StepError> {
        self.backend.retire_key(tag)
    }
    fn cut(&self, tag: Tag) -> Result<Proof, StepError> {
        self.backend.cut(tag)
    }
    fn retire(&self, tag: Tag, progress: &dyn Fn()) -> Result<(), StepError> {
        self.backend.retire(tag, progress)
    }
}

/// A pool in a directory, for tests.
#[cfg(test)]
pub(super) fn facts(identity: u128) -> Facts {
    Facts {
        identity: identity.to_be_bytes(),
        name: "/pool".into(),
        device: None,
        capacity: 1 << 30,
        align: 4096,
        block_bytes: 4096,
        layout: fabricbios_lease::Layout::Amounts,
        read_only: false,
        removable: false,
    }
}
