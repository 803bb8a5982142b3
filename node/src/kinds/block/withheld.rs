//! A pool of the last run that is not available now. The node grants and touches nothing of it; its leases keep their
//! parts.

use fabricbios_contract::{Part, Store, TellCondition};
use fabricbios_lease::{BindError, BindOrder, BindingId, Condition, Placement, Proof, StepError};
use fabricbios_wire::LeaseId;

use crate::kinds::Continuity;

/// Why a pool is withheld.
#[derive(Debug, thiserror::Error)]
pub(super) enum WhyWithheld {
    /// The machine or the operator: the pool is not there, or cannot be opened.
    #[error("{0:#}")]
    Unavailable(anyhow::Error),
    /// The operator: the journal is an older copy.
    #[error(
        "the pool knows of {of_pool} grants of this node, and the journal of {of_journal}: an older copy of \
         the journal was put back, and leases since then are not on record. Nothing of the pool is touched: \
         put the newest journal back, or start with --force, which ends every lease of the pool and \
         overwrites what it left"
    )]
    JournalIsOlder {
        /// The number of grants that the pool has stored.
        of_pool: u64,
        /// The same of the journal.
        of_journal: u64,
    },
}

impl WhyWithheld {
    pub(super) fn continuity(&self) -> Continuity {
        match self {
            Self::Unavailable(_) => Continuity::Absent,
            Self::JournalIsOlder { .. } => Continuity::JournalIsOlder,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Withheld(pub(super) WhyWithheld);

impl Withheld {
    fn error(&self) -> StepError {
        StepError::new("find pool", format_args!("it is withheld: {}", self.0))
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
            self.0
        )));
    }
}
