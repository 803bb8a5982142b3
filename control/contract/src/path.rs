//! The access of clients to a store.

use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Linger, Proof, StepError,
};
use fabricbios_wire::{Binding, LeaseId, PeerChange, ResourceId};

use crate::Part;

/// Which calls of a path the driver's own thread may make. Such a call waits for no disk, no device, no peer, no process
/// and no lock that is held over such a wait, and takes some microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Inline {
    /// None but those that never block.
    Nothing,
    /// [`DataPath::revoke`] and [`DataPath::verify`] too.
    Cut,
    /// All of them.
    Everything,
}

/// Gives clients access to parts of a store and ends it, with proof.
///
/// Calls may block unless stated otherwise, and come from several threads at once. A call for one lease never waits for
/// a call for another, except `bind` for `bind`. [`DataPath::revoke`] never waits for a `bind`.
pub trait DataPath: Send + Sync + 'static {
    /// The calls that the driver's own thread may make, for leases of this resource.
    fn inline(&self, _resource_id: ResourceId) -> Inline {
        Inline::Nothing
    }

    /// Makes the binding of `order.binding_id`. A binding of an older generation goes on until the new one is
    /// connected; then the older one is cut, and only then the new one opens. Never opens access after a
    /// [`DataPath::revoke`] of the same or a newer generation has begun; access that was being opened at that moment is
    /// ended before the proof. Before the first [`DataPath::extend`], a path that checks deadlines itself gives no
    /// access.
    ///
    /// # Errors
    /// There is no new binding. Unless the error is `Lost` or `Stranded`, the older binding is unchanged.
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError>;

    /// Sets the deadline of the lease, on the boot-time clock. The newest call counts, even if its deadline is earlier.
    /// Never blocks: the driver's own thread calls it, in the order of the orders. `Ok`: the deadline is in force here,
    /// or the path has not bound the lease yet.
    ///
    /// # Errors
    /// The binding is already cut here: the lease cannot go on.
    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut>;

    /// The end of the lease is not proved: the path may report this to clients that still ask. Never blocks. A path
    /// without this method reports nothing.
    fn fenced(&self, _binding_id: BindingId) {}

    /// Gives the binding a new key beside the old one, which works until [`DataPath::retire_key`]. Over NVMe-oF the old
    /// key opens no new connection from now on; live connections go on. A path without this method has no keys.
    ///
    /// # Errors
    /// After `Refused` and `Failed` the old key is unchanged.
    fn rotate(&self, binding_id: BindingId) -> Result<Binding, BindError> {
        Err(BindError::Refused(no_key(binding_id)))
    }

    /// Retires the key from before the last rotation. When this returns, the old key is proved dead.
    ///
    /// # Errors
    /// The old key may still work.
    fn retire_key(&self, binding_id: BindingId) -> Result<Binding, StepError> {
        Err(no_key(binding_id))
    }

    /// Changes the queue pairs of a live binding: connects those that join, or ends those that leave, with proof. The
    /// others go on. Never opens access after a [`DataPath::revoke`] has begun. The result has every queue pair, those
    /// that joined last. Only a path over RDMA has queue pairs.
    ///
    /// # Errors
    /// After `Refused` and `Failed` no queue pair has joined, and those that could not be ended still belong to the
    /// binding.
    fn change_peers(
        &self,
        binding_id: BindingId,
        _change: &PeerChange,
    ) -> Result<Binding, BindError> {
        let why = format_args!("{binding_id}: this path has no queue pairs");
        Err(BindError::Refused(StepError::new("change peers", why)))
    }

    /// Ends access, by the lease's name alone: also for a lease that another process has bound, or that this process
    /// does not know. Idempotent.
    ///
    /// # Errors
    /// A client may still have access. [`DataPath::verify`] is called only after a later try succeeds.
    fn revoke(&self, binding_id: BindingId, linger: Linger) -> Result<Revoked, StepError>;

    /// Proves that access has ended. After a crash there is no `revoked`: then the proof checks everything that the
    /// lease may have had.
    ///
    /// # Errors
    /// The end of access is not proved.
    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError>;

    /// After the proof: removes all objects of the lease. When this returns, no object uses the part any more.
    /// Idempotent. `progress` is called at each step.
    ///
    /// # Errors
    /// An object may still use the part.
    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError>;

    /// Every lease that has objects in the path, also incomplete ones and those of an earlier process.
    ///
    /// # Errors
    /// The path cannot be read.
    fn leases(&self) -> Result<Vec<LeaseId>, StepError>;
}

/// The result of [`DataPath::revoke`]: access has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revoked {
    /// The steps.
    pub steps: Proof,
    /// The steps are the proof: [`DataPath::verify`] has nothing to add and takes no time.
    pub is_proved: bool,
    /// Data for [`DataPath::verify`] of the same path. No other code reads this.
    pub found: Vec<u8>,
}

impl Revoked {
    /// Revoked by these steps, and not proved.
    #[must_use]
    pub fn by(steps: Proof) -> Self {
        Self {
            steps,
            ..Self::default()
        }
    }

    /// Revoked and already proved.
    #[must_use]
    pub fn proved(steps: Proof) -> Self {
        Self {
            steps,
            is_proved: true,
            found: Vec::new(),
        }
    }
}

fn no_key(binding_id: BindingId) -> StepError {
    let why = format_args!("{binding_id}: leases of this kind have no key");
    StepError::new("change key", why)
}
