//! A pool of the last run that is not available now. The node grants and touches nothing of it; its leases keep their
//! parts.

use fabricbios_contract::{Part, Store, TellCondition};
use fabricbios_lease::{BindError, BindOrder, BindingId, Condition, Placement, Proof, StepError};
use fabricbios_wire::LeaseId;

/// See the module.
#[derive(Debug)]
pub(super) struct Withheld {
    why: String,
}

impl Withheld {
    pub(super) fn new(why: String) -> Self {
        Self { why }
    }

    fn error(&self) -> StepError {
        StepError::new("find pool", format!("it is withheld: {}", self.why))
    }
}

impl Store for Withheld {
    fn prepare(&self, _: &BindOrder, _: &dyn Fn()) -> Result<(), StepError> {
        Err(self.error())
    }
    fn open(&self, _: &BindOrder) -> Result<Part, BindError> {
        Err(BindError::Failed(self.error()))
    }
    fn confirm(&self, _: BindingId) -> Result<(), StepError> {
        Err(self.error())
    }
    fn forget(&self, _: BindingId, _: &Placement) -> Result<(), StepError> {
        Err(self.error())
    }
    /// Fails for a lease on record, which stays fenced. The node looks for volumes that are not on record when the pool
    /// is available again.
    fn release(
        &self,
        _: BindingId,
        placement: Option<&Placement>,
        _: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        placement.map_or(Ok(Proof::default()), |_| Err(self.error()))
    }
    /// Empty: the node looks for volumes when the pool is available again.
    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(Vec::new())
    }
    fn tell_condition(&self, tell: TellCondition) {
        tell(Condition::Unavailable(format!(
            "the pool is withheld: {}",
            self.why
        )));
    }
}
