//! What gives a client access.

use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Linger, Proof, StepError,
};
use fabricbios_wire::{Binding, LeaseId};
use serde::{Deserialize, Serialize};

use crate::Part;

/// Gives clients access to parts of a store and ends it, with proof.
///
/// Blocking unless said otherwise; called from several threads at once. A call for one lease never waits for a call for
/// another, except `bind` for `bind`. [`DataPath::revoke`] waits for nothing that is being made.
pub trait DataPath: Send + Sync + 'static {
    /// Makes the binding of `order.tag`. A binding of an older generation goes on until the new one is connected; then
    /// it is cut, and only then the new one opens. Never opens access after a [`DataPath::revoke`] of the same or a newer
    /// generation has begun. Until the first [`DataPath::extend`] a path that looks at the clock gives no access.
    ///
    /// # Errors
    /// There is no new binding. Unless the error is `Lost` or `Stranded`, the one before is as it was.
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError>;

    /// The lease may be used until then, on the boot-time clock. The newest call counts, also where its deadline is the
    /// earlier one. `Ok`: the deadline is in force here, or there is nothing
    /// here yet that a deadline could end.
    ///
    /// # Errors
    /// The binding was cut here: the lease cannot go on.
    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut>;

    /// The end of the lease could not be proved: whoever still asks may be told.
    fn fenced(&self, binding_id: BindingId);

    /// True: [`DataPath::extend`] and [`DataPath::fenced`] never block, so the driver itself may call them.
    fn extends_at_once(&self) -> bool;

    /// Gives the binding a new key beside the old one, which works until [`DataPath::retire_key`]. Over NVMe-oF the old one
    /// is dead for new connections at once; connections that are there go on.
    ///
    /// # Errors
    /// `Refused` and `Failed` leave the old key as it was.
    fn rotate(&self, binding_id: BindingId) -> Result<Binding, BindError>;

    /// Ends the key before the last rotation: it is proved dead when this returns.
    ///
    /// # Errors
    /// It may still work.
    fn retire_key(&self, binding_id: BindingId) -> Result<Binding, StepError>;

    /// Ends access, by the lease's name alone: also of a lease that another process has bound, and where nothing is known
    /// of it any more. Idempotent.
    ///
    /// # Errors
    /// Somebody may still have access. [`DataPath::verify`] is not called before another try has worked.
    fn revoke(&self, binding_id: BindingId, linger: Linger) -> Result<Revoked, StepError>;

    /// Proves that access has ended. Without `revoked`, which a crash takes away, the proof looks at everything that
    /// the lease may have had.
    ///
    /// # Errors
    /// It is not proved.
    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError>;

    /// After the proof: takes away what is left of the lease. Nothing of it uses the part any more when this returns.
    /// Idempotent. `progress` is called whenever something has moved.
    ///
    /// # Errors
    /// Something may still use the part.
    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError>;

    /// Every lease of which the path has something, also of an earlier process, whole or half made.
    ///
    /// # Errors
    /// The path cannot be looked at.
    fn leases(&self) -> Result<Vec<LeaseId>, StepError>;
}

/// Access has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// What was done.
    pub steps: Proof,
    /// The steps are the proof: [`DataPath::verify`] has nothing to add and takes no time.
    pub is_proved: bool,
    /// What [`DataPath::verify`] of the same path wants to know of it. Nobody else reads it.
    pub found: Vec<u8>,
}

impl Revoked {
    /// With nothing left to prove.
    #[must_use]
    pub fn proved(steps: Proof) -> Self {
        Self {
            steps,
            is_proved: true,
            found: Vec::new(),
        }
    }
}
