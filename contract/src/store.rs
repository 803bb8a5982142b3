//! What keeps the thing that is leased.

use std::{os::fd::OwnedFd, path::PathBuf, sync::Arc};

use fabricbios_lease::{BindError, BindOrder, BindingId, Condition, Extent, Placement, StepError};
use fabricbios_wire::LeaseId;
use serde::{Deserialize, Serialize};

/// Keeps what is leased, gives each lease its part, and makes a part clean before anybody else has it.
///
/// Blocking; called from several threads at once. A call for one lease never waits for a call for another. Calls for one
/// lease come one after the other. A call for a lease that was released touches nothing, however late it comes: its part
/// may be somebody else's.
pub trait Store: Send + Sync + 'static {
    /// The part of [`Store::open`] that takes long for a new lease: makes what it will have clean. Comes right before
    /// that, on the same thread, and gives nobody anything. `progress` is called at least every 16 MiB.
    ///
    /// # Errors
    /// It is not clean. There is no binding, and nothing was left behind.
    fn prepare(&self, order: &BindOrder, progress: &dyn Fn()) -> Result<(), StepError>;

    /// The part of a lease, for its paths. Made where the store has none of this lease and the order adopts none;
    /// else what there is, as it is.
    ///
    /// # Errors
    /// There is no part, and nothing was left behind unless the error says so.
    fn open(&self, order: &BindOrder) -> Result<Part, BindError>;

    /// The grant of a lease is in the journal, and nobody was told of it yet. A store that can tell an older journal from
    /// this one by something of its own has that on its disk when this returns.
    ///
    /// # Errors
    /// It is not there. Nobody is told of the lease, which ends.
    fn confirm(&self, binding_id: BindingId) -> Result<(), StepError>;

    /// Takes back the part of a lease that no path has opened: nobody was in it.
    ///
    /// # Errors
    /// Something of it stays.
    fn forget(&self, binding_id: BindingId, placement: &Placement) -> Result<(), StepError>;

    /// After every path was removed: makes the part clean and takes it back, once. `placement` is absent where nobody has
    /// it on record. `progress` is called at least every 16 MiB.
    ///
    /// # Errors
    /// It is not clean; nobody else gets it.
    fn release(
        &self,
        binding_id: BindingId,
        placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<(), StepError>;

    /// Every lease of which the store has something, also of an earlier process, whole or half made.
    ///
    /// # Errors
    /// The store cannot be looked at.
    fn leases(&self) -> Result<Vec<LeaseId>, StepError>;

    /// From now on `tell` is told how the store does whenever that changes; at once, if it does not do well.
    fn tell_condition(&self, tell: TellCondition);
}

/// Is told how a store does. Never blocks.
pub type TellCondition = Box<dyn Fn(Condition) + Send>;

/// A lease's part of a store, as its paths get it.
#[derive(Clone, Debug)]
pub struct Part {
    /// Where it is within the store, or how much of it.
    pub placement: Placement,
    /// Of a store of blocks.
    pub volume: Option<Volume>,
    /// What the part is reached by, where that is a descriptor: of a namespace, a process, a device.
    pub descriptor: Option<Arc<OwnedFd>>,
}

impl Part {
    /// Of a store whose paths need to know no more.
    #[must_use]
    pub fn at(placement: impl Into<Placement>) -> Self {
        Self {
            placement: placement.into(),
            volume: None,
            descriptor: None,
        }
    }

    /// See [`Placement::extent`].
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.placement.extent()
    }
}

/// A lease's blocks, as a file or device of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Where.
    pub path: PathBuf,
    /// How much.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Nothing can be written.
    pub read_only: bool,
}
