//! The store of a resource.

use std::{
    any::{Any, type_name},
    path::PathBuf,
    sync::Arc,
};

use fabricbios_lease::{
    BindError, BindOrder, BindingId, Condition, Extent, Placement, Proof, StepError,
};
use fabricbios_wire::LeaseId;

/// Keeps the leased bytes or blocks, gives each lease its part, and cleans a part before the next lease gets it.
///
/// Calls may block, and come from several threads at once. A call for one lease never waits for a call for another.
/// Calls for one lease come one after the other. After its release nothing is opened for it and, but for another attempt
/// after an error, nothing released: the provider knows the released leases.
pub trait Store: Send + Sync + 'static {
    /// The long step of [`Store::open`] for a new lease: cleans its part. Called right before `open`, on the same
    /// thread; gives no access. `progress` is called at least every 16 MiB.
    ///
    /// # Errors
    /// The part is not clean. There is no binding, and nothing is left behind.
    fn prepare(&self, order: &BindOrder, progress: &dyn Fn()) -> Result<(), StepError>;

    /// The part of a lease, for its paths. An existing part is returned unchanged. If there is none and the order does
    /// not adopt one, the store makes the part.
    ///
    /// # Errors
    /// There is no part, and nothing is left behind unless the error says so.
    fn open(&self, order: &BindOrder) -> Result<Part, BindError>;

    /// The grant of a lease is in the journal, and the client has no answer yet. A store that recognises outdated
    /// journals by a mark of its own has written this mark to its disk when this call returns.
    ///
    /// # Errors
    /// The mark is not written. The client does not receive the lease, which ends.
    fn confirm(&self, binding_id: BindingId) -> Result<(), StepError>;

    /// Takes back a part that no path has opened: no client has used the part.
    ///
    /// # Errors
    /// The part, or some of it, remains.
    fn forget(&self, binding_id: BindingId, placement: &Placement) -> Result<(), StepError>;

    /// After every path was removed: cleans the part and takes it back, once. Returns what was cleaned, how much and
    /// how; nothing for a part that does not exist any more. `placement` is absent if it is not on record. `progress`
    /// is called at least every 16 MiB.
    ///
    /// # Errors
    /// The part is not clean; no other lease gets it.
    fn release(
        &self,
        binding_id: BindingId,
        placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError>;

    /// Every lease that has something in the store, also incomplete parts and those of an earlier process.
    ///
    /// # Errors
    /// The store cannot be read.
    fn leases(&self) -> Result<Vec<LeaseId>, StepError>;

    /// The part that a lease has in the store, if it has positions that no other lease can get meanwhile; for strays,
    /// whose part is not on record. Never blocks. Most stores know of none.
    fn place_of(&self, _lease: LeaseId) -> Option<Placement> {
        None
    }

    /// Repairs a store whose condition is [`Condition::Failed`], as far as its leases allow. The receiver of
    /// [`Store::tell_condition`] gets the outcome before this returns. Most stores cannot fail so, and do nothing.
    ///
    /// # Errors
    /// The repair failed; the condition is unchanged.
    fn repair(&self) -> Result<(), StepError> {
        Ok(())
    }

    /// Whether the driver's own thread may call `prepare`, `open`, `forget` and `release` for this part: they wait for no
    /// disk, no device and no process, and take some microseconds.
    fn is_inline(&self, _placement: &Placement) -> bool {
        false
    }

    /// Calls `tell` at each change of the store's condition; also at once, if the condition is not good.
    fn tell_condition(&self, tell: TellCondition);
}

/// Receives the condition of a store. Never blocks.
pub type TellCondition = Box<dyn Fn(Condition) + Send>;

/// A lease's part of a store, as its paths get it.
#[derive(Clone, Debug)]
pub struct Part {
    /// The place in the store, or the amount.
    pub placement: Placement,
    record: Arc<dyn Any + Send + Sync>,
}

impl Part {
    /// A part that its placement describes completely.
    #[must_use]
    pub fn at(placement: impl Into<Placement>) -> Self {
        Self::with(placement, ())
    }

    /// A part with the record of the store: what the paths of the kind must know of the lease, such as its
    /// [`Volume`].
    #[must_use]
    pub fn with(placement: impl Into<Placement>, record: impl Any + Send + Sync) -> Self {
        Self {
            placement: placement.into(),
            record: Arc::new(record),
        }
    }

    /// The record of the store.
    ///
    /// # Errors
    /// The record is of another type: the node has put path and store of two kinds together.
    pub fn record<R: Any + Send + Sync>(&self) -> Result<Arc<R>, BindError> {
        let record = Arc::clone(&self.record).downcast();
        record.map_err(|_other| {
            let why = format_args!("the store of this path keeps no {}", type_name::<R>());
            BindError::Failed(StepError::new("open part", why))
        })
    }

    /// See [`Placement::extent`].
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.placement.extent()
    }
}

/// A lease's blocks, as a file or device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The path of the file or device.
    pub path: PathBuf,
    /// Length in bytes.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// The volume is read-only.
    pub read_only: bool,
}
